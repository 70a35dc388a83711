//! What Kubernetes does not take, and how it says so.

use k8s_openapi::api::core::v1::{
    Capabilities, Pod, PodSchedulingGate, ResourceRequirements, SecurityContext, Service,
};
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pando_cluster::names::START_GATE;
use pando_cluster::{Failure, Kind};
use pando_fakecluster::behaviour::Behaviour;
use serde_json::json;

use super::fixture::{failure, key, meta, namespace, patch, pod, quota, secret, service};
use crate::bed::Bed;

/// The fields that a refusal names.
fn fields(failure: &Failure) -> Vec<&str> {
    match failure {
        Failure::Invalid { causes, .. } => causes.iter().map(|cause| cause.field.as_str()).collect(),
        other => panic!("not a refusal of fields: {other:?}"),
    }
}

fn is_refused(failure: &Failure, words: &str) -> bool {
    matches!(failure, Failure::Refused(message) if message.contains(words))
}

/// A pod that no node will ever run: it is only looked at by the API server.
fn gated(bed: &dyn Bed, namespace: &str, name: &str) -> Pod {
    let mut pod = pod(bed, namespace, name, &Behaviour::Run);
    let gate = PodSchedulingGate { name: START_GATE.to_owned() };
    pod.spec.get_or_insert_default().scheduling_gates = Some(vec![gate]);
    pod
}

/// The same asking for these resources, of which it also gets no more.
fn gated_with(bed: &dyn Bed, namespace: &str, name: &str, resources: &[(&str, &str)]) -> Pod {
    let mut pod = gated(bed, namespace, name);
    let amounts = resources.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned())));
    let limits = ResourceRequirements { limits: Some(amounts.collect()), ..ResourceRequirements::default() };
    for container in &mut pod.spec.get_or_insert_default().containers {
        container.resources = Some(limits.clone());
    }
    pod
}

pub(super) async fn a_bad_name_is_refused_by_its_field(bed: &dyn Bed) {
    let namespace = namespace(bed, "names").await;
    for name in ["Upper", "under_score", "-edge", "a..b"] {
        let refused = failure(bed.admin().make(&secret(&namespace, name, &[])).await);
        assert_eq!(fields(&refused), ["metadata.name"], "{name}");
    }
    let refused = failure(bed.admin().make(&service(&namespace, "1st", None)).await);
    assert_eq!(fields(&refused), ["metadata.name"], "the name of a Service begins with a letter");
}

pub(super) async fn the_role_of_a_binding_cannot_be_changed(bed: &dyn Bed) {
    let namespace = namespace(bed, "roleref").await;
    let role = RoleRef {
        api_group: "rbac.authorization.k8s.io".to_owned(),
        kind: "ClusterRole".to_owned(),
        name: "view".to_owned(),
    };
    let binding = RoleBinding { metadata: meta(&namespace, "b"), role_ref: role, subjects: None };
    bed.admin().make(&binding).await.expect("a role binding");
    let change = patch(bed, &key(Kind::RoleBinding, &namespace, "b"), json!({"roleRef": {"name": "edit"}})).await;
    assert_eq!(fields(&failure(change)), ["roleRef"]);
}

pub(super) async fn a_headless_service_does_not_become_a_node_port(bed: &dyn Bed) {
    let namespace = namespace(bed, "headless").await;
    let key = key(Kind::Service, &namespace, "web");
    let made = bed.admin().make(&service(&namespace, "web", None)).await.expect("a headless Service");
    assert_eq!(made.spec.and_then(|spec| spec.cluster_ip).as_deref(), Some("None"));
    let refused = failure(patch(bed, &key, json!({"spec": {"type": "NodePort"}})).await);
    assert!(matches!(refused, Failure::Invalid { .. }), "{refused:?}");
    let read: Service = bed.admin().read(Some(&namespace), "web").await.expect("a read").expect("it is there");
    assert_eq!(read.spec.and_then(|spec| spec.type_).as_deref(), Some("ClusterIP"));
}

pub(super) async fn a_pod_without_its_account_is_refused(bed: &dyn Bed) {
    let namespace = namespace(bed, "account").await;
    let mut pod = gated(bed, &namespace, "a");
    pod.spec.get_or_insert_default().service_account_name = Some("nobody".to_owned());
    let refused = failure(bed.admin().make(&pod).await);
    assert!(matches!(&refused, Failure::ServiceAccountMissing(message) if message.contains("nobody")), "{refused:?}");
}

pub(super) async fn a_quota_of_none_refuses_a_node_port(bed: &dyn Bed) {
    let namespace = namespace(bed, "nodeport").await;
    quota(bed, &namespace, &[("services.nodeports", "0"), ("services.loadbalancers", "0")]).await;
    for kind in ["NodePort", "LoadBalancer"] {
        let refused = failure(bed.admin().make(&service(&namespace, "web", Some(kind))).await);
        assert!(matches!(refused, Failure::QuotaExceeded(_)), "{kind}: {refused:?}");
    }
    bed.admin().make(&service(&namespace, "web", None)).await.expect("a headless Service opens nothing");
}

pub(super) async fn a_quota_of_memory_wants_limits(bed: &dyn Bed) {
    let namespace = namespace(bed, "limits").await;
    quota(bed, &namespace, &[("limits.cpu", "1"), ("limits.memory", "1Gi")]).await;
    let refused = failure(bed.admin().make(&gated(bed, &namespace, "a")).await);
    assert!(is_refused(&refused, "must specify"), "{refused:?}");
    let limited = gated_with(bed, &namespace, "a", &[("cpu", "100m"), ("memory", "64Mi")]);
    bed.admin().make(&limited).await.expect("one with limits fits");
}

pub(super) async fn a_full_quota_takes_no_more(bed: &dyn Bed) {
    let namespace = namespace(bed, "full").await;
    quota(bed, &namespace, &[("limits.memory", "100Mi")]).await;
    bed.admin().make(&gated_with(bed, &namespace, "a", &[("memory", "60Mi")])).await.expect("the first fits");
    let refused = failure(bed.admin().make(&gated_with(bed, &namespace, "b", &[("memory", "60Mi")])).await);
    assert!(matches!(&refused, Failure::QuotaExceeded(message) if message.contains("limits.memory")), "{refused:?}");
    bed.admin().make(&gated_with(bed, &namespace, "c", &[("memory", "40Mi")])).await.expect("exactly the rest fits");
}

pub(super) async fn the_baseline_refuses_a_privileged_pod(bed: &dyn Bed) {
    let namespace = namespace(bed, "baseline").await;
    let with = |context: SecurityContext| {
        let mut pod = gated(bed, &namespace, "a");
        pod.spec
            .get_or_insert_default()
            .containers
            .iter_mut()
            .for_each(|it| it.security_context = Some(context.clone()));
        pod
    };
    let admin = Capabilities { add: Some(vec!["SYS_ADMIN".to_owned()]), drop: None };
    let mut on_host = gated(bed, &namespace, "a");
    on_host.spec.get_or_insert_default().host_network = Some(true);
    for (what, pod) in [
        ("privileged", with(SecurityContext { privileged: Some(true), ..SecurityContext::default() })),
        ("capabilities", with(SecurityContext { capabilities: Some(admin), ..SecurityContext::default() })),
        ("host namespaces", on_host),
    ] {
        let refused = failure(bed.admin().make(&pod).await);
        assert!(is_refused(&refused, "violates PodSecurity") && is_refused(&refused, what), "{what}: {refused:?}");
    }
    let drop = Capabilities { add: None, drop: Some(vec!["NET_RAW".to_owned()]) };
    let modest = SecurityContext {
        capabilities: Some(drop),
        allow_privilege_escalation: Some(false),
        ..SecurityContext::default()
    };
    bed.admin().make(&with(modest)).await.expect("one that asks for less is taken");
}

pub(super) async fn a_running_spec_is_not_changed(bed: &dyn Bed) {
    let namespace = namespace(bed, "spec").await;
    bed.admin().make(&gated(bed, &namespace, "a")).await.expect("a pod");
    let key = key(Kind::Pod, &namespace, "a");
    for change in [json!({"spec": {"hostname": "other"}}), json!({"spec": {"restartPolicy": "Always"}})] {
        let refused = failure(patch(bed, &key, change.clone()).await);
        assert_eq!(fields(&refused), ["spec"], "{change}");
    }
    patch(bed, &key, json!({"metadata": {"labels": {"free": "yes"}}})).await.expect("labels can be changed");
}

pub(super) async fn a_gate_is_only_ever_opened(bed: &dyn Bed) {
    let namespace = namespace(bed, "gates").await;
    bed.admin().make(&gated(bed, &namespace, "a")).await.expect("a pod");
    let key = key(Kind::Pod, &namespace, "a");
    let second = json!({"spec": {"schedulingGates": [{"name": START_GATE}, {"name": "example.com/second"}]}});
    let refused = failure(patch(bed, &key, second).await);
    assert!(matches!(refused, Failure::Invalid { .. }), "{refused:?}");
}
