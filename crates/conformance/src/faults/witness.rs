//! Sees every call that arrives and every change of the store, and holds the invariants against them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use data_encoding::BASE64;
use pando_cluster::env::Instant;
use pando_cluster::names::{START_GATE, object};
use pando_cluster::{
    ByteStream, Cluster, ClusterError, DeleteOptions, EventStream, Kind, ListRequest, LogRequest, MergePatch, Object,
    ObjectKey, Page, WatchRequest, names,
};
use pando_fakecluster::FakeCluster;
use pando_fakecluster::store::Change;
use serde_json::Value;

/// No canary is shorter: shorter texts need no look.
const SHORTEST: usize = 16;

/// What was seen so far, and which invariants it broke.
pub(super) struct Eyes {
    fake: FakeCluster,
    namespace: String,
    /// Values that may be nowhere but in a Secret.
    canaries: Vec<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    position: u64,
    /// The app's default policy is in the store.
    has_policy: bool,
    foreign: BTreeSet<String>,
    starts: BTreeMap<String, Instant>,
    broken: Vec<String>,
    told: BTreeSet<(String, String)>,
}

impl Eyes {
    /// Begins to look at what happens in `namespace`.
    pub(super) fn new(fake: &FakeCluster, namespace: &str, canaries: &[&str]) -> Arc<Self> {
        let encoded = canaries.iter().map(|canary| BASE64.encode(canary.as_bytes()));
        let canaries = canaries.iter().map(ToString::to_string).chain(encoded).collect();
        Arc::new(Self { fake: fake.clone(), namespace: namespace.to_owned(), canaries, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod of this name in the app's namespace is a stranger's.
    pub(super) fn is_foreign(&self, pod: &str) {
        self.state().foreign.insert(pod.to_owned());
    }

    /// Notes that an invariant is broken.
    pub(super) fn broken(&self, invariant: &str, what: impl fmt::Display) {
        let at = self.fake.env().now().since_start();
        let what = what.to_string();
        // Once is enough, however often it is seen.
        if self.state().told.insert((invariant.to_owned(), what.clone())) {
            self.state().broken.push(format!("{invariant} at {:.3} s: {what}", at.as_secs_f64()));
        }
    }

    /// Every invariant that was broken so far.
    pub(super) fn take_broken(&self) -> Vec<String> {
        self.look();
        // What we wrote was searched when it was written; this is what controllers and kubelets made of it.
        let places = self.fake.with(|store| {
            let kinds = Kind::ALL.iter().filter(|kind| **kind != Kind::Secret);
            let objects = kinds.flat_map(|kind| store.all(*kind)).filter(|(_, object)| self.is_in(object));
            objects.map(|(key, _)| key.to_string()).collect::<Vec<_>>()
        });
        for place in places {
            self.broken("I-06", format!("a secret value is in {place}"));
        }
        std::mem::take(&mut self.state().broken)
    }

    /// Forgets what was broken so far of these invariants; of all of them when none is named. It could not be otherwise.
    pub(super) fn forgive(&self, invariants: &[&str]) {
        self.look();
        let mut state = self.state();
        let named = |line: &str| invariants.is_empty() || invariants.iter().any(|it| line.starts_with(it));
        state.broken.retain(|line| !named(line));
        state.told.retain(|(invariant, _)| !named(invariant));
    }

    /// When each pod of the app really started, by uid.
    pub(super) fn starts(&self) -> BTreeMap<String, Instant> {
        self.look();
        self.state().starts.clone()
    }

    /// The pods of the app of which something really runs, by uid, with their names.
    pub(super) fn running(&self) -> BTreeMap<String, String> {
        let foreign = self.state().foreign.clone();
        let ours = self.fake.running().into_iter();
        let ours = ours.filter(|it| it.pod.namespace == self.namespace && !foreign.contains(&it.pod.name));
        ours.map(|it| (it.uid, it.pod.name)).collect()
    }

    /// I-06: no secret value in `text`.
    pub(super) fn read(&self, what: &str, text: &str) {
        if self.canaries.iter().any(|canary| text.contains(canary)) {
            self.broken("I-06", format!("a secret value is in {what}"));
        }
    }

    fn is_in(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => text.len() >= SHORTEST && self.canaries.iter().any(|canary| text.contains(canary)),
            Value::Array(items) => items.iter().any(|item| self.is_in(item)),
            Value::Object(members) => members.values().any(|member| self.is_in(member)),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    /// Looks at everything that changed since the last look, and at what runs now.
    pub(super) fn look(&self) {
        let position = self.state().position;
        let (changes, newest) = self.fake.with(|store| {
            let changes: Vec<Change> =
                store.changes_after(position.max(store.oldest())).into_iter().flatten().cloned().collect();
            (changes, store.revision())
        });
        for change in &changes {
            self.changed(change);
        }
        self.state().position = newest;
        let running = self.running();
        let now = self.fake.env().now();
        for uid in running.keys() {
            self.state().starts.entry(uid.clone()).or_insert(now);
        }
        if running.len() > 1 {
            self.broken("two pods", format!("{:?} run at once", running.values().collect::<Vec<_>>()));
        }
        if !running.is_empty() && !self.state().has_policy {
            self.broken("I-01", "the app runs without its default policy");
        }
    }

    fn changed(&self, change: &Change) {
        if change.key.namespace.as_deref() != Some(self.namespace.as_str()) {
            return;
        }
        match change.key.kind {
            Kind::NetworkPolicy if change.key.name == object::DEFAULT_POLICY => {
                self.state().has_policy = !change.removed;
            }
            Kind::Pod if change.before.is_none() => {
                let state = self.state();
                let (known, foreign) = (state.has_policy, state.foreign.contains(&change.key.name));
                drop(state);
                if !known && !foreign {
                    self.broken("I-02", format!("{} was created before the default policy", change.key));
                }
            }
            _ => {}
        }
    }

    /// The app's pods that wait behind the scheduling gate.
    pub(super) fn gated(&self) -> Vec<String> {
        let is_gated = |pod: &Value| {
            pod["spec"]["schedulingGates"].as_array().into_iter().flatten().any(|gate| gate["name"] == START_GATE)
        };
        self.fake.with(|store| {
            let pods = store.within(Kind::Pod, &self.namespace).filter(|(_, pod)| is_gated(pod));
            pods.map(|(key, _)| key.name.clone()).collect()
        })
    }

    /// I-04, I-05, I-06, S-83: what a write may be aimed at, what it must carry and what it may not.
    fn write(&self, key: &ObjectKey, what: &Asked<'_>) {
        let body = match what {
            Asked::Create(object) => object.to_json().unwrap_or_default(),
            Asked::Patch(patch) => patch.as_json().clone(),
            Asked::Delete(_) => Value::Null,
        };
        if key.kind != Kind::Secret && self.is_in(&body) {
            self.broken("I-06", format!("a secret value is written into {key}"));
        }
        let namespace = match key.kind {
            Kind::Namespace => Some(key.name.as_str()),
            _ => key.namespace.as_deref(),
        };
        if namespace != Some(self.namespace.as_str()) {
            self.broken("I-04", format!("{key} is outside of the app's namespace"));
        }
        let found = self.fake.with(|store| store.get(key).cloned());
        let Some(found) = found else { return };
        let is_ours = found["metadata"]["labels"][names::label::MANAGED_BY] == names::MANAGER;
        match what {
            Asked::Create(_) => {}
            Asked::Patch(patch) => {
                if !is_ours {
                    self.broken("I-04", format!("{key} is a stranger's, and is to be changed"));
                }
                if patch.as_json()["metadata"]["resourceVersion"].as_str().is_none_or(str::is_empty) {
                    self.broken("I-05", format!("{key} is to be changed at whatever version it is"));
                }
            }
            Asked::Delete(options) => {
                if !is_ours {
                    self.broken("I-04", format!("{key} is a stranger's, and is to be deleted"));
                }
                if options.uid.as_str().is_empty() {
                    self.broken("I-05", format!("{key} is to be deleted, whichever object it is"));
                }
                let hasty = options.grace_seconds == Some(0) || found["spec"]["terminationGracePeriodSeconds"] == 0;
                if key.kind == Kind::Pod && hasty && is_live(&found) {
                    self.broken("S-83", format!("{key} is to be deleted with no grace while it may run"));
                }
            }
        }
    }
}

/// Whether the pod was scheduled and has not ended.
fn is_live(pod: &Value) -> bool {
    let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty()) && !ended
}

enum Asked<'a> {
    Create(&'a Object),
    Patch(&'a MergePatch),
    Delete(&'a DeleteOptions),
}

impl fmt::Debug for Eyes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Eyes").field("broken", &self.state().broken).finish_non_exhaustive()
    }
}

/// A caller's way to the cluster, under the eyes of a witness.
#[derive(Debug)]
pub(super) struct Witness {
    inner: Arc<dyn Cluster>,
    eyes: Arc<Eyes>,
}

impl Witness {
    pub(super) fn new(inner: Arc<dyn Cluster>, eyes: Arc<Eyes>) -> Self {
        Self { inner, eyes }
    }
}

#[async_trait]
impl Cluster for Witness {
    async fn get(&self, key: &ObjectKey) -> Result<Option<Object>, ClusterError> {
        self.eyes.look();
        self.inner.get(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ClusterError> {
        self.eyes.look();
        self.inner.list(request).await
    }

    async fn create(&self, object: &Object) -> Result<Object, ClusterError> {
        self.eyes.look();
        self.eyes.write(&object.key(), &Asked::Create(object));
        let made = self.inner.create(object).await;
        self.eyes.look();
        made
    }

    async fn patch(&self, key: &ObjectKey, patch: &MergePatch) -> Result<Object, ClusterError> {
        self.eyes.look();
        self.eyes.write(key, &Asked::Patch(patch));
        let changed = self.inner.patch(key, patch).await;
        self.eyes.look();
        changed
    }

    async fn delete(&self, key: &ObjectKey, options: &DeleteOptions) -> Result<(), ClusterError> {
        self.eyes.look();
        self.eyes.write(key, &Asked::Delete(options));
        let deleted = self.inner.delete(key, options).await;
        self.eyes.look();
        deleted
    }

    async fn watch(&self, request: &WatchRequest) -> Result<EventStream, ClusterError> {
        self.inner.watch(request).await
    }

    async fn logs(&self, request: &LogRequest) -> Result<ByteStream, ClusterError> {
        self.inner.logs(request).await
    }
}
