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

use super::plans::{DB, WEB};
use super::scenario::Scenario;

/// No canary is shorter: shorter texts need no look.
const SHORTEST: usize = 16;

/// What a scenario holds its workloads to, beside what holds always.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// The pods that go on running, by uid, with their workloads.
    untouched: BTreeMap<String, String>,
    /// The pods that are not ended before an image is had, by uid, and that image.
    image_first: Option<(BTreeSet<String>, String)>,
    /// The workload that starts first, and the one that starts when that one is ready.
    order: Option<(&'static str, &'static str)>,
}

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
    /// The same of their apps alone, without what comes before them.
    app_starts: BTreeMap<String, Instant>,
    broken: Vec<String>,
    told: BTreeSet<(String, String)>,
    rules: Rules,
    /// The workloads of which a pod is ready.
    ready: BTreeSet<String>,
    /// The images that a node has told to have.
    had: BTreeSet<String>,
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
        for (volume, disk) in self.fake.disks() {
            if !disk.made_for.starts_with(&format!("{}/", self.namespace)) {
                continue;
            }
            for pair in disk.overlapping_writers() {
                self.broken("I-03", format!("pods {pair:?} could write to {volume} at once"));
            }
            if disk.destroyed.is_some() && !disk.writers.is_empty() {
                self.broken("I-07", format!("what was written to {volume} is lost"));
            }
        }
        std::mem::take(&mut self.state().broken)
    }

    /// Forgets what was broken so far of this invariant: it could not be otherwise.
    pub(super) fn forgive(&self, forgiven: &str) {
        self.look();
        let mut state = self.state();
        state.broken.retain(|line| !line.starts_with(forgiven));
        state.told.retain(|(invariant, _)| invariant != forgiven);
    }

    /// When each pod of the app really started, by uid.
    pub(super) fn starts(&self) -> BTreeMap<String, Instant> {
        self.look();
        self.state().starts.clone()
    }

    /// When the app itself really started in each pod, by uid.
    pub(super) fn app_starts(&self) -> BTreeMap<String, Instant> {
        self.look();
        self.state().app_starts.clone()
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
        for app in self.fake.running().into_iter().filter(|it| it.container == "app" && running.contains_key(&it.uid)) {
            self.state().app_starts.entry(app.uid).or_insert(now);
        }
        for (workload, pods) in by_workload(&running) {
            if pods.len() > 1 {
                self.broken("two pods", format!("{pods:?} of {workload} run at once"));
            }
        }
        let ended: Vec<_> = {
            let state = self.state();
            let untouched = state.rules.untouched.iter();
            untouched.filter(|(uid, _)| !running.contains_key(*uid)).map(|(_, workload)| workload.clone()).collect()
        };
        for workload in ended {
            self.broken("untouched", format!("{workload} was ended, and nobody wanted that"));
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
            Kind::Pod => {
                let (known, foreign) = {
                    let state = self.state();
                    (state.has_policy, state.foreign.contains(&change.key.name))
                };
                if change.before.is_none() && !known && !foreign {
                    self.broken("I-02", format!("{} was created before the default policy", change.key));
                }
                if !foreign {
                    self.pod_changed(change);
                }
            }
            Kind::PersistentVolumeClaim
                if change.after["status"]["phase"] == "Bound"
                    && (change.removed || change.after["metadata"]["deletionTimestamp"].is_string()) =>
            {
                self.broken("I-07", format!("{} is taken away", change.key));
            }
            Kind::Event if change.before.is_none() && change.after["reason"] == "Pulled" => {
                // Container image "x" already present, or Successfully pulled image "x".
                let image = change.after["message"].as_str().and_then(|message| message.split('"').nth(1));
                self.state().had.extend(image.map(str::to_owned));
            }
            _ => {}
        }
    }

    /// Holds a change of a pod of ours against the order of starts and of images (R-096, S-79).
    fn pod_changed(&self, change: &Change) {
        let Change { key, before, after, removed, .. } = change;
        let is_going = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_string();
        let mut state = self.state();
        let workload = workload_of(&key.name).to_owned();
        let conditions = after["status"]["conditions"].as_array().into_iter().flatten();
        let is_ready = conditions.into_iter().any(|it| it["type"] == "Ready" && it["status"] == "True");
        if is_ready && !removed && !is_going(after) {
            state.ready.insert(workload.clone());
        } else {
            state.ready.remove(&workload);
        }
        let opened = !removed && !is_gated(after) && before.as_deref().is_none_or(is_gated);
        let early =
            opened && state.rules.order.is_some_and(|(first, then)| workload == then && !state.ready.contains(first));
        let ended = *removed || (is_going(after) && !before.as_deref().is_some_and(is_going));
        let uid = after["metadata"]["uid"].as_str().unwrap_or_default();
        let missing = match &state.rules.image_first {
            Some((pods, image)) if ended && pods.contains(uid) && !state.had.contains(image) => Some(image.clone()),
            _ => None,
        };
        drop(state);
        if early {
            self.broken("R-096", format!("{} starts before what it depends on is ready", change.key));
        }
        if let Some(image) = missing {
            self.broken("S-79", format!("{} was ended before {image} was had", change.key));
        }
    }

    /// From now on the scenario's own rules are held.
    pub(super) fn hold(&self, scenario: &Scenario) {
        let running = self.running();
        let pods = running.iter().map(|(uid, pod)| (uid.clone(), workload_of(pod).to_owned()));
        let untouched = pods.clone().filter(|(_, workload)| scenario.untouched.contains(&&**workload));
        let image_first = scenario.image_first.map(|(workload, image)| {
            let old = pods.clone().filter(|(_, of)| of == workload).map(|(uid, _)| uid);
            (old.collect(), image.to_owned())
        });
        // Of two callers, one may take back what the other one waits for: then that one goes on, and says so.
        let order = (!scenario.ends_apps() && scenario.ops.len() == 1).then_some((DB, WEB));
        let order = order.filter(|_| scenario.is_whole());
        let rules = Rules { untouched: untouched.collect(), image_first, order };
        let mut state = self.state();
        state.rules = rules;
    }

    /// That an image is had first is not to be held: what pulls it was refused.
    pub(super) fn forget_images(&self) {
        self.state().rules.image_first = None;
    }

    /// The images of the pods that run, by workload.
    pub(super) fn images(&self) -> BTreeMap<String, String> {
        let running = self.running();
        self.fake.with(|store| {
            let image = |(_, name): (&String, &String)| {
                let pod = store.get(&ObjectKey::namespaced(Kind::Pod, &*self.namespace, &**name))?;
                let image = pod["spec"]["containers"][0]["image"].as_str()?;
                Some((workload_of(name).to_owned(), image.to_owned()))
            };
            running.iter().filter_map(image).collect()
        })
    }

    /// The app's volumes that are bound, and would go with their claims; only those that something was written to, where asked.
    pub(super) fn unkept(&self, only_written: bool) -> Vec<String> {
        let disks = self.fake.disks();
        let is_written = |volume: &&str| disks.get(*volume).is_some_and(|disk| !disk.writers.is_empty());
        self.fake.with(|store| {
            let claims = store.within(Kind::PersistentVolumeClaim, &self.namespace);
            let bound = claims.filter(|(_, claim)| claim["status"]["phase"] == "Bound");
            let volumes = bound.filter_map(|(_, claim)| claim["spec"]["volumeName"].as_str());
            let goes = |volume: &&str| {
                let volume = store.get(&ObjectKey::cluster(Kind::PersistentVolume, *volume));
                volume.is_none_or(|volume| volume["spec"]["persistentVolumeReclaimPolicy"] != "Retain")
            };
            volumes.filter(goes).filter(|volume| !only_written || is_written(volume)).map(str::to_owned).collect()
        })
    }

    /// The pods that a record leads to though they have ended or are gone (S-82).
    pub(super) fn dead_ends(&self) -> Vec<String> {
        self.fake.with(|store| {
            let slices = store.within(Kind::EndpointSlice, &self.namespace);
            let targets = slices.flat_map(|(_, slice)| slice["endpoints"].as_array().into_iter().flatten());
            let names = targets.filter_map(|endpoint| {
                Some((endpoint["targetRef"]["name"].as_str()?, endpoint["targetRef"]["uid"].as_str()?))
            });
            let is_dead = |(name, uid): &(&str, &str)| {
                let pod = store.get(&ObjectKey::namespaced(Kind::Pod, &*self.namespace, *name));
                pod.is_none_or(|pod| pod["metadata"]["uid"] != *uid || has_ended(pod))
            };
            names.filter(is_dead).map(|(name, _)| name.to_owned()).collect()
        })
    }

    /// The app's pods of which nothing runs yet and that have not ended: they may come to run by themselves.
    pub(super) fn coming(&self) -> Vec<String> {
        let running = self.running();
        let foreign = self.state().foreign.clone();
        self.fake.with(|store| {
            let pods = store.within(Kind::Pod, &self.namespace);
            let coming = pods.filter(|(key, pod)| {
                let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
                !has_ended(pod) && !running.contains_key(uid) && !foreign.contains(&key.name)
            });
            coming.map(|(key, _)| key.name.clone()).collect()
        })
    }

    /// The app's pods that wait behind the scheduling gate.
    pub(super) fn gated(&self) -> Vec<String> {
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
        let found = self.fake.with(|store| store.get(key).cloned());
        // Nobody labels volumes: one is ours while a claim of ours has it.
        let volumes = found.as_ref().is_some_and(|found| {
            key.kind == Kind::PersistentVolume && found["spec"]["claimRef"]["namespace"] == self.namespace.as_str()
        });
        if namespace != Some(self.namespace.as_str()) && !volumes {
            self.broken("I-04", format!("{key} is outside of the app's namespace"));
        }
        let Some(found) = found else { return };
        let is_ours = volumes || found["metadata"]["labels"][names::label::MANAGED_BY] == names::MANAGER;
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
                if matches!(key.kind, Kind::PersistentVolumeClaim | Kind::PersistentVolume) {
                    self.broken("I-07", format!("{key} is to be deleted"));
                }
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

/// The workload of a pod of that name.
pub(super) fn workload_of(pod: &str) -> &str {
    pod.rsplit_once('-').map_or(pod, |(workload, _)| workload)
}

/// Pods' names by their workloads.
pub(super) fn by_workload(pods: &BTreeMap<String, String>) -> BTreeMap<&str, Vec<&str>> {
    let mut workloads: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in pods.values() {
        workloads.entry(workload_of(name)).or_default().push(name);
    }
    workloads
}

fn is_gated(pod: &Value) -> bool {
    pod["spec"]["schedulingGates"].as_array().into_iter().flatten().any(|gate| gate["name"] == START_GATE)
}

fn has_ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Whether the pod was scheduled and has not ended.
fn is_live(pod: &Value) -> bool {
    pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty()) && !has_ended(pod)
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
