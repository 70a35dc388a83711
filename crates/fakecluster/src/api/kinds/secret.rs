//! Secrets: what their types require, and that an immutable one stays as it is.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::default_text;
use crate::api::names;
use crate::api::refusal::FieldError;

/// <https://kubernetes.io/docs/concepts/configuration/secret/#restriction-data-size>
const LIMIT: usize = 1024 * 1024;

pub(super) fn complete(secret: &mut Secret) {
    default_text(&mut secret.type_, "Opaque");
    if let Some(plain) = secret.string_data.take() {
        let data = secret.data.get_or_insert_default();
        data.extend(plain.into_iter().map(|(key, text)| (key, ByteString(text.into_bytes()))));
    }
}

pub(super) fn check(secret: &Secret) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, ByteString(bytes)) in secret.data.iter().flatten() {
        errors.extend(names::at(&format!("data[{key}]"), key, names::data_key));
        size += bytes.len();
    }
    if size > LIMIT {
        errors.push(FieldError::too_long("data", format!("may not be more than {LIMIT} bytes")));
    }
    let held = |key: &str| secret.data.as_ref().and_then(|data| data.get(key));
    let required: &[&str] = match secret.type_.as_deref().unwrap_or_default() {
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        _ => &[],
    };
    for key in required {
        match held(key) {
            None => errors.push(FieldError::required(format!("data[{key}]"), "")),
            Some(ByteString(bytes)) if *key == ".dockerconfigjson" => {
                if let Err(error) = serde_json::from_slice::<serde_json::Value>(bytes) {
                    let path = format!("data[{key}]");
                    errors.push(FieldError::invalid(path, "<secret contents redacted>", error.to_string()));
                }
            }
            Some(_) => {}
        }
    }
    errors
}

pub(super) fn check_update(new: &Secret, old: &Secret) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if new.type_ != old.type_ {
        let given = new.type_.clone().unwrap_or_default();
        errors.push(FieldError::invalid("type", given, "field is immutable"));
    }
    if old.immutable == Some(true) {
        let why = "field is immutable when `immutable` is set";
        if new.immutable != Some(true) {
            errors.push(FieldError::forbidden("immutable", why));
        }
        if new.data != old.data {
            errors.push(FieldError::forbidden("data", why));
        }
    }
    errors
}
