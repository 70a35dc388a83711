//! The pod of a workload: a pure function of plan and settings (S-32).

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvFromSource, ExecAction,
    HTTPGetAction, KeyToPath, LocalObjectReference, PersistentVolumeClaimVolumeSource, Pod, PodSchedulingGate,
    PodSecurityContext, PodSpec, Probe, ResourceRequirements, SeccompProfile, SecretEnvSource, SecurityContext,
    TCPSocketAction, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pando_cluster::names::{AppNamespace, START_GATE, annotation, label, object};
use pando_network::ClusterAddresses;
use pando_network::gate::Gate;

use crate::config::Settings;
use crate::digest::{PlanDigest, template_digest};
use crate::objects::{env_secret_name, file_key, files_name, protocol, workload_meta};
use crate::plan::{self, Health, Resources, Workload};
use crate::record::Revision;

/// The name of the app's container.
pub(crate) const APP: &str = "app";

pub(crate) const SHM: &str = "shm";

/// The volume with the carried files. A claim's volume is called as the claim, which begins with `pando-`.
pub(crate) const FILES: &str = "files";

/// What a workload's pod is made from, but for its revision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template<'a> {
    pub(crate) app: &'a AppNamespace,
    pub(crate) workload: &'a Workload,
    pub(crate) digest: &'a PlanDigest,
    /// The Secret that its image is pulled with.
    pub(crate) pull_secret: Option<&'a str>,
    pub(crate) settings: &'a Settings,
    pub(crate) cluster: &'a ClusterAddresses,
}

/// The pod that runs the workload at `revision`. It carries the scheduling gate: it does not run before the gate is taken off.
pub(crate) fn pod(template: &Template<'_>, revision: Revision) -> Pod {
    let Template { app: namespace, workload, digest, pull_secret, settings, cluster } = *template;
    let mut metadata = workload_meta(namespace, &workload.name, pod_name(&workload.name, revision));
    metadata.labels.get_or_insert_default().insert(label::REVISION.to_owned(), revision.to_string());
    metadata.annotations = Some(
        [
            (annotation::PLAN_DIGEST, digest.to_string()),
            (annotation::TEMPLATE_DIGEST, template_digest(settings)),
            // An autoscaler that empties a node would end an app that nothing starts again at once.
            (annotation::SAFE_TO_EVICT, "false".to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into(),
    );
    let grace = workload.settings.stop_grace_seconds.unwrap_or(settings.stop_grace_seconds);
    Pod {
        metadata,
        spec: Some(PodSpec {
            scheduling_gates: Some(vec![PodSchedulingGate { name: START_GATE.to_owned() }]),
            image_pull_secrets: pull_secrets(pull_secret),
            hostname: Some(workload.name.clone()),
            termination_grace_period_seconds: Some(grace.into()),
            runtime_class_name: settings.runtime_class.clone(),
            security_context: Some(PodSecurityContext {
                run_as_user: workload.settings.run_as_user.map(i64::from),
                run_as_group: workload.settings.run_as_group.map(i64::from),
                fs_group: workload.settings.fs_group.map(i64::from),
                ..confined()
            }),
            init_containers: settings.isolation_gate.map(|limit| {
                // Another family's addresses could not be dialled at all, which proves nothing.
                let family = |v6: bool| settings.network.pod_ranges.iter().any(|range| range.addr().is_ipv6() == v6);
                let targets = cluster.api_server.iter().filter(|target| family(target.is_ipv6())).copied().collect();
                vec![gate(&Gate { targets, limit }, workload, settings)]
            }),
            containers: vec![app(workload)],
            volumes: Some(volumes(workload)).filter(|volumes| !volumes.is_empty()),
            ..bare(settings)
        }),
        status: None,
    }
}

/// What every pod of an app is: bare, of an account without a token, and placed as the settings say.
pub(crate) fn bare(settings: &Settings) -> PodSpec {
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        service_account_name: Some(object::SERVICE_ACCOUNT.to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        node_selector: (!settings.node_selector.is_empty()).then(|| settings.node_selector.clone()),
        tolerations: (!settings.tolerations.is_empty()).then(|| settings.tolerations.clone()),
        priority_class_name: settings.priority_class.clone(),
        ..PodSpec::default()
    }
}

/// The system calls that every pod of an app is held to.
pub(crate) fn confined() -> PodSecurityContext {
    PodSecurityContext {
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}

/// The image that a workload's pod was given; `None` when it has no container of the app's.
pub(crate) fn image_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.containers.iter().find(|container| container.name == APP)?.image.as_deref()
}

/// The name of a workload's pod. It always fits: a pod's name may have 253 bytes, a workload's 63 and a revision's 20.
pub(crate) fn pod_name(workload: &str, revision: Revision) -> String {
    format!("{workload}-{revision}")
}

fn app(workload: &Workload) -> Container {
    let list = |words: &[String]| (!words.is_empty()).then(|| words.iter().map(|word| literal(word)).collect());
    let probe = workload.health.as_ref().map(handler);
    Container {
        name: APP.to_owned(),
        image: Some(workload.image.to_string()),
        image_pull_policy: Some(pull_policy(workload).to_owned()),
        command: list(&workload.entrypoint),
        args: list(&workload.command),
        working_dir: workload.working_dir.clone(),
        env_from: Some(vec![EnvFromSource {
            secret_ref: Some(SecretEnvSource { name: env_secret_name(&workload.name), optional: None }),
            ..EnvFromSource::default()
        }]),
        ports: (!workload.ports.is_empty()).then(|| {
            workload
                .ports
                .iter()
                .map(|port| ContainerPort {
                    container_port: port.number.into(),
                    protocol: Some(protocol(port.protocol).to_owned()),
                    ..ContainerPort::default()
                })
                .collect()
        }),
        resources: resources(workload.resources),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(workload.settings.allow_privilege_escalation),
            capabilities: Some(Capabilities { drop: Some(vec!["NET_RAW".to_owned()]), add: None }),
            ..SecurityContext::default()
        }),
        // Every second until it first succeeds, so that a start is seen at once; it never ends the container.
        startup_probe: probe.clone().map(|probe| Probe {
            period_seconds: Some(1),
            failure_threshold: Some(i32::MAX),
            ..probe
        }),
        readiness_probe: probe.zip(workload.health.as_ref()).map(|(probe, health)| Probe {
            period_seconds: Some(health.interval_seconds),
            failure_threshold: Some(health.retries),
            ..probe
        }),
        volume_mounts: Some(mounts(workload)).filter(|mounts| !mounts.is_empty()),
        ..Container::default()
    }
}

/// A private image that others may have pulled to the node is not to be had without the credential: a registry is asked each
/// time, unless the name itself is exact.
pub(crate) fn pull_policy(workload: &Workload) -> &'static str {
    if workload.credential.is_some() && !workload.image.has_digest() { "Always" } else { "IfNotPresent" }
}

/// The reference to the Secret that an image is pulled with.
pub(crate) fn pull_secrets(name: Option<&str>) -> Option<Vec<LocalObjectReference>> {
    name.map(|name| vec![LocalObjectReference { name: name.to_owned() }])
}

/// The gate asks for what the app asks for: nothing more for the scheduler, and nothing that slows it down.
fn gate(gate: &Gate, workload: &Workload, settings: &Settings) -> Container {
    Container {
        resources: resources(workload.resources),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            ..SecurityContext::default()
        }),
        ..gate.container(&settings.helper_image)
    }
}

/// Kubernetes reads `$(NAME)` as a variable's value and `$$` as `$`, and Docker neither: with every `$` doubled the text
/// arrives as the plan has it. Only `$(` doubled would not do: `$$(NAME)` became `$` and the value.
pub(crate) fn literal(word: &str) -> String {
    word.replace('$', "$$")
}

/// Requests equal limits: what an app was promised it has.
pub(crate) fn resources(resources: Resources) -> Option<ResourceRequirements> {
    let amounts: std::collections::BTreeMap<_, _> = [
        ("cpu", resources.cpu_millis.map(|millis| Quantity(format!("{millis}m")))),
        ("memory", resources.memory_bytes.map(|bytes| Quantity(bytes.to_string()))),
        ("ephemeral-storage", resources.ephemeral_bytes.map(|bytes| Quantity(bytes.to_string()))),
    ]
    .into_iter()
    .filter_map(|(resource, amount)| Some((resource.to_owned(), amount?)))
    .collect();
    (!amounts.is_empty()).then(|| ResourceRequirements {
        requests: Some(amounts.clone()),
        limits: Some(amounts),
        claims: None,
    })
}

fn handler(health: &Health) -> Probe {
    let timed = Probe { timeout_seconds: Some(health.timeout_seconds), ..Probe::default() };
    match &health.probe {
        plan::Probe::Command(command) => {
            // The kubelet reads an exec probe's command as it reads a container's.
            let command = command.iter().map(|word| literal(word)).collect();
            Probe { exec: Some(ExecAction { command: Some(command) }), ..timed }
        }
        plan::Probe::Http { path, port } => Probe {
            http_get: Some(HTTPGetAction {
                path: Some(path.clone()),
                port: IntOrString::Int((*port).into()),
                ..HTTPGetAction::default()
            }),
            ..timed
        },
        plan::Probe::Tcp { port } => {
            Probe { tcp_socket: Some(TCPSocketAction { port: IntOrString::Int((*port).into()), host: None }), ..timed }
        }
    }
}

fn volumes(workload: &Workload) -> Vec<Volume> {
    let claims: std::collections::BTreeSet<&str> = workload.mounts.iter().map(|mount| &*mount.claim).collect();
    let mut volumes: Vec<Volume> = claims
        .into_iter()
        .map(|claim| Volume {
            name: claim.to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.to_owned(),
                read_only: None,
            }),
            ..Volume::default()
        })
        .collect();
    if !workload.files.is_empty() {
        volumes.push(carried(workload));
    }
    volumes.extend(workload.settings.shm_bytes.map(shared_memory));
    volumes
}

fn mounts(workload: &Workload) -> Vec<VolumeMount> {
    let volumes = workload.mounts.iter().map(|mount| VolumeMount {
        name: mount.claim.clone(),
        mount_path: mount.path.clone(),
        read_only: mount.read_only.then_some(true),
        ..VolumeMount::default()
    });
    // One by one: as a directory, the files would hide what the image has beside them.
    let files = workload.files.iter().enumerate().map(|(index, file)| VolumeMount {
        name: FILES.to_owned(),
        mount_path: file.path.clone(),
        sub_path: Some(file_key(index)),
        read_only: Some(true),
        ..VolumeMount::default()
    });
    let shm = workload.settings.shm_bytes.map(|_| VolumeMount {
        name: SHM.to_owned(),
        mount_path: "/dev/shm".to_owned(),
        ..VolumeMount::default()
    });
    volumes.chain(files).chain(shm).collect()
}

fn carried(workload: &Workload) -> Volume {
    let items = workload.files.iter().enumerate().map(|(index, file)| KeyToPath {
        key: file_key(index),
        path: file_key(index),
        mode: Some(file.mode),
    });
    Volume {
        name: FILES.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: files_name(&workload.name),
            items: Some(items.collect()),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn shared_memory(bytes: u64) -> Volume {
    Volume {
        name: SHM.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: Some(Quantity(bytes.to_string())),
        }),
        ..Volume::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kubernetes' `expansion.Expand`, with every variable set to `VALUE`.
    fn expanded(word: &str) -> String {
        let (mut read, mut rest) = (String::new(), word);
        while let Some((before, after)) = rest.split_once('$') {
            read.push_str(before);
            let name = after.strip_prefix('(').and_then(|after| after.split_once(')'));
            rest = match (after.strip_prefix('$'), name) {
                (Some(after), _) => {
                    read.push('$');
                    after
                }
                (None, Some((_, after))) => {
                    read.push_str("VALUE");
                    after
                }
                (None, None) => {
                    read.push('$');
                    after
                }
            };
        }
        read + rest
    }

    #[test]
    fn a_command_arrives_as_the_plan_has_it() {
        assert_eq!(expanded("a $(V) $$(V) $$ b"), "a VALUE $(V) $ b", "as 1.34 did");
        for word in
            ["", "$", "$$", "$$$", "echo $$", "$(V)", "$$(V)", "$$$(V)", "$V ${V}", "$(V", "$é", "a$", "`id`", "$()"]
        {
            assert_eq!(expanded(&literal(word)), word);
        }
        let health = Health {
            probe: plan::Probe::Command(vec!["kill -0 $$".to_owned()]),
            interval_seconds: 1,
            timeout_seconds: 1,
            retries: 1,
        };
        let command = handler(&health).exec.and_then(|exec| exec.command);
        assert_eq!(command, Some(vec!["kill -0 $$$$".to_owned()]), "the kubelet reads a probe's command likewise");
    }
}
