//! Which pod's log is a workload's, and what comes after it: pure decisions.

use k8s_openapi::api::core::v1::{ContainerState, Pod, Service};
use pando_cluster::names::{label, label_value};

use crate::objects::workload_of;
use crate::pod::APP;
use crate::record::{Revision, pod_revision};
use crate::sight;

/// What a followed log goes on with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Next<'a> {
    /// This pod's log.
    Read(&'a Pod),
    /// A pod that is on its way.
    Await,
    /// There is no later pod.
    Nothing,
}

/// The newest pod that has started, ended ones included.
pub(super) fn newest_started<'a>(workload: &str, pods: impl Iterator<Item = &'a Pod>) -> Option<&'a Pod> {
    pods.filter(|pod| is_of(workload, pod) && has_started(pod)).max_by_key(|pod| pod_revision(pod))
}

/// What comes after the pod of revision `after`. Of several starts since, the first: none is left out.
pub(super) fn next<'a>(
    workload: &str,
    pods: impl Iterator<Item = &'a Pod> + Clone,
    after: Option<Revision>,
) -> Next<'a> {
    let later = pods.filter(|pod| is_of(workload, pod) && pod_revision(pod) > after);
    if let Some(pod) = later.clone().filter(|pod| has_started(pod)).min_by_key(|pod| pod_revision(pod)) {
        return Next::Read(pod);
    }
    let comes = |pod: &&Pod| !sight::has_ended(pod) && !sight::is_going(pod);
    if later.clone().any(|pod| comes(&pod)) { Next::Await } else { Next::Nothing }
}

/// Whether the workload was stopped or started anew since the pod of revision `after` was started.
pub(super) fn is_raised(record: Option<&Service>, after: Option<Revision>) -> bool {
    record.is_some_and(|record| Revision::of(&record.metadata) > after)
}

/// A pod of the workload itself; helpers carry a role.
fn is_of(workload: &str, pod: &Pod) -> bool {
    workload_of(&pod.metadata) == Some(workload) && label_value(&pod.metadata, label::ROLE).is_none()
}

/// Whether the pod's app has run, so that there is something to read.
fn has_started(pod: &Pod) -> bool {
    app_state(pod).is_some_and(|state| state.running.is_some() || state.terminated.is_some())
}

/// The state of the pod's app, which shows up to 2.6 s before the pod's.
pub(super) fn app_state(pod: &Pod) -> Option<&ContainerState> {
    let statuses = pod.status.as_ref()?.container_statuses.as_deref().unwrap_or_default();
    statuses.iter().find(|container| container.name == APP)?.state.as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(revision: u64, state: &Value) -> Pod {
        let labels = json!({
            "app.kubernetes.io/managed-by": "pando", "pando.dev/workload": "web", "pando.dev/revision": revision.to_string(),
        });
        let phase = if state["terminated"].is_object() { "Failed" } else { "Pending" };
        serde_json::from_value(json!({
            "metadata": {"name": format!("web-{revision}"), "labels": labels},
            "status": {"phase": phase, "containerStatuses": [
                {"name": "sidecar", "state": {"running": {}}, "image": "", "imageID": "", "ready": true, "restartCount": 0},
                {"name": "app", "state": state, "image": "", "imageID": "", "ready": true, "restartCount": 0},
            ]},
        }))
        .expect("a pod")
    }

    fn states() -> (Value, Value, Value) {
        (json!({"running": {}}), json!({"terminated": {"exitCode": 1}}), json!({"waiting": {}}))
    }

    fn revision(number: u64) -> Revision {
        number.to_string().parse().expect("a number")
    }

    #[test]
    fn the_newest_start_that_ran_is_read() {
        let (running, ended, waiting) = states();
        let pods = [pod(9, &ended), pod(11, &waiting), pod(10, &running), pod(2, &running)];
        assert_eq!(newest_started("web", pods.iter()), Some(&pods[2]));
        assert_eq!(newest_started("web", pods[..2].iter()), Some(&pods[0]), "ended ones too");
        assert_eq!(newest_started("web", pods[1..2].iter()), None);
        assert_eq!(newest_started("db", pods.iter()), None);
    }

    #[test]
    fn helpers_are_not_the_workload() {
        let mut helper = pod(1, &states().0);
        helper.metadata.labels.get_or_insert_default().insert("pando.dev/role".to_owned(), "snapshot".to_owned());
        assert_eq!(newest_started("web", [helper].iter()), None);
    }

    #[test]
    fn a_followed_log_goes_on_with_the_next_start() {
        let (running, ended, waiting) = states();
        let pods = [pod(3, &running), pod(4, &ended), pod(5, &running), pod(6, &waiting)];
        assert_eq!(next("web", pods.iter(), Some(revision(3))), Next::Read(&pods[1]), "no start is left out");
        assert_eq!(next("web", pods.iter(), Some(revision(5))), Next::Await);
        assert_eq!(next("web", pods.iter(), Some(revision(6))), Next::Nothing);
        let mut going = pods[3].clone();
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert_eq!(next("web", [going].iter(), Some(revision(5))), Next::Nothing, "it will not run");
    }

    #[test]
    fn a_record_tells_whether_there_may_be_more() {
        let record = |revision: &str| -> Service {
            serde_json::from_value(json!({"metadata": {"labels": {"pando.dev/revision": revision}}}))
                .expect("a Service")
        };
        assert!(is_raised(Some(&record("10")), Some(revision(9))) && is_raised(Some(&record("1")), None));
        assert!(!is_raised(Some(&record("9")), Some(revision(9))) && !is_raised(None, None));
    }
}
