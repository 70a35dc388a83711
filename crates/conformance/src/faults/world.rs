//! The cluster that scenarios play in, what strangers have there, and the adapters that work on it.

use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use pando_adapter::{KubernetesRuntime, Settings};
use pando_api::{
    BundlePlan, BundleRef, CallContext, DestroyOptions, PortPlan, Progress, ProgressSink, Protocol, ResourcePlan,
    RuntimeAdapter as _, Secret, WorkloadPlan,
};
use pando_cluster::env::yield_now;
use pando_cluster::{Cluster, Env, Kind};
use pando_fakecluster::behaviour::{Behaviour, Daemons, Programs, Target};
use pando_fakecluster::netpol::PodName;
use pando_fakecluster::sim::{Process, Sim};
use pando_fakecluster::{Delays, FakeCluster, FakeConfig};
use pando_network::gate::Gate;
use serde_json::{Value, json};

use super::fault::Fault;
use super::faulty::Faulty;
use super::planted::{Bug, Planted};
use super::scenario::{Op, Version};
use super::witness::{Eyes, Witness};
use crate::manifests::{ACCOUNT, Manifests};

/// The app's bundle.
const BUNDLE: &str = "shop";
/// Its namespace.
pub(super) const NAMESPACE: &str = "pando-shop";
/// Its workload.
const WORKLOAD: &str = "web";
/// The environment's value in each version of the plan; nowhere but in a Secret.
const CANARIES: [&str; 2] = ["canary-of-the-first", "canary-of-the-second"];

/// How long an app's process takes to end once it is asked to.
const ENDS_IN: Duration = Duration::from_millis(1_500);

/// What containers do here: gates gate, and apps take their time to end.
#[derive(Debug)]
struct Shop;

impl Programs for Shop {
    fn behaviour(&self, pod: &Pod, container: &Container) -> Behaviour {
        if let Some(Gate { targets, limit }) = Gate::of(container) {
            let service = Target::address(IpAddr::from([10, 96, 0, 1]), 443);
            let others = targets.into_iter().map(|target| Target::address(target.ip(), target.port()));
            return Behaviour::DialUntilClosed {
                targets: [service].into_iter().chain(others).collect(),
                in_a_row: 2,
                limit,
            };
        }
        if container.name == "app" {
            return Behaviour::TrapTerm { exit_after: ENDS_IN, code: 143 };
        }
        Daemons.behaviour(pod, container)
    }
}

/// A cluster with the lags that real ones have.
fn config(access: pando_fakecluster::Access, latency: Duration) -> FakeConfig {
    FakeConfig {
        access: Some(access),
        // On a machine of its own: a pod always reaches its own node, so a gate beside the API server never closes.
        api_server_addresses: vec!["172.18.0.9".to_owned()],
        latency,
        rbac_lag: Duration::from_millis(40),
        quota_lag: Duration::from_millis(45),
        policy_lag: Duration::from_secs(1),
        programs: Arc::new(Shop),
        delays: Delays {
            sandbox: Duration::from_millis(300),
            container: Duration::from_millis(200),
            removal: Duration::from_millis(900),
            service_account: Duration::from_millis(50),
            endpoints: Duration::from_millis(50),
            namespace: Duration::from_millis(30),
            policy_sync: Duration::from_millis(50),
            ..Delays::default()
        },
        ..FakeConfig::default()
    }
}

/// One play's world.
pub(super) struct World {
    sim_env: Env,
    pub(super) fake: FakeCluster,
    pub(super) eyes: Arc<Eyes>,
    bug: Option<Bug>,
    /// What was told to people, for the trace and for the search for secrets.
    pub(super) told: Arc<Told>,
}

impl World {
    /// A cluster that has just come up, under the rights of the manifests, with strangers beside the app.
    pub(super) async fn new(sim: &Sim, bug: Option<Bug>) -> Self {
        static MANIFESTS: OnceLock<Manifests> = OnceLock::new();
        let manifests = MANIFESTS.get_or_init(Manifests::read);
        let env = sim.env();
        let latency = Duration::from_millis(1 + sim.seed() % 5);
        let fake = FakeCluster::new(env.clone(), config(manifests.access.clone(), latency));
        let eyes = Eyes::new(&fake, NAMESPACE, &CANARIES);
        fake.with(|store| {
            for object in &manifests.objects {
                let json = object.to_json().unwrap_or_default();
                store.insert(object.kind(), json);
            }
            for (kind, object) in neighbours() {
                store.insert(kind, object);
            }
        });
        let (watching, watched) = (fake.clone(), Arc::clone(&eyes));
        env.spawn_detached("witness", async move {
            let mut seen = 0;
            loop {
                seen = watching.changed(seen).await;
                watched.look();
            }
        });
        // Every controller has seen what was there from the start.
        env.sleep(Duration::from_secs(1)).await;
        Self { sim_env: env, fake, eyes, bug, told: Arc::default() }
    }

    /// Time, and tasks that outlive every caller.
    pub(super) const fn env(&self) -> &Env {
        &self.sim_env
    }

    /// An adapter in a process of its own.
    pub(super) fn caller(&self, sim: &Sim) -> Caller {
        let account: Arc<dyn Cluster> = Arc::new(self.fake.as_account(ACCOUNT));
        let mut way: Arc<dyn Cluster> = Arc::new(Witness::new(account, Arc::clone(&self.eyes)));
        if let Some(bug) = self.bug {
            way = Arc::new(Planted::new(way, self.sim_env.clone(), bug));
        }
        let faulty = Arc::new(Faulty::new(way, self.sim_env.clone()));
        let process = sim.process();
        let runtime = KubernetesRuntime::new(settings(), Arc::clone(&faulty) as _, process.env());
        Caller { runtime: Arc::new(runtime), faulty, process, told: Arc::clone(&self.told) }
    }

    /// Every call of ours that arrived, in order, with its time and answer.
    pub(super) fn story(&self) -> Vec<String> {
        let line = |call: pando_fakecluster::api::ledger::Call| {
            let at = call.start.since_start().as_secs_f64();
            let key = call.key.map_or_else(|| call.kind.to_string(), |key| key.to_string());
            let code = call.code.map_or_else(|| "never arrived".to_owned(), |code| code.to_string());
            format!("{at:9.3} s  {:6} {key}: {code}", call.verb)
        };
        self.fake.calls().into_iter().map(line).collect()
    }

    /// Puts strangers' objects into the app's namespace.
    pub(super) fn plant_strangers(&self) {
        self.eyes.is_foreign(STRANGER);
        self.fake.with(|store| {
            for (kind, object) in strangers() {
                store.insert(kind, object);
            }
        });
    }

    /// What of the strangers' objects, outside the app's namespace and perhaps inside, is no longer as they left it.
    pub(super) fn hurt_strangers(&self, inside: bool) -> Vec<String> {
        let as_left = |(kind, planted): &(Kind, Value)| {
            let name = planted["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let namespace = planted["metadata"]["namespace"].as_str().map(str::to_owned);
            let key = pando_cluster::ObjectKey { kind: *kind, namespace, name };
            let found = self.fake.with(|store| store.get(&key).cloned());
            let same = found.is_some_and(|found| {
                found["metadata"]["labels"] == planted["metadata"]["labels"]
                    && found["metadata"]["annotations"] == planted["metadata"]["annotations"]
                    && found["metadata"]["deletionTimestamp"].is_null()
            });
            (!same).then(|| key.to_string())
        };
        let inside = if inside { strangers() } else { Vec::new() };
        inside.iter().chain(&neighbours()).filter_map(as_left).collect()
    }

    /// Ends the app's process from inside its node.
    pub(super) async fn kill_app(&self) {
        for name in self.eyes.running().into_values() {
            self.fake.kill(&PodName::new(NAMESPACE, name), "app");
        }
        self.sim_env.sleep(Duration::from_secs(5)).await;
        yield_now().await;
    }
}

/// An adapter, its process, and its way to the cluster.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) runtime: Arc<KubernetesRuntime>,
    pub(super) faulty: Arc<Faulty>,
    pub(super) process: Process,
    told: Arc<Told>,
}

impl Caller {
    /// Does `op`; the answer is what it said, or the error.
    pub(super) fn call(&self, op: Op) -> impl Future<Output = Result<String, pando_api::Error>> + Send + use<> {
        let this = self.clone();
        async move {
            let context = CallContext { progress: Some(this.told.clone()), ..CallContext::new("request") };
            let bundle = BundleRef::new(BUNDLE);
            match op {
                Op::Apply(version) => {
                    this.runtime.apply(&plan(version), &context).await.map(|result| format!("{result:?}"))
                }
                Op::Stop => this.runtime.stop(&bundle, &context).await.map(|()| "stopped".to_owned()),
                Op::Destroy => {
                    let options = DestroyOptions { keep_volumes: true };
                    this.runtime.destroy(&bundle, &options, &context).await.map(|()| "destroyed".to_owned())
                }
            }
        }
    }

    /// Counts calls from here on, and does the fault to its call.
    pub(super) fn arm(&self, fault: Option<(usize, Fault)>) -> impl Future<Output = ()> + use<> {
        self.faulty.arm(fault)
    }
}

/// Takes down what is told to people.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<Vec<String>>);

impl Told {
    pub(super) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ProgressSink for Told {
    fn tell(&self, progress: Progress) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{progress:?}"));
    }
}

fn settings() -> Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    let read = || Settings::from_json(&json!({"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/16"}));
    SETTINGS.get_or_init(|| read().expect("the settings are valid")).clone()
}

fn plan(version: Version) -> BundlePlan {
    let (tag, canary, cpu_millis) = match version {
        Version::First => ("1", CANARIES[0], 100),
        Version::Second => ("2", CANARIES[1], 200),
    };
    let web = WorkloadPlan {
        name: WORKLOAD.to_owned(),
        image: format!("registry.example/shop:{tag}"),
        env: [("TOKEN".to_owned(), Secret::new(canary))].into(),
        ports: vec![PortPlan { number: 80, protocol: Protocol::Tcp }],
        resources: ResourcePlan { cpu_millis, memory_bytes: 64 << 20, ephemeral_bytes: 0 },
        ..WorkloadPlan::default()
    };
    BundlePlan { bundle_id: BUNDLE.to_owned(), workloads: vec![web], ..BundlePlan::default() }
}

/// A stranger's pod in the app's namespace.
const STRANGER: &str = "web-debug";

/// Strangers' objects in the app's namespace, as like ours as strangers' objects may be.
fn strangers() -> Vec<(Kind, Value)> {
    let meta = |name: &str| {
        json!({"name": name, "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/managed-by": "helm", "pando.dev/workload": WORKLOAD, "pando.dev/bundle": BUNDLE}})
    };
    let limits = json!({"cpu": "10m", "memory": "16Mi"});
    vec![
        (
            Kind::Pod,
            json!({"metadata": meta(STRANGER), "status": {"phase": "Pending"},
                "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [
                    {"name": "shell", "image": "busybox:1.37", "resources": {"requests": limits, "limits": limits}}]}}),
        ),
        (Kind::Secret, json!({"metadata": meta("web-release"), "type": "Opaque"})),
        (Kind::Service, json!({"metadata": meta("web-metrics"), "spec": {"type": "ClusterIP", "clusterIP": "None"}})),
    ]
}

/// Another app of Pando's, and a team's own namespace.
fn neighbours() -> Vec<(Kind, Value)> {
    let other = json!({"app.kubernetes.io/managed-by": "pando", "pando.dev/bundle": "blog"});
    let web =
        json!({"app.kubernetes.io/managed-by": "pando", "pando.dev/bundle": "blog", "pando.dev/workload": WORKLOAD});
    vec![
        (
            Kind::Namespace,
            json!({"metadata": {"name": "pando-blog", "labels": other, "annotations": {"pando.dev/bundle-id": "blog"}},
                "status": {"phase": "Active"}}),
        ),
        (
            Kind::Service,
            json!({"metadata": {"name": WORKLOAD, "namespace": "pando-blog", "labels": web},
                "spec": {"type": "ClusterIP", "clusterIP": "None"}}),
        ),
        (
            Kind::Namespace,
            json!({"metadata": {"name": "team", "labels": {"app.kubernetes.io/managed-by": "helm"}}, "status": {"phase": "Active"}}),
        ),
        (
            Kind::Service,
            json!({"metadata": {"name": WORKLOAD, "namespace": "team", "labels": {"pando.dev/workload": WORKLOAD}},
                "spec": {"type": "ClusterIP", "clusterIP": "None"}}),
        ),
    ]
}
