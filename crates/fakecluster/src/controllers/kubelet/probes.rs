//! Probes: whether a container has started, is ready, and is alive.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pando_cluster::env::Instant;

use super::work::PodWork;
use crate::FakeCluster;

/// What the probes of a container have found so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Probes {
    /// Its startup probe has passed, or it has none.
    pub(super) started: bool,
    /// Its readiness probe passes, or it has none.
    pub(super) ready: bool,
    startup: Option<Rounds>,
    readiness: Option<Rounds>,
    liveness: Option<Rounds>,
}

#[derive(Clone, Copy, Debug)]
struct Rounds {
    next: Instant,
    passed: u32,
    failed: u32,
}

/// What a round came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Passes,
    Fails,
    /// Not often enough in a row to say.
    Open,
}

impl Probes {
    /// For a container that starts at `now`.
    pub(super) fn begin(container: &Container, now: Instant) -> Self {
        let mut probes = Self { startup: Rounds::of(container.startup_probe.as_ref(), now), ..Self::default() };
        if probes.startup.is_none() {
            probes.open(container, now);
        }
        probes
    }

    /// The container has started: from now on it is asked whether it is ready and alive.
    fn open(&mut self, container: &Container, now: Instant) {
        self.started = true;
        self.startup = None;
        self.readiness = Rounds::of(container.readiness_probe.as_ref(), now);
        self.liveness = Rounds::of(container.liveness_probe.as_ref(), now);
        self.ready = self.readiness.is_none();
    }

    fn next(&self) -> Option<Instant> {
        [self.startup, self.readiness, self.liveness].into_iter().flatten().map(|rounds| rounds.next).min()
    }
}

impl Rounds {
    fn of(probe: Option<&Probe>, now: Instant) -> Option<Self> {
        let delay = seconds(probe?.initial_delay_seconds, 0);
        Some(Self { next: now.plus(delay), passed: 0, failed: 0 })
    }

    fn count(&mut self, probe: &Probe, passes: bool, now: Instant) -> Found {
        self.next = now.plus(seconds(probe.period_seconds, 10));
        let enough = |count: u32, threshold: Option<i32>, otherwise: u32| {
            count >= threshold.and_then(|it| u32::try_from(it).ok()).filter(|it| *it > 0).unwrap_or(otherwise)
        };
        if passes {
            (self.passed, self.failed) = (self.passed.saturating_add(1), 0);
            if enough(self.passed, probe.success_threshold, 1) { Found::Passes } else { Found::Open }
        } else {
            (self.passed, self.failed) = (0, self.failed.saturating_add(1));
            if enough(self.failed, probe.failure_threshold, 3) { Found::Fails } else { Found::Open }
        }
    }
}

impl PodWork {
    /// Runs the probes that are due for a running container.
    pub(super) fn watch_over(&mut self, fake: &FakeCluster, index: usize) {
        let now = fake.env().now();
        if let Some(due) = self.containers[index].kill_due {
            return self.kill_when_due(fake, index, due);
        }
        let container = self.containers[index].container.clone();
        if let Some(found) = self.round(fake, index, container.startup_probe.as_ref(), |it| &mut it.startup, "Startup")
        {
            match found {
                Found::Passes => self.containers[index].probes.open(&container, now),
                Found::Fails => return self.restart_for_probe(fake, index, "startup"),
                Found::Open => {}
            }
        }
        let readiness = container.readiness_probe.as_ref();
        if let Some(found) = self.round(fake, index, readiness, |it| &mut it.readiness, "Readiness") {
            match found {
                Found::Passes => self.containers[index].probes.ready = true,
                Found::Fails => self.containers[index].probes.ready = false,
                Found::Open => {}
            }
        }
        if let Some(Found::Fails) =
            self.round(fake, index, container.liveness_probe.as_ref(), |it| &mut it.liveness, "Liveness")
        {
            return self.restart_for_probe(fake, index, "liveness");
        }
        if let Some(next) = self.containers[index].probes.next() {
            self.look_again(next);
        }
    }

    /// One round of one probe; `None` when it is not due.
    fn round(
        &mut self,
        fake: &FakeCluster,
        index: usize,
        probe: Option<&Probe>,
        which: impl Fn(&mut Probes) -> &mut Option<Rounds>,
        word: &str,
    ) -> Option<Found> {
        let (probe, now) = (probe?, fake.env().now());
        let due = which(&mut self.containers[index].probes).is_some_and(|rounds| rounds.next <= now);
        if !due {
            return None;
        }
        let refusal = self.ask(fake, &self.containers[index].container, probe);
        if let Some(refusal) = &refusal {
            self.tell(
                fake,
                Some(&self.containers[index]),
                true,
                "Unhealthy",
                format!("{word} probe failed: {refusal}"),
            );
        }
        let rounds = which(&mut self.containers[index].probes).as_mut()?;
        Some(rounds.count(probe, refusal.is_none(), now))
    }

    /// Asks once; `None` is yes. Commands always succeed, since no code runs.
    fn ask(&self, fake: &FakeCluster, container: &Container, probe: &Probe) -> Option<String> {
        let tcp = probe.tcp_socket.as_ref().map(|it| (&it.port, None));
        let http = probe.http_get.as_ref().map(|it| (&it.port, it.path.as_deref().or(Some("/"))));
        let (port, path) = tcp.or(http)?;
        let port = match port {
            IntOrString::Int(port) => u16::try_from(*port).unwrap_or(0),
            IntOrString::String(name) => {
                let named = container.ports.iter().flatten().find(|it| it.name.as_ref() == Some(name));
                named.and_then(|it| u16::try_from(it.container_port).ok()).unwrap_or(0)
            }
        };
        let listens = fake.machines().with(|state| state.listens_in(&self.uid, port));
        if listens {
            return None;
        }
        let ip = self.ip.map(|ip| ip.to_string()).unwrap_or_default();
        let refused = format!("dial tcp {ip}:{port}: connect: connection refused");
        Some(match path {
            Some(path) => format!("Get \"http://{ip}:{port}{path}\": {refused}"),
            None => refused,
        })
    }

    fn restart_for_probe(&mut self, fake: &FakeCluster, index: usize, word: &str) {
        let of = &self.containers[index];
        let message = format!("Container {} failed {word} probe, will be restarted", of.name());
        self.tell(fake, Some(of), false, "Killing", message);
        let id = self.process(of.name());
        fake.machines().with(|state| state.term(&id));
        let due = fake.env().now().plus(self.own_grace());
        self.containers[index].kill_due = Some(due);
        self.kill_when_due(fake, index, due);
    }
}

fn seconds(given: Option<i32>, otherwise: u64) -> Duration {
    Duration::from_secs(given.and_then(|it| u64::try_from(it).ok()).filter(|it| *it > 0).unwrap_or(otherwise))
}
