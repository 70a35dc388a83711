//! Pods whose node is no more: they go too, after a while in which it could have come back.
//!
//! <https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/controller/podgc/gc_controller.go>

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::select;
use pando_cluster::env::Instant;
use pando_cluster::{Kind, ObjectKey};

use super::objects::{Condition, ask_to_end, has_ended, set_condition, text};
use crate::FakeCluster;
use crate::store::Store;

/// How long a node may be missing before its pods are given up.
const QUARANTINE: Duration = Duration::from_secs(40);

/// Gives pods up for ever.
pub(super) async fn run(fake: FakeCluster) {
    let mut seen = 0;
    let mut due: BTreeMap<ObjectKey, Instant> = BTreeMap::new();
    loop {
        let now = fake.env().now();
        fake.with(|store| {
            let matters = |kind| matches!(kind, Kind::Pod | Kind::Node);
            if store.changes_after(seen).is_none_or(|mut all| all.any(|change| matters(change.key.kind))) {
                let orphans = orphans(store);
                due.retain(|key, _| orphans.contains(key));
                for key in orphans {
                    due.entry(key).or_insert(now.plus(QUARANTINE));
                }
            }
            for key in due.extract_if(.., |_, at| *at <= now).map(|(key, _)| key) {
                give_up(&fake, store, &key);
            }
            seen = store.revision();
        });
        let changed = std::pin::pin!(fake.changed(seen));
        match due.values().min() {
            Some(next) => drop(select(changed, fake.env().clock.sleep_until(*next)).await),
            None => drop(changed.await),
        }
    }
}

fn orphans(store: &Store) -> Vec<ObjectKey> {
    let is_orphan = |node: &str| !node.is_empty() && store.get(&ObjectKey::cluster(Kind::Node, node)).is_none();
    let pods = store.all(Kind::Pod).filter(|(_, pod)| is_orphan(text(pod, "/spec/nodeName")));
    pods.map(|(key, _)| key.clone()).collect()
}

/// The pod is marked as failed first, for whoever watches it, and then deleted without any grace.
fn give_up(fake: &FakeCluster, store: &mut Store, key: &ObjectKey) {
    let now = store.now_text();
    let condition = Condition {
        kind: "DisruptionTarget",
        status: "True",
        reason: "DeletionByPodGC",
        message: "PodGC: node no longer exists",
    };
    store.update(key, |pod| {
        if !has_ended(pod) {
            pod["status"]["phase"] = "Failed".into();
            set_condition(pod, &now, &condition);
        }
    });
    ask_to_end(store, fake.env(), key);
}
