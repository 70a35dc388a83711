//! The nodes' own life: kubelets start with them, and silence makes them suspect.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::{Either, select};
use pando_cluster::env::Instant;
use pando_cluster::{Kind, ObjectKey};
use serde_json::{Value, json};

use super::kubelet;
use super::objects::{Condition, ask_to_end, has_ended, set_condition, text};
use crate::FakeCluster;
use crate::store::Store;

/// How long pods stay on a node that is lost; every pod tolerates that much unless it says otherwise.
const EVICTED_AFTER: Duration = Duration::from_mins(5);

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// What a taint for a lost node does: no pod comes, and none stays for long.
const BOTH: &[&str] = &["NoSchedule", "NoExecute"];

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Starts a kubelet for every node that appears, for ever.
pub(super) async fn kubelets(fake: FakeCluster) {
    let (mut seen, mut started) = (0, BTreeSet::new());
    loop {
        let nodes = fake.with(|store| {
            let news = store.changes_after(seen).is_none_or(|mut all| all.any(|change| change.key.kind == Kind::Node));
            seen = store.revision();
            if news {
                store.all(Kind::Node).filter_map(|(key, node)| read(&key.name, node)).collect()
            } else {
                Vec::new()
            }
        });
        for node in nodes {
            if started.insert(node.name.clone()) {
                fake.env().spawn_detached("kubelet", kubelet::run(fake.clone(), node));
            }
        }
        fake.changed(seen).await;
    }
}

fn read(name: &str, node: &Value) -> Option<kubelet::Node> {
    let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
    let ips = addresses.filter_map(|it| it["address"].as_str()?.parse().ok()).collect();
    Some(kubelet::Node { name: name.to_owned(), ips, range: text(node, "/spec/podCIDR").parse().ok()? })
}

/// Watches over the nodes: marks those that are silent, taints those that are not ready, and ends the pods on
/// those that are lost for long.
pub(super) async fn lifecycle(fake: FakeCluster) {
    let mut silent: BTreeMap<String, Instant> = BTreeMap::new();
    // Whether a node was lost the last time, so that its return is seen.
    let mut any_lost = false;
    let mut seen = 0;
    loop {
        let heard = fake.machines().news.count();
        let now = fake.env().now();
        let lost = fake.machines().with(|state| state.lost_nodes.clone());
        silent.retain(|name, _| lost.contains(name));
        for name in lost {
            silent.entry(name).or_insert(now);
        }
        let next = fake.with(|store| {
            let news = store.changes_after(seen).is_none_or(|mut all| all.any(|change| change.key.kind == Kind::Node));
            let next = if news || !silent.is_empty() || any_lost { look(&fake, store, &silent) } else { None };
            seen = store.revision();
            next
        });
        any_lost = !silent.is_empty();
        let changed = std::pin::pin!(fake.changed(seen));
        let news = std::pin::pin!(fake.machines().news.past(heard));
        let either = select(changed, news);
        match next {
            Some(next) => drop(select(either, fake.env().clock.sleep_until(next)).await),
            None => match either.await {
                Either::Left(_) | Either::Right(_) => {}
            },
        }
    }
}

/// Brings every node up to date; when to look again.
fn look(fake: &FakeCluster, store: &mut Store, silent: &BTreeMap<String, Instant>) -> Option<Instant> {
    let now = fake.env().now();
    let nodes: Vec<_> = store.all(Kind::Node).map(|(key, _)| key.clone()).collect();
    let mut next: Option<Instant> = None;
    let mut later = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
    for key in nodes {
        let Some(since) = silent.get(&key.name) else {
            mark_heard(store, &key);
            continue;
        };
        let unknown = since.plus(fake.config().delays.node_monitor);
        let evicted = unknown.plus(EVICTED_AFTER);
        if now < unknown {
            later(unknown);
            continue;
        }
        mark_lost(store, &key);
        if now < evicted {
            later(evicted);
        } else {
            evict(fake, store, &key.name);
        }
    }
    next
}

fn mark_lost(store: &mut Store, key: &ObjectKey) {
    let now = store.now_text();
    let condition = Condition {
        kind: "Ready",
        status: "Unknown",
        reason: "NodeStatusUnknown",
        message: "Kubelet stopped posting node status.",
    };
    store.update(key, |node| {
        set_condition(node, &now, &condition);
        taint(node, NOT_READY, BOTH, false);
        taint(node, UNREACHABLE, BOTH, true);
    });
    let pods: Vec<_> = on_node(store, &key.name);
    let condition = Condition { kind: "Ready", status: "False", reason: "NodeNotReady", message: "Node is not ready" };
    for pod in pods {
        store.update(&pod, |pod| {
            let ready = |it: &Value| it["type"] == "Ready" && it["status"] == "True";
            if pod["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(ready)) {
                set_condition(pod, &now, &condition);
            }
        });
    }
}

fn mark_heard(store: &mut Store, key: &ObjectKey) {
    let now = store.now_text();
    store.update(key, |node| {
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let status = conditions.into_iter().find(|it| it["type"] == "Ready").map(|it| text(it, "/status").to_owned());
        if status.as_deref() == Some("Unknown") {
            let condition = Condition {
                kind: "Ready",
                status: "True",
                reason: "KubeletReady",
                message: "kubelet is posting ready status",
            };
            set_condition(node, &now, &condition);
        }
        taint(node, UNREACHABLE, BOTH, false);
        taint(node, NOT_READY, BOTH, status.as_deref() == Some("False"));
    });
}

/// Sets or takes away a taint in each of these forms.
pub(super) fn taint(node: &mut Value, key: &str, effects: &[&str], wanted: bool) {
    let taints = &mut node["spec"]["taints"];
    let has = taints.as_array().is_some_and(|all| all.iter().any(|it| it["key"] == key));
    if has == wanted {
        return;
    }
    if !taints.is_array() {
        *taints = json!([]);
    }
    let Some(taints) = taints.as_array_mut() else { return };
    if wanted {
        taints.extend(effects.iter().map(|effect| json!({"key": key, "effect": effect})));
    } else {
        taints.retain(|it| it["key"] != key);
    }
}

fn on_node(store: &Store, node: &str) -> Vec<ObjectKey> {
    let pods = store.all(Kind::Pod).filter(|(_, pod)| text(pod, "/spec/nodeName") == node && !has_ended(pod));
    pods.map(|(key, _)| key.clone()).collect()
}

fn evict(fake: &FakeCluster, store: &mut Store, node: &str) {
    let tolerates = |pod: &Value| {
        let all = pod["spec"]["tolerations"].as_array().into_iter().flatten();
        // Without a number of seconds, the pod stays for ever.
        all.into_iter().any(|it| it["key"] == UNREACHABLE && it["tolerationSeconds"].is_null())
    };
    for key in on_node(store, node) {
        if !store.get(&key).is_some_and(tolerates) {
            ask_to_end(store, fake.env(), &key);
        }
    }
}
