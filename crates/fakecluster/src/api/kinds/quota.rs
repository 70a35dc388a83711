//! Quotas: which amounts can be limited.

use k8s_openapi::api::core::v1::ResourceQuota;

use super::{BadAmount, respell};
use crate::api::names;
use crate::api::quantity::Amount;
use crate::api::refusal::FieldError;

/// What Kubernetes itself counts and measures; more is counted as `count/<resource>`.
const STANDARD: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "services.nodeports",
    "services.loadbalancers",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
];

pub(super) fn complete(quota: &mut ResourceQuota) -> Result<(), BadAmount> {
    respell(quota.spec.get_or_insert_default().hard.as_mut())
}

pub(super) fn check(quota: &ResourceQuota) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    for (name, quantity) in hard.into_iter().flatten() {
        let path = format!("spec.hard[{name}]");
        errors.extend(names::at(&path, name, names::qualified_name));
        if !name.contains('/') && !STANDARD.contains(&name.as_str()) {
            for why in ["must be a standard resource type or fully qualified", "must be a standard resource for quota"]
            {
                errors.push(FieldError::invalid(path.clone(), name.as_str(), why));
            }
        }
        let Some(amount) = Amount::parse(&quantity.0) else { continue };
        if amount.is_negative() {
            let why = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(path.clone(), quantity.0.as_str(), why));
        }
        if is_counted(name) && !amount.is_whole() {
            errors.push(FieldError::invalid(path, quantity.0.as_str(), "must be an integer"));
        }
    }
    errors
}

pub(super) fn check_update(new: &ResourceQuota, old: &ResourceQuota) -> Vec<FieldError> {
    let scopes = |quota: &ResourceQuota| quota.spec.as_ref().and_then(|spec| spec.scopes.clone());
    if scopes(new) == scopes(old) {
        return vec![];
    }
    vec![FieldError::invalid("spec.scopes", serde_json::json!(scopes(new)), "field is immutable")]
}

/// Whether `name` counts objects and does not measure something.
fn is_counted(name: &str) -> bool {
    name.starts_with("count/") || ["pods", "secrets", "services"].contains(&name) || name.starts_with("services.")
}
