//! `ConfigMap`s: what their keys may be, and that an immutable one stays as it is.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;

use crate::api::names;
use crate::api::refusal::FieldError;

/// <https://kubernetes.io/docs/concepts/configuration/configmap/#motivation>
const LIMIT: usize = 1024 * 1024;

pub(super) fn check(map: &ConfigMap) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let binary = map.binary_data.as_ref();
    let mut size = 0;
    for (key, text) in map.data.iter().flatten() {
        let path = format!("data[{key}]");
        errors.extend(names::at(&path, key, names::data_key));
        if binary.is_some_and(|data| data.contains_key(key)) {
            errors.push(FieldError::invalid(path, key.as_str(), "duplicate of key present in binaryData"));
        }
        size += text.len();
    }
    for (key, ByteString(bytes)) in binary.into_iter().flatten() {
        errors.extend(names::at(&format!("binaryData[{key}]"), key, names::data_key));
        size += bytes.len();
    }
    if size > LIMIT {
        // The path is that of no field, and written so (tried on 1.34).
        errors.push(FieldError::too_long("[]", format!("may not be more than {LIMIT} bytes")));
    }
    errors
}

pub(super) fn check_update(new: &ConfigMap, old: &ConfigMap) -> Vec<FieldError> {
    if old.immutable != Some(true) {
        return vec![];
    }
    let changed = [
        ("immutable", new.immutable != Some(true)),
        ("data", new.data != old.data),
        ("binaryData", new.binary_data != old.binary_data),
    ];
    let why = "field is immutable when `immutable` is set";
    changed.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| FieldError::forbidden(field, why)).collect()
}
