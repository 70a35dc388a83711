//! Claims: protected while a pod on a node has them.

use pando_cluster::{Kind, ObjectKey};
use serde_json::{Value, json};

use super::objects::{is_being_deleted, release, remove_if_free, text};
use crate::FakeCluster;
use crate::store::Store;

/// Keeps a claim that a pod has from going before the pod.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// Protects claims and lets them go, for ever.
pub(super) async fn run(fake: FakeCluster) {
    let mut seen = 0;
    loop {
        fake.with(|store| {
            let matters = |kind| matches!(kind, Kind::Pod | Kind::PersistentVolumeClaim);
            if store.changes_after(seen).is_none_or(|mut all| all.any(|change| matters(change.key.kind))) {
                look(store);
            }
            seen = store.revision();
        });
        fake.changed(seen).await;
    }
}

fn look(store: &mut Store) {
    let claims: Vec<_> =
        store.all(Kind::PersistentVolumeClaim).map(|(key, claim)| (key.clone(), is_being_deleted(claim))).collect();
    for (key, deleting) in claims {
        if !deleting {
            store.update(&key, protect);
        } else if !is_used(store, &key) {
            store.update(&key, |claim| release(claim, PROTECTION));
            remove_if_free(store, &key);
        }
    }
}

fn protect(claim: &mut Value) {
    let held = &mut claim["metadata"]["finalizers"];
    match held.as_array_mut() {
        None => *held = json!([PROTECTION]),
        Some(held) if held.iter().any(|it| it == PROTECTION) => {}
        Some(held) => held.push(PROTECTION.into()),
    }
}

/// Whether a pod has the claim: one that has ended does until its object is gone, one that was never placed does not
/// (tried on 1.34).
fn is_used(store: &Store, claim: &ObjectKey) -> bool {
    let namespace = claim.namespace.as_deref().unwrap_or_default();
    let placed = store.within(Kind::Pod, namespace).filter(|(_, pod)| !text(pod, "/spec/nodeName").is_empty());
    placed.into_iter().any(|(_, pod)| {
        let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        volumes.into_iter().any(|it| text(it, "/persistentVolumeClaim/claimName") == claim.name)
    })
}
