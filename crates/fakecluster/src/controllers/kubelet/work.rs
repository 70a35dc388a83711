//! One pod on its node: from its arrival to its end.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use pando_cluster::ObjectKey;
use pando_cluster::env::Instant;

use super::container::{ContainerWork, Stage};
use super::earlier;
use super::stop::Stop;
use crate::FakeCluster;
use crate::controllers::machines::{ProcessId, Sandbox};
use crate::controllers::objects::{Note, tell};
use crate::netpol::PodName;
use crate::store::text_of;

/// After how long a sandbox that could not be made is tried again.
const SANDBOX_RETRY: Duration = Duration::from_secs(10);

/// A node as its kubelet knows it.
#[derive(Clone, Debug)]
pub(in crate::controllers) struct Node {
    pub(in crate::controllers) name: String,
    /// Its own addresses.
    pub(in crate::controllers) ips: Vec<IpAddr>,
    /// The addresses its pods get.
    pub(in crate::controllers) range: ipnet::IpNet,
}

/// A pod that the kubelet takes care of.
pub(super) struct PodWork {
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    /// The pod as it was read last.
    pub(super) pod: Pod,
    /// When to look again, if nothing happens before.
    pub(super) next: Option<Instant>,
    /// `status.startTime`.
    pub(super) accepted_text: String,
    pub(super) sandbox: SandboxState,
    pub(super) ip: Option<IpAddr>,
    /// Init containers, in their order, and then the others.
    pub(super) containers: Vec<ContainerWork>,
    pub(super) phase: Phase,
    /// Why the kubelet itself ends the pod.
    pub(super) verdict: Option<Verdict>,
    pub(super) stop: Option<Stop>,
    pub(super) mounts: Mounts,
    accepted: Instant,
    phase_due: Option<Instant>,
    removal_due: Option<Instant>,
    /// It was looked at before.
    met: bool,
}

/// How far a pod's volumes are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mounts {
    pub(super) done: bool,
    /// How often they could not be mounted.
    pub(super) failures: u32,
    /// Not before then is it tried again.
    pub(super) again: Option<Instant>,
}

/// How far a pod's network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SandboxState {
    Due(Instant),
    Up,
    Down,
}

/// `status.phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub(super) const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// Why the kubelet itself ends a pod.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

const DEADLINE: &str = "Pod was active on the node longer than the specified deadline";

/// How long an evicted pod has for its end.
const EVICTION_GRACE: Duration = Duration::from_secs(1);

impl PodWork {
    pub(super) fn new(fake: &FakeCluster, key: ObjectKey, uid: String, pod: Pod) -> Self {
        let now = fake.env().now();
        let spec = pod.spec.clone().unwrap_or_default();
        let init = spec.init_containers.iter().flatten().map(|it| ContainerWork::new(it.clone(), true));
        let app = spec.containers.iter().map(|it| ContainerWork::new(it.clone(), false));
        Self {
            key,
            uid,
            containers: init.chain(app).collect(),
            pod,
            next: None,
            accepted_text: text_of(fake.env().wall.now()),
            accepted: now,
            sandbox: SandboxState::Due(now.plus(fake.config().delays.sandbox)),
            ip: None,
            phase: Phase::Pending,
            verdict: None,
            stop: None,
            mounts: Mounts::default(),
            phase_due: None,
            removal_due: None,
            met: false,
        }
    }

    pub(super) fn spec(&self) -> &PodSpec {
        static NONE: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.pod.spec.as_ref().unwrap_or(&NONE)
    }

    pub(super) fn name(&self) -> PodName {
        PodName::new(self.key.namespace.clone().unwrap_or_default(), self.key.name.clone())
    }

    pub(super) fn process(&self, container: &str) -> ProcessId {
        ProcessId { uid: self.uid.clone(), container: container.to_owned() }
    }

    pub(super) fn waits_for_secret(&self) -> bool {
        self.containers.iter().any(|it| matches!(it.stage, Stage::NoConfig { .. }))
    }

    pub(super) fn tell(
        &self,
        fake: &FakeCluster,
        of: Option<&ContainerWork>,
        warning: bool,
        reason: &str,
        message: String,
    ) {
        let section = |of: &ContainerWork| if of.init { "initContainers" } else { "containers" };
        let field = of.map(|of| format!("spec.{}{{{}}}", section(of), of.name()));
        let env = fake.env();
        let note = Note { about: &self.key, field, by: "kubelet", warning, reason, message };
        fake.with(|store| tell(store, env, note));
    }

    /// Takes every step that is due, and sets when the next one is.
    pub(super) fn step(&mut self, fake: &FakeCluster, node: &Node, pod: Pod) {
        self.pod = pod;
        self.next = None;
        if self.phase.is_terminal() {
            return self.plan_removal(fake);
        }
        if !std::mem::replace(&mut self.met, true) {
            // That the pod has arrived shows before anything of it runs.
            return self.look_again(fake.env().now());
        }
        self.see_exits(fake);
        self.look_at_deletion(fake);
        self.look_at_deadline(fake);
        self.look_at_eviction(fake);
        if self.stop.is_some() {
            self.go_on_stopping(fake);
        } else {
            self.go_on_starting(fake, node);
        }
        self.move_phase(fake);
    }

    /// At `due`, there is something to do.
    pub(super) fn look_again(&mut self, due: Instant) {
        self.next = earlier(self.next, Some(due));
    }

    fn see_exits(&mut self, fake: &FakeCluster) {
        let uid = &self.uid;
        for container in &mut self.containers {
            let id = ProcessId { uid: uid.clone(), container: container.name().to_owned() };
            let exit = fake.machines().with(|state| state.processes.get(&id).and_then(|process| process.exit.clone()));
            if let Some(exit) = exit {
                container.see_exit(&exit);
            }
        }
    }

    fn look_at_deadline(&mut self, fake: &FakeCluster) {
        let Some(seconds) = self.spec().active_deadline_seconds else { return };
        let due = self.accepted.plus(Duration::from_secs(seconds.try_into().unwrap_or(0)));
        if self.verdict.is_some() || self.stop.is_some() || self.is_over() {
            return;
        }
        if fake.env().now() < due {
            return self.look_again(due);
        }
        self.verdict = Some(Verdict { reason: "DeadlineExceeded", message: DEADLINE.to_owned() });
        self.tell(fake, None, false, "DeadlineExceeded", DEADLINE.to_owned());
        self.begin_stop(fake, self.own_grace());
    }

    /// The node is short of something, and this pod has to go for it.
    fn look_at_eviction(&mut self, fake: &FakeCluster) {
        let Some(message) = fake.machines().with(|state| state.evictions.remove(&self.uid)) else { return };
        if self.verdict.is_some() || self.stop.is_some() || self.is_over() {
            return;
        }
        self.tell(fake, None, true, "Evicted", message.clone());
        self.verdict = Some(Verdict { reason: "Evicted", message });
        self.begin_stop(fake, EVICTION_GRACE);
    }

    /// The grace that the pod's own spec gives.
    pub(super) fn own_grace(&self) -> Duration {
        Duration::from_secs(self.spec().termination_grace_period_seconds.unwrap_or(30).try_into().unwrap_or(0))
    }

    fn go_on_starting(&mut self, fake: &FakeCluster, node: &Node) {
        let now = fake.env().now();
        match self.sandbox {
            SandboxState::Due(due) if now < due => return self.look_again(due),
            SandboxState::Due(_) => {
                if !self.mount(fake) {
                    return;
                }
                self.start_sandbox(fake, node);
            }
            SandboxState::Up => {}
            SandboxState::Down => return,
        }
        if self.sandbox != SandboxState::Up {
            return;
        }
        for index in 0..self.containers.len() {
            let container = &self.containers[index];
            let done = container.init && container.has_succeeded();
            if done {
                continue;
            }
            if container.init && container.has_failed_for_good(self.spec()) {
                return;
            }
            self.advance(fake, node, index);
            // Init containers run one after the other, and before all others; a sidecar only has to have started.
            let container = &self.containers[index];
            if container.init && !container.has_succeeded() && !container.is_started_sidecar() {
                return;
            }
        }
    }

    fn start_sandbox(&mut self, fake: &FakeCluster, node: &Node) {
        let host = self.spec().host_network == Some(true);
        let (uid, pod, since) = (self.uid.clone(), self.name(), fake.env().now());
        let taken = fake.machines().touch(&uid, |state| {
            let ip = if host { None } else { Some(state.take_address(hosts(node.range))?) };
            state.sandboxes.insert(uid.clone(), Sandbox { pod, node: node.name.clone(), ip, since });
            Some(ip)
        });
        if let Some(ip) = taken {
            self.ip = ip.or_else(|| node.ips.first().copied());
            self.sandbox = SandboxState::Up;
            return;
        }
        let message = "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for \
            sandbox: no IP addresses available in range";
        self.tell(fake, None, true, "FailedCreatePodSandBox", message.to_owned());
        let again = since.plus(SANDBOX_RETRY);
        self.sandbox = SandboxState::Due(again);
        self.look_again(again);
    }

    /// Whether nothing of the pod runs and nothing will.
    pub(super) fn is_over(&self) -> bool {
        self.reckon().is_terminal()
    }

    /// The phase that the containers' states amount to.
    fn reckon(&self) -> Phase {
        if self.containers.iter().any(|it| matches!(it.stage, Stage::Running { .. })) {
            let initialized = self.containers.iter().filter(|it| it.init).all(ContainerWork::is_past);
            let all_started = self.containers.iter().filter(|it| !it.init).all(ContainerWork::has_started);
            return if initialized && all_started { Phase::Running } else { Phase::Pending };
        }
        if self.verdict.is_some() {
            return Phase::Failed;
        }
        let spec = self.spec();
        if self.containers.iter().any(|it| it.init && it.has_failed_for_good(spec)) {
            return Phase::Failed;
        }
        let apps = || self.containers.iter().filter(|it| !it.init);
        if apps().any(|it| !it.has_started()) {
            return Phase::Pending;
        }
        if !apps().all(|it| it.is_over_for_good(spec, self.stop.is_some())) {
            return Phase::Running;
        }
        if apps().all(ContainerWork::has_succeeded) { Phase::Succeeded } else { Phase::Failed }
    }

    fn move_phase(&mut self, fake: &FakeCluster) {
        let phase = self.reckon();
        if !phase.is_terminal() {
            self.phase = phase;
            return;
        }
        // The containers' ends show first, the pod's end a moment later.
        let now = fake.env().now();
        let due = *self.phase_due.get_or_insert(now.plus(fake.config().delays.phase));
        if now < due {
            if self.phase == Phase::Pending
                && self.containers.iter().filter(|it| !it.init).all(ContainerWork::has_started)
            {
                self.phase = Phase::Running;
            }
            return self.look_again(due);
        }
        self.phase = phase;
        self.sandbox = SandboxState::Down;
        let uid = self.uid.clone();
        fake.machines().with(|state| state.end_sandbox(&uid));
        self.plan_removal(fake);
    }

    fn plan_removal(&mut self, fake: &FakeCluster) {
        if self.pod.metadata.deletion_timestamp.is_some() {
            let now = fake.env().now();
            let due = *self.removal_due.get_or_insert(now.plus(fake.config().delays.removal));
            if now < due {
                self.look_again(due);
            }
        }
    }

    /// Whether the object is asked to go, and everything of the pod has ended.
    pub(super) fn is_removal_due(&self, fake: &FakeCluster) -> bool {
        self.removal_due.is_some_and(|due| due <= fake.env().now())
    }

    /// Whether a finalizer holds the object.
    pub(super) fn is_held(&self) -> bool {
        self.pod.metadata.finalizers.as_ref().is_some_and(|held| !held.is_empty())
    }
}

/// The addresses that pods of a node can get: the first is the node's own end of them.
fn hosts(range: ipnet::IpNet) -> impl Iterator<Item = IpAddr> {
    range.hosts().skip(1)
}
