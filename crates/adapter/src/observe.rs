//! What is there of a bundle: facts from its objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use pando_api::{Error, ObservedBundle, ObservedVolume, ObservedWorkload, Reason, ReasonKind};
use pando_cluster::names::{AppNamespace, MANAGER, annotation, annotation_value, is_ours, label, label_value};
use pando_cluster::{ClusterError, Resource, Selector};
use pando_storage::Handle;

use crate::call::{Call, name};
use crate::config::Settings;
use crate::error::unread;
use crate::ground;
use crate::known::{ClusterFacts, Facts};
use crate::objects::{workload_of_pod, workload_of_record};
use crate::record::{Revision, pod_revision};
use crate::sight::{self, Sight};
use crate::view::{AppView, View};

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
    let app = call.seen().await?;
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
    Ok(AppView { namespace: Some(namespace), records, pods, claims, policies, volumes: Vec::new() })
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
        let AppView { namespace: _, mut records, mut pods, mut claims, policies, volumes: _ } = view;
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
            Sight::Coming { .. } => (!sight::is_going(pod) && !is_lost && !has_started(pod), None),
            Sight::Ended { exit_code, .. } => (false, exit_code),
            Sight::Gated | Sight::Running => (false, None),
        };
        // It started once, it has not ended, and whether it runs nobody says.
        let is_frozen = has_started(pod) && !running && !sight::has_ended(pod) && !sight::is_going(pod);
        let frozen =
            || Reason { kind: ReasonKind::Unknown, sentence: "its node does not say whether it runs".to_owned() };
        ObservedWorkload {
            running,
            starting,
            image_digest: sight::image_digest(pod),
            started_at: sight::started_at(pod),
            exit_code,
            healthy: running.then(|| sight::healthy(pod, self.now)).flatten(),
            reason: sight::reason(pod, is_lost).or_else(|| is_frozen.then(frozen)),
            ..stopped
        }
    }

    /// Its volumes, by id.
    pub(crate) fn volumes(&self) -> Vec<ObservedVolume> {
        let volume = |claim: &PersistentVolumeClaim| {
            Some(ObservedVolume {
                volume_id: annotation_value(&claim.metadata, annotation::VOLUME_ID)?.to_owned(),
                present: claim.metadata.deletion_timestamp.is_none(),
                handle: Handle::new(self.app.name(), name(&claim.metadata)).to_string(),
            })
        };
        let mut volumes: Vec<_> = self.claims.iter().filter_map(volume).collect();
        volumes.sort_by(|a, b| a.volume_id.cmp(&b.volume_id));
        volumes
    }
}

/// Whether the pod's containers were started: its phase goes on from `Pending` only then.
fn has_started(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).is_some_and(|phase| phase != "Pending")
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// What an app is judged by, with nothing there.
    pub(crate) fn nothing<'a>(app: &'a AppNamespace, settings: &'a Settings, cluster: &'a ClusterFacts) -> Objects<'a> {
        let now = "2026-01-01T01:00:00Z".parse().expect("a time");
        let (records, pods, claims, policies) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Objects { app, settings, cluster, now, records, pods, claims, policies }
    }

    pub(crate) fn settings() -> Settings {
        Settings::from_json(&json!({"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/16"})).expect("settings")
    }

    pub(crate) fn cluster() -> ClusterFacts {
        ClusterFacts {
            nodes: ["n1", "n2"].map(str::to_owned).into(),
            lost_nodes: ["n2".to_owned()].into(),
            ..ClusterFacts::default()
        }
    }

    /// The record of `workload` at `revision`.
    pub(crate) fn record(workload: &str, revision: &str) -> Service {
        let labels = json!({"app.kubernetes.io/managed-by": "pando", "pando.dev/workload": workload, "pando.dev/revision": revision});
        let selector = json!({"pando.dev/workload": workload, "pando.dev/revision": revision});
        serde_json::from_value(
            json!({"metadata": {"name": workload, "labels": labels}, "spec": {"selector": selector}}),
        )
        .expect("a Service")
    }

    /// The pod of `web` at a revision, on node n1, with a change laid over it.
    pub(crate) fn pod(revision: &str, change: &Value) -> Pod {
        let mut pod = json!({"metadata": {"name": format!("web-{revision}"), "labels": {
                "app.kubernetes.io/managed-by": "pando", "pando.dev/workload": "web", "pando.dev/revision": revision}},
            "spec": {"nodeName": "n1", "containers": [{"name": "app"}]}, "status": {"phase": "Running"}});
        json_merge(&mut pod, change);
        serde_json::from_value(pod).expect("a pod")
    }

    fn json_merge(base: &mut Value, change: &Value) {
        match (base, change) {
            (Value::Object(base), Value::Object(change)) => {
                for (key, value) in change {
                    json_merge(base.entry(key).or_insert(Value::Null), value);
                }
            }
            (base, change) => *base = change.clone(),
        }
    }

    /// The app's container in this state.
    pub(crate) fn state(phase: &str, state: &Value) -> Value {
        json!({"status": {"phase": phase, "containerStatuses": [{"name": "app", "image": "", "imageID": "r/x@sha256:ab",
            "ready": false, "restartCount": 0, "state": state}]}})
    }

    fn running() -> Value {
        state("Running", &json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}))
    }

    fn with(mut base: Value, change: &Value) -> Value {
        json_merge(&mut base, change);
        base
    }

    fn workloads(records: Vec<Service>, pods: Vec<Pod>) -> Vec<ObservedWorkload> {
        let (app, settings, cluster) = (AppNamespace::of("a", &[]), settings(), cluster());
        Objects { records, pods, ..nothing(&app, &settings, &cluster) }.workloads()
    }

    /// A change of its pod, if it has one; and whether it runs, whether it starts, its exit code, the kind of its reason.
    type Row = (&'static str, Option<Value>, (bool, bool, Option<i32>, Option<ReasonKind>));

    #[test]
    fn every_state_of_a_workload_is_told_from_the_others() {
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let on_n2 = json!({"spec": {"nodeName": "n2"}});
        let gate = json!({"spec": {"nodeName": null, "schedulingGates": [{"name": "pando.dev/start"}]}, "status": {"phase": "Pending"}});
        let waiting = |reason: &str| state("Pending", &json!({"waiting": {"reason": reason, "message": "m"}}));
        let exited =
            |code: i32, reason: &str| state("Failed", &json!({"terminated": {"exitCode": code, "reason": reason}}));
        let unplaced = json!({"spec": {"nodeName": null}, "status": {"phase": "Pending"}});
        let rows: Vec<Row> = vec![
            ("stopped", None, (false, false, None, None)),
            ("behind its gate", Some(gate), (false, false, None, None)),
            ("not placed so far", Some(unplaced), (false, true, None, None)),
            ("its container is made", Some(waiting("ContainerCreating")), (false, true, None, None)),
            ("its image cannot be had", Some(waiting("ErrImagePull")), (false, true, None, Some(ReasonKind::Image))),
            ("running", Some(running()), (true, false, None, None)),
            ("told to go", Some(with(running(), &going)), (false, false, None, None)),
            ("told to go while it came", Some(with(waiting("ContainerCreating"), &going)), (false, false, None, None)),
            ("its node is lost", Some(with(running(), &on_n2)), (false, false, None, Some(ReasonKind::NodeLost))),
            (
                "lost while it came",
                Some(with(waiting("ContainerCreating"), &on_n2)),
                (false, false, None, Some(ReasonKind::NodeLost)),
            ),
            (
                "its node is no more",
                Some(with(running(), &json!({"spec": {"nodeName": "n9"}}))),
                (false, false, None, Some(ReasonKind::NodeLost)),
            ),
            (
                "frozen: its node is fine and says nothing of it",
                Some(json!({"status": {"phase": "Running"}})),
                (false, false, None, Some(ReasonKind::Unknown)),
            ),
            ("done", Some(exited(0, "Completed")), (false, false, Some(0), None)),
            ("failed", Some(exited(3, "Error")), (false, false, Some(3), None)),
            ("out of memory", Some(exited(137, "OOMKilled")), (false, false, Some(137), Some(ReasonKind::OutOfMemory))),
            (
                "its node lost track of it",
                Some(exited(137, "ContainerStatusUnknown")),
                (false, false, None, Some(ReasonKind::Vanished)),
            ),
            (
                "it left no word",
                Some(json!({"status": {"phase": "Failed"}})),
                (false, false, None, Some(ReasonKind::Vanished)),
            ),
            (
                "evicted",
                Some(json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "m"}})),
                (false, false, None, Some(ReasonKind::Evicted)),
            ),
        ];
        for (what, change, expected) in rows {
            let pods = change.map(|change| pod("4", &change)).into_iter().collect();
            let seen = workloads(vec![record("web", "4")], pods);
            let [web] = &seen[..] else { panic!("{what}: {seen:?}") };
            let reason = web.reason.as_ref().map(|reason| reason.kind);
            assert_eq!((web.running, web.starting, web.exit_code, reason), expected, "{what}");
            assert!(web.present && web.restart_count == 0 && !web.restarting, "{what}");
        }
    }

    #[test]
    fn the_newest_start_speaks_for_its_workload() {
        let ended = state("Failed", &json!({"terminated": {"exitCode": 3}}));
        let gated = with(running(), &json!({"spec": {"schedulingGates": [{"name": "pando.dev/start"}]}}));
        let retired = {
            let mut pod = pod("9", &ended);
            pod.metadata.labels.as_mut().expect("labels").remove(label::REVISION);
            pod
        };
        for (what, pods, runs, code) in [
            ("beside an older one that ended", vec![pod("3", &ended), pod("10", &running())], true, None),
            ("beside a newer one that ended", vec![pod("10", &ended), pod("9", &running())], false, Some(3)),
            ("beside one that was taken out of the endpoints", vec![retired, pod("4", &running())], false, Some(3)),
            ("a gated one says nothing", vec![pod("3", &ended), pod("4", &gated)], false, Some(3)),
        ] {
            let seen = workloads(vec![record("web", "4")], pods);
            assert_eq!((seen[0].running, seen[0].exit_code), (runs, code), "{what}");
        }
    }

    #[test]
    fn a_pod_without_its_label_belongs_to_the_workload_in_its_name() {
        for (name, labels, workload) in [
            ("web-4", json!({"app.kubernetes.io/managed-by": "pando"}), Some("web")),
            ("my-web-4", json!({"app.kubernetes.io/managed-by": "pando"}), Some("my-web")),
            ("web-4", json!({"app.kubernetes.io/managed-by": "pando", "pando.dev/workload": "other"}), Some("other")),
            ("web-04", json!({"app.kubernetes.io/managed-by": "pando"}), None),
            ("web", json!({"app.kubernetes.io/managed-by": "pando"}), None),
            ("web-4", json!({}), None),
            ("pull-4", json!({"app.kubernetes.io/managed-by": "pando", "pando.dev/role": "pull"}), None),
        ] {
            let pod: Pod =
                serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).expect("a pod");
            assert_eq!(workload_of_pod(&pod), workload, "{name} {labels}");
        }
    }

    #[test]
    fn volumes_are_told_by_their_id_and_not_as_present_while_they_go() {
        let claim = |name: &str, id: Option<&str>, going: Option<&str>| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"metadata": {"name": name, "deletionTimestamp": going,
                "annotations": {"pando.dev/volume-id": id}, "labels": {"app.kubernetes.io/managed-by": "pando"}}}))
            .expect("a claim")
        };
        let mut unnamed = claim("pando-x", Some("x"), None);
        unnamed.metadata.annotations = None;
        let claims = vec![
            claim("pando-b", Some("vol_B"), Some("2026-01-01T00:00:00Z")),
            unnamed,
            claim("pando-a", Some("vol_A"), None),
        ];
        let (app, settings, cluster) = (AppNamespace::of("a", &[]), settings(), cluster());
        let volume = |id: &str, present, handle: &str| ObservedVolume {
            volume_id: id.to_owned(),
            present,
            handle: handle.to_owned(),
        };
        assert_eq!(
            Objects { claims, ..nothing(&app, &settings, &cluster) }.volumes(),
            [volume("vol_A", true, "pando-a/pando-a"), volume("vol_B", false, "pando-a/pando-b")]
        );
    }
}
