//! The few things that the view puts right by itself, wherever it sees them.
//!
//! Each is one patch, decided from one object and carried out at the version that the decision was made on: whoever
//! changed the object meanwhile wins, and what a watch tells of it next decides anew. So any number of processes may do
//! it at once. Nothing here starts, stops or removes anything: that is core's to decide.

use k8s_openapi::api::core::v1::Pod;
use pando_cluster::names::{is_ours, label, label_value};
use pando_cluster::{MergePatch, Object, ObjectKey, ResourceVersion};
use serde_json::{Value, json};

use crate::sight;

/// A change that an object needs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Repair {
    pub(super) key: ObjectKey,
    /// What is wrong, for the log.
    pub(super) why: &'static str,
    version: ResourceVersion,
    change: Value,
}

impl Repair {
    /// The change, for the version it was decided on.
    pub(super) fn patch(&self) -> MergePatch {
        MergePatch::at(&self.version, self.change.clone())
    }
}

/// What the object needs. One rule for each kind: that a bound volume of ours is kept (S-41) will stand beside that of pods.
pub(super) fn needed(object: &Object) -> Option<Repair> {
    let (why, change) = match object {
        Object::Pod(pod) => ("an ended pod is still in the endpoints", off_the_endpoints(pod)?),
        _ => return None,
    };
    Some(Repair { key: object.key(), why, version: ResourceVersion::of(object.meta())?, change })
}

/// Kubernetes keeps an ended pod in the endpoints of a Service that selects it, while its address may already be
/// another app's (S-82). Without its revision no record selects it, and it is found by its workload all the same.
fn off_the_endpoints(pod: &Pod) -> Option<Value> {
    let meta = &pod.metadata;
    let is_named = label_value(meta, label::REVISION).is_some();
    let is_over = sight::has_ended(pod) && !sight::is_gated(pod) && !sight::is_going(pod);
    (is_ours(meta) && is_named && is_over).then(|| json!({"metadata": {"labels": {label::REVISION: null}}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(change: &Value) -> Object {
        let mut pod = json!({"metadata": {"name": "web-4", "namespace": "pando-a", "resourceVersion": "7",
                "labels": {"app.kubernetes.io/managed-by": "pando", "pando.dev/workload": "web", "pando.dev/revision": "4"}},
            "spec": {"containers": []}, "status": {"phase": "Failed"}});
        for (pointer, value) in change.as_object().expect("an object") {
            let (parent, member) = pointer.rsplit_once('/').expect("a pointer");
            pod.pointer_mut(parent).expect("a place")[member] = value.clone();
        }
        Object::Pod(Box::new(serde_json::from_value(pod).expect("a pod")))
    }

    #[test]
    fn an_ended_pod_loses_its_revision_at_the_version_it_was_seen_at() {
        let repair = needed(&pod(&json!({}))).expect("it has ended");
        assert_eq!(repair.key.to_string(), "Pod pando-a/web-4");
        assert_eq!(
            repair.patch().as_json(),
            &json!({"metadata": {"resourceVersion": "7", "labels": {"pando.dev/revision": null}}})
        );
    }

    #[test]
    fn only_pods_of_ours_that_have_ended_and_are_named_need_it() {
        let app = json!([{"name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 3}}}]);
        for (what, change, needs) in [
            ("done", json!({"/status/phase": "Succeeded"}), true),
            (
                "its app's end shows before its own",
                json!({"/status": {"phase": "Running", "containerStatuses": app}}),
                true,
            ),
            ("running", json!({"/status/phase": "Running"}), false),
            ("pending", json!({"/status/phase": "Pending"}), false),
            ("without a revision", json!({"/metadata/labels": {"app.kubernetes.io/managed-by": "pando"}}), false),
            ("a stranger's", json!({"/metadata/labels": {"pando.dev/revision": "4"}}), false),
            (
                "helm's",
                json!({"/metadata/labels": {"app.kubernetes.io/managed-by": "Helm", "pando.dev/revision": "4"}}),
                false,
            ),
            ("on its way out", json!({"/metadata/deletionTimestamp": "2026-01-01T00:00:00Z"}), false),
            ("behind its gate", json!({"/spec/schedulingGates": [{"name": "pando.dev/start"}]}), false),
        ] {
            assert_eq!(needed(&pod(&change)).is_some(), needs, "{what}");
        }
    }
}
