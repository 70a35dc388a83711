//! A small cluster with one app namespace, and hands to work on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus, Event, Node, Pod};
use pando_cluster::{Cluster, DeleteOptions, Kind, MergePatch, Object, ObjectKey, Resource, ResourceVersion, Uid};
use pando_fakecluster::behaviour::{Behaviour, Daemons, Programs};
use pando_fakecluster::netpol::PodName;
use pando_fakecluster::sim::Sim;
use pando_fakecluster::{FakeCluster, FakeConfig};
use serde_json::{Value, json};

/// The namespace of the tests' app.
pub(crate) const APP: &str = "app";

/// Containers by name do what they are told here, the others what daemons do.
#[derive(Debug, Default)]
pub(crate) struct Script(BTreeMap<String, Behaviour>);

impl Programs for Script {
    fn behaviour(&self, pod: &Pod, container: &Container) -> Behaviour {
        self.0.get(&container.name).cloned().unwrap_or_else(|| Daemons.behaviour(pod, container))
    }
}

/// A configuration in which these containers do these things.
pub(crate) fn script<const N: usize>(behaviours: [(&str, Behaviour); N]) -> FakeConfig {
    let behaviours = behaviours.map(|(name, behaviour)| (name.to_owned(), behaviour));
    FakeConfig { programs: Arc::new(Script(behaviours.into())), ..FakeConfig::default() }
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A pod with one container `app`, never restarted, over which `with` is laid.
pub(crate) fn pod(name: &str, with: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": APP, "labels": {"workload": name}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "app", "image": "registry.test/app:1"}]},
    });
    lay(&mut pod, with);
    pod
}

fn lay(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                lay(under.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(under), Value::Array(over)) if under.len() == over.len() => {
            under.iter_mut().zip(over).for_each(|(under, over)| lay(under, over));
        }
        (under, over) => *under = over,
    }
}

pub(crate) struct Bed {
    pub(crate) sim: Sim,
    pub(crate) fake: FakeCluster,
}

impl Bed {
    pub(crate) fn new(config: FakeConfig) -> Self {
        Self::seeded(1, config)
    }

    pub(crate) fn seeded(seed: u64, config: FakeConfig) -> Self {
        let sim = Sim::new(seed);
        let fake = FakeCluster::new(sim.env(), config);
        let bed = Self { sim, fake };
        bed.create(Kind::Namespace, json!({"metadata": {"name": APP}}));
        bed.sim.advance(bed.fake.config().delays.service_account);
        bed
    }

    pub(crate) fn create(&self, kind: Kind, object: Value) -> Object {
        let object = Object::from_json(kind, object).unwrap();
        let created = self.sim.block_on(self.fake.create(&object)).unwrap_or_else(|error| panic!("{error}"));
        self.sim.settle();
        created
    }

    pub(crate) fn run(&self, pod: Value) -> Pod {
        Pod::from_object(self.create(Kind::Pod, pod)).unwrap()
    }

    pub(crate) fn patch(&self, kind: Kind, name: &str, body: Value) {
        let key = ObjectKey::namespaced(kind, APP, name);
        let object = self.sim.block_on(self.fake.get(&key)).unwrap().unwrap();
        let patch = MergePatch::at(&ResourceVersion::of(object.meta()).unwrap(), body);
        self.sim.block_on(self.fake.patch(&key, &patch)).unwrap_or_else(|error| panic!("{error}"));
        self.sim.settle();
    }

    /// Asks for a deletion; with the object's own grace unless told otherwise.
    pub(crate) fn delete(&self, key: &ObjectKey, grace_seconds: Option<u32>) {
        let object = self.sim.block_on(self.fake.get(key)).unwrap().unwrap_or_else(|| panic!("no {key}"));
        let options = DeleteOptions { grace_seconds, ..DeleteOptions::of(Uid::of(object.meta()).unwrap()) };
        self.sim.block_on(self.fake.delete(key, &options)).unwrap_or_else(|error| panic!("{error}"));
        self.sim.settle();
    }

    pub(crate) fn delete_pod(&self, name: &str, grace_seconds: Option<u32>) {
        self.delete(&ObjectKey::namespaced(Kind::Pod, APP, name), grace_seconds);
    }

    pub(crate) fn find<T: Resource>(&self, name: &str) -> Option<T> {
        self.fake.with(|store| store.typed(Some(APP), name))
    }

    pub(crate) fn pod(&self, name: &str) -> Pod {
        self.find(name).unwrap_or_else(|| panic!("no pod {name}"))
    }

    pub(crate) fn is_gone(&self, name: &str) -> bool {
        self.find::<Pod>(name).is_none()
    }

    pub(crate) fn node(&self, name: &str) -> Node {
        self.fake.with(|store| store.typed(None, name)).unwrap()
    }

    pub(crate) fn phase(&self, name: &str) -> String {
        self.pod(name).status.unwrap().phase.unwrap()
    }

    pub(crate) fn ip(&self, name: &str) -> String {
        self.pod(name).status.unwrap().pod_ip.unwrap_or_default()
    }

    pub(crate) fn node_of(&self, name: &str) -> String {
        self.pod(name).spec.unwrap().node_name.unwrap_or_default()
    }

    pub(crate) fn container(&self, pod: &str, container: &str) -> ContainerStatus {
        let status = self.pod(pod).status.unwrap();
        let all =
            status.init_container_statuses.into_iter().flatten().chain(status.container_statuses.into_iter().flatten());
        all.into_iter().find(|it| it.name == container).unwrap_or_else(|| panic!("no status of {container} in {pod}"))
    }

    /// A container's state in a few words, e.g. `running` or `terminated Error 1`.
    pub(crate) fn state(&self, pod: &str, container: &str) -> String {
        words(&self.container(pod, container).state.unwrap_or_default())
    }

    /// `type` → `status reason` of a pod's condition.
    pub(crate) fn condition(&self, pod: &str, kind: &str) -> String {
        let conditions = self.pod(pod).status.unwrap().conditions.unwrap_or_default();
        let found = conditions.into_iter().find(|it| it.type_ == kind).unwrap_or_else(|| panic!("no {kind}"));
        format!("{} {}", found.status, found.reason.unwrap_or_default()).trim_end().to_owned()
    }

    /// The messages of the Events about an object, by reason.
    pub(crate) fn told(&self, about: &str, reason: &str) -> Vec<String> {
        let events: Vec<Event> = self.fake.with(|store| store.typed_within(APP).collect());
        let about = events.into_iter().filter(|it| it.involved_object.name.as_deref() == Some(about));
        about.filter(|it| it.reason.as_deref() == Some(reason)).filter_map(|it| it.message).collect()
    }

    /// The containers of a pod that really run, as `pod/container`.
    pub(crate) fn running(&self) -> Vec<String> {
        let mut all: Vec<_> =
            self.fake.running().into_iter().map(|it| format!("{}/{}", it.pod.name, it.container)).collect();
        all.sort();
        all
    }

    /// Lets the cluster go on until `holds`, at most for `limit`; how long it took.
    pub(crate) fn wait(&self, limit: Duration, holds: impl Fn(&Self) -> bool) -> Duration {
        let begun = self.sim.now();
        self.sim.set_limit(limit);
        self.sim.block_on(async {
            let mut seen = 0;
            while !holds(self) {
                seen = self.fake.changed(seen).await;
            }
        });
        self.sim.set_limit(Sim::LIMIT);
        let took = self.sim.now().since(begun);
        assert!(took <= limit, "{took:?}");
        self.sim.settle();
        took
    }

    pub(crate) fn name(pod: &str) -> PodName {
        PodName::new(APP, pod)
    }
}

fn words(state: &ContainerState) -> String {
    if let Some(waiting) = &state.waiting {
        return format!("waiting {}", waiting.reason.as_deref().unwrap_or_default());
    }
    if let Some(ended) = &state.terminated {
        return format!("terminated {} {}", ended.reason.as_deref().unwrap_or_default(), ended.exit_code);
    }
    if state.running.is_some() { "running".to_owned() } else { "unknown".to_owned() }
}
