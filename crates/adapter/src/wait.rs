//! Waiting for a pod to run, and telling why it does not.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use pando_api::{Code, Error, Reason, ReasonKind};
use pando_cluster::env::Instant;
use pando_cluster::{LogRequest, budget};

use crate::call::{Call, name};
use crate::follow::{Followed, Follower};
use crate::pod::APP;
use crate::sight::{self, Patience, Sight, Trouble};

/// How much of a failed app's log goes into the error.
const LOG_TAIL: u64 = 16 * 1024;

/// How often a pod that seems to do nothing is looked up in the events, where some causes live alone.
const ASK_EVENTS: Duration = Duration::from_secs(10);

/// How a pod's start came to its end.
pub(crate) enum End {
    /// Its app runs.
    Running(Box<Pod>),
    /// Its app ran and has ended, by itself.
    Ended { pod: Box<Pod>, exit_code: Option<i32>, reason: Option<Reason> },
    /// Another caller took it away.
    Taken,
    /// It cannot run.
    Failed { pod: Box<Pod>, kind: ReasonKind, error: Box<Error> },
}

/// Follows the pod until its app runs, has ended, or the cause why it does not is known and stable (S-38).
pub(crate) async fn follow(call: &Call<'_>, workload: &str, follower: &mut Follower, pod: &Pod) -> End {
    let mut last = pod.clone();
    let mut watched = Watched::new(call, workload);
    let (lists, mut breaks) = (follower.lists(), follower.breaks());
    let mut told = None;
    loop {
        match follower.same(&pod.metadata) {
            // What was told before is older than what was read since.
            Some(now) if told == now.metadata.resource_version => {}
            Some(now) => {
                watched.seen = true;
                watched.saw(call, now, last.metadata.resource_version != now.metadata.resource_version);
                told.clone_from(&now.metadata.resource_version);
                last = now.clone();
            }
            // A list from before the pod was made does not hold it yet; a later one would.
            None if watched.seen || follower.lists() != lists => return End::Taken,
            None => {}
        }
        match sight::sight(&last) {
            _ if sight::is_going(&last) => return End::Taken,
            Sight::Running => return End::Running(Box::new(last)),
            Sight::Ended { exit_code, reason } => match reason {
                Some(reason) if !is_apps_own(reason.kind) => return watched.failed(call, last, reason),
                reason => {
                    let reason = reason.map(|reason| Reason { sentence: call.redact(&reason.sentence), ..reason });
                    return End::Ended { pod: Box::new(last), exit_code, reason };
                }
            },
            Sight::Gated | Sight::Coming { .. } => {}
        }
        if let Some(reason) = watched.overdue(call, &last).await {
            return watched.failed(call, last, reason);
        }
        let news = call.env.timeout(watched.next_look(call), follower.next()).await;
        // A watch that is silent or broken tells nothing of a pod that runs by now: then the pod itself is read.
        if news.is_err() || follower.breaks() != breaks {
            breaks = follower.breaks();
            match call.read::<Pod>(&name(&pod.metadata)).await {
                Ok(Some(read)) if read.metadata.uid == pod.metadata.uid => {
                    watched.saw(call, &read, last.metadata.resource_version != read.metadata.resource_version);
                    last = read;
                }
                Ok(_) => return End::Taken,
                // Another look follows.
                Err(_) => {}
            }
        }
    }
}

/// A workload that another one starts after.
#[derive(Debug)]
pub(crate) struct Dependency<'a> {
    pub(crate) workload: &'a str,
    /// Whether it can tell that it is ready.
    pub(crate) has_health: bool,
    pub(crate) pod: &'a Pod,
}

impl Dependency<'_> {
    /// Whether it can tell that it is ready and had not done so.
    pub(crate) fn is_to_be_waited_for(&self) -> bool {
        self.has_health && !sight::is_ready(self.pod)
    }
}

/// Waits until the dependencies are ready, and answers those that did not become so in time or have ended. One without a health
/// check has nothing to wait for: it runs (S-37).
pub(crate) async fn for_dependencies(call: &Call<'_>, workload: &str, dependencies: &[Dependency<'_>]) -> Vec<String> {
    let waited_for = || dependencies.iter().filter(|dependency| dependency.is_to_be_waited_for());
    let ready = futures::future::join_all(waited_for().map(|dependency| async {
        call.tell(workload, "waiting", &format!("{} to be ready", dependency.workload));
        is_ready_in_time(call, dependency).await
    }));
    let ready = ready.await;
    waited_for().zip(ready).filter(|(_, ready)| !ready).map(|(dependency, _)| dependency.workload.to_owned()).collect()
}

async fn is_ready_in_time(call: &Call<'_>, dependency: &Dependency<'_>) -> bool {
    // Without a list nothing is known of it: then it is started all the same, and named.
    let Ok(mut follower) = call.follow(Followed::Workload(dependency.workload.to_owned())).await else { return false };
    let begun = call.env.now();
    let limit = call.within_deadline(budget::DEPENDENCY_READY);
    let mut last = dependency.pod.clone();
    loop {
        if let Some(now) = follower.same(&dependency.pod.metadata) {
            last = now.clone();
        } else if follower.lists() > 0 {
            return false;
        }
        if sight::is_ready(&last) {
            return true;
        }
        let left = limit.saturating_sub(call.env.now().since(begun));
        if left.is_zero() || sight::has_ended(&last) || sight::is_going(&last) {
            return false;
        }
        // A time-out only means that the time is looked at again.
        let _ = call.env.timeout(left, follower.next()).await;
    }
}

/// The end of the log of what the pod is there for, without any value of its environment; `None` when there is none to be had.
pub(crate) async fn log_tail(call: &Call<'_>, pod: &Pod) -> Option<String> {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| &container.name);
    let container = containers.find(|name| sight::is_main(name))?.clone();
    let request = LogRequest {
        namespace: call.namespace(),
        pod: name(&pod.metadata),
        container,
        follow: false,
        since: None,
        tail_lines: Some(400),
        limit_bytes: None,
        timestamps: false,
    };
    let read = async {
        let mut pieces = call.cluster.logs(&request).await.ok()?;
        let mut log = Vec::new();
        while let Some(Ok(piece)) = pieces.next().await {
            log.extend_from_slice(&piece);
            // The tail is wanted: what is far before the end is let go.
            let limit = usize::try_from(LOG_TAIL).unwrap_or(usize::MAX);
            if log.len() > 2 * limit {
                log.drain(..log.len() - limit);
            }
        }
        Some(String::from_utf8_lossy(&log).into_owned())
    };
    let log = call.env.timeout(budget::READ, read).await.ok().flatten().filter(|log| !log.is_empty())?;
    // First without secrets, then shorter: half a secret is one too.
    let log = call.redact(&log);
    let end = usize::try_from(LOG_TAIL).unwrap_or(usize::MAX);
    let cut = log.len().saturating_sub(end);
    let from = (cut..=log.len()).find(|at| log.is_char_boundary(*at)).unwrap_or(cut);
    Some(log[from..].to_owned())
}

/// Ends that are the app's own doing: an outcome, not an error.
const fn is_apps_own(kind: ReasonKind) -> bool {
    matches!(kind, ReasonKind::OutOfMemory | ReasonKind::Killed)
}

/// What was seen on the way.
struct Watched {
    workload: String,
    began: Instant,
    limit: Duration,
    /// The pod was among those the follower was told of.
    seen: bool,
    step: &'static str,
    trouble: Option<Troubled>,
    /// When the events were asked last.
    asked: Instant,
}

struct Troubled {
    trouble: Trouble,
    since: Instant,
    updates: u32,
}

impl Watched {
    fn new(call: &Call<'_>, workload: &str) -> Self {
        let now = call.env.now();
        let limit = call.within_deadline(call.settings.start_timeout);
        Self { workload: workload.to_owned(), began: now, limit, seen: false, step: "", trouble: None, asked: now }
    }

    fn saw(&mut self, call: &Call<'_>, pod: &Pod, is_update: bool) {
        let (step, trouble) = match sight::sight(pod) {
            Sight::Coming { step, trouble } => (step, trouble),
            Sight::Gated => ("starting", None),
            Sight::Running | Sight::Ended { .. } => return,
        };
        let now = call.env.now();
        match (trouble, self.trouble.take()) {
            // Back-off and error alternate with each try: one trouble, told twice.
            (Some(trouble), Some(before)) if trouble.kind == before.trouble.kind => {
                let updates = before.updates + u32::from(is_update);
                let patience = sterner(trouble.patience, before.trouble.patience);
                self.trouble =
                    Some(Troubled { trouble: Trouble { patience, ..trouble }, since: before.since, updates });
            }
            (Some(trouble), _) => {
                call.tell(&self.workload, step, &trouble.sentence);
                self.trouble = Some(Troubled { trouble, since: now, updates: 1 });
            }
            // A mount's trouble is told by events only, and stays until the mounts and the sandbox are there.
            (None, Some(before)) if before.trouble.kind == ReasonKind::Mount && !sight::has_sandbox(pod) => {
                self.trouble = Some(before);
            }
            (None, _) => {}
        }
        if step != self.step {
            self.step = step;
            call.tell(&self.workload, step, "");
        }
    }

    /// Why the pod will not run, once that has been so for long enough.
    async fn overdue(&mut self, call: &Call<'_>, pod: &Pod) -> Option<Reason> {
        let now = call.env.now();
        if self.trouble.is_none() && !sight::has_sandbox(pod) && now.since(self.asked) >= ASK_EVENTS {
            self.asked = now;
            self.ask(call, pod).await;
        }
        let out_of_time = now.since(self.began) >= self.limit;
        if let Some(troubled) = &self.trouble {
            let lasted = now.since(troubled.since);
            let over = match troubled.trouble.patience {
                Patience::Brief(limit) => troubled.updates >= 2 || lasted >= limit,
                Patience::Long(limit) | Patience::RateLimit(limit) => lasted >= limit,
                Patience::Scheduling => lasted >= call.settings.unschedulable && !scaling_up(call, pod).await,
                Patience::Start => false,
            };
            if over || out_of_time {
                return Some(Reason { kind: troubled.trouble.kind, sentence: troubled.trouble.sentence.clone() });
            }
        }
        if !out_of_time {
            return None;
        }
        let newest = call.newest_event(pod, |event| event.type_.as_deref() == Some("Warning")).await;
        let cause = match newest {
            Ok(Some((reason, message))) => format!("{reason}: {message}"),
            Ok(None) => "Kubernetes names no cause".to_owned(),
            Err(error) => format!("its events, which may name the cause, could not be read ({error})"),
        };
        let waited = now.since(self.began).as_secs_f64();
        let sentence = format!("it does not run after {waited:.1} s, still {}; {cause}", self.step);
        Some(Reason { kind: ReasonKind::Unknown, sentence })
    }

    /// Looks for a cause that only events tell.
    async fn ask(&mut self, call: &Call<'_>, pod: &Pod) {
        let causes = ["FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"];
        let wanted = |event: &k8s_openapi::api::core::v1::Event| {
            event.reason.as_deref().is_some_and(|reason| causes.contains(&reason))
        };
        if let Ok(Some((reason, message))) = call.newest_event(pod, wanted).await {
            let sentence = format!("{reason}: {message}");
            call.tell(&self.workload, self.step, &sentence);
            let patience = if reason == "FailedAttachVolume" { budget::ATTACH_ERROR } else { budget::MOUNT_ERROR };
            let trouble = Trouble { kind: ReasonKind::Mount, sentence, patience: Patience::Long(patience) };
            self.trouble = Some(Troubled { trouble, since: call.env.now(), updates: 1 });
        }
    }

    /// How long to wait for news before looking again all the same.
    fn next_look(&self, call: &Call<'_>) -> Duration {
        let now = call.env.now();
        let left = self.limit.saturating_sub(now.since(self.began));
        let patience = self.trouble.as_ref().map_or(ASK_EVENTS, |troubled| {
            let limit = match troubled.trouble.patience {
                Patience::Brief(limit) | Patience::Long(limit) | Patience::RateLimit(limit) => limit,
                Patience::Scheduling => call.settings.unschedulable,
                Patience::Start => self.limit,
            };
            limit.saturating_sub(now.since(troubled.since)).max(Duration::from_secs(1))
        });
        left.min(patience)
    }

    fn failed(&self, call: &Call<'_>, pod: Pod, reason: Reason) -> End {
        // Kubelets and schedulers quote what they were given.
        let reason = Reason { sentence: call.redact(&reason.sentence), ..reason };
        let limited = self.trouble.as_ref().is_some_and(|it| matches!(it.trouble.patience, Patience::RateLimit(_)));
        let code = match reason.kind {
            ReasonKind::Scheduling => Code::CapacityWouldOversubscribe,
            ReasonKind::Image if limited => Code::AdapterRegistryRateLimited,
            _ => Code::AdapterFailed,
        };
        let error = Error::new(
            code,
            format!(
                "workload {:?} of {} did not start: {}{}",
                self.workload,
                call.app,
                reason.sentence,
                asked(&pod, reason.kind)
            ),
        );
        let error = error.remedy(remedy(reason.kind, limited));
        let error = Box::new(error.detail("reason", &reason).detail("node", sight::node(&pod)));
        End::Failed { pod: Box::new(pod), kind: reason.kind, error }
    }
}

/// Whether an autoscaler is making room for the pod, or may be: what could not be read is no reason to give up.
async fn scaling_up(call: &Call<'_>, pod: &Pod) -> bool {
    let scaling = call.newest_event(pod, |event| event.reason.as_deref() == Some("TriggeredScaleUp")).await;
    scaling.map_or(true, |event| event.is_some())
}

/// The one that ends sooner: once a cause was known to last, a vaguer text does not take that back (older kubelets say
/// only that they back off).
const fn sterner(now: Patience, before: Patience) -> Patience {
    match (now, before) {
        (Patience::Start, before) => before,
        (now, _) => now,
    }
}

/// What of the cluster's room was asked for, where there is none.
fn asked(pod: &Pod, kind: ReasonKind) -> String {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers).filter(|container| container.name == APP);
    let requests = containers.filter_map(|container| container.resources.as_ref()?.requests.as_ref()).flatten();
    let amounts: Vec<_> = requests.map(|(resource, amount)| format!("{resource} {}", amount.0)).collect();
    match (kind, amounts.as_slice()) {
        (ReasonKind::Scheduling, []) => " (it asks for no set amount)".to_owned(),
        (ReasonKind::Scheduling, amounts) => format!(" (it asks for {})", amounts.join(", ")),
        _ => String::new(),
    }
}

fn remedy(kind: ReasonKind, limited: bool) -> &'static str {
    match kind {
        ReasonKind::Image if limited => "wait until the registry takes pulls again, or pull with credentials",
        ReasonKind::Image => "check the image's name and tag, and that the cluster's nodes may pull it",
        ReasonKind::Scheduling => "free room, add a node, or ask for less",
        ReasonKind::Config => "check the workload's user, working directory and environment",
        ReasonKind::StartError => "check the workload's entrypoint, command and working directory",
        ReasonKind::Gate => {
            "the network plugin is late on that node or does not enforce policy: check its pods there; isolation_gate_seconds gives it longer. Where the probe does not work on loopback, the workload's CPU limit is too small for it (below 50 millis)"
        }
        ReasonKind::Evicted | ReasonKind::Placement | ReasonKind::NodeLost | ReasonKind::NodeShutdown => {
            "apply again: the cluster may place it on another node"
        }
        ReasonKind::Mount => "check that node and its storage driver; an apply tries again",
        ReasonKind::OutOfMemory | ReasonKind::Killed => "give the workload more memory",
        ReasonKind::Vanished | ReasonKind::Unknown => {
            "look at the node that it was placed on; start_timeout_seconds gives a slow start longer"
        }
    }
}
