//! Deletions: preconditions, grace, finalizers.
//!
//! A pod that was scheduled and has not ended stays, with a date of death, until its kubelet has ended it; a
//! namespace stays until its contents are gone; anything stays while it has finalizers.
//! <https://github.com/kubernetes/kubernetes/blob/v1.34.0/staging/src/k8s.io/apiserver/pkg/registry/rest/delete.go>

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use pando_cluster::{Kind, ObjectKey};
use serde_json::{Value, json};

use super::Server;
use super::refusal::Refusal;
use crate::store::text_of;

/// Namespaces that a built-in rule keeps.
const KEPT_NAMESPACES: &[&str] = &["default", "kube-system", "kube-public"];

pub(super) fn delete(server: &mut Server<'_>, key: &ObjectKey, options: &Value) -> Result<Value, Refusal> {
    let seconds = &options["gracePeriodSeconds"];
    if key.kind == Kind::Namespace && KEPT_NAMESPACES.contains(&key.name.as_str()) {
        return Err(Refusal::forbidden(key.kind, &key.name, "this namespace may not be deleted"));
    }
    let object = server.store.shared(key).ok_or_else(|| Refusal::not_found(key))?;
    check_preconditions(key, &object, &options["preconditions"])?;
    let step = match key.kind {
        Kind::Pod => pod_step(&object, seconds.as_i64()),
        _ => Step::Go,
    };
    let dying = match step {
        Step::Stay => return Ok(Value::clone(&object)),
        // A pod's death is written before it goes, even at once: watches see both.
        Step::Die { grace, from } => mark(server, key, grace, from),
        Step::Go if is_held(key.kind, &object) => return Ok(hold(server, key, &object)),
        Step::Go => {
            server.store.remove(key);
            return Ok(farewell(key, &object));
        }
    };
    if may_go(key.kind, &dying) {
        server.store.remove(key);
    }
    Ok(dying)
}

/// What a deletion does to an object now.
enum Step {
    /// Nothing: it is dying already, and not later than asked.
    Stay,
    /// It has `grace` seconds to live, counted from `from` or from now; with 0 it goes unless finalizers hold it.
    Die { grace: i64, from: Option<Timestamp> },
    /// It goes at once, unless finalizers hold it.
    Go,
}

/// How long a pod has to live.
fn pod_step(pod: &Value, asked: Option<i64>) -> Step {
    let dying: Option<Timestamp> = pod["metadata"]["deletionTimestamp"].as_str().and_then(|date| date.parse().ok());
    if let Some(death) = dying {
        let left = pod["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or_default();
        // The time may be shortened, never lengthened.
        return match asked {
            Some(asked) if asked < left => {
                Step::Die { grace: asked.max(0), from: death.checked_sub(SignedDuration::from_secs(left)).ok() }
            }
            Some(_) | None => Step::Stay,
        };
    }
    let placed = pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64();
    let grace = if placed && !ended { asked.or(own).unwrap_or_default() } else { 0 };
    Step::Die { grace: if grace < 0 { 1 } else { grace }, from: None }
}

/// Sets the date of death.
fn mark(server: &mut Server<'_>, key: &ObjectKey, grace: i64, from: Option<Timestamp>) -> Value {
    let from = from.unwrap_or_else(|| server.env.wall.now());
    let death = from.checked_add(SignedDuration::from_secs(grace)).unwrap_or(from);
    server.store.update(key, |object| {
        let meta = &mut object["metadata"];
        if meta["deletionTimestamp"].is_null()
            && let Some(generation) = meta["generation"].as_i64()
        {
            meta["generation"] = (generation + 1).into();
        }
        meta["deletionTimestamp"] = text_of(death).into();
        meta["deletionGracePeriodSeconds"] = grace.into();
    });
    server.store.get(key).cloned().unwrap_or_default()
}

/// Marks an object as going whose finalizers keep it, or whose contents must go first.
fn hold(server: &mut Server<'_>, key: &ObjectKey, object: &Arc<Value>) -> Value {
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return Value::clone(object);
    }
    let now = server.store.now_text();
    server.store.update(key, |object| {
        let meta = &mut object["metadata"];
        if meta["deletionTimestamp"].is_null() {
            meta["deletionTimestamp"] = now.into();
        }
        if key.kind == Kind::Namespace {
            object["status"]["phase"] = "Terminating".into();
        } else {
            meta["deletionGracePeriodSeconds"] = 0.into();
        }
    });
    server.store.get(key).cloned().unwrap_or_default()
}

/// Whether something must happen before `object` can go.
fn is_held(kind: Kind, object: &Value) -> bool {
    let any = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    any(&object["metadata"]["finalizers"]) || (kind == Kind::Namespace && any(&object["spec"]["finalizers"]))
}

/// Whether `object` is being deleted and nothing keeps it any longer.
pub(super) fn may_go(kind: Kind, object: &Value) -> bool {
    let meta = &object["metadata"];
    !meta["deletionTimestamp"].is_null()
        && meta["deletionGracePeriodSeconds"].as_i64().unwrap_or_default() == 0
        && !is_held(kind, object)
}

/// Kubernetes words this in one way for namespaces and in another for everything else (tried on 1.34).
fn check_preconditions(key: &ObjectKey, object: &Value, preconditions: &Value) -> Result<(), Refusal> {
    let meta = &object["metadata"];
    for (field, name, hint) in [
        ("uid", "UID", "The object might have been deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", "The object might have been modified"),
    ] {
        let (Some(asked), Some(is)) = (preconditions[field].as_str(), meta[field].as_str()) else { continue };
        if asked != is {
            return Err(Refusal::precondition(
                key,
                &if key.kind == Kind::Namespace {
                    format!("Precondition failed: {name} in precondition: {asked}, {name} in object meta: {is}")
                } else {
                    format!(
                        "the {name} in the precondition ({asked}) does not match the {name} in record ({is}). {hint}"
                    )
                },
            ));
        }
    }
    Ok(())
}

/// The answer to a deletion that took effect at once: the object, or a `Status`, by kind.
fn farewell(key: &ObjectKey, object: &Value) -> Value {
    match key.kind {
        Kind::Pod
        | Kind::Service
        | Kind::ServiceAccount
        | Kind::PersistentVolumeClaim
        | Kind::PersistentVolume
        | Kind::StorageClass
        | Kind::ResourceQuota => object.clone(),
        Kind::Namespace
        | Kind::Node
        | Kind::Secret
        | Kind::ConfigMap
        | Kind::Event
        | Kind::NetworkPolicy
        | Kind::RoleBinding
        | Kind::EndpointSlice => {
            let mut details = json!({"name": key.name, "kind": key.kind.plural(), "uid": object["metadata"]["uid"]});
            if !key.kind.group().is_empty() {
                details["group"] = key.kind.group().into();
            }
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
        }
    }
}
