//! What there is of the app, without what differs from run to run.

use std::collections::BTreeMap;

use pando_cluster::{Kind, names};
use pando_fakecluster::FakeCluster;
use serde_json::Value;

use super::plans::NAMESPACE;

/// Kinds that controllers write by themselves.
const DERIVED: &[Kind] = &[Kind::Event, Kind::EndpointSlice];

/// The app's objects by kind and name: labels, annotations, specs and data; revisions, keys and digests under them are
/// one word each.
pub(super) fn of(fake: &FakeCluster) -> BTreeMap<String, Value> {
    fake.with(|store| {
        let mut state = BTreeMap::new();
        let namespace = pando_cluster::ObjectKey::cluster(Kind::Namespace, NAMESPACE);
        state.extend(store.get(&namespace).map(|found| (namespace.to_string(), normal(Kind::Namespace, found))));
        for kind in Kind::ALL.iter().filter(|kind| !DERIVED.contains(kind)) {
            for (key, object) in store.within(*kind, NAMESPACE) {
                if object["metadata"]["labels"][names::label::MANAGED_BY] != names::MANAGER {
                    continue;
                }
                let name = match kind {
                    Kind::Pod => format!("{}-R", object["metadata"]["labels"][names::label::WORKLOAD]),
                    _ => key.name.clone(),
                };
                let mut place = format!("{kind} {name}");
                // A second pod of the workload would be a difference, not an overwritten entry.
                while state.contains_key(&place) {
                    place.push('+');
                }
                state.insert(place, normal(*kind, object));
            }
        }
        state
    })
}

fn normal(kind: Kind, object: &Value) -> Value {
    let mut normal = serde_json::Map::new();
    for member in ["spec", "data", "roleRef", "subjects", "type"] {
        if let Some(value) = object.get(member) {
            normal.insert(member.to_owned(), value.clone());
        }
    }
    let meta = &object["metadata"];
    normal.insert("labels".to_owned(), meta["labels"].clone());
    normal.insert("annotations".to_owned(), meta["annotations"].clone());
    normal.insert("going".to_owned(), meta["deletionTimestamp"].is_string().into());
    let mut normal = Value::Object(normal);
    mask(&mut normal["labels"], names::label::REVISION);
    mask(&mut normal["spec"]["selector"], names::label::REVISION);
    mask(&mut normal["annotations"], names::annotation::ENV_DIGEST_KEY);
    mask(&mut normal["annotations"], names::annotation::PLAN_DIGEST);
    if let Some(annotations) = normal["annotations"].as_object_mut() {
        annotations.remove(names::annotation::REQUEST_ID);
        // A time; that a deletion is to come would be a difference.
        annotations.retain(|key, value| key != names::annotation::TOUCHED || value == names::TO_BE_DELETED);
        // Controllers' own notes, e.g. where a volume was made.
        annotations.retain(|key, _| !key.contains("kubernetes.io/"));
    }
    if let Some(spec) = normal["spec"].as_object_mut().filter(|_| kind == Kind::PersistentVolumeClaim) {
        spec.remove("volumeName");
    }
    if kind == Kind::Pod {
        // Where it was put, and whether its start is settled, is the run's own.
        if let Some(spec) = normal["spec"].as_object_mut() {
            spec.remove("nodeName");
        }
    }
    normal
}

fn mask(members: &mut Value, key: &str) {
    if let Some(value) = members.as_object_mut().and_then(|members| members.get_mut(key)) {
        *value = "*".into();
    }
}

/// What differs between two states, for people.
pub(super) fn difference(reference: &BTreeMap<String, Value>, state: &BTreeMap<String, Value>) -> Option<String> {
    let mut lines = Vec::new();
    for name in reference.keys().chain(state.keys().filter(|name| !reference.contains_key(*name))) {
        match (reference.get(name), state.get(name)) {
            (Some(_), None) => lines.push(format!("{name} is missing")),
            (None, Some(_)) => lines.push(format!("{name} is one too many")),
            (Some(was), Some(is)) if was != is => lines.push(format!("{name} is {is}, and was to be {was}")),
            _ => {}
        }
    }
    (!lines.is_empty()).then(|| lines.join("; "))
}
