//! The scheduler: binds pods to nodes, or says why it cannot.
//!
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/kube-scheduler/>

mod volumes;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Taint, Toleration};
use pando_cluster::env::yield_now;
use pando_cluster::{Kind, ObjectKey};
use serde_json::Value;

use self::volumes::Claims;
use super::objects::{Condition, Note, has_ended, is_being_deleted, set_condition, tell, text};
use crate::FakeCluster;
use crate::api::kinds::container_request;
use crate::api::quantity::Amount;
use crate::store::Store;

/// Binds pods for ever, one a turn.
pub(super) async fn run(fake: FakeCluster) {
    let mut scheduler = Scheduler { fake: fake.clone(), assumed: BTreeMap::new() };
    let mut seen = 0;
    loop {
        let (waiting, revision) = fake.with(|store| {
            let news = store.changes_after(seen).is_none_or(|mut all| all.any(|change| matters(change.key.kind)));
            (if news { waiting(store) } else { Vec::new() }, store.revision())
        });
        // What this very round writes is looked at in the next one.
        seen = revision;
        for key in waiting {
            scheduler.place(&key);
            yield_now().await;
        }
        fake.changed(seen).await;
    }
}

/// Whether a change to an object of this kind may let a pod be placed that could not be before.
fn matters(kind: Kind) -> bool {
    matches!(kind, Kind::Pod | Kind::Node | Kind::PersistentVolumeClaim | Kind::PersistentVolume | Kind::StorageClass)
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

struct Scheduler {
    fake: FakeCluster,
    /// The pods whose node is chosen while their volumes are still being made, by uid.
    assumed: BTreeMap<String, Assumed>,
}

/// A pod that counts as being on its node already.
struct Assumed {
    node: String,
    spec: PodSpec,
}

impl Scheduler {
    fn place(&mut self, key: &ObjectKey) {
        let fake = self.fake.clone();
        fake.with(|store| {
            self.assumed.retain(|uid, _| store.all(Kind::Pod).any(|(_, pod)| text(pod, "/metadata/uid") == uid));
            let Some(pod) = store.typed::<Pod>(key.namespace.as_deref(), &key.name) else { return };
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let spec = pod.spec.unwrap_or_default();
            // It may have changed since it was picked.
            if spec.node_name.is_some() || spec.scheduling_gates.iter().flatten().next().is_some() {
                return;
            }
            match self.decide(store, key, &uid, &spec) {
                Ok(Some(node)) => bind(&fake, store, key, &node),
                Ok(None) => {}
                Err((reason, words)) => refuse(&fake, store, key, reason, words),
            }
        });
    }

    /// The pod's node; `None` while its volumes are being made. Else a reason and the scheduler's sentence.
    fn decide(
        &mut self,
        store: &mut Store,
        key: &ObjectKey,
        uid: &str,
        spec: &PodSpec,
    ) -> Result<Option<String>, (&'static str, String)> {
        let claims = Claims::read(store, key, spec);
        if let Some(assumed) = self.assumed.remove(uid) {
            let claims = claims.map_err(|why| {
                let words = format!("running PreBind plugin \"VolumeBinding\": binding volumes: {why}");
                ("SchedulerError", words)
            })?;
            if claims.are_bound() {
                return Ok(Some(assumed.node));
            }
            self.assumed.insert(uid.to_owned(), assumed);
            return Ok(None);
        }
        let claims = claims.map_err(|why| ("Unschedulable", of_pod(store, &why)))?;
        let node = self.choose(store, spec, &claims).map_err(|words| ("Unschedulable", words))?;
        let name = node.metadata.name.clone().unwrap_or_default();
        if claims.are_bound() {
            return Ok(Some(name));
        }
        claims.choose(store, &node);
        self.assumed.insert(uid.to_owned(), Assumed { node: name, spec: spec.clone() });
        Ok(None)
    }

    /// The node that suits the pod best, or the scheduler's sentence on why none does.
    fn choose(&self, store: &Store, spec: &PodSpec, claims: &Claims) -> Result<Node, String> {
        let wanted = container_request(spec, |it| it.requests.as_ref());
        let used = self.used(store);
        let nodes: Vec<Node> = store.all_typed().collect();
        let total = nodes.len();
        let (mut reasons, mut preemption) = (BTreeMap::<String, usize>::new(), BTreeMap::<&str, usize>::new());
        let mut fitting = Vec::new();
        for node in nodes {
            let here = used.get(node.metadata.name.as_deref().unwrap_or_default());
            let volumes = || claims.refuse(&node).map(Refusal::never);
            match refuses(&node, spec, &wanted, here).or_else(volumes) {
                None => fitting.push((here.map_or(0, |used| used.pods), node)),
                Some(Refusal { words, full }) => {
                    for word in words {
                        *reasons.entry(word).or_default() += 1;
                    }
                    *preemption.entry(if full { NO_VICTIMS } else { HELPLESS }).or_default() += 1;
                }
            }
        }
        let Some(fewest) = fitting.iter().map(|(pods, _)| *pods).min() else {
            return Err(sentence(total, &reasons, &preemption));
        };
        // Pods are spread; among equals, chance decides.
        let mut best: Vec<_> = fitting.into_iter().filter(|(pods, _)| *pods == fewest).map(|(_, node)| node).collect();
        let index = usize::try_from(self.fake.env().random_u64() % best.len() as u64).unwrap_or(0);
        Ok(best.swap_remove(index))
    }

    /// What pods use of every node, those included whose volumes are still being made.
    fn used(&self, store: &Store) -> BTreeMap<String, Used> {
        let mut all = BTreeMap::<String, Used>::new();
        for (_, pod) in store.all(Kind::Pod).filter(|(_, pod)| !has_ended(pod)) {
            let node = text(pod, "/spec/nodeName");
            if !node.is_empty() {
                let spec: PodSpec = serde_json::from_value(pod["spec"].clone()).unwrap_or_default();
                all.entry(node.to_owned()).or_default().add(&spec);
            }
        }
        for Assumed { node, spec } in self.assumed.values() {
            all.entry(node.clone()).or_default().add(spec);
        }
        all
    }
}

fn refuse(fake: &FakeCluster, store: &mut Store, key: &ObjectKey, reason: &str, message: String) {
    let now = store.now_text();
    let condition = Condition { kind: "PodScheduled", status: "False", reason, message: &message };
    let before = store.revision();
    store.update(key, |pod| set_condition(pod, &now, &condition));
    if store.revision() != before {
        let by = "default-scheduler";
        tell(
            store,
            fake.env(),
            Note { about: key, field: None, by, warning: true, reason: "FailedScheduling", message },
        );
    }
}

fn bind(fake: &FakeCluster, store: &mut Store, key: &ObjectKey, node: &str) {
    let now = store.now_text();
    let condition = Condition { kind: "PodScheduled", status: "True", reason: "", message: "" };
    store.update(key, |pod| {
        pod["spec"]["nodeName"] = node.into();
        set_condition(pod, &now, &condition);
    });
    let (namespace, name) = (key.namespace.as_deref().unwrap_or_default(), &key.name);
    let message = format!("Successfully assigned {namespace}/{name} to {node}");
    let told = Note { about: key, field: None, by: "default-scheduler", warning: false, reason: "Scheduled", message };
    tell(store, fake.env(), told);
}

/// The scheduler's sentence where the pod itself is what is wrong, and not the nodes (its last words so on 1.34).
fn of_pod(store: &Store, why: &str) -> String {
    match store.all(Kind::Node).count() {
        0 => NO_NODES.to_owned(),
        total => format!("0/{total} nodes are available: {why}. not found"),
    }
}

const NO_NODES: &str = "no nodes available to schedule pods";
const HELPLESS: &str = "Preemption is not helpful for scheduling";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// What pods use on one node.
#[derive(Debug, Default)]
struct Used {
    amounts: BTreeMap<String, Amount>,
    pods: usize,
}

impl Used {
    fn add(&mut self, spec: &PodSpec) {
        self.pods += 1;
        for (name, amount) in container_request(spec, |it| it.requests.as_ref()) {
            let sum = self.amounts.entry(name).or_default();
            *sum = *sum + amount;
        }
    }
}

/// Why a node does not take a pod.
struct Refusal {
    words: Vec<String>,
    /// It is only full: others could make room.
    full: bool,
}

impl Refusal {
    fn never(word: &str) -> Self {
        Self { words: vec![word.to_owned()], full: false }
    }
}

/// The node's first reason against the pod, in the order in which the scheduler's plugins look.
fn refuses(node: &Node, spec: &PodSpec, wanted: &BTreeMap<String, Amount>, used: Option<&Used>) -> Option<Refusal> {
    let node_spec = node.spec.clone().unwrap_or_default();
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let cordoned = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    if node_spec.unschedulable == Some(true) && !tolerates(tolerations, &cordoned) {
        return Some(Refusal::never("node(s) were unschedulable"));
    }
    let repels = |taint: &&Taint| taint.effect != "PreferNoSchedule" && !tolerates(tolerations, taint);
    if let Some(taint) = node_spec.taints.iter().flatten().find(repels) {
        let value = taint.value.as_deref().unwrap_or_default();
        return Some(Refusal::never(&format!("node(s) had untolerated taint {{{}: {value}}}", taint.key)));
    }
    let labels = node.metadata.labels.clone().unwrap_or_default();
    if spec.node_selector.iter().flatten().any(|(key, value)| labels.get(key) != Some(value)) {
        return Some(Refusal::never("node(s) didn't match Pod's node affinity/selector"));
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
fn sentence(total: usize, reasons: &BTreeMap<String, usize>, preemption: &BTreeMap<&str, usize>) -> String {
    if total == 0 {
        return NO_NODES.to_owned();
    }
    let mut counted: Vec<_> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    counted.sort();
    let mut why_not: Vec<_> = preemption.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    why_not.sort();
    format!(
        "0/{total} nodes are available: {}. no new claims to deallocate, preemption: 0/{total} nodes are available: {}.",
        counted.join(", "),
        why_not.join(", ")
    )
}
