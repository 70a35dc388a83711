//! Endpoint slices: the addresses behind a Service's name.
//!
//! With a fault of Kubernetes 1.34 that matters: an ended pod is left out whenever a slice is computed, but its
//! end alone (phase `Running` to `Failed`) does not cause that. So a pod whose readiness changed first stays in
//! the slice until the Service or a pod's labels are touched.

use std::collections::BTreeSet;

use pando_cluster::env::yield_now;
use pando_cluster::{Kind, ObjectKey};
use serde_json::{Value, json};

use super::objects::{has_ended, is_being_deleted, reference, selects, text};
use crate::FakeCluster;
use crate::store::{Change, Store};

const SERVICE: &str = "kubernetes.io/service-name";

/// Keeps the slices of all Services with a selector, for ever.
pub(super) async fn run(fake: FakeCluster) {
    let mut seen = 0;
    loop {
        let touched = fake.with(|store| {
            let touched = match store.changes_after(seen) {
                Some(changes) => touched(store, changes),
                None => store.all(Kind::Service).map(|(key, _)| key.clone()).collect(),
            };
            seen = store.revision();
            touched
        });
        let lag = fake.config().delays.endpoints;
        if !touched.is_empty() && !lag.is_zero() {
            fake.env().sleep(lag).await;
        }
        for service in touched {
            fake.with(|store| compute(&fake, store, &service));
            yield_now().await;
        }
        fake.changed(seen).await;
    }
}

/// The Services whose slices have to be computed again.
fn touched<'a>(store: &'a Store, changes: impl Iterator<Item = &'a Change>) -> BTreeSet<ObjectKey> {
    let mut touched = BTreeSet::new();
    for change in changes {
        match change.key.kind {
            Kind::Service => {
                touched.insert(change.key.clone());
            }
            Kind::Pod if matters(change) => {
                let namespace = change.key.namespace.as_deref().unwrap_or_default();
                let versions = [change.before.as_deref(), Some(&*change.after)];
                let selecting = store.within(Kind::Service, namespace).filter(|(_, service)| {
                    let selector = &service["spec"]["selector"];
                    versions.into_iter().flatten().any(|pod| selects(selector, &pod["metadata"]["labels"]))
                });
                touched.extend(selecting.map(|(key, _)| key.clone()));
            }
            _ => {}
        }
    }
    touched
}

/// Whether a change to a pod changes endpoints, as the controller sees it: the phase is not looked at.
fn matters(change: &Change) -> bool {
    let Some(before) = change.before.as_deref().filter(|_| !change.removed) else { return true };
    let after = &*change.after;
    let same = |pointer: &str| before.pointer(pointer) == after.pointer(pointer);
    is_ready(before) != is_ready(after)
        || is_being_deleted(before) != is_being_deleted(after)
        || !["/metadata/labels", "/status/podIPs", "/spec/nodeName", "/spec/hostname"].into_iter().all(same)
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|it| it["type"] == "Ready" && it["status"] == "True")
}

fn compute(fake: &FakeCluster, store: &mut Store, key: &ObjectKey) {
    let namespace = key.namespace.clone().unwrap_or_default();
    let mine = |slice: &Value| slice["metadata"]["labels"][SERVICE] == key.name.as_str() && is_managed(slice);
    let old = store.within(Kind::EndpointSlice, &namespace).find(|(_, slice)| mine(slice)).map(|(key, _)| key.clone());
    let service = store.get(key).filter(|service| {
        service["spec"]["selector"].as_object().is_some_and(|it| !it.is_empty())
            && service["spec"]["type"] != "ExternalName"
    });
    let Some(service) = service.cloned() else {
        if let Some(old) = old {
            store.remove(&old);
        }
        return;
    };
    let (endpoints, ports) = (endpoints(store, &namespace, &service), ports(&service));
    if let Some(old) = old {
        store.update(&old, |slice| {
            slice["endpoints"] = endpoints;
            slice["ports"] = ports;
        });
        return;
    }
    let terminating = store.get(&ObjectKey::cluster(Kind::Namespace, &namespace)).is_none_or(is_being_deleted);
    if !terminating {
        let name = format!("{}-{}", key.name, suffix(fake.env().random_u64()));
        store.insert(Kind::EndpointSlice, slice(key, &service, &name, endpoints, ports));
    }
}

fn is_managed(slice: &Value) -> bool {
    slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "endpointslice-controller.k8s.io"
}

fn slice(key: &ObjectKey, service: &Value, name: &str, endpoints: Value, ports: Value) -> Value {
    let mut owner = reference(key, service);
    owner["apiVersion"] = "v1".into();
    owner["controller"] = true.into();
    owner["blockOwnerDeletion"] = true.into();
    if let Some(owner) = owner.as_object_mut() {
        owner.remove("namespace");
    }
    let mut labels = service["metadata"]["labels"].clone();
    if !labels.is_object() {
        labels = json!({});
    }
    labels[SERVICE] = key.name.as_str().into();
    labels["endpointslice.kubernetes.io/managed-by"] = "endpointslice-controller.k8s.io".into();
    if service["spec"]["clusterIP"] == "None" {
        labels["service.kubernetes.io/headless"] = "".into();
    }
    json!({
        "metadata": {
            "name": name,
            "generateName": format!("{}-", key.name),
            "namespace": key.namespace,
            "labels": labels,
            "ownerReferences": [owner],
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": ports,
    })
}

fn endpoints(store: &Store, namespace: &str, service: &Value) -> Value {
    let publish = service["spec"]["publishNotReadyAddresses"] == true;
    let pods = store
        .within(Kind::Pod, namespace)
        .filter(|(_, pod)| selects(&service["spec"]["selector"], &pod["metadata"]["labels"]) && !has_ended(pod));
    let mut list = Vec::new();
    for (key, pod) in pods {
        let ip = text(pod, "/status/podIP");
        if ip.is_empty() {
            continue;
        }
        let (ready, terminating) = (is_ready(pod), is_being_deleted(pod));
        let mut endpoint = json!({
            "addresses": [ip],
            "conditions": {"ready": publish || (ready && !terminating), "serving": ready, "terminating": terminating},
            "nodeName": pod["spec"]["nodeName"],
            "targetRef": reference(key, pod),
        });
        let hostname = text(pod, "/spec/hostname");
        if !hostname.is_empty() && text(pod, "/spec/subdomain") == text(service, "/metadata/name") {
            endpoint["hostname"] = hostname.into();
        }
        list.push(endpoint);
    }
    list.into()
}

fn ports(service: &Value) -> Value {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let port = |port: &Value| {
        let name = port["name"].as_str().unwrap_or_default();
        let number = match port["targetPort"].as_u64() {
            // A headless Service without it leads to the port itself.
            None => port["port"].clone(),
            Some(target) => target.into(),
        };
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        json!({"name": name, "port": number, "protocol": protocol})
    };
    ports.map(port).collect()
}

/// Five letters and digits that cannot form words, as Kubernetes generates names.
fn suffix(mut random: u64) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut suffix = String::new();
    for _ in 0..5 {
        let index = usize::try_from(random % ALPHABET.len() as u64).unwrap_or(0);
        suffix.push(char::from(ALPHABET[index]));
        random /= ALPHABET.len() as u64;
    }
    suffix
}
