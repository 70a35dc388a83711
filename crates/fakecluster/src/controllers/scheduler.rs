//! The scheduler: binds pods to nodes, or says why it cannot.
//!
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/kube-scheduler/>

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Taint, Toleration};
use pando_cluster::env::yield_now;
use pando_cluster::{Kind, ObjectKey};
use serde_json::Value;

use super::objects::{Condition, Note, has_ended, is_being_deleted, set_condition, tell, text};
use crate::FakeCluster;
use crate::api::kinds::container_request;
use crate::api::quantity::Amount;
use crate::store::Store;

/// Binds pods for ever, one a turn.
pub(super) async fn run(fake: FakeCluster) {
    let mut seen = 0;
    loop {
        let (waiting, revision) = fake.with(|store| {
            let news = store.changes_after(seen).is_none_or(|mut all| all.any(|change| matters(change.key.kind)));
            (if news { waiting(store) } else { Vec::new() }, store.revision())
        });
        // What this very round writes is looked at in the next one.
        seen = revision;
        for key in waiting {
            fake.with(|store| place(&fake, store, &key));
            yield_now().await;
        }
        fake.changed(seen).await;
    }
}

/// Whether a change to an object of this kind may let a pod be placed that could not be before.
fn matters(kind: Kind) -> bool {
    matches!(kind, Kind::Pod | Kind::Node | Kind::PersistentVolumeClaim)
}

/// The pods to place, the one that has waited longest first.
fn waiting(store: &Store) -> Vec<ObjectKey> {
    let unplaced = store.all(Kind::Pod).filter(|(_, pod)| {
        text(pod, "/spec/nodeName").is_empty() && !has_ended(pod) && !is_being_deleted(pod) && !is_gated(pod)
    });
    let mut keys: Vec<_> =
        unplaced.map(|(key, pod)| (text(pod, "/metadata/creationTimestamp").to_owned(), key.clone())).collect();
    keys.sort();
    keys.into_iter().map(|(_, key)| key).collect()
}

fn is_gated(pod: &Value) -> bool {
    pod.pointer("/spec/schedulingGates").and_then(Value::as_array).is_some_and(|gates| !gates.is_empty())
}

fn place(fake: &FakeCluster, store: &mut Store, key: &ObjectKey) {
    let Some(pod) = store.typed::<Pod>(key.namespace.as_deref(), &key.name) else { return };
    let spec = pod.spec.unwrap_or_default();
    // It may have changed since it was picked.
    if spec.node_name.is_some() || spec.scheduling_gates.iter().flatten().next().is_some() {
        return;
    }
    let now = store.now_text();
    let refusal = match missing_claim(store, key, &spec) {
        Some(refusal) => refusal,
        None => match choose(fake, store, &spec) {
            Ok(node) => return bind(fake, store, key, &spec, &node),
            Err(refusal) => refusal,
        },
    };
    let condition = Condition { kind: "PodScheduled", status: "False", reason: "Unschedulable", message: &refusal };
    let before = store.revision();
    store.update(key, |pod| set_condition(pod, &now, &condition));
    if store.revision() != before {
        let note = Note {
            about: key,
            field: None,
            by: "default-scheduler",
            warning: true,
            reason: "FailedScheduling",
            message: refusal,
        };
        tell(store, fake.env(), note);
    }
}

fn bind(fake: &FakeCluster, store: &mut Store, key: &ObjectKey, spec: &PodSpec, node: &str) {
    let now = store.now_text();
    let condition = Condition { kind: "PodScheduled", status: "True", reason: "", message: "" };
    store.update(key, |pod| {
        pod["spec"]["nodeName"] = node.into();
        set_condition(pod, &now, &condition);
    });
    super::claims::bind_first_use(store, key, spec, node);
    let (namespace, name) = (key.namespace.as_deref().unwrap_or_default(), &key.name);
    let message = format!("Successfully assigned {namespace}/{name} to {node}");
    let told = Note { about: key, field: None, by: "default-scheduler", warning: false, reason: "Scheduled", message };
    tell(store, fake.env(), told);
}

fn missing_claim(store: &Store, key: &ObjectKey, spec: &PodSpec) -> Option<String> {
    let total = store.all(Kind::Node).count();
    let claims = spec.volumes.iter().flatten().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    claims.into_iter().find_map(|claim| {
        let at = ObjectKey::namespaced(
            Kind::PersistentVolumeClaim,
            key.namespace.clone().unwrap_or_default(),
            &claim.claim_name,
        );
        let why = match store.get(&at) {
            None => "not found",
            Some(claim) if is_being_deleted(claim) => "is being deleted",
            Some(_) => return None,
        };
        let reason = format!("persistentvolumeclaim {:?} {why}", claim.claim_name);
        Some(sentence(total, &BTreeMap::new(), &reason, &BTreeMap::from([(HELPLESS, total)])))
    })
}

const HELPLESS: &str = "Preemption is not helpful for scheduling";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// The node that suits the pod best, or the scheduler's sentence on why none does.
fn choose(fake: &FakeCluster, store: &Store, spec: &PodSpec) -> Result<String, String> {
    let wanted = container_request(spec, |it| it.requests.as_ref());
    let used = used(store);
    let nodes: Vec<Node> = store.all_typed().collect();
    let (mut reasons, mut preemption) = (BTreeMap::<String, usize>::new(), BTreeMap::<&str, usize>::new());
    let mut fitting = Vec::new();
    for node in &nodes {
        let name = node.metadata.name.clone().unwrap_or_default();
        let here = used.get(&name);
        match refuses(node, spec, &wanted, here) {
            None => fitting.push((here.map_or(0, |used| used.pods), name)),
            Some(Refusal { words, full }) => {
                for word in words {
                    *reasons.entry(word).or_default() += 1;
                }
                *preemption.entry(if full { NO_VICTIMS } else { HELPLESS }).or_default() += 1;
            }
        }
    }
    let Some(fewest) = fitting.iter().map(|(pods, _)| *pods).min() else {
        return Err(sentence(nodes.len(), &reasons, "", &preemption));
    };
    // Pods are spread; among equals, chance decides.
    let best: Vec<_> = fitting.into_iter().filter(|(pods, _)| *pods == fewest).map(|(_, name)| name).collect();
    let index = usize::try_from(fake.env().random_u64() % best.len() as u64).unwrap_or(0);
    Ok(best[index].clone())
}

/// What pods use on one node.
#[derive(Debug, Default)]
struct Used {
    amounts: BTreeMap<String, Amount>,
    pods: usize,
}

fn used(store: &Store) -> BTreeMap<String, Used> {
    let mut all = BTreeMap::<String, Used>::new();
    for (_, pod) in store.all(Kind::Pod).filter(|(_, pod)| !has_ended(pod)) {
        let node = text(pod, "/spec/nodeName");
        if node.is_empty() {
            continue;
        }
        let spec: PodSpec = serde_json::from_value(pod["spec"].clone()).unwrap_or_default();
        let used = all.entry(node.to_owned()).or_default();
        used.pods += 1;
        for (name, amount) in container_request(&spec, |it| it.requests.as_ref()) {
            let sum = used.amounts.entry(name).or_default();
            *sum = *sum + amount;
        }
    }
    all
}

/// Why a node does not take a pod.
struct Refusal {
    words: Vec<String>,
    /// It is only full: others could make room.
    full: bool,
}

/// The node's first reason against the pod, in the order in which the scheduler's plugins look.
fn refuses(node: &Node, spec: &PodSpec, wanted: &BTreeMap<String, Amount>, used: Option<&Used>) -> Option<Refusal> {
    let never = |word: String| Some(Refusal { words: vec![word], full: false });
    let node_spec = node.spec.clone().unwrap_or_default();
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let cordoned = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    if node_spec.unschedulable == Some(true) && !tolerates(tolerations, &cordoned) {
        return never("node(s) were unschedulable".to_owned());
    }
    let repels = |taint: &&Taint| taint.effect != "PreferNoSchedule" && !tolerates(tolerations, taint);
    if let Some(taint) = node_spec.taints.iter().flatten().find(repels) {
        let value = taint.value.as_deref().unwrap_or_default();
        return never(format!("node(s) had untolerated taint {{{}: {value}}}", taint.key));
    }
    let labels = node.metadata.labels.clone().unwrap_or_default();
    if spec.node_selector.iter().flatten().any(|(key, value)| labels.get(key) != Some(value)) {
        return never("node(s) didn't match Pod's node affinity/selector".to_owned());
    }
    let words = lacks(node, wanted, used);
    (!words.is_empty()).then_some(Refusal { words, full: true })
}

fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    let empty_or = |given: Option<&str>, wanted: &str| given.is_none_or(|it| it.is_empty() || it == wanted);
    tolerations.iter().any(|it| {
        empty_or(it.effect.as_deref(), &taint.effect)
            && empty_or(it.key.as_deref(), &taint.key)
            && (it.operator.as_deref() == Some("Exists")
                || it.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default())
    })
}

fn allocatable(node: &Node, name: &str) -> Amount {
    let amounts = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    amounts.and_then(|amounts| amounts.get(name)).and_then(|it| Amount::parse(&it.0)).unwrap_or_default()
}

fn lacks(node: &Node, wanted: &BTreeMap<String, Amount>, used: Option<&Used>) -> Vec<String> {
    let mut words = Vec::new();
    let pods = i128::try_from(used.map_or(0, |used| used.pods)).unwrap_or(i128::MAX / 2);
    if Amount::whole(1 + pods) > allocatable(node, "pods") {
        words.push("Too many pods".to_owned());
    }
    for (name, amount) in wanted.iter().filter(|(_, amount)| !amount.is_zero()) {
        let taken = used.and_then(|used| used.amounts.get(name)).copied().unwrap_or_default();
        if taken + *amount > allocatable(node, name) {
            words.push(format!("Insufficient {name}"));
        }
    }
    words
}

/// `0/2 nodes are available: …`, as the scheduler writes it.
fn sentence(
    total: usize,
    reasons: &BTreeMap<String, usize>,
    of_pod: &str,
    preemption: &BTreeMap<&str, usize>,
) -> String {
    if total == 0 {
        return "no nodes available to schedule pods".to_owned();
    }
    let mut counted: Vec<_> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    if !of_pod.is_empty() {
        counted.push(of_pod.to_owned());
    }
    counted.sort();
    let mut why_not: Vec<_> = preemption.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    why_not.sort();
    format!(
        "0/{total} nodes are available: {}. no new claims to deallocate, preemption: 0/{total} nodes are available: {}.",
        counted.join(", "),
        why_not.join(", ")
    )
}
