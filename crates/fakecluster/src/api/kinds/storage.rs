//! Storage: claims, volumes and the classes that volumes are made by.
//!
//! <https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/apis/core/validation/validation.go>

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use super::{BadAmount, amount, default, default_text, respell};
use crate::api::names;
use crate::api::quantity::Amount;
use crate::api::refusal::FieldError;

const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];

/// Where the storage of a volume can be, in the order in which Kubernetes looks.
const SOURCES: &[&str] = &[
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

pub(super) fn complete_claim(claim: &mut PersistentVolumeClaim) -> Result<(), BadAmount> {
    let spec = claim.spec.get_or_insert_default();
    default_text(&mut spec.volume_mode, "Filesystem");
    let resources = spec.resources.get_or_insert_default();
    respell(resources.limits.as_mut())?;
    respell(resources.requests.as_mut())
}

pub(super) fn check_claim(claim: &PersistentVolumeClaim) -> Vec<FieldError> {
    let spec = claim.spec.clone().unwrap_or_default();
    let mut errors = Vec::new();
    let given = spec.access_modes.as_deref().unwrap_or_default();
    if given.is_empty() {
        errors.push(FieldError::required("spec.accessModes", "at least 1 access mode is required"));
    }
    errors.extend(check_access_modes(given));
    match storage(&spec) {
        None => errors.push(FieldError::required("spec.resources[storage]", "")),
        Some(size) => errors.extend(check_size("spec.resources[storage]", size)),
    }
    errors.extend(check_class_name(spec.storage_class_name.as_deref()));
    errors.extend(check_volume_mode(spec.volume_mode.as_deref()));
    errors
}

/// A claim stays as it was asked for; once it is bound it may grow.
pub(super) fn check_claim_update(new: &PersistentVolumeClaim, old: &PersistentVolumeClaim) -> Vec<FieldError> {
    let bound = old.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let capacity = old.status.as_ref().and_then(|status| amount(status.capacity.as_ref(), "storage"));
    let (new, old) = (new.spec.clone().unwrap_or_default(), old.spec.clone().unwrap_or_default());
    let mut allowed = old.clone();
    if old.volume_name.as_deref().unwrap_or_default().is_empty() {
        allowed.volume_name.clone_from(&new.volume_name);
    }
    if old.storage_class_name.is_none() {
        allowed.storage_class_name.clone_from(&new.storage_class_name);
    }
    if bound {
        allowed.resources.clone_from(&new.resources);
    }
    let mut errors = Vec::new();
    if new != allowed {
        let why =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(FieldError::forbidden("spec", why));
    }
    let size = storage(&new);
    if size < storage(&old) && size <= capacity {
        let why = "field can not be less than status.capacity";
        errors.push(FieldError::forbidden("spec.resources.requests.storage", why));
    }
    errors
}

/// The storage that a claim asks for.
pub(crate) fn claimed_size(claim: &PersistentVolumeClaim) -> Option<Amount> {
    storage(claim.spec.as_ref()?)
}

fn storage(spec: &PersistentVolumeClaimSpec) -> Option<Amount> {
    amount(spec.resources.as_ref().and_then(|it| it.requests.as_ref()), "storage")
}

pub(super) fn complete_volume(volume: &mut PersistentVolume) -> Result<(), BadAmount> {
    let spec = volume.spec.get_or_insert_default();
    default_text(&mut spec.persistent_volume_reclaim_policy, "Retain");
    default_text(&mut spec.volume_mode, "Filesystem");
    if let Some(directory) = &mut spec.host_path {
        default(&mut directory.type_, String::new());
    }
    respell(spec.capacity.as_mut())
}

pub(super) fn check_volume(volume: &PersistentVolume) -> Vec<FieldError> {
    let spec = volume.spec.clone().unwrap_or_default();
    let mut errors = Vec::new();
    let given = spec.access_modes.as_deref().unwrap_or_default();
    if given.is_empty() {
        errors.push(FieldError::required("spec.accessModes", ""));
    }
    errors.extend(check_access_modes(given));
    errors.extend(check_capacity(spec.capacity.as_ref()));
    let policies = ["Delete", "Recycle", "Retain"];
    let policy = spec.persistent_volume_reclaim_policy.as_deref().unwrap_or_default();
    if !policies.contains(&policy) {
        errors.push(FieldError::unsupported("spec.persistentVolumeReclaimPolicy", policy, &policies));
    }
    errors.extend(check_affinity(spec.node_affinity.as_ref()));
    errors.extend(check_source(&spec));
    errors.extend(check_class_name(spec.storage_class_name.as_deref()));
    errors.extend(check_volume_mode(spec.volume_mode.as_deref()));
    errors
}

fn check_capacity(capacity: Option<&BTreeMap<String, Quantity>>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if capacity.is_none_or(BTreeMap::is_empty) {
        errors.push(FieldError::required("spec.capacity", ""));
    }
    let only = amount(capacity, "storage").filter(|_| capacity.is_some_and(|all| all.len() == 1));
    if let Some(size) = only {
        errors.extend(check_size("spec.capacity[storage]", size));
    } else {
        let text = format!("Unsupported value: {}: supported values: \"storage\"", json!(capacity));
        errors.push(FieldError::of("FieldValueNotSupported", "spec.capacity", text));
    }
    errors
}

fn check_affinity(affinity: Option<&VolumeNodeAffinity>) -> Option<FieldError> {
    match &affinity?.required {
        None => Some(FieldError::required("spec.nodeAffinity.required", "must specify required node constraints")),
        Some(required) if required.node_selector_terms.is_empty() => {
            let path = "spec.nodeAffinity.required.nodeSelectorTerms";
            Some(FieldError::required(path, "must have at least one node selector term"))
        }
        Some(_) => None,
    }
}

/// A volume has one source; of the many only those that the fake's own volumes have are looked into.
fn check_source(spec: &PersistentVolumeSpec) -> Vec<FieldError> {
    let sources = sources(spec);
    let mut named = SOURCES.iter().filter(|source| sources.contains_key(**source));
    let Some(first) = named.next() else { return vec![FieldError::required("spec", "must specify a volume type")] };
    let mut errors = Vec::new();
    if *first == "hostPath" {
        let path = spec.host_path.as_ref().map(|it| it.path.as_str()).unwrap_or_default();
        errors.extend(check_path("spec.hostPath.path", path));
        let recycled = spec.persistent_volume_reclaim_policy.as_deref() == Some("Recycle");
        if recycled && path == "/" {
            let why = "may not be 'recycle' for a hostPath mount of '/'";
            errors.push(FieldError::forbidden("spec.persistentVolumeReclaimPolicy", why));
        }
    }
    if *first == "local" {
        errors
            .extend(check_path("spec.local.path", spec.local.as_ref().map(|it| it.path.as_str()).unwrap_or_default()));
        if spec.node_affinity.is_none() {
            errors.push(FieldError::required("spec.nodeAffinity", "Local volume requires node affinity"));
        }
    }
    if let Some(csi) = spec.csi.as_ref().filter(|_| *first == "csi") {
        let fields = [("spec.csi.driver", &csi.driver), ("spec.csi.volumeHandle", &csi.volume_handle)];
        let empty = fields.into_iter().filter(|(_, value)| value.is_empty());
        errors.extend(empty.map(|(path, _)| FieldError::required(path, "")));
    }
    let many = "may not specify more than 1 volume type";
    errors.extend(named.map(|source| FieldError::forbidden(format!("spec.{source}"), many)));
    errors
}

fn check_path(field: &str, path: &str) -> Option<FieldError> {
    if path.is_empty() {
        Some(FieldError::required(field, ""))
    } else if path.split('/').any(|step| step == "..") {
        Some(FieldError::invalid(field, path, "must not contain '..'"))
    } else {
        None
    }
}

/// Where the volume's storage is; the values are as they are written.
fn sources(spec: &PersistentVolumeSpec) -> BTreeMap<String, Value> {
    let written = serde_json::to_value(spec).unwrap_or_default();
    let members = written.as_object().into_iter().flatten();
    let sources = members.filter(|(name, _)| SOURCES.contains(&name.as_str()));
    sources.map(|(name, value)| (name.clone(), value.clone())).collect()
}

pub(super) fn check_volume_update(new: &PersistentVolume, old: &PersistentVolume) -> Vec<FieldError> {
    let (new, old) = (new.spec.clone().unwrap_or_default(), old.spec.clone().unwrap_or_default());
    let mut errors = Vec::new();
    if sources(&new) != sources(&old) {
        let why = "spec.persistentvolumesource is immutable after creation";
        errors.push(FieldError::forbidden("spec.persistentvolumesource", why));
    }
    if new.volume_mode != old.volume_mode {
        errors.push(FieldError::invalid("volumeMode", json!(new.volume_mode), "field is immutable"));
    }
    if old.node_affinity.is_some() && new.node_affinity != old.node_affinity {
        let why = "field is immutable, except for updating from beta label to GA";
        errors.push(FieldError::invalid("nodeAffinity", json!(new.node_affinity), why));
    }
    errors
}

pub(super) fn complete_class(class: &mut StorageClass) {
    default_text(&mut class.reclaim_policy, "Delete");
    default_text(&mut class.volume_binding_mode, "Immediate");
}

pub(super) fn check_class(class: &StorageClass) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if class.provisioner.is_empty() {
        errors.push(FieldError::required("provisioner", ""));
    } else {
        errors.extend(names::at("provisioner", &class.provisioner.to_lowercase(), names::qualified_name));
    }
    if class.parameters.iter().flatten().any(|(key, _)| key.is_empty()) {
        errors.push(FieldError::invalid("parameters", "", "field can not be empty."));
    }
    let choices: [(_, _, &[&str]); 2] = [
        ("reclaimPolicy", &class.reclaim_policy, &["Delete", "Retain"]),
        ("volumeBindingMode", &class.volume_binding_mode, &["Immediate", "WaitForFirstConsumer"]),
    ];
    for (field, given, supported) in choices {
        let given = given.as_deref().unwrap_or_default();
        if !supported.contains(&given) {
            errors.push(FieldError::unsupported(field, given, supported));
        }
    }
    errors
}

pub(super) fn check_class_update(new: &StorageClass, old: &StorageClass) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let fixed = [
        ("parameters", new.parameters != old.parameters),
        ("provisioner", new.provisioner != old.provisioner),
        ("reclaimPolicy", new.reclaim_policy != old.reclaim_policy),
    ];
    for (field, _) in fixed.into_iter().filter(|(_, differs)| *differs) {
        errors.push(FieldError::forbidden(field, format!("updates to {field} are forbidden.")));
    }
    if new.volume_binding_mode != old.volume_binding_mode {
        errors.push(FieldError::invalid("volumeBindingMode", json!(new.volume_binding_mode), "field is immutable"));
    }
    errors
}

fn check_access_modes(given: &[String]) -> Vec<FieldError> {
    let path = "spec.accessModes";
    let unknown = given.iter().filter(|mode| !ACCESS_MODES.contains(&mode.as_str()));
    let mut errors: Vec<_> = unknown.map(|mode| FieldError::unsupported(path, mode, ACCESS_MODES)).collect();
    if given.len() > 1 && given.iter().any(|mode| mode == "ReadWriteOncePod") {
        errors.push(FieldError::forbidden(path, "may not use ReadWriteOncePod with other access modes"));
    }
    errors
}

fn check_size(path: &str, size: Amount) -> Option<FieldError> {
    let wrong = size.is_negative() || size.is_zero();
    wrong.then(|| FieldError::invalid(path, size.to_string(), "must be greater than zero"))
}

fn check_class_name(name: Option<&str>) -> Vec<FieldError> {
    match name {
        None | Some("") => vec![],
        Some(name) => names::at("spec.storageClassName", name, names::dns_subdomain),
    }
}

fn check_volume_mode(mode: Option<&str>) -> Option<FieldError> {
    let mode = mode.unwrap_or_default();
    (!VOLUME_MODES.contains(&mode)).then(|| FieldError::unsupported("spec.volumeMode", mode, VOLUME_MODES))
}
