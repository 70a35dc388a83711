//! What is special about each kind: defaults, rules, and what an update may change.
//!
//! [`complete`] fills in what a client left out, [`check`] says which rules an object breaks, and
//! [`check_update`] which changes are not allowed.

mod config_map;
mod pod;
mod pod_rules;
mod quota;
mod secret;
mod service;
mod small;
mod storage;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pando_cluster::{Kind, Object};

pub(crate) use pod::{container_request, prioritise, refuse_runtime_class, start_status, tolerate_lost_nodes};
pub(crate) use service::{allocate, keep_allocated};
pub(crate) use storage::claimed_size;

use super::names;
use super::quantity::Amount;
use super::refusal::FieldError;
use crate::netpol;

/// An amount that is none; the API server cannot even read such an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadAmount;

/// Fills in what a client left out, as Kubernetes' defaulting does, and spells amounts in the one way.
pub(crate) fn complete(object: &mut Object) -> Result<(), BadAmount> {
    match object {
        Object::Pod(pod) => pod::complete(pod),
        Object::Service(service) => {
            service::complete(service);
            Ok(())
        }
        Object::NetworkPolicy(policy) => {
            small::complete_policy(policy);
            Ok(())
        }
        Object::Secret(secret) => {
            secret::complete(secret);
            Ok(())
        }
        Object::RoleBinding(binding) => {
            small::complete_binding(binding);
            Ok(())
        }
        Object::Namespace(namespace) => {
            small::complete_namespace(namespace);
            Ok(())
        }
        Object::ResourceQuota(quota) => quota::complete(quota),
        Object::PersistentVolumeClaim(claim) => storage::complete_claim(claim),
        Object::PersistentVolume(volume) => storage::complete_volume(volume),
        Object::StorageClass(class) => {
            storage::complete_class(class);
            Ok(())
        }
        Object::Node(_)
        | Object::ServiceAccount(_)
        | Object::ConfigMap(_)
        | Object::Event(_)
        | Object::EndpointSlice(_) => Ok(()),
    }
}

/// The rules `object` breaks, whether new or changed.
pub(crate) fn check(object: &Object) -> Vec<FieldError> {
    let mut errors = check_meta(object);
    errors.extend(match object {
        Object::Pod(pod) => pod_rules::check(pod),
        Object::Service(service) => service::check(service),
        Object::NetworkPolicy(policy) => {
            let errors = netpol::validate(policy).err().into_iter().flatten();
            let errors = errors.map(|error| FieldError::of(error.kind.reason(), &error.field, error.message()));
            errors.chain(small::check_policy_labels(policy)).collect()
        }
        Object::Secret(secret) => secret::check(secret),
        Object::RoleBinding(binding) => small::check_binding(binding),
        Object::ResourceQuota(quota) => quota::check(quota),
        Object::ConfigMap(map) => config_map::check(map),
        Object::PersistentVolumeClaim(claim) => storage::check_claim(claim),
        Object::PersistentVolume(volume) => storage::check_volume(volume),
        Object::StorageClass(class) => storage::check_class(class),
        Object::Namespace(_)
        | Object::Node(_)
        | Object::ServiceAccount(_)
        | Object::Event(_)
        | Object::EndpointSlice(_) => vec![],
    });
    errors
}

/// The rules that `object` breaks as a new one, besides those of [`check`].
pub(crate) fn check_new(object: &Object) -> Vec<FieldError> {
    match object {
        Object::Pod(pod) => pod_rules::check_new(pod),
        _ => vec![],
    }
}

/// The rules that the change from `old` to `new` breaks.
pub(crate) fn check_update(new: &Object, old: &Object) -> Vec<FieldError> {
    match (new, old) {
        (Object::Pod(new), Object::Pod(old)) => pod_rules::check_update(new, old),
        (Object::Service(new), Object::Service(old)) => service::check_update(new, old),
        (Object::Secret(new), Object::Secret(old)) => secret::check_update(new, old),
        (Object::RoleBinding(new), Object::RoleBinding(old)) => small::check_binding_update(new, old),
        (Object::ConfigMap(new), Object::ConfigMap(old)) => config_map::check_update(new, old),
        (Object::PersistentVolumeClaim(new), Object::PersistentVolumeClaim(old)) => {
            storage::check_claim_update(new, old)
        }
        (Object::PersistentVolume(new), Object::PersistentVolume(old)) => storage::check_volume_update(new, old),
        (Object::StorageClass(new), Object::StorageClass(old)) => storage::check_class_update(new, old),
        (Object::EndpointSlice(new), Object::EndpointSlice(old)) if new.address_type != old.address_type => {
            vec![FieldError::invalid("addressType", new.address_type.as_str(), "field is immutable")]
        }
        (Object::ResourceQuota(new), Object::ResourceQuota(old)) => quota::check_update(new, old),
        _ => vec![],
    }
}

/// Whether Kubernetes counts the changes of the wanted state of this kind in `metadata.generation`.
pub(crate) fn has_generation(kind: Kind) -> bool {
    match kind {
        Kind::Pod | Kind::NetworkPolicy | Kind::EndpointSlice => true,
        Kind::Namespace
        | Kind::Node
        | Kind::Service
        | Kind::ServiceAccount
        | Kind::Secret
        | Kind::ConfigMap
        | Kind::PersistentVolumeClaim
        | Kind::PersistentVolume
        | Kind::StorageClass
        | Kind::ResourceQuota
        | Kind::Event
        | Kind::RoleBinding => false,
    }
}

/// The rules on names, labels and annotations that the object breaks.
fn check_meta(object: &Object) -> Vec<FieldError> {
    let meta = object.meta();
    let mut errors = match meta.name.as_deref().unwrap_or_default() {
        "" => vec![FieldError::required("metadata.name", "name or generateName is required")],
        name => names::at("metadata.name", name, name_rule(object.kind())),
    };
    errors.extend(names::labels("metadata.labels", meta.labels.as_ref()));
    errors.extend(names::annotations("metadata.annotations", meta.annotations.as_ref()));
    for (index, finalizer) in meta.finalizers.iter().flatten().enumerate() {
        let path = format!("metadata.finalizers[{index}]");
        errors.extend(names::at(&path, finalizer, names::qualified_name));
        if !finalizer.contains('/') && !["orphan", "foregroundDeletion"].contains(&finalizer.as_str()) {
            errors.push(FieldError::invalid(
                path,
                finalizer.as_str(),
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
    errors
}

fn name_rule(kind: Kind) -> fn(&str) -> Vec<String> {
    match kind {
        Kind::Namespace => names::dns_label,
        Kind::Service => names::dns_1035_label,
        Kind::RoleBinding => names::path_segment,
        Kind::Node
        | Kind::Pod
        | Kind::ServiceAccount
        | Kind::Secret
        | Kind::ConfigMap
        | Kind::PersistentVolumeClaim
        | Kind::PersistentVolume
        | Kind::StorageClass
        | Kind::ResourceQuota
        | Kind::Event
        | Kind::NetworkPolicy
        | Kind::EndpointSlice => names::dns_subdomain,
    }
}

/// Amounts by the name of what they measure, as Kubernetes' types hold them.
type Amounts = BTreeMap<String, Quantity>;

/// Gives every amount its one spelling; lists of amounts know no less than a thousandth.
fn respell(amounts: Option<&mut Amounts>) -> Result<(), BadAmount> {
    for Quantity(text) in amounts.into_iter().flat_map(|amounts| amounts.values_mut()) {
        *text = Amount::parse(text).ok_or(BadAmount)?.in_thousandths().to_string();
    }
    Ok(())
}

/// The amount of `name`; `None` when it is not there.
fn amount(amounts: Option<&Amounts>, name: &str) -> Option<Amount> {
    amounts?.get(name).and_then(|quantity| Amount::parse(&quantity.0))
}

/// Sets `field` to `value` where a client left it out.
fn default<T>(field: &mut Option<T>, value: T) {
    if field.is_none() {
        *field = Some(value);
    }
}

/// As [`default`], for a text that may also be there and empty.
fn default_text(field: &mut Option<String>, value: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(value.to_owned());
    }
}
