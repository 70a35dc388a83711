//! Creates and merge patches.

use pando_cluster::{Env, Kind, Object, ObjectKey, Scoped};
use serde_json::{Value, json};

use super::omit::omit_empty;
use super::refusal::{FieldError, Refusal};
use super::{Server, User, admission, delete, kinds, quota};
use crate::store::key_of;

/// Metadata that only the API server writes.
const SYSTEM_FIELDS: &[&str] =
    &["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"];

pub(super) fn create(
    server: &mut Server<'_>,
    user: &User,
    kind: Kind,
    namespace: Option<&str>,
    body: &Value,
) -> Result<Value, Refusal> {
    let mut posted = read_body(kind, body)?;
    name_it(server.env, kind, namespace, &mut posted)?;
    let key = key_of(kind, &posted);
    if !posted["metadata"]["resourceVersion"].as_str().unwrap_or_default().is_empty() {
        return Err(Refusal::internal("resourceVersion should not be set on objects to be created"));
    }
    clear_system_fields(&mut posted);
    let mut object = decode(kind, posted)?;
    let home = admission::life_cycle(server, &key)?;
    kinds::complete(&mut object).map_err(|_| bad_amount(kind))?;
    admission::change(server, &mut object)?;
    let mut errors = kinds::check(&object);
    errors.extend(kinds::check_new(&object));
    if !errors.is_empty() {
        return Err(Refusal::invalid(kind, &key.name, &errors));
    }
    if let Object::Service(service) = &mut object {
        kinds::allocate(server.store, server.config.service_cidr, service)
            .map_err(|errors| Refusal::invalid(kind, &key.name, &errors))?;
    }
    admission::judge(server, user, home.as_ref(), &object)?;
    let charges = quota::judge(server.store, &object, None)?;
    if let Some(holder) = server.store.get(&key) {
        return Err(Refusal::already_exists(&key, !holder["metadata"]["deletionTimestamp"].is_null()));
    }
    charges.book(server.store);
    let mut stored = encode(&object)?;
    if let Some(status) = first_status(&object, &server.store.now_text()) {
        stored["status"] = status;
    }
    if kinds::has_generation(kind) {
        stored["metadata"]["generation"] = 1.into();
    }
    server.store.stamp_new(&mut stored);
    server.store.put(&key, stored);
    server.store.get(&key).cloned().ok_or_else(|| Refusal::not_found(&key))
}

pub(super) fn patch(server: &mut Server<'_>, key: &ObjectKey, body: &Value) -> Result<Value, Refusal> {
    if !body.is_object() {
        let why = "json: cannot unmarshal array into Go value of type map[string]interface {}";
        return Err(Refusal::bad_request(format!("error decoding patch: {why}")));
    }
    let before = server.store.shared(key).ok_or_else(|| Refusal::not_found(key))?;
    let (old, new) = merge(server, key, &before, body)?;
    admission::judge_change(server, &new, &old)?;
    let charges = quota::judge(server.store, &new, Some(&old))?;
    let mut after = encode(&new)?;
    restore(&mut after, &before, "status");
    let generation = before["metadata"]["generation"].as_i64();
    if let Some(generation) = generation.filter(|_| after["spec"] != before["spec"]) {
        after["metadata"]["generation"] = (generation + 1).into();
    }
    charges.book(server.store);
    if delete::may_go(key.kind, &after) {
        // The last thing that held it is gone, and so is it: this state is never stored (tried on 1.34).
        server.store.remove(key);
        return Ok(after);
    }
    server.store.put(key, after);
    server.store.get(key).cloned().ok_or_else(|| Refusal::not_found(key))
}

/// The object before and after the patch, found to be in order.
fn merge(server: &Server<'_>, key: &ObjectKey, before: &Value, body: &Value) -> Result<(Object, Object), Refusal> {
    let kind = key.kind;
    let invalid = |errors: Vec<FieldError>| match errors.as_slice() {
        [] => Ok(()),
        errors => Err(Refusal::invalid(kind, &key.name, errors)),
    };
    let mut merged = before.clone();
    json_patch::merge(&mut merged, body);
    let mut kept = merged.clone();
    keep_system_fields(&mut kept, before);
    let old = decode(kind, before.clone())?;
    let mut new = read(kind, kept).map_err(|why| Refusal::unreadable_patch(&merged, &why))?;
    refuse_other_identity(key, before, &merged)?;
    if let (Object::Service(new), Object::Service(old)) = (&mut new, &old) {
        kinds::keep_allocated(new, old);
    }
    kinds::complete(&mut new).map_err(|_| bad_amount(kind))?;
    if let Object::Pod(pod) = &mut new {
        kinds::tolerate_lost_nodes(pod);
    }
    if let Object::Service(service) = &mut new {
        // What a Service is given is settled between the rules on the object and those on the change.
        invalid(kinds::check(&Object::Service(service.clone())))?;
        kinds::allocate(server.store, server.config.service_cidr, service).or_else(invalid)?;
    }
    let mut errors = kinds::check_update(&new, &old);
    errors.extend(added_finalizers(before, body));
    errors.extend(kinds::check(&new));
    invalid(errors)?;
    Ok((old, new))
}

/// The body as an object of `kind`: it need not say so, but must not say otherwise.
fn read_body(kind: Kind, body: &Value) -> Result<Value, Refusal> {
    if !body.is_object() {
        let why = format!("the object provided is unrecognized (must be of type {kind}): couldn't get version/kind");
        return Err(Refusal::bad_request(why));
    }
    for (field, expected) in [("apiVersion", kind.api_version()), ("kind", kind.name().to_owned())] {
        let given = body[field].as_str().unwrap_or_default();
        if !given.is_empty() && given != expected {
            let why = format!("{field} in the data ({given}) does not match the expected {field} ({expected})");
            return Err(Refusal::bad_request(why));
        }
    }
    Ok(body.clone())
}

/// Settles where the object will be: the path's namespace, and a name of its own or a generated one.
fn name_it(env: &Env, kind: Kind, namespace: Option<&str>, posted: &mut Value) -> Result<(), Refusal> {
    if !posted["metadata"].is_object() {
        posted["metadata"] = json!({});
    }
    let meta = &mut posted["metadata"];
    match (kind.scoped(), namespace) {
        (Scoped::Namespace, Some(namespace)) if !namespace.is_empty() => {
            let given = meta["namespace"].as_str().unwrap_or_default();
            if !given.is_empty() && given != namespace {
                let why = "the namespace of the provided object does not match the namespace sent on the request";
                return Err(Refusal::bad_request(why));
            }
            meta["namespace"] = namespace.into();
        }
        (Scoped::Namespace, _) => return Err(Refusal::method_not_allowed()),
        (Scoped::Cluster, _) => {
            if let Some(meta) = meta.as_object_mut() {
                meta.remove("namespace");
            }
        }
    }
    let prefix = meta["generateName"].as_str().unwrap_or_default();
    if meta["name"].as_str().unwrap_or_default().is_empty() && !prefix.is_empty() {
        let kept: String = prefix.chars().take(58).collect();
        meta["name"] = format!("{kept}{}", random_suffix(env)).into();
    }
    Ok(())
}

/// Five letters and digits that spell no words.
pub(super) fn random_suffix(env: &Env) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut bytes = [0; 5];
    env.random.fill(&mut bytes);
    bytes.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect()
}

fn clear_system_fields(posted: &mut Value) {
    if let Some(meta) = posted["metadata"].as_object_mut() {
        for field in SYSTEM_FIELDS.iter().chain(&["managedFields", "resourceVersion"]) {
            meta.remove(*field);
        }
    }
    if let Some(members) = posted.as_object_mut() {
        members.remove("status");
    }
}

/// A patch changes neither what the API server keeps about an object nor its status.
fn keep_system_fields(merged: &mut Value, before: &Value) {
    if let Some(meta) = merged["metadata"].as_object_mut() {
        meta.remove("managedFields");
    }
    for field in SYSTEM_FIELDS {
        restore(&mut merged["metadata"], &before["metadata"], field);
    }
    restore(merged, before, "status");
}

fn restore(to: &mut Value, from: &Value, field: &str) {
    if let (Some(to), Some(from)) = (to.as_object_mut(), from.as_object()) {
        match from.get(field) {
            Some(value) => to.insert(field.to_owned(), value.clone()),
            None => to.remove(field),
        };
    }
}

/// Refuses a patch that was made for another object or another version of it.
fn refuse_other_identity(key: &ObjectKey, before: &Value, merged: &Value) -> Result<(), Refusal> {
    let meta = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let name = meta(merged, "name");
    if name != key.name {
        let why = format!("the name of the object ({name}) does not match the name on the URL ({})", key.name);
        return Err(Refusal::bad_request(why));
    }
    if meta(merged, "namespace") != meta(before, "namespace") {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Refusal::bad_request(why));
    }
    let version = meta(merged, "resourceVersion");
    if !version.is_empty() && version != meta(before, "resourceVersion") {
        return Err(Refusal::modified(key));
    }
    let uid = meta(merged, "uid");
    if uid != meta(before, "uid") {
        let error = FieldError::invalid("metadata.uid", uid, "field is immutable");
        return Err(Refusal::invalid(key.kind, &key.name, &[error]));
    }
    Ok(())
}

/// An object that is being deleted takes no new reasons to stay.
fn added_finalizers(before: &Value, patch: &Value) -> Option<FieldError> {
    if before["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    let had = before["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let new: Vec<_> = patch["metadata"]["finalizers"].as_array()?.iter().filter(|it| !had.contains(it)).collect();
    (!new.is_empty()).then(|| {
        let new: Vec<_> = new.into_iter().map(ToString::to_string).collect();
        let why = "no new finalizers can be added if the object is being deleted, found new finalizers []string";
        FieldError::forbidden("metadata.finalizers", format!("{why}{{{}}}", new.join(", ")))
    })
}

fn first_status(object: &Object, now: &str) -> Option<Value> {
    match object {
        Object::Pod(_) => Some(kinds::start_status(object, now)),
        Object::Namespace(_) => Some(json!({"phase": "Active"})),
        Object::PersistentVolumeClaim(_) => Some(json!({"phase": "Pending"})),
        Object::PersistentVolume(_) => Some(json!({"phase": "Pending", "lastPhaseTransitionTime": now})),
        Object::Service(_) => Some(json!({"loadBalancer": {}})),
        Object::ResourceQuota(_) => Some(json!({})),
        Object::Node(_)
        | Object::ServiceAccount(_)
        | Object::Secret(_)
        | Object::ConfigMap(_)
        | Object::StorageClass(_)
        | Object::Event(_)
        | Object::NetworkPolicy(_)
        | Object::RoleBinding(_)
        | Object::EndpointSlice(_) => None,
    }
}

/// Reads the object as its kind; what the kind does not know is dropped, as Kubernetes does by default.
fn decode(kind: Kind, json: Value) -> Result<Object, Refusal> {
    read(kind, json).map_err(|why| unreadable(kind, &why))
}

/// As [`decode`]; the failure is what is wrong in the JSON.
fn read(kind: Kind, mut json: Value) -> Result<Object, String> {
    omit_empty(&mut json);
    Object::from_json(kind, json).map_err(|error| error.to_string())
}

/// The object as it is stored.
fn encode(object: &Object) -> Result<Value, Refusal> {
    let mut json = object.to_json().map_err(|error| unreadable(object.kind(), &error.to_string()))?;
    omit_empty(&mut json);
    Ok(json)
}

fn unreadable(kind: Kind, why: &str) -> Refusal {
    let (kind, version) = (kind.name(), kind.version());
    Refusal::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
}

fn bad_amount(kind: Kind) -> Refusal {
    let form = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    unreadable(kind, form)
}
