//! Pods: defaults, first status, and what they ask for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Probe, ResourceRequirements, Toleration, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pando_cluster::{Kind, Object};
use serde_json::{Value, json};

use super::{Amounts, BadAmount, amount, default, default_text, respell};
use crate::api::quantity::Amount;
use crate::api::refusal::Refusal;
use crate::config::FakeConfig;

/// What Kubernetes fills in: <https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/apis/core/v1/defaults.go>
pub(super) fn complete(pod: &mut Pod) -> Result<(), BadAmount> {
    let spec = pod.spec.get_or_insert_default();
    default_text(&mut spec.restart_policy, "Always");
    default_text(&mut spec.dns_policy, "ClusterFirst");
    default_text(&mut spec.scheduler_name, "default-scheduler");
    default(&mut spec.termination_grace_period_seconds, 30);
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        spec.termination_grace_period_seconds = Some(1);
    }
    default(&mut spec.enable_service_links, true);
    spec.security_context.get_or_insert_default();
    let host_network = spec.host_network == Some(true);
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        complete_container(container, host_network)?;
    }
    for volume in spec.volumes.iter_mut().flatten() {
        complete_volume(volume);
        if let Some(Quantity(limit)) = volume.empty_dir.as_mut().and_then(|directory| directory.size_limit.as_mut()) {
            *limit = Amount::parse(limit).ok_or(BadAmount)?.to_string();
        }
    }
    respell(spec.overhead.as_mut())
}

fn complete_container(container: &mut Container, host_network: bool) -> Result<(), BadAmount> {
    default_text(&mut container.termination_message_path, "/dev/termination-log");
    default_text(&mut container.termination_message_policy, "File");
    let image = container.image.as_deref().unwrap_or_default();
    let policy = if is_floating(image) { "Always" } else { "IfNotPresent" };
    default_text(&mut container.image_pull_policy, policy);
    for port in container.ports.iter_mut().flatten() {
        default_text(&mut port.protocol, "TCP");
        if host_network {
            default(&mut port.host_port, port.container_port);
        }
    }
    for field in container.env.iter_mut().flatten().filter_map(|variable| variable.value_from.as_mut()) {
        if let Some(field) = &mut field.field_ref {
            default_text(&mut field.api_version, "v1");
        }
    }
    for probe in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe]
        .into_iter()
        .flatten()
    {
        complete_probe(probe);
    }
    let resources = container.resources.get_or_insert_default();
    respell(resources.limits.as_mut())?;
    respell(resources.requests.as_mut())?;
    request_what_is_limited(resources);
    Ok(())
}

/// Whether what an image's name points to may change: no tag, or `latest`, and no digest.
fn is_floating(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or(image);
    !image.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn complete_probe(probe: &mut Probe) {
    for (field, value) in [
        (&mut probe.timeout_seconds, 1),
        (&mut probe.period_seconds, 10),
        (&mut probe.success_threshold, 1),
        (&mut probe.failure_threshold, 3),
    ] {
        if field.unwrap_or_default() == 0 {
            *field = Some(value);
        }
    }
    if let Some(get) = &mut probe.http_get {
        default_text(&mut get.path, "/");
        default_text(&mut get.scheme, "HTTP");
    }
}

/// What a container is limited to and does not ask for, it asks for.
fn request_what_is_limited(resources: &mut ResourceRequirements) {
    let Some(limits) = resources.limits.clone().filter(|limits| !limits.is_empty()) else { return };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

fn complete_volume(volume: &mut Volume) {
    const MODE: i32 = 0o644;
    if let Some(secret) = &mut volume.secret {
        default(&mut secret.default_mode, MODE);
    } else if let Some(map) = &mut volume.config_map {
        default(&mut map.default_mode, MODE);
    } else if let Some(projected) = &mut volume.projected {
        default(&mut projected.default_mode, MODE);
    } else if let Some(path) = &mut volume.host_path {
        default(&mut path.type_, String::new());
    } else if serde_json::to_value(&*volume).is_ok_and(|json| json.as_object().is_some_and(|it| it.len() == 1)) {
        // Only a name: Kubernetes takes it for an empty directory.
        volume.empty_dir.get_or_insert_default();
    }
}

/// Gives a new pod its priority; refuses one that names a class which is not there.
pub(crate) fn prioritise(config: &FakeConfig, pod: &mut Pod) -> Result<(), Refusal> {
    let spec = pod.spec.get_or_insert_default();
    let class = spec.priority_class_name.as_deref().unwrap_or_default();
    let priority = config.priority_classes.get(class).copied().or(class.is_empty().then_some(0)).ok_or_else(|| {
        let why = format!("no PriorityClass with name {class} was found");
        Refusal::forbidden(Kind::Pod, pod.metadata.name.as_deref().unwrap_or_default(), why)
    })?;
    spec.priority = Some(priority);
    default_text(&mut spec.preemption_policy, "PreemptLowerPriority");
    Ok(())
}

/// Says how long a pod stays on a node that is lost, new or changed.
pub(crate) fn tolerate_lost_nodes(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    let tolerations = spec.tolerations.get_or_insert_default();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = |it: &Toleration| {
            it.key.as_deref().is_none_or(|it| it.is_empty() || it == key)
                && it.effect.as_deref().is_none_or(|effect| effect.is_empty() || effect == "NoExecute")
        };
        if !tolerations.iter().any(tolerated) {
            tolerations.push(Toleration {
                key: Some(key.to_owned()),
                operator: Some("Exists".to_owned()),
                effect: Some("NoExecute".to_owned()),
                toleration_seconds: Some(300),
                value: None,
            });
        }
    }
}

/// A pod that names a RuntimeClass which is not there.
pub(crate) fn refuse_runtime_class(config: &FakeConfig, pod: &Pod) -> Result<(), Refusal> {
    let class = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref());
    match class.filter(|class| !config.runtime_classes.contains(*class)) {
        None => Ok(()),
        Some(class) => {
            let why = format!("pod rejected: RuntimeClass {class:?} not found");
            Err(Refusal::forbidden(Kind::Pod, pod.metadata.name.as_deref().unwrap_or_default(), why))
        }
    }
}

/// The status of a pod that was just created.
pub(crate) fn start_status(pod: &Object, now: &str) -> Value {
    let Object::Pod(pod) = pod else { return Value::Null };
    let spec = pod.spec.clone().unwrap_or_default();
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(&spec)});
    if spec.scheduling_gates.iter().flatten().next().is_some() {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null, "lastTransitionTime": now,
        }]);
    }
    status
}

/// <https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/>
fn qos_class(spec: &PodSpec) -> &'static str {
    let all = || spec.init_containers.iter().flatten().chain(&spec.containers);
    let figure = |amounts: Option<&Amounts>, name: &str| amount(amounts, name).filter(|it| !it.is_zero());
    let limits = |it: &Container, name: &str| figure(it.resources.as_ref().and_then(|it| it.limits.as_ref()), name);
    let requests = |it: &Container, name: &str| figure(it.resources.as_ref().and_then(|it| it.requests.as_ref()), name);
    let both = ["cpu", "memory"];
    if all().all(|it| both.iter().all(|name| limits(it, name).is_some() && limits(it, name) == requests(it, name))) {
        return "Guaranteed";
    }
    if all().any(|it| both.iter().any(|name| limits(it, name).or(requests(it, name)).is_some())) {
        return "Burstable";
    }
    "BestEffort"
}

/// What the containers of a pod ask for together, by the scheduler's rule.
///
/// `of` picks requests or limits. Init containers run one after the other before the others, so the largest
/// counts; one that restarts (a sidecar) stays and counts beside the others and beside later init containers.
pub(crate) fn container_request(
    spec: &PodSpec,
    of: impl Fn(&ResourceRequirements) -> Option<&Amounts>,
) -> BTreeMap<String, Amount> {
    let figures = |container: &Container| -> BTreeMap<String, Amount> {
        let amounts = container.resources.as_ref().and_then(&of);
        let known = amounts.into_iter().flatten();
        known.filter_map(|(name, it)| Some((name.clone(), Amount::parse(&it.0)?))).collect()
    };
    let mut staying = BTreeMap::new();
    let mut peak: BTreeMap<String, Amount> = BTreeMap::new();
    for init in spec.init_containers.iter().flatten() {
        let sidecar = init.restart_policy.as_deref() == Some("Always");
        let mut running = staying.clone();
        add(&mut running, figures(init));
        for (name, amount) in &running {
            let highest = peak.entry(name.clone()).or_default();
            *highest = (*highest).max(*amount);
        }
        if sidecar {
            staying = running;
        }
    }
    let mut total = staying;
    for container in &spec.containers {
        add(&mut total, figures(container));
    }
    for (name, amount) in peak {
        let sum = total.entry(name).or_default();
        *sum = (*sum).max(amount);
    }
    let overhead = spec.overhead.iter().flatten();
    add(&mut total, overhead.filter_map(|(name, it)| Some((name.clone(), Amount::parse(&it.0)?))).collect());
    total
}

fn add(total: &mut BTreeMap<String, Amount>, more: BTreeMap<String, Amount>) {
    for (name, amount) in more {
        let sum = total.entry(name).or_default();
        *sum = *sum + amount;
    }
}
