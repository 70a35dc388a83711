//! What a pod's status says: pure readings of a `Pod`.
//!
//! Pod-level reasons come before container states, since an evicted pod may have no container status at all
//! (BR-01) or one that looks like a clean exit; only the container named `app` counts, since others may have been
//! put beside it (BR-12).

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod, PodCondition, PodStatus,
};
use pando_api::{Reason, ReasonKind};
use pando_cluster::budget;
use pando_cluster::names::START_GATE;
use pando_network::canary;
use pando_network::gate::{self, Passing};

use crate::pod::APP;

/// Where a pod is on its way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sight {
    /// Behind the scheduling gate: it does not run.
    Gated,
    /// On its way to running.
    Coming {
        /// The step it is at, for people.
        step: &'static str,
        /// What is in its way.
        trouble: Option<Trouble>,
    },
    /// Its app runs.
    Running,
    /// It is over.
    Ended {
        /// The app's own exit code, when it is known and really the app's.
        exit_code: Option<i32>,
        /// Why, when it was not simply an exit.
        reason: Option<Reason>,
    },
}

/// What is in a pod's way, and how long that may last.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trouble {
    pub(crate) kind: ReasonKind,
    pub(crate) sentence: String,
    pub(crate) patience: Patience,
}

/// How long a trouble may last before it is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// So long, or seen in two updates of the pod's status.
    Brief(Duration),
    /// So long.
    Long(Duration),
    /// The registry limits pulls: so long, then an error of its own.
    RateLimit(Duration),
    /// As long as the setting for unschedulable workloads says.
    Scheduling,
    /// As long as a start may take at all.
    Start,
}

/// Whether the pod is still behind the scheduling gate of ours.
pub(crate) fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.into_iter().any(|gate| gate.name == START_GATE)
}

/// Whether the pod is being deleted.
pub(crate) const fn is_going(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the pod runs nothing any more. A container's end shows up to 2.6 s before the pod's.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    phase(pod) == "Succeeded" || phase(pod) == "Failed" || app(pod).is_some_and(|app| terminated(app).is_some())
}

/// Whether its volumes are mounted and its sandbox with its network is made: what comes after is images and containers.
pub(crate) fn has_sandbox(pod: &Pod) -> bool {
    condition(pod, "PodReadyToStartContainers").is_some_and(|condition| condition.status == "True")
}

/// The grace the pod has to end.
pub(crate) fn grace(pod: &Pod) -> Duration {
    let seconds = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// The node the pod is on; empty when it is on none.
pub(crate) fn node(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// Reads where the pod is.
pub(crate) fn sight(pod: &Pod) -> Sight {
    if let Some(ended) = ended(pod) {
        return ended;
    }
    if is_gated(pod) {
        return Sight::Gated;
    }
    if app(pod).and_then(|app| app.state.as_ref()).is_some_and(|state| state.running.is_some()) {
        return Sight::Running;
    }
    if let Some(trouble) = unschedulable(pod) {
        return Sight::Coming { step: "placing", trouble: Some(trouble) };
    }
    if node(pod).is_empty() {
        return Sight::Coming { step: "placing", trouble: None };
    }
    if let Some(gate) = gate_status(pod) {
        if gate.state.as_ref().is_some_and(|state| state.running.is_some()) {
            return Sight::Coming { step: "proving isolation", trouble: None };
        }
        if let Some(trouble) = waiting(gate).and_then(|waiting| trouble(waiting, "the isolation gate's")) {
            return Sight::Coming { step: "preparing the isolation gate", trouble: Some(trouble) };
        }
    }
    let trouble = app(pod).and_then(waiting).and_then(|waiting| trouble(waiting, "its"));
    Sight::Coming { step: "preparing the container", trouble }
}

/// How the pod's gate ended; `None` while it has not, or where there is none.
pub(crate) fn gate_passing(pod: &Pod) -> Option<Passing> {
    let ended = terminated(gate_status(pod)?)?;
    Some(Passing::read(ended.exit_code, ended.message.as_deref().unwrap_or_default()))
}

/// Whether the pod's app runs, on a node that is not lost.
pub(crate) fn is_running(pod: &Pod, node_lost: bool) -> bool {
    !is_going(pod) && !node_lost && sight(pod) == Sight::Running
}

/// Whether the app's health check passes and the pod is not on its way out.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    !is_going(pod) && !has_ended(pod) && condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// When the app's process started.
pub(crate) fn started_at(pod: &Pod) -> Option<Timestamp> {
    let state = app(pod)?.state.as_ref()?;
    let started = state
        .running
        .as_ref()
        .map_or_else(|| state.terminated.as_ref()?.started_at.as_ref(), |it| it.started_at.as_ref())?;
    real(started.0)
}

/// The digest of the image as the node knows it; empty when it does not.
pub(crate) fn image_digest(pod: &Pod) -> String {
    let image = app(pod).map(|app| app.image_id.as_str()).unwrap_or_default();
    image.rsplit_once('@').map_or(image, |(_, digest)| digest).to_owned()
}

/// Whether the app's health check passes (S-44); `None` without one, when it does not run, and before the first verdict:
/// once it was healthy, or the time it has to become so is over.
pub(crate) fn healthy(pod: &Pod, now: Timestamp) -> Option<bool> {
    let probe =
        pod.spec.as_ref()?.containers.iter().find(|container| container.name == APP)?.readiness_probe.as_ref()?;
    let ready = condition(pod, "Ready")?;
    if ready.status == "True" {
        return Some(true);
    }
    let seconds = i64::from(probe.period_seconds.unwrap_or(10)) * i64::from(probe.failure_threshold.unwrap_or(3))
        + i64::from(probe.timeout_seconds.unwrap_or(1));
    let started = started_at(pod)?;
    // A pod is unready from its beginning on; one that became so after its app had started was ready in between.
    let was_healthy = ready.last_transition_time.as_ref().is_some_and(|became| became.0 > started);
    let overdue = now.as_second().saturating_sub(started.as_second()) >= seconds;
    (was_healthy || overdue).then_some(false)
}

/// Why the pod is as it is, where that is worth a word (S-45).
pub(crate) fn reason(pod: &Pod, node_lost: bool) -> Option<Reason> {
    match sight(pod) {
        Sight::Ended { reason, .. } => reason,
        _ if node_lost => Some(say(ReasonKind::NodeLost, format!("its node {} cannot be reached", node(pod)))),
        Sight::Coming { trouble, .. } => trouble.map(|trouble| say(trouble.kind, trouble.sentence)),
        Sight::Gated | Sight::Running => None,
    }
}

fn ended(pod: &Pod) -> Option<Sight> {
    if !has_ended(pod) {
        return None;
    }
    if let Some(reason) = infrastructure(pod.status.as_ref()?) {
        return Some(Sight::Ended { exit_code: None, reason: Some(reason) });
    }
    let gate_failed = gate_status(pod).and_then(terminated).is_some_and(|gate| gate.exit_code != 0);
    if let (true, Some(Passing::NotClosed { words })) = (gate_failed, gate_passing(pod)) {
        let sentence = format!("the network of a fresh pod on node {} did not close in time: {words}", node(pod));
        return Some(Sight::Ended { exit_code: None, reason: Some(say(ReasonKind::Gate, sentence)) });
    }
    let Some(end) = app(pod).and_then(terminated) else {
        let reason = say(ReasonKind::Vanished, "it ended and its node left no word of how".to_owned());
        return Some(Sight::Ended { exit_code: None, reason: Some(reason) });
    };
    let (exit_code, reason) = exit(pod, end);
    Some(Sight::Ended { exit_code, reason })
}

/// Ends that are the platform's doing, not the app's.
fn infrastructure(status: &PodStatus) -> Option<Reason> {
    let reason = status.reason.as_deref()?;
    let kind = match reason {
        "Evicted" | "Preempting" => ReasonKind::Evicted,
        "NodeLost" => ReasonKind::NodeLost,
        "Terminated" | "Shutdown" | "NodeShutdown" => ReasonKind::NodeShutdown,
        "DeadlineExceeded" => ReasonKind::Killed,
        "NodeAffinity" | "UnexpectedAdmissionError" => ReasonKind::Placement,
        other if other.starts_with("OutOf") || other.starts_with("Outof") => ReasonKind::Placement,
        _ => ReasonKind::Unknown,
    };
    Some(say(kind, format!("{reason}: {}", status.message.as_deref().unwrap_or("no further word"))))
}

/// The app's exit code and why, told from what only looks like one.
fn exit(pod: &Pod, end: &ContainerStateTerminated) -> (Option<i32>, Option<Reason>) {
    let limited = pod.spec.iter().flat_map(|spec| &spec.containers).any(|container| {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        container.name == APP && limits.is_some_and(|limits| limits.contains_key("memory"))
    });
    match (end.reason.as_deref(), end.exit_code) {
        (Some("ContainerStatusUnknown"), _) => {
            (None, Some(say(ReasonKind::Vanished, "its node lost track of it".to_owned())))
        }
        // The runtime's text may hold what the app was given; it is not passed on.
        (Some("StartError" | "ContainerCannotRun"), _) => {
            let sentence =
                "its program could not be started: no such file, not executable, or no such working directory";
            (None, Some(say(ReasonKind::StartError, sentence.to_owned())))
        }
        (Some("OOMKilled"), code) if code != 0 && code != 143 => {
            (Some(code), Some(say(ReasonKind::OutOfMemory, "it used more memory than it may".to_owned())))
        }
        (_, 137) if !is_going(pod) => {
            let sentence =
                if limited { "it was killed, probably for using more memory than it may" } else { "it was killed" };
            (Some(137), Some(say(ReasonKind::Killed, sentence.to_owned())))
        }
        (_, code) => (Some(code), None),
    }
}

fn unschedulable(pod: &Pod) -> Option<Trouble> {
    let status = pod.status.as_ref()?;
    let condition = status.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled")?;
    (condition.status == "False" && condition.reason.as_deref() == Some("Unschedulable")).then(|| Trouble {
        kind: ReasonKind::Scheduling,
        sentence: condition.message.clone().unwrap_or_default(),
        patience: Patience::Scheduling,
    })
}

/// What a waiting container waits for, where that may be in vain. `whose` begins the sentence.
fn trouble(waiting: &ContainerStateWaiting, whose: &str) -> Option<Trouble> {
    let message = waiting.message.as_deref().unwrap_or("no further word");
    let (kind, what, patience) = match waiting.reason.as_deref()? {
        "InvalidImageName" | "ErrImageNeverPull" => {
            (ReasonKind::Image, "image cannot be had", Patience::Brief(budget::IMAGE_ERROR))
        }
        "ErrImagePull" | "ImagePullBackOff" | "ImageInspectError" | "RegistryUnavailable" => {
            (ReasonKind::Image, "image cannot be pulled", pull_patience(message))
        }
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            (ReasonKind::Config, "container cannot be made", Patience::Long(budget::CONFIG_ERROR))
        }
        _ => return None,
    };
    Some(Trouble { kind, sentence: format!("{whose} {what}: {message}"), patience })
}

/// What an error of pulling means: a limit, an image that is not to be had, or anything that may pass.
fn pull_patience(message: &str) -> Patience {
    let message = message.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if has(&["toomanyrequests", "429 too many requests"]) {
        return Patience::RateLimit(budget::RATE_LIMIT);
    }
    let never = [
        ": not found",
        "manifest unknown",
        "name unknown",
        "does not exist",
        "denied",
        "unauthorized",
        "authentication required",
        "authorization failed",
        "403 forbidden",
        "no match for platform",
        "no matching manifest",
        "invalid reference format",
    ];
    if has(&never) { Patience::Brief(budget::IMAGE_ERROR) } else { Patience::Start }
}

fn say(kind: ReasonKind, sentence: String) -> Reason {
    Reason { kind, sentence }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn app(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.iter().flatten().find(|container| is_main(&container.name))
}

/// Whether it is the container that a pod of ours is there for.
pub(crate) fn is_main(container: &str) -> bool {
    container == APP || container == canary::CONTAINER
}

fn gate_status(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.init_container_statuses.iter().flatten().find(|container| container.name == gate::CONTAINER)
}

fn terminated(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref().and_then(|state: &ContainerState| state.terminated.as_ref())
}

fn waiting(container: &ContainerStatus) -> Option<&ContainerStateWaiting> {
    container.state.as_ref().and_then(|state| state.waiting.as_ref())
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// A time that was really noted: a node that does not know writes the year 1 (BR-04).
fn real(time: Timestamp) -> Option<Timestamp> {
    (time.as_second() > 0).then_some(time)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "web-1"}, "status": status,
            "spec": {"nodeName": "n1", "containers": [{"name": "app", "resources": {"limits": {"memory": "1Mi"}},
                "readinessProbe": {"periodSeconds": 30, "failureThreshold": 3, "timeoutSeconds": 5}}]}}))
        .expect("a pod")
    }

    fn state(phase: &str, state: Value) -> Pod {
        pod(json!({"phase": phase, "containerStatuses": [
            {"name": "sidecar", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"terminated": {"exitCode": 9}}},
            {"name": "app", "image": "", "imageID": "reg/x@sha256:ab", "ready": false, "restartCount": 0, "state": state}]}))
    }

    fn ended(pod: &Pod) -> (Option<i32>, Option<ReasonKind>) {
        match sight(pod) {
            Sight::Ended { exit_code, reason } => (exit_code, reason.map(|reason| reason.kind)),
            other => panic!("{other:?}"),
        }
    }

    /// Statuses as Kubernetes 1.34 or the field reports have them.
    #[test]
    fn ends_are_told_from_what_only_looks_like_them() {
        let exit = |code: i32, reason: &str| json!({"terminated": {"exitCode": code, "reason": reason}});
        let rows = vec![
            ("a clean exit", state("Succeeded", exit(0, "Completed")), (Some(0), None)),
            ("an exit seen before the phase", state("Running", exit(3, "Error")), (Some(3), None)),
            (
                "BR-01 evicted without statuses",
                pod(json!({"phase": "Failed", "reason": "Evicted", "message": "disk"})),
                (None, Some(ReasonKind::Evicted)),
            ),
            ("BR-04 unknown", state("Failed", exit(137, "ContainerStatusUnknown")), (None, Some(ReasonKind::Vanished))),
            ("BR-10 OOM", state("Failed", exit(137, "OOMKilled")), (Some(137), Some(ReasonKind::OutOfMemory))),
            ("BR-10 OOM of a child", state("Succeeded", exit(0, "OOMKilled")), (Some(0), None)),
            ("BR-10 OOM and stopped", state("Failed", exit(143, "OOMKilled")), (Some(143), None)),
            ("BR-10 OOM as Error", state("Failed", exit(137, "Error")), (Some(137), Some(ReasonKind::Killed))),
            (
                "BR-11 refused by the kubelet",
                pod(json!({"phase": "Failed", "reason": "OutOfcpu"})),
                (None, Some(ReasonKind::Placement)),
            ),
            ("BR-70 start error", state("Failed", exit(128, "StartError")), (None, Some(ReasonKind::StartError))),
            ("no word at all", pod(json!({"phase": "Failed"})), (None, Some(ReasonKind::Vanished))),
        ];
        for (name, pod, expected) in rows {
            assert_eq!(ended(&pod), expected, "{name}");
        }
    }

    #[test]
    fn a_start_errors_text_is_not_passed_on() {
        let pod = state(
            "Failed",
            json!({"terminated": {"exitCode": 128, "reason": "StartError", "message": "\"K=hunter2\""}}),
        );
        assert!(!format!("{:?}", sight(&pod)).contains("hunter2"));
    }

    #[test]
    fn troubles_have_their_own_patience() {
        let waiting =
            |reason: &str, message: &str| state("Pending", json!({"waiting": {"reason": reason, "message": message}}));
        let image = Patience::Brief(budget::IMAGE_ERROR);
        for (reason, message, expected) in [
            (
                "ErrImagePull",
                "rpc error: code = NotFound desc = failed to pull: docker.io/library/x:y: not found",
                Some(image),
            ),
            ("ErrImagePull", "pull access denied, repository does not exist or may require authorization", Some(image)),
            (
                "ErrImagePull",
                "pulling from host r.example failed with status code [manifests 1]: 403 Forbidden",
                Some(image),
            ),
            (
                "ErrImagePull",
                "pulling from host r.example failed with status code [manifests 1]: 401 Unauthorized",
                Some(image),
            ),
            ("ErrImageNeverPull", "Container image \"x\" is not present with pull policy of Never", Some(image)),
            (
                "ImagePullBackOff",
                "Back-off pulling image \"x\": ErrImagePull: 429 Too Many Requests - toomanyrequests",
                Some(Patience::RateLimit(budget::RATE_LIMIT)),
            ),
            ("ErrImagePull", "dial tcp: lookup registry-1.docker.io: no such host", Some(Patience::Start)),
            ("InvalidImageName", "couldn't parse image name", Some(image)),
            ("CreateContainerConfigError", "secret \"x\" not found", Some(Patience::Long(budget::CONFIG_ERROR))),
            ("ContainerCreating", "", None),
            ("PodInitializing", "", None),
        ] {
            let Sight::Coming { trouble, .. } = sight(&waiting(reason, message)) else { panic!("{reason}") };
            assert_eq!(trouble.map(|trouble| trouble.patience), expected, "{reason}: {message}");
        }
    }

    #[test]
    fn health_has_no_verdict_before_its_time() {
        let start = Timestamp::from_second(1_767_225_600).expect("a time");
        let after = |seconds: i64| Timestamp::from_second(start.as_second() + seconds).expect("a time");
        let at = |ready: &str, became: i64, age: i64| {
            let pod = pod(json!({"phase": "Running",
                "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": after(became).to_string()}],
                "containerStatuses": [{"name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "started": true, "state": {"running": {"startedAt": start.to_string()}}}]}));
            healthy(&pod, after(age))
        };
        assert_eq!(at("True", 1, 1), Some(true));
        assert_eq!(at("False", -3, 1), None, "it has 30 × 3 + 5 s");
        assert_eq!(at("False", 0, 94), None);
        assert_eq!(at("False", 0, 95), Some(false));
        assert_eq!(at("False", 7, 8), Some(false), "it was healthy once");
    }

    #[test]
    fn a_pods_mounts_are_over_once_it_is_ready_to_start_containers() {
        let with = |conditions: Value| pod(json!({"phase": "Pending", "conditions": conditions}));
        assert!(has_sandbox(&with(json!([{"type": "PodReadyToStartContainers", "status": "True"}]))));
        assert!(!has_sandbox(&with(json!([{"type": "PodReadyToStartContainers", "status": "False"}]))));
        assert!(!has_sandbox(&with(json!([]))), "nothing is known yet");
    }

    #[test]
    fn times_before_our_time_are_none() {
        let pod = state("Running", json!({"running": {"startedAt": "0001-01-01T00:00:00Z"}}));
        assert_eq!((started_at(&pod), image_digest(&pod).as_str()), (None, "sha256:ab"));
    }
}
