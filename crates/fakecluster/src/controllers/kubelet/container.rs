//! One container: how far it is, its program, and what comes after that.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use pando_cluster::env::Instant;

use super::probes::Probes;
use super::work::{Node, PodWork};
use crate::FakeCluster;
use crate::behaviour::Behaviour;
use crate::controllers::machines::Exit;
use crate::controllers::programs::{self, Start};
use crate::store::text_of;

/// The first pause between two pulls or two starts; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);
/// How often missing configuration is looked for again.
const CONFIG_RETRY: Duration = Duration::from_secs(10);

/// A container that the kubelet takes care of.
pub(super) struct ContainerWork {
    pub(super) container: Container,
    pub(super) init: bool,
    pub(super) stage: Stage,
    /// How it ended before its present stage.
    pub(super) last: Option<Ended>,
    pub(super) restarts: u32,
    pub(super) pulls_failed: u32,
    /// Its id, once it was created.
    pub(super) id: Option<String>,
    pub(super) probes: Probes,
    /// It was told to end, and will be killed then.
    pub(super) kill_due: Option<Instant>,
    /// Its image is on the node.
    pub(super) pulled: bool,
}

/// How far a container is.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// Nothing was done yet.
    Idle,
    Pulling {
        until: Instant,
    },
    PullFailed {
        message: String,
        pause_from: Instant,
        retry: Instant,
        pausing: bool,
    },
    /// Nothing will come of it: the reason and the message say why.
    Stuck {
        reason: &'static str,
        message: String,
    },
    /// Something it is configured from is missing.
    NoConfig {
        message: String,
    },
    Starting {
        until: Instant,
    },
    Running {
        since: String,
    },
    Ended(Ended),
    /// It ended and will be started again.
    Resting {
        until: Instant,
        message: String,
    },
}

/// How a container ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) code: i32,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// `None` for one that never ran.
    pub(super) since: Option<String>,
    pub(super) at: Option<String>,
}

impl ContainerWork {
    pub(super) fn new(container: Container, init: bool) -> Self {
        Self {
            container,
            init,
            stage: Stage::Idle,
            last: None,
            restarts: 0,
            pulls_failed: 0,
            id: None,
            probes: Probes::default(),
            kill_due: None,
            pulled: false,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.container.name
    }

    pub(super) fn image(&self) -> &str {
        self.container.image.as_deref().unwrap_or_default()
    }

    /// An init container that stays.
    fn is_sidecar(&self) -> bool {
        self.init && self.container.restart_policy.as_deref() == Some("Always")
    }

    pub(super) fn is_started_sidecar(&self) -> bool {
        self.is_sidecar() && matches!(self.stage, Stage::Running { .. }) && self.probes.started
    }

    /// Whether the containers after this init container may start.
    pub(super) fn is_past(&self) -> bool {
        self.has_succeeded() || self.is_started_sidecar()
    }

    pub(super) fn has_succeeded(&self) -> bool {
        matches!(&self.stage, Stage::Ended(ended) if ended.code == 0)
    }

    /// Whether it has run, now or before.
    pub(super) fn has_started(&self) -> bool {
        self.last.is_some() || matches!(self.stage, Stage::Running { .. } | Stage::Ended(_))
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running { .. })
    }

    fn restarts_after(&self, spec: &PodSpec, code: i32) -> bool {
        match (self.is_sidecar(), spec.restart_policy.as_deref().unwrap_or("Always")) {
            (true, _) => true,
            (false, "Always") => !self.init || code != 0,
            (false, "OnFailure") => code != 0,
            _ => false,
        }
    }

    pub(super) fn has_failed_for_good(&self, spec: &PodSpec) -> bool {
        matches!(&self.stage, Stage::Ended(ended) if ended.code != 0 && !self.restarts_after(spec, ended.code))
    }

    /// Whether it has ended and will not run again; while the pod is stopping, none does.
    pub(super) fn is_over_for_good(&self, spec: &PodSpec, stopping: bool) -> bool {
        matches!(&self.stage, Stage::Ended(ended) if stopping || !self.restarts_after(spec, ended.code))
    }

    /// Takes note that its program has ended.
    pub(super) fn see_exit(&mut self, exit: &Exit) {
        let Stage::Running { since } = &self.stage else { return };
        let reason = match (exit.out_of_memory, exit.code) {
            (true, _) => "OOMKilled",
            (false, 0) => "Completed",
            (false, _) => "Error",
        };
        let ended = Ended {
            code: exit.code,
            reason,
            message: exit.message.clone(),
            since: Some(since.clone()),
            at: Some(text_of(exit.at)),
        };
        self.stage = Stage::Ended(ended);
        self.probes = Probes::default();
        self.kill_due = None;
    }

    /// The pause after so many failures.
    pub(super) fn pause(failures: u32) -> Duration {
        FIRST_PAUSE.saturating_mul(1 << failures.min(5)).min(LONGEST_PAUSE)
    }
}

impl PodWork {
    /// Takes the steps that are due for the container at `index`.
    pub(super) fn advance(&mut self, fake: &FakeCluster, node: &Node, index: usize) {
        let now = fake.env().now();
        loop {
            let stage = self.containers[index].stage.clone();
            let next = match stage {
                Stage::Pulling { until } | Stage::Starting { until } | Stage::Resting { until, .. } if now < until => {
                    return self.look_again(until);
                }
                Stage::Pulling { .. } => self.end_pull(fake, node, index),
                Stage::PullFailed { pause_from, message, retry, pausing: false } if now >= pause_from => {
                    let of = &self.containers[index];
                    let told = format!("Back-off pulling image {:?}", of.image());
                    self.tell(fake, Some(of), false, "BackOff", told);
                    self.tell(fake, Some(of), true, "Failed", "Error: ImagePullBackOff".to_owned());
                    Stage::PullFailed { message, pause_from, retry, pausing: true }
                }
                Stage::PullFailed { pause_from, pausing: false, .. } => return self.look_again(pause_from),
                Stage::PullFailed { retry, .. } if now < retry => return self.look_again(retry),
                Stage::Idle | Stage::PullFailed { .. } => self.begin_pull(fake, node, index),
                Stage::NoConfig { .. } => match self.configure(fake, index) {
                    Ok(()) => Stage::Starting { until: now.plus(fake.config().delays.container) },
                    Err(message) => {
                        self.containers[index].stage = Stage::NoConfig { message };
                        return self.look_again(now.plus(CONFIG_RETRY));
                    }
                },
                Stage::Starting { .. } | Stage::Resting { .. } => self.start(fake, node, index),
                Stage::Running { .. } => return self.watch_over(fake, index),
                Stage::Ended(ended) => match self.rest(fake, index, &ended) {
                    Some(resting) => resting,
                    None => return,
                },
                Stage::Stuck { .. } => return,
            };
            self.containers[index].stage = next;
        }
    }

    fn start(&mut self, fake: &FakeCluster, node: &Node, index: usize) -> Stage {
        let of = &self.containers[index];
        let name = of.name().to_owned();
        let behaviour = fake.config().programs.behaviour(&self.pod, &of.container);
        self.tell(fake, Some(of), false, "Created", format!("Created container: {name}"));
        let now = text_of(fake.env().wall.now());
        let id = hex(|| fake.env().random_u64());
        if let Behaviour::StartError { message } = behaviour {
            self.tell(fake, Some(of), true, "Failed", format!("Error: {message}"));
            self.containers[index].id = Some(id);
            // The kubelet has no start to tell of, and writes the beginning of time.
            let since = text_of(Timestamp::UNIX_EPOCH);
            let ended = Ended { code: 128, reason: "StartError", message, since: Some(since), at: Some(now) };
            return Stage::Ended(ended);
        }
        self.tell(fake, Some(of), false, "Started", format!("Started container {name}"));
        let claims = self.claims(&of.container);
        let volumes = self.volumes_of(fake, &claims);
        let start = Start {
            id: self.process(&name),
            pod: self.name(),
            node: node.name.clone(),
            claims,
            volumes,
            files: self.mounted_files(fake, &of.container),
            behaviour,
        };
        programs::start(fake, start);
        let of = &mut self.containers[index];
        of.id = Some(id);
        of.probes = Probes::begin(&of.container, fake.env().now());
        Stage::Running { since: now }
    }

    /// What comes after the end: another start, where the restart policy says so.
    fn rest(&mut self, fake: &FakeCluster, index: usize, ended: &Ended) -> Option<Stage> {
        let of = &self.containers[index];
        if !of.restarts_after(self.spec(), ended.code) {
            return None;
        }
        let pause = if of.restarts == 0 { Duration::ZERO } else { ContainerWork::pause(of.restarts - 1) };
        let (namespace, pod) = (self.key.namespace.as_deref().unwrap_or_default(), &self.key.name);
        let message = format!(
            "back-off {}s restarting failed container={} pod={pod}_{namespace}({})",
            pause.as_secs(),
            of.name(),
            self.uid
        );
        if !pause.is_zero() {
            let told =
                format!("Back-off restarting failed container {} in pod {pod}_{namespace}({})", of.name(), self.uid);
            self.tell(fake, Some(of), true, "BackOff", told);
        }
        let of = &mut self.containers[index];
        of.last = Some(ended.clone());
        of.restarts += 1;
        Some(Stage::Resting { until: fake.env().now().plus(pause), message })
    }
}

/// 64 hexadecimal digits, as ids and digests have.
pub(super) fn hex(mut next: impl FnMut() -> u64) -> String {
    let mut digits = String::with_capacity(64);
    for _ in 0..4 {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{:016x}", next());
    }
    digits
}
