//! The cluster that scenarios play in, what strangers have there, and the adapters that work on it.

use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use pando_adapter::{KubernetesRuntime, Settings};
use pando_api::{BundleRef, CallContext, DestroyOptions, Progress, ProgressSink, RuntimeAdapter as _};
use pando_cluster::env::yield_now;
use pando_cluster::{Cluster, Env, Kind, Object};
use pando_fakecluster::behaviour::{Behaviour, Daemons, Programs, Target};
use pando_fakecluster::netpol::PodName;
use pando_fakecluster::sim::{Process, Sim};
use pando_fakecluster::{Delays, FakeCluster, FakeConfig, Image, Login};
use pando_network::gate::Gate;
use serde_json::{Value, json};

use super::faulty::Faulty;
use super::plans::{
    BUNDLE, CANARIES, DB_PORT, LOGIN, MISSING_IMAGE, NAMESPACE, NEW_IMAGE, STRANGER, left_before, neighbours, plan,
    strangers,
};
use super::planted::{Bug, Planted};
use super::scenario::Op;
use super::witness::{Eyes, Witness};
use crate::manifests::{ACCOUNT, Manifests};
use crate::verdict;

/// How long an app's process takes to end once it is asked to.
const ENDS_IN: Duration = Duration::from_millis(1_500);
/// How long a database's process takes until it listens.
const READY_IN: Duration = Duration::from_millis(2_200);

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
        if container.command.as_deref().is_some_and(|command| command.len() == 1) {
            // What only pulls an image names a program that no image has.
            let message = format!("exec: {:?}: no such file or directory", container.command);
            return Behaviour::StartError { message };
        }
        if container.ports.iter().flatten().any(|port| port.container_port == i32::from(DB_PORT)) {
            // A database takes its time until it listens.
            return Behaviour::Dial {
                targets: Vec::new(),
                every: READY_IN,
                during: READY_IN,
                then: Box::new(Behaviour::Listen { ports: vec![DB_PORT] }),
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
        images: [
            (MISSING_IMAGE.to_owned(), Image::missing(MISSING_IMAGE)),
            (
                NEW_IMAGE.to_owned(),
                Image::Private { login: Login::new(LOGIN, CANARIES[3]), after: Duration::from_secs(2) },
            ),
        ]
        .into(),
        delays: Delays {
            sandbox: Duration::from_millis(300),
            container: Duration::from_millis(200),
            removal: Duration::from_millis(900),
            service_account: Duration::from_millis(50),
            endpoints: Duration::from_millis(50),
            namespace: Duration::from_millis(30),
            policy_sync: Duration::from_millis(50),
            provisioning: Duration::from_millis(600),
            binding: Duration::from_millis(50),
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
            let verdict = verdict::kept("pando", &verdict::passed(env.wall.now()));
            store.insert(verdict.kind(), verdict.to_json().unwrap_or_default());
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
        let planted = self.bug.map(|bug| Arc::new(Planted::new(Arc::clone(&way), self.sim_env.clone(), bug)));
        if let Some(planted) = &planted {
            way = Arc::clone(planted) as _;
        }
        let faulty = Arc::new(Faulty::new(way, self.sim_env.clone()));
        let process = sim.process();
        let runtime = KubernetesRuntime::new(settings(), Arc::clone(&faulty) as _, process.env());
        Caller { runtime: Arc::new(runtime), faulty, planted, process, told: Arc::clone(&self.told) }
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

    /// Makes what the adapter before this one left.
    pub(super) async fn make_what_was_left(&self) {
        for (kind, json) in left_before() {
            // Each after its namespace has its account.
            self.sim_env.sleep(Duration::from_millis(200)).await;
            let made = match Object::from_json(kind, json) {
                Ok(object) => self.fake.create(&object).await.map(drop).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = made {
                self.eyes.broken("before", error);
            }
        }
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
    pub(super) planted: Option<Arc<Planted>>,
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
