//! What is kept of an object: what the adapter reads of it, and nothing else.
//!
//! Of pods, which are many and large, each field that stays is named here. The reader of another one (`sight`, above all)
//! finds it missing in the test below, not in production.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Namespace, NamespaceSpec, NamespaceStatus, Node, NodeSpec, NodeStatus,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod, PodCondition, PodSpec, PodStatus, Probe,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_cluster::Object;
use pando_cluster::names::label;

/// What the keys of our labels and annotations begin with.
const OURS: &str = "pando.dev/";

/// The object without what nobody here reads.
pub(super) fn pruned(object: Object) -> Object {
    match object {
        Object::Pod(pod) => self::pod(*pod).into(),
        Object::Node(node) => self::node(*node).into(),
        Object::Namespace(namespace) => self::namespace(*namespace).into(),
        Object::PersistentVolumeClaim(claim) => self::claim(*claim).into(),
        Object::PersistentVolume(volume) => self::volume(*volume).into(),
        // Small ones, which are compared as a whole.
        mut other => {
            let meta = std::mem::take(other.meta_mut());
            *other.meta_mut() = ObjectMeta { labels: meta.labels.clone(), ..self::meta(meta) };
            other
        }
    }
}

fn pod(pod: Pod) -> Pod {
    Pod { metadata: meta(pod.metadata), spec: pod.spec.map(pod_spec), status: pod.status.map(pod_status) }
}

fn pod_spec(spec: PodSpec) -> PodSpec {
    PodSpec {
        node_name: spec.node_name,
        scheduling_gates: spec.scheduling_gates,
        termination_grace_period_seconds: spec.termination_grace_period_seconds,
        init_containers: spec.init_containers.map(|containers| containers.into_iter().map(container).collect()),
        containers: spec.containers.into_iter().map(container).collect(),
        ..PodSpec::default()
    }
}

/// A readiness probe says by its times when its first verdict is due, and by being there that there is one.
fn container(container: Container) -> Container {
    Container {
        name: container.name,
        resources: container.resources,
        restart_policy: container.restart_policy,
        readiness_probe: container.readiness_probe.map(|probe| Probe {
            period_seconds: probe.period_seconds,
            failure_threshold: probe.failure_threshold,
            timeout_seconds: probe.timeout_seconds,
            ..Probe::default()
        }),
        ..Container::default()
    }
}

fn pod_status(status: PodStatus) -> PodStatus {
    let condition =
        |condition: PodCondition| PodCondition { last_probe_time: None, observed_generation: None, ..condition };
    let container = |status: ContainerStatus| ContainerStatus {
        name: status.name,
        image_id: status.image_id,
        ready: status.ready,
        started: status.started,
        state: status.state,
        ..ContainerStatus::default()
    };
    let containers =
        |statuses: Option<Vec<ContainerStatus>>| statuses.map(|statuses| statuses.into_iter().map(container).collect());
    PodStatus {
        phase: status.phase,
        reason: status.reason,
        message: status.message,
        pod_ip: status.pod_ip,
        start_time: status.start_time,
        conditions: status.conditions.map(|conditions| conditions.into_iter().map(condition).collect()),
        container_statuses: containers(status.container_statuses),
        init_container_statuses: containers(status.init_container_statuses),
        ..PodStatus::default()
    }
}

/// A node without its list of images and without the times of its heartbeats, which alone change every few minutes.
fn node(node: Node) -> Node {
    let labels = node.metadata.labels.clone();
    let status = |status: NodeStatus| NodeStatus {
        addresses: status.addresses,
        allocatable: status.allocatable,
        conditions: status.conditions.map(|mut conditions| {
            for condition in &mut conditions {
                condition.last_heartbeat_time = None;
            }
            conditions
        }),
        node_info: status.node_info,
        ..NodeStatus::default()
    };
    let spec =
        |spec: NodeSpec| NodeSpec { taints: spec.taints, unschedulable: spec.unschedulable, ..NodeSpec::default() };
    Node {
        metadata: ObjectMeta { labels, ..meta(node.metadata) },
        spec: node.spec.map(spec),
        status: node.status.map(status),
    }
}

/// Whose a namespace is, and what holds it when it is going.
fn namespace(namespace: Namespace) -> Namespace {
    let status = |status: NamespaceStatus| NamespaceStatus { conditions: status.conditions, phase: status.phase };
    Namespace { metadata: meta(namespace.metadata), spec: None::<NamespaceSpec>, status: namespace.status.map(status) }
}

fn claim(claim: PersistentVolumeClaim) -> PersistentVolumeClaim {
    PersistentVolumeClaim { metadata: meta(claim.metadata), ..claim }
}

/// Whose a volume is, and whether it stays. Where its data lies may hold what opens it.
fn volume(volume: PersistentVolume) -> PersistentVolume {
    let spec = |spec: PersistentVolumeSpec| PersistentVolumeSpec {
        claim_ref: spec.claim_ref,
        persistent_volume_reclaim_policy: spec.persistent_volume_reclaim_policy,
        capacity: spec.capacity,
        access_modes: spec.access_modes,
        storage_class_name: spec.storage_class_name,
        volume_mode: spec.volume_mode,
        ..PersistentVolumeSpec::default()
    };
    PersistentVolume { metadata: meta(volume.metadata), spec: volume.spec.map(spec), status: volume.status }
}

/// Who an object is, whose it is, and what we noted on it.
fn meta(meta: ObjectMeta) -> ObjectMeta {
    let noted = |values: Option<BTreeMap<String, String>>| {
        let mut values = values?;
        values.retain(|key, _| key.starts_with(OURS) || key == label::MANAGED_BY);
        (!values.is_empty()).then_some(values)
    };
    ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        labels: noted(meta.labels),
        annotations: noted(meta.annotations),
        ..ObjectMeta::default()
    }
}
