//! Pod security: what the `baseline` level refuses.
//!
//! <https://kubernetes.io/docs/concepts/security/pod-security-standards/#baseline>. The levels are `privileged`
//! and `baseline`; a namespace that enforces `restricted` takes no pod here, since that level is not modelled.

use k8s_openapi::api::core::v1::{Container, Namespace, Pod, PodSpec, SecurityContext};
use pando_cluster::Kind;

use super::refusal::Refusal;

const LEVEL: &str = "pod-security.kubernetes.io/enforce";

/// The capabilities a container may add.
const CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

const SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// Refuses a pod that breaks the level its namespace enforces.
pub(crate) fn judge(namespace: &Namespace, pod: &Pod) -> Result<(), Refusal> {
    let level = namespace.metadata.labels.as_ref().and_then(|labels| labels.get(LEVEL)).map(String::as_str);
    let findings = match level {
        None | Some("privileged") => return Ok(()),
        Some("baseline") => findings(&pod.spec.clone().unwrap_or_default()),
        Some(_) => vec!["a level that this cluster does not model".to_owned()],
    };
    if findings.is_empty() {
        return Ok(());
    }
    let why = format!("violates PodSecurity \"{}:latest\": {}", level.unwrap_or_default(), findings.join(", "));
    Err(Refusal::forbidden(Kind::Pod, pod.metadata.name.as_deref().unwrap_or_default(), why))
}

/// What is wrong, in the order in which Kubernetes tells it.
fn findings(spec: &PodSpec) -> Vec<String> {
    let containers: Vec<_> = spec.init_containers.iter().flatten().chain(&spec.containers).collect();
    [
        capabilities(&containers),
        host_namespaces(spec),
        host_paths(spec),
        host_ports(&containers),
        privileged(&containers),
        proc_mount(&containers),
        seccomp(spec, &containers),
        sysctls(spec),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn capabilities(containers: &[&Container]) -> Option<String> {
    let added = |it: &Container| -> Vec<String> {
        let added = security(it).and_then(|it| it.capabilities.as_ref()).and_then(|it| it.add.clone());
        added.unwrap_or_default().into_iter().filter(|it| !CAPABILITIES.contains(&it.as_str())).collect()
    };
    let who = named(containers, |it| !added(it).is_empty())?;
    let mut which: Vec<_> = containers.iter().flat_map(|it| added(it)).map(|it| format!("{it:?}")).collect();
    which.sort();
    which.dedup();
    let which = which.join(", ");
    Some(format!("non-default capabilities ({who} must not include {which} in securityContext.capabilities.add)"))
}

fn host_namespaces(spec: &PodSpec) -> Option<String> {
    let shared = [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)];
    let shared: Vec<_> =
        shared.into_iter().filter(|(_, it)| *it == Some(true)).map(|(it, _)| format!("{it}=true")).collect();
    (!shared.is_empty()).then(|| format!("host namespaces ({})", shared.join(", ")))
}

fn host_paths(spec: &PodSpec) -> Option<String> {
    let volumes = spec.volumes.iter().flatten().filter(|it| it.host_path.is_some()).map(|it| it.name.as_str());
    list("volume", volumes).map(|which| format!("hostPath volumes ({which})"))
}

fn host_ports(containers: &[&Container]) -> Option<String> {
    let ports = |it: &Container| -> Vec<i32> {
        it.ports.iter().flatten().filter_map(|port| port.host_port).filter(|port| *port != 0).collect()
    };
    let who = named(containers, |it| !ports(it).is_empty())?;
    let mut numbers: Vec<_> = containers.iter().flat_map(|it| ports(it)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let text = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let verb = if who.starts_with("containers") { "use" } else { "uses" };
    let noun = if numbers.len() > 1 { "hostPorts" } else { "hostPort" };
    Some(format!("hostPort ({who} {verb} {noun} {text})"))
}

fn privileged(containers: &[&Container]) -> Option<String> {
    let who = named(containers, |it| security(it).and_then(|it| it.privileged) == Some(true))?;
    Some(format!("privileged ({who} must not set securityContext.privileged=true)"))
}

fn proc_mount(containers: &[&Container]) -> Option<String> {
    let bare = |it: &Container| security(it).and_then(|it| it.proc_mount.as_deref()).is_some_and(|it| it != "Default");
    let who = named(containers, bare)?;
    Some(format!("procMount ({who} must not set securityContext.procMount to \"Unmasked\")"))
}

fn seccomp(spec: &PodSpec, containers: &[&Container]) -> Option<String> {
    let pod = spec.security_context.as_ref().and_then(|it| it.seccomp_profile.as_ref());
    let unconfined = |it: &Container| {
        security(it).and_then(|it| it.seccomp_profile.as_ref()).is_some_and(|it| it.type_ == "Unconfined")
    };
    let pod = pod.filter(|it| it.type_ == "Unconfined").map(|_| "pod".to_owned());
    let who: Vec<_> = pod.into_iter().chain(named(containers, unconfined)).collect();
    let rule = "must not set securityContext.seccompProfile.type to \"Unconfined\"";
    (!who.is_empty()).then(|| format!("seccompProfile ({} {rule})", who.join(" and ")))
}

fn sysctls(spec: &PodSpec) -> Option<String> {
    let set = spec.security_context.iter().flat_map(|it| it.sysctls.iter().flatten()).map(|it| it.name.as_str());
    let unsafe_ones: Vec<_> = set.filter(|name| !SYSCTLS.contains(name)).collect();
    (!unsafe_ones.is_empty()).then(|| format!("forbidden sysctls ({})", unsafe_ones.join(", ")))
}

fn security(container: &Container) -> Option<&SecurityContext> {
    container.security_context.as_ref()
}

/// `container "a"` or `containers "a", "b"`: those that `guilty` picks.
fn named(containers: &[&Container], guilty: impl Fn(&Container) -> bool) -> Option<String> {
    list("container", containers.iter().filter(|it| guilty(it)).map(|it| it.name.as_str()))
}

fn list<'a>(noun: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<_> = names.map(|name| format!("{name:?}")).collect();
    match names.len() {
        0 => None,
        1 => Some(format!("{noun} {}", names[0])),
        _ => Some(format!("{noun}s {}", names.join(", "))),
    }
}
