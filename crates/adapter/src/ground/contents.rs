//! What workloads are given: their environments, credentials, files and claims.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use pando_api::{Code, Error};
use pando_cluster::converge::{ConvergeError, Known};
use pando_cluster::names::{annotation, annotation_value, is_ours, label, label_value, role};
use pando_cluster::{Failure, Kind, Resource};
use pando_storage::Volume;

use crate::call::{Call, name};
use crate::digest::EnvKey;
use crate::error::{not_made, unchanged, unread};
use crate::objects;
use crate::plan::{Plan, Workload};
use crate::pull::Pulls;
use crate::view::AppView;

/// The Secrets of an app, as they were found or made.
pub(super) struct Secrets {
    /// For each of the plan's workloads.
    pub(super) environments: Vec<Environment>,
    /// What the plan has no use for.
    pub(super) idle: Vec<Secret>,
}

/// The environment of a workload.
pub(super) struct Environment {
    pub(super) key: EnvKey,
    /// The key had to be drawn anew in a namespace that was there.
    pub(super) key_lost: bool,
    /// It held exactly the plan's values when this adapter first found it.
    pub(super) same: bool,
    /// It is to be changed, once no pod is there that could still read it.
    pub(super) pending: Option<Secret>,
}

/// Makes the environments' and credentials' Secrets.
pub(super) async fn secrets(call: &Call<'_>, plan: &Plan, pulls: &Pulls<'_>, fresh: bool) -> Result<Secrets, Error> {
    let live: Vec<Secret> = if fresh { Vec::new() } else { call.ours().await.map_err(unread)? };
    let environments = try_join_all(plan.workloads.iter().map(|workload| {
        let found = named(&live, &objects::env_secret_name(&workload.name));
        environment(call, workload, found, fresh)
    }));
    let credentials = pulls.secrets(call.app);
    let made = try_join_all(credentials.iter().map(|secret| async {
        call.ensure(secret, known(named(&live, &name(&secret.metadata)))).await.map_err(not_made)
    }));
    let (environments, _) = futures::try_join!(environments, made)?;
    let used: BTreeSet<String> = credentials.iter().map(|secret| name(&secret.metadata)).collect();
    let idle = live.into_iter().filter(|secret| is_idle(secret, plan, &used)).collect();
    Ok(Secrets { environments, idle })
}

/// Whether a Secret of ours holds what the plan does not name.
pub(crate) fn is_idle(secret: &Secret, plan: &Plan, credentials: &BTreeSet<String>) -> bool {
    let meta = &secret.metadata;
    match label_value(meta, label::ROLE) {
        Some(role::PULL) => !credentials.contains(&name(meta)),
        Some(_) => false,
        None => objects::workload_of(meta).is_some_and(|workload| plan.workload(workload).is_none()),
    }
}

/// Makes an environment's Secret. Its key is kept, or drawn anew when there is none.
async fn environment(
    call: &Call<'_>,
    workload: &Workload,
    mut live: Option<Secret>,
    fresh: bool,
) -> Result<Environment, Error> {
    if live.is_none() {
        let key = EnvKey::random(call.env);
        match call.create(&objects::env_secret(call.app, workload, &key, objects::ENV_MADE)).await {
            Ok(_) => return Ok(Environment { key, key_lost: !fresh, same: false, pending: None }),
            // Another caller was quicker: its key counts, or each would take the other's pod for another plan's.
            Err(error) if error.is_already_exists() => {}
            Err(error) => return Err(unchanged(error)),
        }
        live = call.read::<Secret>(&objects::env_secret_name(&workload.name)).await.map_err(unread)?;
    }
    let kept = live.as_ref().and_then(kept_key);
    let key_lost = kept.is_none();
    let key = kept.unwrap_or_else(|| EnvKey::random(call.env));
    let (before, same) = before(live.as_ref(), workload);
    let desired = objects::env_secret(call.app, workload, &key, &before);
    if live.as_ref().is_some_and(|live| !holds(live, workload)) {
        // A pod on its way reads it when its container starts, and would run by another plan's environment than its own.
        return Ok(Environment { key, key_lost, same, pending: Some(desired) });
    }
    call.ensure(&desired, known(live)).await.map_err(not_made)?;
    Ok(Environment { key, key_lost, same, pending: None })
}

/// What was read of an object, for making it so.
fn known<T>(live: Option<T>) -> Known<T> {
    live.map_or(Known::Absent, |live| Known::Live(Box::new(live)))
}

/// What is noted of the Secret as it was before this adapter wrote to it, and whether it held the plan's environment then and does
/// so now. It is noted with the first write: a later call finds the plan's values there, whatever a pod that was made before has.
pub(crate) fn before(live: Option<&Secret>, workload: &Workload) -> (String, bool) {
    let Some(secret) = live else { return (objects::ENV_MADE.to_owned(), false) };
    let holds = holds(secret, workload);
    let found = if holds { objects::ENV_SAME } else { objects::ENV_OTHER };
    let before = annotation_value(&secret.metadata, annotation::ENV_BEFORE).unwrap_or(found);
    (before.to_owned(), holds && before == objects::ENV_SAME)
}

/// The key of the environment's digest, as its Secret keeps it.
pub(crate) fn kept_key(secret: &Secret) -> Option<EnvKey> {
    EnvKey::parse(annotation_value(&secret.metadata, annotation::ENV_DIGEST_KEY)?)
}

/// Whether the Secret's data is the workload's environment.
fn holds(secret: &Secret, workload: &Workload) -> bool {
    let data = secret.data.iter().flatten().map(|(key, value)| (key.as_str(), &*value.0));
    data.eq(workload.env.iter().map(|(key, value)| (key.as_str(), value.expose().as_bytes())))
}

/// The carried files of an app, as they were found or made.
pub(super) struct Files {
    /// Those that are to be changed, once no pod is there that could still read them.
    pub(super) pending: Vec<ConfigMap>,
    /// What the plan has no use for.
    pub(super) idle: Vec<ConfigMap>,
}

/// Makes the carried files.
pub(super) async fn files(call: &Call<'_>, plan: &Plan, fresh: bool) -> Result<Files, Error> {
    let live: Vec<ConfigMap> = if fresh { Vec::new() } else { call.ours().await.map_err(unread)? };
    let desired: Vec<ConfigMap> =
        plan.workloads.iter().filter_map(|workload| objects::files(call.app, workload)).collect();
    let used: BTreeSet<String> = desired.iter().map(|files| name(&files.metadata)).collect();
    let changes = |files: &ConfigMap| {
        named(&live, &name(&files.metadata))
            .is_some_and(|live: ConfigMap| is_ours(&live.metadata) && live.data != files.data)
    };
    let (pending, now): (Vec<_>, Vec<_>) = desired.into_iter().partition(changes);
    try_join_all(now.iter().map(|files| async {
        call.ensure(files, known(named(&live, &name(&files.metadata)))).await.map_err(not_made)
    }))
    .await?;
    Ok(Files { pending, idle: live.into_iter().filter(|files| is_idle_map(files, &used)).collect() })
}

/// Whether a config map of ours holds files of a workload that has none any more.
pub(crate) fn is_idle_map(files: &ConfigMap, used: &BTreeSet<String>) -> bool {
    objects::workload_of(&files.metadata).is_some() && !used.contains(&name(&files.metadata))
}

/// Makes the claims of the plan's volumes. Those of volumes that left the plan stay (S-40).
pub(super) async fn claims(
    call: &Call<'_>,
    plan: &Plan,
    seen: Option<&AppView>,
    fresh: bool,
) -> Result<Vec<PersistentVolumeClaim>, Error> {
    if plan.volumes.is_empty() {
        return Ok(Vec::new());
    }
    let request = call.list_request(Kind::PersistentVolumeClaim);
    let live: Vec<PersistentVolumeClaim> = match seen {
        _ if fresh => Vec::new(),
        Some(seen) => seen.claims.clone(),
        None => call.with_young_rights(|| call.cluster.list_all(&request)).await.map_err(unread)?.0,
    };
    let live = &live;
    let claims = plan.volumes.iter().map(|volume| claim(call, volume, named(live, &volume.claim_name())));
    let claims = try_join_all(claims).await?;
    if claims.iter().any(|claim| named(live, &name(&claim.metadata)).is_none()) {
        super::touch(call).await?;
    }
    Ok(claims)
}

async fn claim(
    call: &Call<'_>,
    volume: &Volume,
    live: Option<PersistentVolumeClaim>,
) -> Result<PersistentVolumeClaim, Error> {
    let was_there = live.is_some();
    let storage = &call.settings.storage;
    let (desired, known) = match live {
        None => (pando_storage::claim(call.app, volume, storage), Known::Absent),
        Some(live) => (pando_storage::beside(&live, call.app, volume, storage), Known::Live(Box::new(live))),
    };
    match call.ensure(&desired, known).await {
        Ok(made) => Ok(made.object),
        Err(ConvergeError::Cluster(error))
            if was_there && matches!(error.failure, Failure::Invalid { .. } | Failure::Refused(_)) =>
        {
            Err(not_grown(volume, unchanged(error)))
        }
        Err(ConvergeError::BeingDeleted { .. }) => {
            let message = format!("volume {:?} ({}) is being removed", volume.id, volume.claim_name());
            Err(Error::new(Code::AdapterFailed, message).remedy("apply again once it is gone, or name another volume"))
        }
        Err(error) => Err(not_made(error)),
    }
}

/// A claim that the API server would not change. What of it we change is its size.
fn not_grown(volume: &Volume, error: Error) -> Error {
    let message = format!("volume {:?} ({}): {}", volume.id, volume.claim_name(), error.message);
    Error::new(error.code, message)
        .remedy("keep the volume's size, or use a StorageClass that allows expansion (allowVolumeExpansion)")
        .caused_by(error)
}

/// The object of that name.
pub(crate) fn named<T: Resource>(objects: &[T], wanted: &str) -> Option<T> {
    objects.iter().find(|object| object.metadata().name.as_deref() == Some(wanted)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_secrets_are_never_idle() {
        let plan = Plan {
            app: pando_cluster::names::AppNamespace::of("a", &[]),
            labels: std::collections::BTreeMap::new(),
            workloads: Vec::new(),
            volumes: Vec::new(),
        };
        let secret = |labels: serde_json::Value| -> Secret {
            serde_json::from_value(serde_json::json!({"metadata": {"name": "s", "labels": labels}})).expect("a Secret")
        };
        let ours = "app.kubernetes.io/managed-by";
        for (labels, idle) in [
            (serde_json::json!({ours: "pando", "pando.dev/workload": "gone"}), true),
            (serde_json::json!({ours: "pando", "pando.dev/role": "pull"}), true),
            (serde_json::json!({ours: "pando", "pando.dev/role": "certificate"}), false),
            (serde_json::json!({ours: "helm", "pando.dev/workload": "gone"}), false),
            (serde_json::json!({ours: "pando"}), false),
        ] {
            assert_eq!(is_idle(&secret(labels.clone()), &plan, &BTreeSet::new()), idle, "{labels}");
        }
    }
}
