//! The cluster in memory, asked directly or by kube's client over its HTTP face.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Container, Pod};
use pando_api::BundlePlan;
use pando_cluster::names::{label, label_value, role};
use pando_cluster::{Cluster, Env, Kind, ObjectKey};
use pando_fakecluster::behaviour::{Behaviour, Daemons, Host, Outcome, Programs, Target};
use pando_fakecluster::netpol::{End, Plugin, PodName};
use pando_fakecluster::{FakeCluster, FakeConfig, Image, face};
use pando_kubecluster::KubeCluster;
use pando_network::canary::{self, Part};
use pando_network::gate::Gate;

use crate::bed::{Bed, Need, Write};
use crate::manifests::{ACCOUNT, Manifests};
use crate::{program, verdict};

/// The web server that plays an app.
const APP_IMAGE: &str = "nginx:1.22";

/// The database that plays one.
const DB_IMAGE: &str = "postgres:15";

/// An image that no registry has.
const MISSING_IMAGE: &str = "registry.invalid/nothing:1";

/// The same, by what its bytes would be.
const MISSING_DIGEST: &str =
    "registry.invalid/nothing@sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// How long a gate tries its own probe before it gives up: fifty times, with a tenth of a second between.
const LOOPBACK: Duration = Duration::from_secs(5);

/// Remembers which behaviour each command line was made from: the kubelet in memory runs no shell.
#[derive(Debug, Default)]
pub struct Scripts {
    known: Mutex<BTreeMap<Vec<String>, Behaviour>>,
}

impl Scripts {
    /// The command line of a program that does `behaviour`, known from now on.
    pub fn command(&self, behaviour: &Behaviour) -> Vec<String> {
        let command = program::command(behaviour);
        self.known().insert(command.clone(), behaviour.clone());
        command
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<Vec<String>, Behaviour>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Programs for Scripts {
    fn behaviour(&self, pod: &Pod, container: &Container) -> Behaviour {
        if let Some(gate) = Gate::of(container) {
            return behaviour_of(&gate, container.image.as_deref());
        }
        if let Some(part) = Part::of(container) {
            return of_canary(&part, container.image.as_deref());
        }
        if label_value(&pod.metadata, label::ROLE) == Some(role::PULL) {
            // Its command is a path that no image has.
            return Behaviour::StartError { message: "exec: no such file or directory".to_owned() };
        }
        let words = container.command.iter().flatten().chain(container.args.iter().flatten());
        // Kubernetes reads `$$` in a command as `$`.
        let command: Vec<_> = words.map(|word| word.replace("$$", "$")).collect();
        if let Some(behaviour) = self.known().get(&command) {
            return behaviour.clone();
        }
        if container.image.as_deref() == Some(APP_IMAGE) && command.is_empty() {
            return Behaviour::Listen { ports: vec![80] };
        }
        Daemons.behaviour(pod, container)
    }
}

/// What the script of a gate does in an image with the shell and the tools of busybox.
fn behaviour_of(gate: &Gate, image: Option<&str>) -> Behaviour {
    if image == Some(APP_IMAGE) {
        // Its image holds no `nc`: the probe cannot reach even the gate itself.
        return Behaviour::Exit { after: LOOPBACK, code: 3 };
    }
    // Every container is told where the API server's Service is.
    let service = Target::address([10, 96, 0, 1], 443);
    let targets = gate.targets.iter().map(|target| Target::address(target.ip(), target.port()));
    Behaviour::DialUntilClosed {
        targets: [service].into_iter().chain(targets).collect(),
        in_a_row: 2,
        limit: gate.limit,
    }
}

/// What the scripts of a canary do in an image with the shell and the tools of busybox.
fn of_canary(part: &Part, image: Option<&str>) -> Behaviour {
    match part {
        Part::Server { .. } if image == Some(APP_IMAGE) => Behaviour::Print {
            lines: vec!["the image lacks: wget httpd nc".to_owned()],
            then: Box::new(Behaviour::Exit { after: Duration::ZERO, code: 3 }),
        },
        Part::Server { .. } => Behaviour::Listen { ports: vec![canary::PORT] },
        Part::Prober { targets, .. } => Behaviour::Survey {
            targets: targets.iter().map(dialled_by_canary).collect(),
            patience: Duration::from_secs(1),
            pause: Duration::from_millis(100),
        },
    }
}

fn dialled_by_canary(target: &canary::Target) -> Target {
    match target.host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => Target::address(address, target.port),
        Err(_) => Target::name(&*target.host, target.port),
    }
}

/// The bed of one case, with a cluster of its own.
#[derive(Debug)]
pub struct MemoryBed {
    fake: FakeCluster,
    account: Arc<dyn Cluster>,
    admin: Arc<dyn Cluster>,
    scripts: Arc<Scripts>,
    numbers: AtomicU64,
    way: Way,
}

/// How the cluster is asked.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// As the value that it is.
    Direct,
    /// By kube's client, over HTTP, without a socket.
    Http,
}

impl Way {
    fn to(self, fake: FakeCluster) -> Arc<dyn Cluster> {
        match self {
            Self::Direct => Arc::new(fake),
            Self::Http => Arc::new(KubeCluster::from_service(face::router(&fake), fake.env().clone())),
        }
    }
}

impl MemoryBed {
    /// A bed on which the cluster is asked directly.
    pub async fn direct(env: Env) -> Self {
        Self::new(env, Way::Direct, |_| {}).await
    }

    /// A bed on which kube's client asks the cluster over HTTP, without a socket.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn over_http(env: Env) -> Self {
        Self::new(env, Way::Http, |_| {}).await
    }

    /// Another bed beside this one, asked in the same way, whose cluster is configured as `change` says.
    pub async fn beside(&self, change: impl FnOnce(&mut FakeConfig)) -> Self {
        Self::new(self.fake.env().clone(), self.way, change).await
    }

    async fn new(env: Env, way: Way, change: impl FnOnce(&mut FakeConfig)) -> Self {
        let scripts = Arc::new(Scripts::default());
        let manifests = Manifests::read();
        let mut config = FakeConfig {
            access: Some(manifests.access),
            images: [
                (MISSING_IMAGE.to_owned(), Image::missing(MISSING_IMAGE)),
                (MISSING_DIGEST.to_owned(), Image::missing(MISSING_DIGEST)),
            ]
            .into(),
            programs: Arc::<Scripts>::clone(&scripts),
            // As late as real network plugins are: whoever relies on a policy for a fresh pod is found out.
            policy_lag: Duration::from_millis(1200),
            plugin: Plugin { judges_own_node: true, ..Plugin::default() },
            ..FakeConfig::default()
        };
        change(&mut config);
        let fake = FakeCluster::new(env, config);
        let (account, admin) = (way.to(fake.as_account(ACCOUNT)), way.to(fake.clone()));
        for object in &manifests.objects {
            admin.create(object).await.expect("the manifests are applied");
        }
        // Cases that are not about it start their apps at once.
        let verdict = verdict::kept("pando", &verdict::passed(fake.env().wall.now()));
        admin.create(&verdict).await.expect("the verdict is kept");
        Self { fake, account, admin, scripts, numbers: AtomicU64::new(1), way }
    }

    /// The cluster itself, to look behind it.
    pub fn fake(&self) -> &FakeCluster {
        &self.fake
    }

    /// How many cases beds in memory cannot have.
    pub const CEILING: usize = 1;

    /// Why beds in memory cannot meet a need: all that they lack are programs of another process.
    pub fn lacks(need: Need) -> Option<String> {
        (need == Need::Program).then(|| "the fault suite kills processes in memory, at each of their steps".to_owned())
    }
}

#[async_trait]
impl Bed for MemoryBed {
    fn cluster(&self) -> Arc<dyn Cluster> {
        Arc::clone(&self.account)
    }

    fn admin(&self) -> Arc<dyn Cluster> {
        Arc::clone(&self.admin)
    }

    fn env(&self) -> &Env {
        self.fake.env()
    }

    fn unique(&self, word: &str) -> String {
        format!("case-{word}-{}", self.numbers.fetch_add(1, Ordering::Relaxed))
    }

    fn remove_afterwards(&self, _: ObjectKey) {
        // The whole cluster goes with its bed.
    }

    fn memory(&self) -> Option<&MemoryBed> {
        Some(self)
    }

    fn lacks(&self, need: Need) -> Option<String> {
        Self::lacks(need)
    }

    fn command(&self, behaviour: &Behaviour) -> Vec<String> {
        self.scripts.command(behaviour)
    }

    fn app_image(&self) -> &str {
        APP_IMAGE
    }

    fn db_image(&self) -> &str {
        DB_IMAGE
    }

    fn outside(&self) -> Option<&str> {
        Some("http://198.18.7.80/")
    }

    async fn probe(&self, from: &PodName, target: &Target) -> Outcome {
        // As long as a packet takes, so that a probe that is repeated lets time pass.
        self.env().sleep(Duration::from_millis(1)).await;
        let from = End::Pod(from.clone());
        let to = match &target.host {
            Host::Address(address) => End::Address(*address),
            Host::Pod(pod) => End::Pod(pod.clone()),
            Host::Name(name) => match self.fake.resolve(name).first() {
                Some(address) => End::Address(*address),
                None => return Outcome::NoRoute,
            },
        };
        self.fake.dial(&from, &to, target.port)
    }

    async fn shell(&self, _: &PodName, _: &str) -> Option<String> {
        None
    }

    async fn apply_and_kill(&self, _: &BundlePlan, _: Duration) -> bool {
        unreachable!("cases that need the command line are not run in memory")
    }

    async fn dialled(&self, from: &PodName, container: &str) -> Vec<(Target, Outcome)> {
        let dials = self.fake.dials().into_iter().filter(|dial| dial.from == *from && dial.container == container);
        dials.map(|dial| (dial.target, dial.outcome)).collect()
    }

    async fn writes(&self, namespace: &str) -> Vec<Write> {
        let account = self.fake.as_account(ACCOUNT);
        let ours = self.fake.writes().into_iter().filter(|call| call.user == *account.user());
        let here = ours.filter_map(|call| {
            let key = call.key?;
            let itself = key.kind == Kind::Namespace && key.name == namespace;
            (itself || key.namespace.as_deref() == Some(namespace)).then(|| Write {
                verb: call.verb.to_owned(),
                plural: key.kind.plural().to_owned(),
                name: key.name,
            })
        });
        here.collect()
    }

    fn forget_history(&self) {
        self.fake.compact();
    }
}
