//! Image first: before a running version is ended, the new one's image is had (S-79).
//!
//! A pod of its own pulls it, on the node where the old version runs if there is room. Its command is a path that no image has, so that
//! nothing of the image ever runs: that its container cannot be started is how one knows that the image is there.

use data_encoding::BASE32_NOPAD;
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec,
    PreferredSchedulingTerm, ResourceRequirements, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pando_api::{Error, ReasonKind};
use pando_cluster::names::{label, object, role};
use pando_cluster::{Env, Failure, budget};

use crate::call::{Begun, Call, name};
use crate::error::unchanged;
use crate::follow::Followed;
use crate::objects::workload_meta;
use crate::plan::Workload;
use crate::pod::{APP, Template, bare, confined, image_of, pull_policy, pull_secrets};
use crate::sight;
use crate::wait::{self, End};

/// A path that no image has.
const NO_PROGRAM: &str = "/pando.dev/nothing-of-this-image-runs";

/// The pod that runs the workload while its image is had: another image, or one that the registry is asked for at every start.
pub(crate) fn older<'a>(own: &'a [Pod], workload: &Workload) -> Option<&'a Pod> {
    let needs_it = |pod: &Pod| image_of(pod) != Some(workload.image.as_str()) || pull_policy(workload) == "Always";
    own.iter().find(|pod| sight::is_running(pod, false) && needs_it(pod))
}

/// Has the workload's image pulled, while `old` runs. `false` when somebody took the pull away before it came to its end.
///
/// # Errors
///
/// When the image cannot be had, or not in the time that a start may take. Whatever else keeps the pull from its end (no room, a node
/// in trouble) is no verdict about the image, and no error.
pub(crate) async fn image(call: &Call<'_>, template: &Template<'_>, old: &Pod) -> Result<bool, Error> {
    let workload = template.workload;
    call.tell(&workload.name, "pulling the image", workload.image.as_str());
    let desired = pull_pod(template, sight::node(old), call.env);
    let begun = Begun::Pull(name(&desired.metadata));
    call.begin(begun.clone());
    let made = match call.create(&desired).await {
        // The answer of a try before was lost: nobody else draws this name.
        Err(error) if error.is_already_exists() => match call.read::<Pod>(&name(&desired.metadata)).await {
            Ok(Some(made)) => Ok(made),
            Ok(None) => call.create(&desired).await,
            Err(unread) => Err(unread),
        },
        made => made,
    };
    let pod = match made {
        Ok(pod) => pod,
        // No room even for this: the start, in the place of what runs, will tell.
        Err(error) if matches!(error.failure, Failure::QuotaExceeded(_)) => {
            tracing::warn!(app = %call.app, error = &error as &dyn std::error::Error, "image not pulled ahead");
            return Ok(true);
        }
        // Whatever refuses this pod refuses its successor too, or could not be asked.
        Err(error) => return Err(left_running(unchanged(error))),
    };
    // Begun only now: what is listed from here on holds the pod, or it is gone.
    let mut follower = call.follow(Followed::Pod(name(&pod.metadata))).await?;
    let end = wait::follow(call, &workload.name, &mut follower, &pod).await;
    call.delete(&pod).await.map_err(unchanged)?;
    call.finish(&begun);
    match end {
        End::Failed { kind, error, pod } if is_about_the_image(kind, &pod) => Err(left_running(*error)),
        End::Failed { kind, error, .. } if kind != ReasonKind::StartError => {
            tracing::warn!(app = %call.app, error = &*error as &dyn std::error::Error, "image not pulled ahead");
            Ok(true)
        }
        End::Failed { .. } | End::Running(_) | End::Ended { .. } => Ok(true),
        End::Taken => Ok(false),
    }
}

/// The error, with the good news.
fn left_running(mut error: Error) -> Error {
    error.message.push_str("; the version before it was left running");
    error
}

/// Whether the pull failed by the image: it cannot be had, or it takes too long. What keeps a pod from its sandbox comes before it.
fn is_about_the_image(kind: ReasonKind, pod: &Pod) -> bool {
    kind == ReasonKind::Image || kind == ReasonKind::Unknown && sight::has_sandbox(pod)
}

/// A pod that pulls the image and cannot run it.
fn pull_pod(template: &Template<'_>, node: &str, env: &Env) -> Pod {
    let Template { app, workload, pull_secret, settings, .. } = *template;
    let mut random = [0; 5];
    env.random.fill(&mut random);
    let suffix = BASE32_NOPAD.encode(&random).to_ascii_lowercase();
    let mut metadata =
        workload_meta(app, &workload.name, format!("{}-{}-{suffix}", object::PULL_SECRET, workload.name));
    metadata.labels.get_or_insert_default().insert(label::ROLE.to_owned(), role::PULL.to_owned());
    Pod {
        metadata,
        spec: Some(PodSpec {
            termination_grace_period_seconds: Some(1),
            // Left behind by a caller that died, it ends by itself; and not before who waits for it gives up.
            active_deadline_seconds: i64::try_from((settings.start_timeout + budget::STOP_SLACK).as_secs()).ok(),
            image_pull_secrets: pull_secrets(pull_secret),
            affinity: Some(near(node)),
            security_context: Some(confined()),
            containers: vec![Container {
                name: APP.to_owned(),
                image: Some(workload.image.to_string()),
                image_pull_policy: Some(pull_policy(workload).to_owned()),
                command: Some(vec![NO_PROGRAM.to_owned()]),
                resources: Some(amounts()),
                security_context: Some(SecurityContext {
                    allow_privilege_escalation: Some(false),
                    capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
                    ..SecurityContext::default()
                }),
                ..Container::default()
            }],
            ..bare(settings)
        }),
        status: None,
    }
}

/// Enough for a container runtime to find that it cannot start the program, within what the quota leaves for helpers.
fn amounts() -> ResourceRequirements {
    let amounts: std::collections::BTreeMap<_, _> = [("cpu", "50m"), ("memory", "64Mi")]
        .map(|(resource, amount)| (resource.to_owned(), Quantity(amount.to_owned())))
        .into();
    ResourceRequirements { requests: Some(amounts.clone()), limits: Some(amounts), claims: None }
}

/// On that node if it can be: pinned to it, the pod would wait for room there while another node has some.
fn near(node: &str) -> Affinity {
    let this_one = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let preference = NodeSelectorTerm { match_fields: Some(vec![this_one]), match_expressions: None };
    Affinity {
        node_affinity: Some(NodeAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![PreferredSchedulingTerm {
                weight: 100,
                preference,
            }]),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}
