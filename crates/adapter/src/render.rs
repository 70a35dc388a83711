//! What an apply would make, for people: nothing is contacted, nothing drawn, and no secret shown.

use pando_api::Secret;
use pando_cluster::names::annotation;
use pando_cluster::{Object, Resource};
use pando_network::{ClusterAddresses, Egress, default_policy};

use crate::config::Settings;
use crate::digest::{EnvKey, PlanDigest};
use crate::objects;
use crate::plan::Plan;
use crate::pod::{self, Template};
use crate::pull::Pulls;
use crate::record::Revision;

/// The objects of the plan, in the order in which they come to be.
pub(crate) fn render(settings: &Settings, plan: &Plan) -> Vec<Object> {
    let plan = redacted(plan);
    let (app, cluster) = (&plan.app, ClusterAddresses::default());
    let pulls = Pulls::of(&plan.workloads);
    // Stands for the one that is drawn; what depends on it is left out.
    let key = EnvKey::blank();
    let mut rendered = vec![
        objects::namespace(&plan).into_object(),
        objects::role_binding(app, settings).into_object(),
        objects::service_account(app).into_object(),
        default_policy(app, &settings.network, &cluster, Egress::Open).into_object(),
        objects::quota(app, &plan.resources()).into_object(),
    ];
    rendered.extend(pulls.secrets(app).into_iter().map(Resource::into_object));
    rendered
        .extend(plan.volumes.iter().map(|volume| pando_storage::claim(app, volume, &settings.storage).into_object()));
    for workload in &plan.workloads {
        let mut secret = objects::env_secret(app, workload, &key, objects::ENV_MADE);
        secret.metadata.annotations.get_or_insert_default().remove(annotation::ENV_DIGEST_KEY);
        rendered.push(secret.into_object());
        rendered.extend(objects::files(app, workload).map(Resource::into_object));
    }
    let revision = Revision::default().next();
    for workload in &plan.workloads {
        let digest = PlanDigest::of(workload, &key);
        let pull_secret = pulls.name_for(workload);
        let pull_secret = pull_secret.as_deref();
        let template = Template { app, workload, digest: &digest, pull_secret, settings, cluster: &cluster };
        let mut pod = pod::pod(&template, revision);
        pod.metadata.annotations.get_or_insert_default().remove(annotation::PLAN_DIGEST);
        rendered.push(objects::service(app, workload, revision).into_object());
        rendered.push(pod.into_object());
    }
    rendered
}

/// The plan without its secrets.
fn redacted(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    let hidden = || Secret::new(Secret::REDACTED);
    for workload in &mut plan.workloads {
        workload.env.values_mut().for_each(|value| *value = hidden());
        if let Some(credential) = &mut workload.credential {
            for secret in [&mut credential.auth.password, &mut credential.auth.identity_token] {
                if !secret.is_empty() {
                    *secret = hidden();
                }
            }
        }
    }
    plan
}
