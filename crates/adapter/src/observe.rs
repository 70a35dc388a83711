//! What is there of a bundle: facts from its objects.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use pando_api::{Error, ObservedBundle, ObservedVolume, ObservedWorkload};
use pando_cluster::names::{annotation, annotation_value, is_ours, label, label_value, object};
use pando_cluster::{ClusterError, Kind};
use pando_network::open_addresses;

use crate::call::{Call, name};
use crate::digest::template_digest;
use crate::error::unread;
use crate::ground;
use crate::known::{ClusterFacts, Facts};
use crate::objects::{workload_of_pod, workload_of_record};
use crate::record::{Revision, pod_revision};
use crate::sight::{self, Sight};

/// Reads what is there (S-43 – S-46). One thing it also does: an ended pod that is still in the endpoints is taken out.
pub(crate) async fn observe(call: &Call<'_>, facts: &Facts) -> Result<ObservedBundle, Error> {
    let (namespace, facts) = futures::join!(ground::find(call), facts.fresh(call.cluster, call.env));
    let facts = facts.map_err(unread)?;
    if namespace?.is_none() {
        return Ok(ObservedBundle::default());
    }
    let objects = read(call).await.map_err(unread)?;
    for pod in objects.pods.iter().filter(|pod| is_ended_and_named(pod)) {
        call.retire(pod).await;
    }
    Ok(ObservedBundle {
        exists: true,
        workloads: objects.workloads(call, &facts),
        volumes: objects.volumes(call),
        drift: objects.drift(call, &facts),
    })
}

/// Whether the pod has ended and its record's selector may still select it.
pub(crate) fn is_ended_and_named(pod: &Pod) -> bool {
    sight::has_ended(pod) && Revision::of(&pod.metadata).is_some() && !sight::is_going(pod)
}

struct Objects {
    records: Vec<Service>,
    pods: Vec<Pod>,
    claims: Vec<PersistentVolumeClaim>,
    policies: Vec<NetworkPolicy>,
}

async fn read(call: &Call<'_>) -> Result<Objects, ClusterError> {
    let claims = call.list_request(Kind::PersistentVolumeClaim);
    let policies = call.list_request(Kind::NetworkPolicy);
    let (records, pods, claims, policies) = futures::try_join!(
        call.ours::<Service>(),
        call.ours::<Pod>(),
        call.cluster.list_all::<PersistentVolumeClaim>(&claims),
        call.cluster.list_all::<NetworkPolicy>(&policies),
    )?;
    Ok(Objects { records, pods, claims: claims.0, policies: policies.0 })
}

impl Objects {
    /// One entry a workload: from its current pod, or present and stopped from its record.
    fn workloads(&self, call: &Call<'_>, facts: &ClusterFacts) -> Vec<ObservedWorkload> {
        let mut workloads: BTreeMap<&str, Option<&Pod>> = BTreeMap::new();
        for record in &self.records {
            workloads.extend(workload_of_record(record).map(|workload| (workload, None)));
        }
        // The newest pod that is not behind its gate speaks for the workload.
        for pod in self.pods.iter().filter(|pod| !sight::is_gated(pod)) {
            let Some(workload) = workload_of_pod(pod) else { continue };
            let newest = workloads.entry(workload).or_default();
            if newest.is_none_or(|newest| pod_revision(newest) < pod_revision(pod)) {
                *newest = Some(pod);
            }
        }
        workloads.into_iter().map(|(workload, pod)| observed(call, workload, pod, facts)).collect()
    }

    fn volumes(&self, call: &Call<'_>) -> Vec<ObservedVolume> {
        let mut volumes: Vec<_> = self
            .claims
            .iter()
            .filter(|claim| is_ours(&claim.metadata))
            .filter_map(|claim| {
                Some(ObservedVolume {
                    volume_id: annotation_value(&claim.metadata, annotation::VOLUME_ID)?.to_owned(),
                    present: claim.metadata.deletion_timestamp.is_none(),
                    handle: format!("{}/{}", call.namespace(), name(&claim.metadata)),
                })
            })
            .collect();
        volumes.sort_by(|a, b| a.volume_id.cmp(&b.volume_id));
        volumes
    }

    fn drift(&self, call: &Call<'_>, facts: &ClusterFacts) -> Vec<String> {
        let mut drift = Vec::new();
        for policy in self.policies.iter().filter(|policy| !is_ours(&policy.metadata)) {
            drift.push(format!(
                "network policy {:?} was not made by Pando; policies add up, so it may open the app to others",
                name(&policy.metadata)
            ));
        }
        match self.policies.iter().find(|policy| policy.metadata.name.as_deref() == Some(object::DEFAULT_POLICY)) {
            None => {
                drift.push(format!("network policy {:?} is missing: the app is not isolated", object::DEFAULT_POLICY));
            }
            Some(policy) => {
                let nodes = facts.addresses.nodes.iter().copied().map(|address| ("node", address));
                let servers = facts.addresses.api_server.iter().map(|server| ("API server", server.ip()));
                for (what, address) in nodes.chain(servers) {
                    if !open_addresses(policy, [address]).is_empty() {
                        drift.push(format!(
                            "{what} address {address} came after the app's policy was written and is open to it"
                        ));
                    }
                }
            }
        }
        let template = template_digest(call.settings);
        for pod in self.pods.iter().filter(|pod| !sight::has_ended(pod)) {
            let workload = workload_of_pod(pod).unwrap_or_default();
            if annotation_value(&pod.metadata, annotation::TEMPLATE_DIGEST) != Some(&template) {
                drift.push(format!("workload {workload:?} runs by an outdated template; its next replacement ends that (outdated_template)"));
            }
            let record = self.records.iter().find(|record| workload_of_record(record) == Some(workload));
            if record.is_none() && !sight::is_going(pod) {
                drift.push(format!("workload {workload:?} runs without its Service, so nothing reaches it by name"));
            }
        }
        for record in &self.records {
            let selector = record.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let selected = selector.and_then(|selector| selector.get(label::REVISION)).map(String::as_str);
            if selected != label_value(&record.metadata, label::REVISION) {
                drift.push(format!("Service {:?} does not select its workload's newest start", name(&record.metadata)));
            }
        }
        drift
    }
}

fn observed(call: &Call<'_>, workload: &str, pod: Option<&Pod>, facts: &ClusterFacts) -> ObservedWorkload {
    let absent = ObservedWorkload { name: workload.to_owned(), present: true, ..ObservedWorkload::default() };
    let Some(pod) = pod else { return absent };
    let lost = facts.is_lost(sight::node(pod));
    let running = sight::is_running(pod, lost);
    let exit_code = match sight::sight(pod) {
        Sight::Ended { exit_code, .. } => exit_code,
        Sight::Gated | Sight::Coming { .. } | Sight::Running => None,
    };
    ObservedWorkload {
        running,
        image_digest: sight::image_digest(pod),
        started_at: sight::started_at(pod),
        exit_code,
        healthy: running.then(|| sight::healthy(pod, call.env.wall.now())).flatten(),
        reason: sight::reason(pod, lost),
        ..absent
    }
}
