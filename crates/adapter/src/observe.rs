//! What is there of a bundle: facts from its objects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use pando_api::{Error, ObservedBundle, ObservedVolume, ObservedWorkload};
use pando_cluster::names::{AppNamespace, MANAGER, annotation, annotation_value, is_ours, label, label_value};
use pando_cluster::{ClusterError, Resource, Selector};

use crate::call::{Call, name};
use crate::config::Settings;
use crate::error::unread;
use crate::ground;
use crate::known::{ClusterFacts, Facts};
use crate::objects::{workload_of_pod, workload_of_record};
use crate::record::{Revision, pod_revision};
use crate::sight::{self, Sight};
use crate::view::{AppView, View};

/// How long what this process wrote may take to be seen in the view before the cluster is asked itself.
const CATCHING_UP: Duration = Duration::from_secs(1);

/// Says what is there (S-43 – S-46): from the view, without a call, where that is known to be up to date; otherwise from the
/// cluster. Then one thing is also done: an ended pod that is still in the endpoints is taken out, as the view does by itself.
pub(crate) async fn observe(call: &Call<'_>, facts: &Facts, view: Option<&View>) -> Result<ObservedBundle, Error> {
    if let Some((app, facts)) = seen(call, view).await {
        let Some(namespace) = &app.namespace else { return Ok(ObservedBundle::default()) };
        ground::own(call, namespace)?;
        return Ok(Objects::of(app, call, &facts).facts());
    }
    let (namespace, facts) = futures::join!(ground::find(call), facts.fresh(call.cluster, call.env));
    let facts = facts.map_err(unread)?;
    let Some(namespace) = namespace? else { return Ok(ObservedBundle::default()) };
    let app = read(call, namespace).await.map_err(unread)?;
    for pod in app.pods.iter().filter(|pod| is_ended_and_named(pod)) {
        call.retire(pod).await;
    }
    Ok(Objects::of(app, call, &facts).facts())
}

/// What the view knows; `None` where it cannot speak for the app.
async fn seen(call: &Call<'_>, view: Option<&View>) -> Option<(AppView, Arc<ClusterFacts>)> {
    let view = view?;
    let app = view.current(&call.namespace(), call.within_deadline(CATCHING_UP)).await?;
    Some((app, view.facts()?))
}

/// Whether the pod has ended and its record's selector may still select it.
pub(crate) fn is_ended_and_named(pod: &Pod) -> bool {
    sight::has_ended(pod) && Revision::of(&pod.metadata).is_some() && !sight::is_going(pod)
}

/// Reads what the view would know. Pods and Services are asked for by who made them alone: one whose workload's label was
/// taken off is its workload's all the same.
async fn read(call: &Call<'_>, namespace: Namespace) -> Result<AppView, ClusterError> {
    let ours = || Selector::everything().equals(label::MANAGED_BY, MANAGER);
    let (records, pods, claims, policies) = futures::try_join!(
        list::<Service>(call, ours()),
        list::<Pod>(call, ours()),
        list::<PersistentVolumeClaim>(call, ours()),
        list::<NetworkPolicy>(call, Selector::everything()),
    )?;
    Ok(AppView { namespace: Some(namespace), records, pods, claims, policies })
}

async fn list<T: Resource>(call: &Call<'_>, labels: Selector) -> Result<Vec<T>, ClusterError> {
    let request = call.list_request(T::OBJECT_KIND).labelled(labels);
    Ok(call.with_young_rights(|| call.cluster.list_all(&request)).await?.0)
}

/// What is there of an app, and what it is judged by.
pub(crate) struct Objects<'a> {
    pub(crate) app: &'a AppNamespace,
    pub(crate) settings: &'a Settings,
    pub(crate) cluster: &'a ClusterFacts,
    /// The date.
    pub(crate) now: Timestamp,
    /// Services of ours that are a workload's record.
    pub(crate) records: Vec<Service>,
    /// Pods of ours that are a workload's.
    pub(crate) pods: Vec<Pod>,
    pub(crate) claims: Vec<PersistentVolumeClaim>,
    /// Policies of whomever.
    pub(crate) policies: Vec<NetworkPolicy>,
}

impl<'a> Objects<'a> {
    fn of(view: AppView, call: &Call<'a>, cluster: &'a ClusterFacts) -> Self {
        let AppView { namespace: _, mut records, mut pods, mut claims, policies } = view;
        // Helpers, which carry a role, speak for no workload.
        pods.retain(|pod| label_value(&pod.metadata, label::ROLE).is_none() && workload_of_pod(pod).is_some());
        records.retain(|record| workload_of_record(record).is_some());
        claims.retain(|claim| is_ours(&claim.metadata));
        let (app, settings, now) = (call.app, call.settings, call.env.wall.now());
        Self { app, settings, cluster, now, records, pods, claims, policies }
    }

    fn facts(&self) -> ObservedBundle {
        ObservedBundle { exists: true, workloads: self.workloads(), volumes: self.volumes(), drift: self.drift() }
    }

    /// One entry a workload: from its current pod, or present and stopped from its record.
    pub(crate) fn workloads(&self) -> Vec<ObservedWorkload> {
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
        workloads.into_iter().map(|(workload, pod)| self.workload(workload, pod)).collect()
    }

    fn workload(&self, workload: &str, pod: Option<&Pod>) -> ObservedWorkload {
        let stopped = ObservedWorkload { name: workload.to_owned(), present: true, ..ObservedWorkload::default() };
        let Some(pod) = pod else { return stopped };
        let is_lost = self.cluster.is_lost(sight::node(pod));
        let running = sight::is_running(pod, is_lost);
        let (starting, exit_code) = match sight::sight(pod) {
            Sight::Coming { .. } => (!sight::is_going(pod) && !is_lost, None),
            Sight::Ended { exit_code, .. } => (false, exit_code),
            Sight::Gated | Sight::Running => (false, None),
        };
        ObservedWorkload {
            running,
            starting,
            image_digest: sight::image_digest(pod),
            started_at: sight::started_at(pod),
            exit_code,
            healthy: running.then(|| sight::healthy(pod, self.now)).flatten(),
            reason: sight::reason(pod, is_lost),
            ..stopped
        }
    }

    /// Its volumes, by id.
    pub(crate) fn volumes(&self) -> Vec<ObservedVolume> {
        let volume = |claim: &PersistentVolumeClaim| {
            Some(ObservedVolume {
                volume_id: annotation_value(&claim.metadata, annotation::VOLUME_ID)?.to_owned(),
                present: claim.metadata.deletion_timestamp.is_none(),
                handle: format!("{}/{}", self.app, name(&claim.metadata)),
            })
        };
        let mut volumes: Vec<_> = self.claims.iter().filter_map(volume).collect();
        volumes.sort_by(|a, b| a.volume_id.cmp(&b.volume_id));
        volumes
    }
}
