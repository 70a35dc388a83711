//! A pod's parts in the plan's words, so that two pods can be compared as plans are: without what Kubernetes adds.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Probe, VolumeMount};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pando_api::FieldChange;
use pando_cluster::converge::Quantity;
use serde_json::{Value, json};

use crate::pod::{APP, FILES, SHM};

/// The plan's fields in which the pod that runs differs from the one that is wanted; values of the environment are in neither.
pub(super) fn differing(live: &Pod, desired: &Pod) -> Vec<FieldChange> {
    let (before, after) = (parts(live), parts(desired));
    let fields: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    let differing = fields.into_iter().filter(|field| before.get(field) != after.get(field));
    let value = |parts: &BTreeMap<&str, Value>, field| parts.get(field).cloned();
    differing
        .map(|field| FieldChange {
            field: field.to_owned(),
            before: value(&before, field),
            after: value(&after, field),
        })
        .collect()
}

/// The parts that there are, by the plan's field.
fn parts(pod: &Pod) -> BTreeMap<&'static str, Value> {
    let Some(spec) = &pod.spec else { return BTreeMap::new() };
    let Some(app) = spec.containers.iter().find(|container| container.name == APP) else { return BTreeMap::new() };
    let security = spec.security_context.as_ref();
    let escalation = app.security_context.as_ref().and_then(|it| it.allow_privilege_escalation);
    let parts = [
        ("image", json!(app.image)),
        ("entrypoint", words(app.command.as_deref())),
        ("command", words(app.args.as_deref())),
        ("working_dir", json!(app.working_dir)),
        ("ports", ports(app)),
        ("mounts", mounts(spec, app)),
        ("files", files(spec, app)),
        ("health", health(app.readiness_probe.as_ref())),
        ("resources", resources(app)),
        ("settings.run_as_user", json!(security.and_then(|it| it.run_as_user))),
        ("settings.run_as_group", json!(security.and_then(|it| it.run_as_group))),
        ("settings.fs_group", json!(security.and_then(|it| it.fs_group))),
        ("settings.allow_privilege_escalation", json!(escalation)),
        ("settings.shm_bytes", shared_memory(spec)),
        ("settings.stop_grace_seconds", json!(spec.termination_grace_period_seconds)),
    ];
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    };
    parts.into_iter().filter(|(_, value)| !is_empty(value)).collect()
}

/// Words as the process gets them: Kubernetes reads `$$` as `$`.
fn words(words: Option<&[String]>) -> Value {
    json!(words.unwrap_or_default().iter().map(|word| word.replace("$$", "$")).collect::<Vec<_>>())
}

fn ports(app: &Container) -> Value {
    let ports: BTreeSet<(i32, String)> = app
        .ports
        .iter()
        .flatten()
        .map(|port| (port.container_port, port.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase()))
        .collect();
    json!(ports.into_iter().map(|(number, protocol)| format!("{protocol}/{number}")).collect::<Vec<_>>())
}

fn mounts(spec: &PodSpec, app: &Container) -> Value {
    let claim = |mount: &VolumeMount| {
        let volume = spec.volumes.iter().flatten().find(|volume| volume.name == mount.name)?;
        Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone())
    };
    let mounts = app.volume_mounts.iter().flatten().filter_map(|mount| {
        let access = if mount.read_only == Some(true) { " (read-only)" } else { "" };
        Some((mount.mount_path.clone(), format!("{}{access}", claim(mount)?)))
    });
    json!(mounts.collect::<BTreeMap<_, _>>())
}

/// Paths and modes of the carried files; what they say is in no pod.
fn files(spec: &PodSpec, app: &Container) -> Value {
    let volume = spec.volumes.iter().flatten().find(|volume| volume.name == FILES);
    let items = volume.and_then(|volume| volume.config_map.as_ref()).into_iter();
    let modes: BTreeMap<&str, Option<i32>> =
        items.flat_map(|map| map.items.iter().flatten()).map(|item| (&*item.path, item.mode)).collect();
    let files = app.volume_mounts.iter().flatten().filter(|mount| mount.name == FILES);
    let files = files.map(|mount| {
        let mode = mount.sub_path.as_deref().and_then(|key| modes.get(key).copied().flatten());
        (mount.mount_path.clone(), mode.map(|mode| format!("{mode:04o}")))
    });
    json!(files.collect::<BTreeMap<_, _>>())
}

fn health(probe: Option<&Probe>) -> Value {
    let Some(probe) = probe else { return Value::Null };
    let number = |port: &IntOrString| match port {
        IntOrString::Int(number) => json!(number),
        IntOrString::String(name) => json!(name),
    };
    let mut health = json!({
        "interval_seconds": probe.period_seconds,
        "timeout_seconds": probe.timeout_seconds.unwrap_or(1),
        "retries": probe.failure_threshold,
    });
    if let Some(exec) = &probe.exec {
        health["command"] = words(exec.command.as_deref());
    }
    if let Some(http) = &probe.http_get {
        health["path"] = json!(http.path);
        health["port"] = number(&http.port);
    }
    if let Some(tcp) = &probe.tcp_socket {
        health["port"] = number(&tcp.port);
    }
    health
}

/// Limits by value, however they are written.
fn resources(app: &Container) -> Value {
    let limits = app.resources.iter().flat_map(|resources| resources.limits.iter().flatten());
    let value = |resource: &str, text: &str| match text.parse::<Quantity>() {
        Ok(amount) if resource == "cpu" => json!(format!("{}m", amount.millis())),
        Ok(amount) => json!(amount.units()),
        Err(_) => json!(text),
    };
    json!(limits.map(|(resource, amount)| (resource.clone(), value(resource, &amount.0))).collect::<BTreeMap<_, _>>())
}

fn shared_memory(spec: &PodSpec) -> Value {
    let volume = spec.volumes.iter().flatten().find(|volume| volume.name == SHM);
    let limit = volume.and_then(|volume| volume.empty_dir.as_ref()?.size_limit.as_ref());
    json!(limit.and_then(|limit| limit.0.parse::<Quantity>().ok()).map(Quantity::units))
}
