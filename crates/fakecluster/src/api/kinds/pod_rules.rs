//! Pods: the rules on what is posted and on what may change.
//!
//! <https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/apis/core/validation/validation.go>

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Probe, Volume};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::amount;
use crate::api::names;
use crate::api::quantity::Amount;
use crate::api::refusal::FieldError;

type Errors = Vec<FieldError>;

pub(super) fn check(pod: &Pod) -> Errors {
    let spec = pod.spec.clone().unwrap_or_default();
    let mut errors = Errors::new();
    let volumes: BTreeSet<_> = spec.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
    check_volumes(&spec, &mut errors);
    if spec.containers.is_empty() {
        errors.push(FieldError::required("spec.containers", ""));
    }
    let mut taken = BTreeSet::new();
    for (list, containers) in [
        ("containers", spec.containers.as_slice()),
        ("initContainers", spec.init_containers.as_deref().unwrap_or_default()),
    ] {
        for (index, container) in containers.iter().enumerate() {
            let path = format!("spec.{list}[{index}]");
            check_container(&path, container, &volumes, &mut errors);
            if !taken.insert(container.name.as_str()) {
                errors.push(FieldError::duplicate(format!("{path}.name"), container.name.as_str()));
            }
            if list == "initContainers" {
                check_init(&path, container, &mut errors);
            }
        }
    }
    check_pod_fields(&spec, &mut errors);
    check_gates(&spec, &mut errors);
    errors
}

fn check_pod_fields(spec: &PodSpec, errors: &mut Errors) {
    one_of("spec.restartPolicy", spec.restart_policy.as_deref(), &["Always", "OnFailure", "Never"], errors);
    let dns = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of("spec.dnsPolicy", spec.dns_policy.as_deref(), &dns, errors);
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        let seconds = spec.termination_grace_period_seconds;
        let path = "spec.terminationGracePeriodSeconds";
        errors.push(FieldError::invalid(path, seconds, "must be greater than or equal to 0"));
    }
    if let Some(seconds) = spec.active_deadline_seconds
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let why = "must be between 1 and 2147483647, inclusive";
        errors.push(FieldError::invalid("spec.activeDeadlineSeconds", seconds, why));
    }
    for (path, text) in [("spec.hostname", &spec.hostname), ("spec.subdomain", &spec.subdomain)] {
        errors.extend(text.iter().filter(|it| !it.is_empty()).flat_map(|it| names::at(path, it, names::dns_label)));
    }
    errors.extend(names::labels("spec.nodeSelector", spec.node_selector.as_ref()));
    for (path, text) in [("spec.serviceAccountName", &spec.service_account_name), ("spec.nodeName", &spec.node_name)] {
        errors.extend(text.iter().filter(|it| !it.is_empty()).flat_map(|it| names::at(path, it, names::dns_subdomain)));
    }
}

fn check_gates(spec: &PodSpec, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        let path = format!("spec.schedulingGates[{index}]");
        errors.extend(names::at(&path, &gate.name, names::qualified_name));
        if !seen.insert(&gate.name) {
            errors.push(FieldError::duplicate(path, gate.name.as_str()));
        }
    }
}

/// What is refused only of a new pod.
pub(super) fn check_new(pod: &Pod) -> Errors {
    let spec = pod.spec.clone().unwrap_or_default();
    if is_gated(&spec) && spec.node_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return vec![FieldError::forbidden(
            "spec.nodeName",
            "cannot be set until all schedulingGates have been cleared",
        )];
    }
    vec![]
}

fn check_volumes(spec: &PodSpec, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = format!("spec.volumes[{index}]");
        if volume.name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else {
            errors.extend(names::at(&format!("{path}.name"), &volume.name, names::dns_label));
        }
        if !seen.insert(&volume.name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), volume.name.as_str()));
        }
        for source in sources(volume).iter().skip(1) {
            errors.push(FieldError::forbidden(format!("{path}.{source}"), "may not specify more than 1 volume type"));
        }
    }
}

/// The fields of a volume that say what it is.
fn sources(volume: &Volume) -> Vec<String> {
    let json = serde_json::to_value(volume).unwrap_or_default();
    json.as_object().into_iter().flatten().map(|(field, _)| field.clone()).filter(|field| field != "name").collect()
}

fn check_container(path: &str, container: &Container, volumes: &BTreeSet<&str>, errors: &mut Errors) {
    if container.name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    } else {
        errors.extend(names::at(&format!("{path}.name"), &container.name, names::dns_label));
    }
    match container.image.as_deref().unwrap_or_default() {
        "" => errors.push(FieldError::required(format!("{path}.image"), "")),
        image if image != image.trim() => {
            let why = "must not have leading or trailing whitespace";
            errors.push(FieldError::invalid(format!("{path}.image"), image, why));
        }
        _ => {}
    }
    let pull = container.image_pull_policy.as_deref();
    one_of(&format!("{path}.imagePullPolicy"), pull, &["Always", "IfNotPresent", "Never"], errors);
    check_ports(path, container, errors);
    for (index, variable) in container.env.iter().flatten().enumerate() {
        let path = format!("{path}.env[{index}]");
        if variable.name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else {
            errors.extend(names::at(&format!("{path}.name"), &variable.name, names::variable));
        }
        if variable.value_from.is_some() && variable.value.as_deref().is_some_and(|value| !value.is_empty()) {
            let why = "may not be specified when `value` is not empty";
            errors.push(FieldError::invalid(format!("{path}.valueFrom"), "", why));
        }
    }
    check_mounts(path, container, volumes, errors);
    check_resources(path, container, errors);
    for (field, probe) in probes(container) {
        let path = format!("{path}.{field}");
        check_probe(&path, probe, errors);
        if field != "readinessProbe" && probe.success_threshold.is_some_and(|count| count != 1) {
            let path = format!("{path}.successThreshold");
            errors.push(FieldError::invalid(path, probe.success_threshold, "must be 1"));
        }
    }
    if let Some(security) = &container.security_context
        && security.privileged == Some(true)
        && security.allow_privilege_escalation == Some(false)
    {
        let value = serde_json::to_value(security).unwrap_or_default();
        let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        errors.push(FieldError::invalid(format!("{path}.securityContext"), value, why));
    }
}

fn check_init(path: &str, container: &Container, errors: &mut Errors) {
    if container.restart_policy.as_deref() == Some("Always") {
        return;
    }
    for (field, _) in probes(container) {
        let why = "may not be set for init containers without restartPolicy=Always";
        errors.push(FieldError::forbidden(format!("{path}.{field}"), why));
    }
}

fn check_ports(path: &str, container: &Container, errors: &mut Errors) {
    let mut taken = BTreeSet::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let path = format!("{path}.ports[{index}]");
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            errors.extend(names::at(&format!("{path}.name"), name, names::port_name));
            if !taken.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
        }
        if port.container_port == 0 {
            errors.push(FieldError::required(format!("{path}.containerPort"), ""));
        } else {
            errors.extend(number_errors(&format!("{path}.containerPort"), port.container_port));
        }
        if let Some(number) = port.host_port.filter(|number| *number != 0) {
            errors.extend(number_errors(&format!("{path}.hostPort"), number));
        }
        one_of(&format!("{path}.protocol"), port.protocol.as_deref(), &["SCTP", "TCP", "UDP"], errors);
    }
}

fn check_mounts(container_path: &str, container: &Container, volumes: &BTreeSet<&str>, errors: &mut Errors) {
    let mut taken = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = format!("{container_path}.volumeMounts[{index}]");
        if mount.name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else if !volumes.contains(mount.name.as_str()) {
            errors.push(FieldError::not_found(format!("{path}.name"), mount.name.as_str()));
        }
        if mount.mount_path.is_empty() {
            errors.push(FieldError::required(format!("{path}.mountPath"), ""));
        } else if !taken.insert(mount.mount_path.as_str()) {
            let path = format!("{path}.mountPath");
            errors.push(FieldError::invalid(path, mount.mount_path.as_str(), "must be unique"));
        }
        if let Some(inner) = mount.sub_path.as_deref().filter(|inner| !inner.is_empty()) {
            // Kubernetes leaves the index out here.
            let path = format!("{container_path}.volumeMounts.subPath");
            if inner.starts_with('/') {
                errors.push(FieldError::invalid(path.clone(), inner, "must be a relative path"));
            }
            if inner.split('/').any(|step| step == "..") {
                errors.push(FieldError::invalid(path, inner, "must not contain '..'"));
            }
        }
    }
}

fn check_resources(path: &str, container: &Container, errors: &mut Errors) {
    let Some(resources) = &container.resources else { return };
    for (field, amounts) in [("limits", &resources.limits), ("requests", &resources.requests)] {
        for (name, quantity) in amounts.iter().flatten() {
            let path = format!("{path}.resources.{field}[{name}]");
            if Amount::parse(&quantity.0).is_some_and(Amount::is_negative) {
                let why = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(path.clone(), quantity.0.as_str(), why));
            }
            if !name.contains('/') && !["cpu", "memory", "ephemeral-storage"].contains(&name.as_str()) {
                for why in [
                    "must be a standard resource type or fully qualified",
                    "must be a standard resource for containers",
                ] {
                    errors.push(FieldError::invalid(path.clone(), name.as_str(), why));
                }
            }
        }
    }
    for (name, request) in resources.requests.iter().flatten() {
        let limit = amount(resources.limits.as_ref(), name);
        if let (Some(asked), Some(limit)) = (Amount::parse(&request.0), limit)
            && asked > limit
        {
            let why = format!("must be less than or equal to {name} limit of {limit}");
            errors.push(FieldError::invalid(format!("{path}.resources.requests"), request.0.as_str(), why));
        }
    }
}

fn probes(container: &Container) -> Vec<(&'static str, &Probe)> {
    let all = [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ];
    all.into_iter().filter_map(|(field, probe)| Some((field, probe.as_ref()?))).collect()
}

fn check_probe(path: &str, probe: &Probe, errors: &mut Errors) {
    let handlers = [
        ("exec", probe.exec.is_some()),
        ("httpGet", probe.http_get.is_some()),
        ("tcpSocket", probe.tcp_socket.is_some()),
        ("grpc", probe.grpc.is_some()),
    ];
    let given: Vec<_> = handlers.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect();
    for more in given.iter().skip(1) {
        errors.push(FieldError::forbidden(format!("{path}.{more}"), "may not specify more than 1 handler type"));
    }
    if given.is_empty() {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
    if probe.exec.as_ref().is_some_and(|exec| exec.command.iter().flatten().next().is_none()) {
        errors.push(FieldError::required(format!("{path}.exec.command"), ""));
    }
    for (field, port) in [
        ("httpGet", probe.http_get.as_ref().map(|get| &get.port)),
        ("tcpSocket", probe.tcp_socket.as_ref().map(|socket| &socket.port)),
    ] {
        let path = format!("{path}.{field}.port");
        match port {
            Some(IntOrString::Int(number)) => errors.extend(number_errors(&path, *number)),
            Some(IntOrString::String(name)) => errors.extend(names::at(&path, name, names::port_name)),
            None => {}
        }
    }
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if let Some(value) = value.filter(|value| *value < 0) {
            let path = format!("{path}.{field}");
            errors.push(FieldError::invalid(path, value, "must be greater than or equal to 0"));
        }
    }
}

/// Which changes of a pod's wanted state are refused: nearly all.
pub(super) fn check_update(new: &Pod, old: &Pod) -> Errors {
    let (new, old) = (new.spec.clone().unwrap_or_default(), old.spec.clone().unwrap_or_default());
    let mut errors = Errors::new();
    for (field, before, after) in [
        ("containers", old.containers.len(), new.containers.len()),
        (
            "initContainers",
            old.init_containers.as_ref().map_or(0, Vec::len),
            new.init_containers.as_ref().map_or(0, Vec::len),
        ),
    ] {
        if before != after {
            let why = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(format!("spec.{field}"), why));
        }
    }
    if !errors.is_empty() {
        return errors;
    }
    let known: BTreeSet<_> = old.scheduling_gates.iter().flatten().map(|gate| gate.name.as_str()).collect();
    for (index, gate) in new.scheduling_gates.iter().flatten().enumerate() {
        if known.contains(gate.name.as_str()) {
            continue;
        }
        let why = format!("only deletion is allowed, but found new scheduling gate '{}'", gate.name);
        errors.push(FieldError::forbidden(format!("spec.schedulingGates[{index}].name"), why));
    }
    errors.extend(deadline_error(&new, &old));
    errors.extend(selector_error(&new, &old));
    if fixed_part(&new, &old) != fixed_part(&old, &old) {
        errors.push(FieldError::forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        ));
    }
    errors
}

/// A pod that no scheduler has seen may still be narrowed down to fewer nodes.
fn selector_error(new: &PodSpec, old: &PodSpec) -> Option<FieldError> {
    let asked = |key: &String| new.node_selector.as_ref().and_then(|selector| selector.get(key));
    let kept = old.node_selector.iter().flatten().all(|(key, value)| asked(key) == Some(value));
    (is_gated(old) && !kept).then(|| {
        let why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        FieldError::invalid("spec.nodeSelector", json!(new.node_selector), why)
    })
}

fn is_gated(spec: &PodSpec) -> bool {
    spec.scheduling_gates.iter().flatten().next().is_some()
}

/// A deadline may be set or shortened, never lengthened or taken away.
fn deadline_error(new: &PodSpec, old: &PodSpec) -> Option<FieldError> {
    let path = "spec.activeDeadlineSeconds";
    match (new.active_deadline_seconds, old.active_deadline_seconds) {
        (Some(new), Some(old)) if new > old => {
            Some(FieldError::invalid(path, new, "must be less than or equal to previous value"))
        }
        (None, Some(_)) => {
            Some(FieldError::invalid(path, Value::Null, "must not update from a positive integer to nil value"))
        }
        _ => None,
    }
}

/// What of `spec` may not change, given what was there before.
fn fixed_part(spec: &PodSpec, old: &PodSpec) -> Value {
    let mut spec = spec.clone();
    spec.scheduling_gates = None;
    spec.active_deadline_seconds = None;
    let added =
        spec.tolerations.as_ref().is_some_and(|new| old.tolerations.iter().flatten().all(|it| new.contains(it)));
    if added {
        spec.tolerations.clone_from(&old.tolerations);
    }
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        container.image = None;
    }
    if is_gated(old) {
        // Judged by itself.
        spec.node_selector.clone_from(&old.node_selector);
    }
    serde_json::to_value(spec).unwrap_or_else(|_| json!({}))
}

fn one_of(path: &str, value: Option<&str>, supported: &[&str], errors: &mut Errors) {
    match value {
        None | Some("") => errors.push(FieldError::required(path, "")),
        Some(value) if supported.contains(&value) => {}
        Some(value) => errors.push(FieldError::unsupported(path, value, supported)),
    }
}

fn number_errors(path: &str, number: i32) -> Errors {
    names::port_number(number).iter().map(|why| FieldError::invalid(path, number, why)).collect()
}
