//! Small readings and writings of objects that several controllers share.

use pando_cluster::{Env, Kind, ObjectKey};
use serde_json::{Value, json};

use crate::store::{Store, text_of};

/// The text at a JSON pointer; empty when there is none.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Whether the pod has ended.
pub(super) fn has_ended(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Whether deletion was asked for.
pub(super) fn is_being_deleted(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(|date| !date.is_null())
}

/// Whether `labels` (an object's) have every label of `wanted` (a Service's selector).
pub(super) fn selects(wanted: &Value, labels: &Value) -> bool {
    wanted.as_object().is_some_and(|wanted| {
        !wanted.is_empty() && wanted.iter().all(|(key, value)| labels.get(key).is_some_and(|label| label == value))
    })
}

/// An object as a reference to it names it.
pub(super) fn reference(key: &ObjectKey, object: &Value) -> Value {
    let mut reference = json!({
        "kind": key.kind.name(),
        "name": key.name,
        "uid": text(object, "/metadata/uid"),
    });
    if let Some(namespace) = &key.namespace {
        reference["namespace"] = namespace.as_str().into();
    }
    reference
}

/// Sets a condition of `object`; the date of its last transition moves only with its status.
pub(super) fn set_condition(object: &mut Value, now: &str, condition: &Condition<'_>) {
    let Condition { kind, status, reason, message } = *condition;
    let list = &mut object["status"]["conditions"];
    if !list.is_array() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else { return };
    let before = list.iter_mut().find(|it| it["type"] == kind);
    let since = before.as_ref().filter(|it| it["status"] == status).map(|it| it["lastTransitionTime"].clone());
    let mut after = json!({"type": kind, "status": status, "lastTransitionTime": since.unwrap_or_else(|| now.into())});
    for (field, words) in [("reason", reason), ("message", message)] {
        if !words.is_empty() {
            after[field] = words.into();
        }
    }
    match before {
        Some(before) => *before = after,
        None => list.push(after),
    }
}

/// A condition to set. Empty words are left out.
#[derive(Clone, Copy)]
pub(super) struct Condition<'a> {
    pub(super) kind: &'a str,
    pub(super) status: &'a str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

/// Something worth telling about an object.
pub(super) struct Note<'a> {
    pub(super) about: &'a ObjectKey,
    /// The container concerned, as `spec.containers{app}`.
    pub(super) field: Option<String>,
    pub(super) by: &'a str,
    pub(super) warning: bool,
    pub(super) reason: &'a str,
    pub(super) message: String,
}

/// Records an Event; an equal one that is there already is counted up instead.
pub(super) fn tell(store: &mut Store, env: &Env, note: Note<'_>) {
    let Note { about, field, by, warning, reason, message } = note;
    let Some(object) = store.get(about) else { return };
    let mut involved = reference(about, object);
    involved["apiVersion"] = about.kind.api_version().into();
    if let Some(field) = field {
        involved["fieldPath"] = field.into();
    }
    let namespace = about.namespace.as_deref().unwrap_or("default");
    let now = text_of(env.wall.now());
    let same = |event: &Value| {
        event["involvedObject"] == involved && event["reason"] == reason && event["message"] == message.as_str()
    };
    let known = store.within(Kind::Event, namespace).find(|(_, event)| same(event)).map(|(key, _)| key.clone());
    if let Some(known) = known {
        store.update(&known, |event| {
            event["count"] = (event["count"].as_u64().unwrap_or(1) + 1).into();
            event["lastTimestamp"] = now.into();
        });
        return;
    }
    let event = json!({
        "metadata": {"name": format!("{}.{:016x}", about.name, env.random_u64()), "namespace": namespace},
        "involvedObject": involved,
        "type": if warning { "Warning" } else { "Normal" },
        "reason": reason,
        "message": message,
        "source": {"component": by},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "reportingComponent": by,
        "reportingInstance": "",
    });
    store.insert(Kind::Event, event);
}

/// Takes a member out of an object, where it is.
pub(super) fn leave_out(object: &mut Value, member: &str) {
    if let Some(members) = object.as_object_mut() {
        members.remove(member);
    }
}

/// Takes a finalizer off.
pub(super) fn release(object: &mut Value, finalizer: &str) {
    if let Some(held) = object["metadata"]["finalizers"].as_array_mut() {
        held.retain(|it| it != finalizer);
    }
}

/// Lets an object go that is being deleted, unless a finalizer holds it.
pub(super) fn remove_if_free(store: &mut Store, key: &ObjectKey) {
    let held = |object: &Value| object["metadata"]["finalizers"].as_array().is_some_and(|held| !held.is_empty());
    if store.get(key).is_some_and(|object| is_being_deleted(object) && !held(object)) {
        store.remove(key);
    }
}

/// Asks for the end of an object as a controller does: a pod that runs gets its grace, finalizers hold.
pub(super) fn ask_to_end(store: &mut Store, env: &Env, key: &ObjectKey) {
    let Some(object) = store.get(key) else { return };
    if is_being_deleted(object) {
        return;
    }
    let runs = key.kind == Kind::Pod && !text(object, "/spec/nodeName").is_empty() && !has_ended(object);
    let held = object.pointer("/metadata/finalizers").and_then(Value::as_array).is_some_and(|held| !held.is_empty());
    if !runs && !held {
        store.remove(key);
        return;
    }
    let grace = match object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64) {
        Some(seconds) if runs => seconds,
        None if runs => 30,
        _ => 0,
    };
    let due = env.wall.now().saturating_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(jiff::Timestamp::MAX);
    store.update(key, |object| {
        object["metadata"]["deletionTimestamp"] = text_of(due).into();
        object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
    });
}
