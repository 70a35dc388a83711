//! A pod's status, as its kubelet writes it.

use serde_json::{Value, json};

use super::container::{ContainerWork, Ended, Stage, hex};
use super::work::{Node, Phase, PodWork, SandboxState};
use crate::controllers::objects::{Condition, set_condition};

/// Writes what the kubelet knows into the pod's status; what others wrote there stays.
pub(super) fn write(work: &PodWork, node: &Node, now: &str, pod: &mut Value) {
    let addresses: Vec<_> = node.ips.iter().map(|ip| json!({"ip": ip.to_string()})).collect();
    let status = &mut pod["status"];
    status["phase"] = work.phase.as_str().into();
    status["startTime"] = work.accepted_text.as_str().into();
    if let Some(ip) = node.ips.first() {
        status["hostIP"] = ip.to_string().into();
        status["hostIPs"] = addresses.into();
    }
    if let Some(ip) = work.ip {
        // It stays there when the pod has ended and the address is another's.
        status["podIP"] = ip.to_string().into();
        status["podIPs"] = json!([{"ip": ip.to_string()}]);
    }
    if let Some(verdict) = work.verdict.as_ref().filter(|_| work.phase.is_terminal()) {
        status["reason"] = verdict.reason.into();
        status["message"] = verdict.message.as_str().into();
    }
    let (init, app): (Vec<_>, Vec<_>) = work.containers.iter().partition(|it| it.init);
    if !init.is_empty() {
        status["initContainerStatuses"] = init.iter().map(|it| container(work, it)).collect();
    }
    status["containerStatuses"] = app.iter().map(|it| container(work, it)).collect();
    for condition in conditions(work) {
        let Told { kind, status, reason, message } = &condition;
        let status = if *status { "True" } else { "False" };
        set_condition(pod, now, &Condition { kind, status, reason, message });
    }
}

struct Told {
    kind: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

fn conditions(work: &PodWork) -> [Told; 5] {
    let sandbox = work.sandbox == SandboxState::Up;
    let behind: Vec<_> =
        work.containers.iter().filter(|it| it.init && !it.is_past()).map(ContainerWork::name).collect();
    let unready: Vec<_> =
        work.containers.iter().filter(|it| !it.init && !is_ready(it)).map(ContainerWork::name).collect();
    let list = |what: &str, names: &[&str]| format!("containers with {what} status: [{}]", names.join(" "));
    let told = |kind, status, reason, message| Told { kind, status, reason, message };
    let initialized = match work.phase {
        Phase::Succeeded => told("Initialized", true, "PodCompleted", String::new()),
        _ if behind.is_empty() => told("Initialized", true, "", String::new()),
        _ => told("Initialized", false, "ContainersNotInitialized", list("incomplete", &behind)),
    };
    let ready = |kind| match work.phase {
        Phase::Succeeded => told(kind, false, "PodCompleted", String::new()),
        Phase::Failed => told(kind, false, "PodFailed", String::new()),
        _ if unready.is_empty() => told(kind, true, "", String::new()),
        _ => told(kind, false, "ContainersNotReady", list("unready", &unready)),
    };
    [
        // Also for a pod that was made for its node and passed no scheduler.
        told("PodScheduled", true, "", String::new()),
        told("PodReadyToStartContainers", sandbox, "", String::new()),
        initialized,
        ready("Ready"),
        ready("ContainersReady"),
    ]
}

fn is_ready(container: &ContainerWork) -> bool {
    match &container.stage {
        Stage::Running { .. } => container.probes.started && container.probes.ready,
        // An init container that is done counts as ready.
        Stage::Ended(ended) => container.init && ended.code == 0,
        _ => false,
    }
}

fn container(work: &PodWork, of: &ContainerWork) -> Value {
    let id = of.id.as_ref().map(|id| format!("containerd://{id}")).unwrap_or_default();
    let known = of.id.is_some();
    let mut status = json!({
        "name": of.name(),
        "image": of.image(),
        "imageID": if known { image_id(of.image()) } else { String::new() },
        "ready": is_ready(of),
        "started": of.is_running() && of.probes.started,
        "restartCount": of.restarts,
        "state": state(work, of, &id),
        "lastState": of.last.as_ref().map_or_else(|| json!({}), |last| json!({"terminated": ended(last, &id)})),
    });
    if known {
        status["containerID"] = id.into();
    }
    status
}

fn state(work: &PodWork, of: &ContainerWork, id: &str) -> Value {
    let has_init = work.containers.iter().any(|it| it.init);
    let waiting = |reason: &str, message: &str| match message {
        "" => json!({"waiting": {"reason": reason}}),
        _ => json!({"waiting": {"reason": reason, "message": message}}),
    };
    match &of.stage {
        Stage::Idle | Stage::Pulling { .. } | Stage::Starting { .. } if has_init => waiting("PodInitializing", ""),
        Stage::Idle | Stage::Pulling { .. } | Stage::Starting { .. } => waiting("ContainerCreating", ""),
        Stage::PullFailed { message, pausing: false, .. } => waiting("ErrImagePull", message),
        Stage::PullFailed { message, .. } => {
            let message = format!("Back-off pulling image {:?}: ErrImagePull: {message}", of.image());
            waiting("ImagePullBackOff", &message)
        }
        Stage::Stuck { reason, message } => waiting(reason, message),
        Stage::NoConfig { message } => waiting("CreateContainerConfigError", message),
        Stage::Resting { message, .. } => waiting("CrashLoopBackOff", message),
        Stage::Running { since } => json!({"running": {"startedAt": since}}),
        Stage::Ended(how) => json!({"terminated": ended(how, id)}),
    }
}

fn ended(how: &Ended, id: &str) -> Value {
    let mut state = json!({
        "exitCode": how.code,
        "reason": how.reason,
        "startedAt": how.since,
        "finishedAt": how.at,
    });
    if !how.message.is_empty() {
        state["message"] = how.message.as_str().into();
    }
    if !id.is_empty() && how.since.is_some() {
        state["containerID"] = id.into();
    }
    state
}

/// A digest that is the same for the same image and another one for another.
fn image_id(image: &str) -> String {
    let name = image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(image, |(name, _)| name);
    let (mut hash, mut round) = (0xCBF2_9CE4_8422_2325_u64, 0_u8);
    let digest = hex(|| {
        round += 1;
        for byte in image.bytes().chain([round]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        hash
    });
    match image.split_once('@') {
        Some(_) => image.to_owned(),
        None => format!("{name}@sha256:{digest}"),
    }
}
