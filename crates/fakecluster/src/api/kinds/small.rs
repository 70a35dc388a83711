//! The kinds with few rules of their own: namespaces, policies, role bindings.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPort};
use k8s_openapi::api::rbac::v1::RoleBinding;

use super::default_text;
use crate::api::names;
use crate::api::refusal::FieldError;

/// The label by which selectors find a namespace by its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub(super) fn complete_namespace(namespace: &mut Namespace) {
    let name = namespace.metadata.name.clone().unwrap_or_default();
    namespace.metadata.labels.get_or_insert_default().insert(NAME_LABEL.to_owned(), name);
    let finalizers = namespace.spec.get_or_insert_default().finalizers.get_or_insert_default();
    if finalizers.is_empty() && namespace.metadata.deletion_timestamp.is_none() {
        finalizers.push("kubernetes".to_owned());
    }
}

/// <https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/apis/networking/v1/defaults.go>
pub(super) fn complete_policy(policy: &mut NetworkPolicy) {
    let spec = policy.spec.get_or_insert_default();
    spec.pod_selector.get_or_insert_default();
    let protocol = |port: &mut NetworkPolicyPort| default_text(&mut port.protocol, "TCP");
    spec.ingress.iter_mut().flatten().flat_map(|rule| rule.ports.iter_mut().flatten()).for_each(protocol);
    spec.egress.iter_mut().flatten().flat_map(|rule| rule.ports.iter_mut().flatten()).for_each(protocol);
    if spec.policy_types.as_ref().is_none_or(Vec::is_empty) {
        let mut types = vec!["Ingress".to_owned()];
        if spec.egress.as_ref().is_some_and(|rules| !rules.is_empty()) {
            types.push("Egress".to_owned());
        }
        spec.policy_types = Some(types);
    }
}

/// The labels that a policy's selectors ask for.
pub(super) fn check_policy_labels(policy: &NetworkPolicy) -> Vec<FieldError> {
    let spec = policy.spec.clone().unwrap_or_default();
    let mut selectors = vec![("spec.podSelector".to_owned(), spec.pod_selector)];
    let ingress = spec.ingress.into_iter().flatten().map(|rule| rule.from).enumerate();
    let egress = spec.egress.into_iter().flatten().map(|rule| rule.to).enumerate();
    let rules = ingress.map(|(index, peers)| (format!("spec.ingress[{index}].from"), peers));
    let rules = rules.chain(egress.map(|(index, peers)| (format!("spec.egress[{index}].to"), peers)));
    for (path, peers) in rules {
        for (index, peer) in peers.into_iter().flatten().enumerate() {
            selectors.push((format!("{path}[{index}].podSelector"), peer.pod_selector));
            selectors.push((format!("{path}[{index}].namespaceSelector"), peer.namespace_selector));
        }
    }
    let labels = selectors.iter().filter_map(|(path, selector)| Some((path, selector.as_ref()?.match_labels.as_ref())));
    labels.flat_map(|(path, labels)| names::labels(&format!("{path}.matchLabels"), labels)).collect()
}

pub(super) fn complete_binding(binding: &mut RoleBinding) {
    default_text_of(&mut binding.role_ref.api_group, "rbac.authorization.k8s.io");
    for subject in binding.subjects.iter_mut().flatten() {
        if subject.kind != "ServiceAccount" {
            default_text(&mut subject.api_group, "rbac.authorization.k8s.io");
        }
    }
}

pub(super) fn check_binding(binding: &RoleBinding) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let role = &binding.role_ref;
    if role.api_group != "rbac.authorization.k8s.io" {
        let supported = ["rbac.authorization.k8s.io"];
        errors.push(FieldError::unsupported("roleRef.apiGroup", &role.api_group, &supported));
    }
    if !["ClusterRole", "Role"].contains(&role.kind.as_str()) {
        errors.push(FieldError::unsupported("roleRef.kind", &role.kind, &["Role", "ClusterRole"]));
    }
    if role.name.is_empty() {
        errors.push(FieldError::required("roleRef.name", ""));
    }
    for (index, subject) in binding.subjects.iter().flatten().enumerate() {
        let path = format!("subjects[{index}]");
        if subject.name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        }
        match subject.kind.as_str() {
            "ServiceAccount" | "User" | "Group" => {}
            other => {
                let supported = ["ServiceAccount", "User", "Group"];
                errors.push(FieldError::unsupported(format!("{path}.kind"), other, &supported));
            }
        }
    }
    errors
}

pub(super) fn check_binding_update(new: &RoleBinding, old: &RoleBinding) -> Vec<FieldError> {
    if new.role_ref == old.role_ref {
        return vec![];
    }
    let role = &new.role_ref;
    let text = format!(
        "Invalid value: {{\"APIGroup\":{:?},\"Kind\":{:?},\"Name\":{:?}}}: cannot change roleRef",
        role.api_group, role.kind, role.name
    );
    vec![FieldError::of("FieldValueInvalid", "roleRef", text)]
}

fn default_text_of(field: &mut String, value: &str) {
    if field.is_empty() {
        value.clone_into(field);
    }
}
