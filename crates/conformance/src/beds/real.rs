//! A real cluster, by its API, with kubectl for what the port does not do.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use pando_adapter::KubernetesRuntime;
use pando_api::{BundlePlan, CallContext, RuntimeAdapter as _};
use pando_cluster::{
    Cluster, DeleteOptions, Env, Kind, ListRequest, MergePatch, ObjectKey, Resource as _, ResourceVersion, Scope, Uid,
};
use pando_fakecluster::behaviour::{Behaviour, Outcome, Target};
use pando_fakecluster::netpol::PodName;
use pando_kubecluster::{ConnectOptions, KubeCluster, tokio_env};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::images;
use crate::bed::{Bed, Need, Write, namespace_of};
use crate::beds::MemoryBed;
use crate::cases::Profile;
use crate::{apps, manifests, program};

/// How the suite is told of a real cluster; `cargo xtask e2e` sets all of it.
#[derive(Clone, Debug)]
struct Settings {
    account: PathBuf,
    admin: PathBuf,
    /// What the name of every namespace made here begins with.
    prefix: String,
    profile: Profile,
    app_image: String,
    db_image: String,
    /// Where the command line was built.
    program: Option<PathBuf>,
    outside: Option<String>,
    /// A command that prints the API server's audit log.
    audit: Vec<String>,
    /// How many cases may be skipped.
    max_skipped: Option<usize>,
}

impl Settings {
    fn from_environment() -> Option<Self> {
        let text = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        Some(Self {
            account: text("PANDO_E2E_KUBECONFIG")?.into(),
            admin: text("PANDO_E2E_ADMIN_KUBECONFIG")?.into(),
            prefix: text("PANDO_E2E_PREFIX").unwrap_or_else(|| "pando-e2e-".to_owned()),
            profile: if text("PANDO_E2E_PROFILE").as_deref() == Some("full") { Profile::Full } else { Profile::Ci },
            app_image: text("PANDO_E2E_APP_IMAGE").unwrap_or_else(|| "nginx:1.22".to_owned()),
            db_image: text("PANDO_E2E_DB_IMAGE").unwrap_or_else(|| "postgres:15".to_owned()),
            program: text("PANDO_E2E_PROGRAM").map(PathBuf::from),
            outside: text("PANDO_E2E_OUTSIDE"),
            audit: text("PANDO_E2E_AUDIT").iter().flat_map(|line| line.split(' ')).map(str::to_owned).collect(),
            max_skipped: text("PANDO_E2E_MAX_SKIPPED").and_then(|number| number.parse().ok()),
        })
    }
}

/// A real cluster that cases may run on, one bed each.
#[derive(Clone)]
pub struct RealCluster {
    settings: Arc<Settings>,
    account: Arc<dyn Cluster>,
    admin: Arc<dyn Cluster>,
    env: Env,
    numbers: Arc<AtomicU64>,
    /// How many nodes take pods.
    nodes: usize,
    /// Whether all of them have the image that plays an app, and that of the database.
    has_app_image: bool,
    has_db_image: bool,
}

impl fmt::Debug for RealCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RealCluster").field("prefix", &self.settings.prefix).finish_non_exhaustive()
    }
}

impl RealCluster {
    /// Where the cluster is told.
    pub const HOW: &str = "no real cluster is told of: `cargo xtask e2e` runs this suite on one";

    /// The cluster that the environment tells of; `None` when it tells of none.
    ///
    /// # Panics
    ///
    /// When it tells of one that cannot be reached, or that does not keep apps from each other. Outside a tokio runtime.
    pub async fn from_environment() -> Option<Self> {
        let settings = Settings::from_environment()?;
        let env = tokio_env();
        let account = connect(&settings.account, &env).await;
        let admin = connect(&settings.admin, &env).await;
        let (nodes, _) = admin.list_all::<Node>(&ListRequest::of(Kind::Node, Scope::All)).await.expect("the nodes");
        let nodes: Vec<_> = nodes.iter().filter(|node| takes_pods(node)).collect();
        // Found out once, and kept for every case.
        let runtime = KubernetesRuntime::new(apps::settings(&json!({})), Arc::clone(&account), env.clone());
        if let Err(error) = runtime.health_check(&CallContext::new("e2e")).await {
            panic!("nothing can be proved here: {error}; {}", error.remedy.as_deref().unwrap_or_default());
        }
        let mut has = [false; 2];
        for (number, image) in [&settings.app_image, &settings.db_image].into_iter().enumerate() {
            let namespace = format!("{}images-{number}", settings.prefix);
            has[number] = images::on_every_node(&*admin, &env, &nodes, image, &namespace).await;
        }
        let [has_app_image, has_db_image] = has;
        Some(Self {
            settings: Arc::new(settings),
            account,
            admin,
            env,
            numbers: Arc::default(),
            nodes: nodes.len(),
            has_app_image,
            has_db_image,
        })
    }

    /// How much is to be run.
    pub fn profile(&self) -> Profile {
        self.settings.profile
    }

    /// How many cases may be skipped for want of what a real cluster can have; where nobody says, as many as there are.
    pub fn ceiling(&self) -> usize {
        self.settings.max_skipped.unwrap_or(usize::MAX)
    }

    /// Why cases on this cluster cannot have `need`.
    pub fn lacks(&self, need: Need) -> Option<String> {
        let settings = &self.settings;
        let image = &settings.app_image;
        let (met, otherwise) = match need {
            Need::Kubelet | Need::Packets => return None,
            Need::Clock => (false, "time is real here".to_owned()),
            Need::Memory => (false, "the cluster is a real one".to_owned()),
            Need::AppImage => (self.has_app_image, format!("{image} is not on every node")),
            Need::DbImage => (self.has_db_image, format!("{} is not on every node", settings.db_image)),
            Need::Program => (settings.program.is_some(), "no command line is told of".to_owned()),
            Need::Outside => {
                (settings.outside.is_some(), "nothing outside of the cluster is told of (`--outside URL`)".to_owned())
            }
            Need::Audit => (!settings.audit.is_empty(), "no audit log is within reach".to_owned()),
            Need::TwoNodes => (self.nodes >= 2, format!("{} node(s) take pods", self.nodes)),
        };
        (!met).then_some(otherwise)
    }

    /// A bed for one case.
    pub fn bed(&self) -> RealBed {
        RealBed { cluster: self.clone(), made: Mutex::default(), guests: Mutex::default() }
    }
}

async fn connect(kubeconfig: &Path, env: &Env) -> Arc<dyn Cluster> {
    let options = ConnectOptions { kubeconfig: Some(kubeconfig.to_owned()), ..ConnectOptions::default() };
    match KubeCluster::connect(&options, env.clone()).await {
        Ok(cluster) => Arc::new(cluster),
        Err(error) => panic!("{error}: {}", error.remedy()),
    }
}

fn takes_pods(node: &Node) -> bool {
    let spec = node.spec.clone().unwrap_or_default();
    let tainted = spec.taints.into_iter().flatten().any(|taint| taint.effect != "PreferNoSchedule");
    !tainted && spec.unschedulable != Some(true)
}

/// The bed of one case on a real cluster.
#[derive(Debug)]
pub struct RealBed {
    cluster: RealCluster,
    made: Mutex<Vec<String>>,
    /// What the case put into namespaces that are not its own.
    guests: Mutex<Vec<ObjectKey>>,
}

impl RealBed {
    /// Asks for everything that the case made to be deleted, and waits for none of it.
    pub async fn clear(&self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        let guests = std::mem::take(&mut *self.guests.lock().unwrap_or_else(PoisonError::into_inner));
        let namespaces: Vec<String> = made.iter().map(|id| namespace_of(id)).collect();
        self.let_go_of_volumes(&namespaces).await;
        let namespaces = namespaces.into_iter().map(|name| ObjectKey::cluster(Kind::Namespace, name));
        for key in guests.into_iter().chain(namespaces) {
            // What cannot be deleted here is found by its name at the end of the run.
            if let Ok(Some(object)) = self.cluster.admin.get(&key).await
                && let Some(uid) = Uid::of(object.meta())
            {
                let _ = self.cluster.admin.delete(&key, &DeleteOptions::of(uid)).await;
            }
        }
    }

    /// Lets the volumes of these namespaces go with their claims: what is proved here is that they would stay.
    async fn let_go_of_volumes(&self, namespaces: &[String]) {
        let admin = &self.cluster.admin;
        let all = ListRequest::of(Kind::PersistentVolume, Scope::All);
        let Ok((volumes, _)) = admin.list_all::<PersistentVolume>(&all).await else { return };
        for volume in volumes {
            let holder = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.namespace.as_ref());
            let is_ours = holder.is_some_and(|holder| namespaces.contains(holder));
            if let Some(version) = ResourceVersion::of(&volume.metadata).filter(|_| is_ours) {
                let delete = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
                // One that changed meanwhile is left to whoever looks for what is left over.
                let _ = admin.patch(&volume.key(), &MergePatch::at(&version, delete)).await;
            }
        }
    }

    async fn kubectl(&self, arguments: &[&str]) -> String {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--kubeconfig").arg(&self.cluster.settings.admin).args(arguments).kill_on_drop(true);
        let output = kubectl.output().await.expect("kubectl is on PATH");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {}: {said}", arguments.join(" "));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

#[async_trait]
impl Bed for RealBed {
    fn cluster(&self) -> Arc<dyn Cluster> {
        Arc::clone(&self.cluster.account)
    }

    fn admin(&self) -> Arc<dyn Cluster> {
        Arc::clone(&self.cluster.admin)
    }

    fn env(&self) -> &Env {
        &self.cluster.env
    }

    fn unique(&self, word: &str) -> String {
        let number = self.cluster.numbers.fetch_add(1, Ordering::Relaxed);
        let prefix = self.cluster.settings.prefix.trim_start_matches("pando-");
        let id = format!("{prefix}{word}-{number}");
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
        id
    }

    fn remove_afterwards(&self, key: ObjectKey) {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner).push(key);
    }

    fn memory(&self) -> Option<&MemoryBed> {
        None
    }

    fn lacks(&self, need: Need) -> Option<String> {
        self.cluster.lacks(need)
    }

    fn command(&self, behaviour: &Behaviour) -> Vec<String> {
        program::command(behaviour)
    }

    fn app_image(&self) -> &str {
        &self.cluster.settings.app_image
    }

    fn db_image(&self) -> &str {
        &self.cluster.settings.db_image
    }

    fn outside(&self) -> Option<&str> {
        self.cluster.settings.outside.as_deref()
    }

    async fn probe(&self, from: &PodName, target: &Target) -> Outcome {
        let dial = format!("timeout 4 nc -w 2 {} </dev/null 2>&1; true", program::words(target));
        let said =
            self.kubectl(&["exec", "-n", &from.namespace, &from.name, "-c", "app", "--", "sh", "-c", &dial]).await;
        program::outcome_of(&said)
    }

    async fn shell(&self, pod: &PodName, script: &str) -> Option<String> {
        Some(self.kubectl(&["exec", "-n", &pod.namespace, &pod.name, "-c", "app", "--", "sh", "-c", script]).await)
    }

    async fn apply_and_kill(&self, plan: &BundlePlan, after: Duration) -> bool {
        let settings = &self.cluster.settings;
        let program = settings.program.as_ref().expect("the case needs the command line");
        let mut command = Command::new(program);
        command.arg("--kubeconfig").arg(&settings.account).args(["apply", "-"]);
        for setting in ["pod_cidr=10.244.0.0/16", "service_cidr=10.96.0.0/16", "stop_grace_seconds=2"] {
            command.args(["--set", setting]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().expect("the command line can be run");
        let text = serde_json::to_vec(plan).expect("plans are JSON");
        child.stdin.take().expect("it reads").write_all(&text).await.expect("it reads the plan");
        let ended = self.env().timeout(after, child.wait()).await.is_ok();
        if !ended {
            // SIGKILL: it has no chance to undo anything.
            child.kill().await.expect("it can be killed");
        }
        ended
    }

    async fn dialled(&self, from: &PodName, container: &str) -> Vec<(Target, Outcome)> {
        program::dialled(&self.kubectl(&["logs", "-n", &from.namespace, &from.name, "-c", container]).await)
    }

    async fn writes(&self, namespace: &str) -> Vec<Write> {
        let (program, arguments) = self.cluster.settings.audit.split_first().expect("the case needs an audit log");
        let output = Command::new(program).args(arguments).output().await.expect("the audit log can be read");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let log = String::from_utf8_lossy(&output.stdout);
        log.lines().filter_map(|line| written(line, namespace)).collect()
    }

    fn forget_history(&self) {
        // A cluster that has run for a minute keeps nothing of its first.
    }
}

/// The write of Pando's account in `namespace` that a line of the audit log tells of.
fn written(line: &str, namespace: &str) -> Option<Write> {
    if !line.contains(manifests::ACCOUNT) || !line.contains(namespace) {
        return None;
    }
    let event: serde_json::Value = serde_json::from_str(line).ok()?;
    let object = &event["objectRef"];
    let itself = object["resource"] == "namespaces" && object["name"] == namespace;
    let here = object["namespace"] == namespace || itself;
    let verb = event["verb"].as_str()?;
    let reads = ["get", "list", "watch"].contains(&verb);
    (here && !reads && event["user"]["username"] == manifests::ACCOUNT).then(|| Write {
        verb: verb.to_owned(),
        plural: object["resource"].as_str().unwrap_or_default().to_owned(),
        name: object["name"].as_str().unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_accounts_own_writes_are_told() {
        let event = |user: &str, verb: &str, namespace: &str| {
            serde_json::json!({"user": {"username": user}, "verb": verb,
                "objectRef": {"namespace": namespace, "resource": "pods", "name": "web-1"}})
            .to_string()
        };
        let write = Write { verb: "create".to_owned(), plural: "pods".to_owned(), name: "web-1".to_owned() };
        assert_eq!(written(&event(manifests::ACCOUNT, "create", "a"), "a"), Some(write));
        assert_eq!(written(&event(manifests::ACCOUNT, "list", "a"), "a"), None);
        assert_eq!(written(&event(manifests::ACCOUNT, "create", "ab"), "a"), None);
        assert_eq!(written(&event("system:admin", "create", "a"), "a"), None);
    }
}
