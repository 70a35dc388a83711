//! The objects of an app's namespace, all but its policy and its pods: pure functions of plan and settings.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Pod, ResourceQuota, ResourceQuotaSpec, Secret, Service, ServiceAccount, ServicePort,
    ServiceSpec,
};
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pando_api::Protocol;
use pando_cluster::names::{self, AppNamespace, annotation, label, object};

use crate::check::is_label_value;
use crate::config::Settings;
use crate::digest::EnvKey;
use crate::plan::{Plan, Resources, Workload};
use crate::record::Revision;

/// What a helper pod of ours may use, in the quota's arithmetic: thousandths of a core and bytes.
const HELPER: (u64, u64) = (250, 256 << 20);

/// The app's namespace. Core's labels become labels where they fit and annotations otherwise.
pub(crate) fn namespace(plan: &Plan) -> Namespace {
    let app = &plan.app;
    let (fitting, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
        plan.labels.clone().into_iter().partition(|(_, value)| is_label_value(value));
    let mut labels = fitting;
    labels.extend(app.owned_labels());
    labels.insert(label::POD_SECURITY.to_owned(), "baseline".to_owned());
    let mut annotations = others;
    annotations.insert(annotation::BUNDLE_ID.to_owned(), app.bundle_id().to_owned());
    Namespace {
        metadata: ObjectMeta {
            name: Some(app.name()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

/// Gives our account its rights in the namespace (S-23).
pub(crate) fn role_binding(app: &AppNamespace, settings: &Settings) -> RoleBinding {
    RoleBinding {
        metadata: app.owned_meta(object::ROLE_BINDING),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "ClusterRole".to_owned(),
            name: settings.app_role.clone(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: settings.service_account.clone(),
            namespace: Some(settings.pando_namespace.clone()),
            api_group: None,
        }]),
    }
}

/// The account of the app's pods: it has no rights and no token.
pub(crate) fn service_account(app: &AppNamespace) -> ServiceAccount {
    ServiceAccount {
        metadata: app.owned_meta(object::SERVICE_ACCOUNT),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

/// The quota (S-26): nothing reachable from outside, ever; processor and memory at twice what the plan needs, so
/// that it never refuses a pod of ours, and only where every workload has both limits.
pub(crate) fn quota(app: &AppNamespace, resources: &[Resources]) -> ResourceQuota {
    let mut hard: BTreeMap<String, Quantity> = ["services.nodeports", "services.loadbalancers"]
        .map(|resource| (resource.to_owned(), Quantity("0".to_owned())))
        .into();
    let sum = |of: fn(&Resources) -> Option<u64>| {
        resources.iter().map(of).try_fold(0_u64, |sum, value| Some(sum.saturating_add(value?)))
    };
    let cpu = sum(|it| it.cpu_millis.map(Into::into));
    let memory = sum(|it| it.memory_bytes.map(Into::into));
    if let (Some(cpu), Some(memory), false) = (cpu, memory, resources.is_empty()) {
        let cpu = Quantity(format!("{}m", cpu.saturating_add(HELPER.0).saturating_mul(2)));
        let memory = Quantity(memory.saturating_add(HELPER.1).saturating_mul(2).to_string());
        for (resource, limit) in
            [("requests.cpu", &cpu), ("limits.cpu", &cpu), ("requests.memory", &memory), ("limits.memory", &memory)]
        {
            hard.insert(resource.to_owned(), limit.clone());
        }
    }
    ResourceQuota {
        metadata: app.owned_meta(object::QUOTA),
        spec: Some(ResourceQuotaSpec { hard: Some(hard), ..ResourceQuotaSpec::default() }),
        status: None,
    }
}

/// The name of a workload's environment Secret.
pub(crate) fn env_secret_name(workload: &str) -> String {
    format!("pando-env-{workload}")
}

/// This adapter made the Secret.
pub(crate) const ENV_MADE: &str = "made";
/// It was there, and held the plan's environment.
pub(crate) const ENV_SAME: &str = "same";
/// It was there, and held another one.
pub(crate) const ENV_OTHER: &str = "other";

/// The environment of a workload (S-29), with the key of its digest, and what it was before this adapter wrote to it. Exists also
/// for an empty environment.
pub(crate) fn env_secret(app: &AppNamespace, workload: &Workload, key: &EnvKey, before: &str) -> Secret {
    let mut metadata = workload_meta(app, &workload.name, env_secret_name(&workload.name));
    let notes = [(annotation::ENV_DIGEST_KEY, key.encode()), (annotation::ENV_BEFORE, before.to_owned())];
    metadata.annotations = Some(notes.map(|(key, value)| (key.to_owned(), value)).into());
    let data = workload.env.iter().map(|(key, value)| (key.clone(), ByteString(value.expose().as_bytes().to_vec())));
    Secret { metadata, data: Some(data.collect()), type_: Some("Opaque".to_owned()), ..Secret::default() }
}

/// The name of the ConfigMap with a workload's carried files.
pub(crate) fn files_name(workload: &str) -> String {
    format!("pando-files-{workload}")
}

/// The carried files of a workload (S-30); `None` when it has none. A path is no key there: the file's place in the order of
/// paths is, by [`file_key`].
pub(crate) fn files(app: &AppNamespace, workload: &Workload) -> Option<ConfigMap> {
    let data = workload.files.iter().enumerate().map(|(index, file)| (file_key(index), file.content.clone()));
    (!workload.files.is_empty()).then(|| ConfigMap {
        metadata: workload_meta(app, &workload.name, files_name(&workload.name)),
        data: Some(data.collect()),
        ..ConfigMap::default()
    })
}

/// The key of the file at that place in the order of paths.
pub(crate) fn file_key(index: usize) -> String {
    format!("file-{index}")
}

/// The record of a workload (S-31): a headless Service whose selector selects exactly the pod of `revision`.
pub(crate) fn service(app: &AppNamespace, workload: &Workload, revision: Revision) -> Service {
    let mut metadata = workload_meta(app, &workload.name, workload.name.clone());
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(label::REVISION.to_owned(), revision.to_string());
    let ports: Vec<_> = workload
        .ports
        .iter()
        .map(|port| ServicePort {
            name: Some(format!("{}-{}", port.protocol.as_str(), port.number)),
            port: port.number.into(),
            target_port: Some(IntOrString::Int(port.number.into())),
            protocol: Some(protocol(port.protocol).to_owned()),
            ..ServicePort::default()
        })
        .collect();
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(
                [
                    (label::WORKLOAD.to_owned(), workload.name.clone()),
                    (label::REVISION.to_owned(), revision.to_string()),
                ]
                .into(),
            ),
            ports: Some(ports),
            external_ips: Some(Vec::new()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// A protocol as Kubernetes spells it.
pub(crate) const fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    }
}

/// Metadata of an object of ours that belongs to one workload.
pub(crate) fn workload_meta(app: &AppNamespace, workload: &str, name: String) -> ObjectMeta {
    let mut metadata = app.owned_meta(name);
    metadata.labels.get_or_insert_default().insert(label::WORKLOAD.to_owned(), workload.to_owned());
    metadata
}

/// The workload that an object of ours belongs to, by its label.
pub(crate) fn workload_of(meta: &ObjectMeta) -> Option<&str> {
    names::is_ours(meta).then(|| names::label_value(meta, label::WORKLOAD)).flatten()
}

/// The workload whose app the pod runs; `None` for a stranger's and for a helper. A label is easily taken off a pod, and what
/// runs without it would be a second one: then its name tells, `<workload>-<revision>`.
pub(crate) fn workload_of_pod(pod: &Pod) -> Option<&str> {
    if !names::is_ours(&pod.metadata) || names::label_value(&pod.metadata, label::ROLE).is_some() {
        return None;
    }
    let by_name = || {
        let (workload, revision) = pod.metadata.name.as_deref()?.rsplit_once('-')?;
        revision.parse::<Revision>().is_ok().then_some(workload)
    };
    names::label_value(&pod.metadata, label::WORKLOAD).or_else(by_name)
}

/// The workload whose record the Service is; as for a pod, its name tells where the label was taken off.
pub(crate) fn workload_of_record(record: &Service) -> Option<&str> {
    let meta = &record.metadata;
    let ours = names::is_ours(meta) && names::label_value(meta, label::ROLE).is_none();
    let name = meta.name.as_deref().filter(|name| *name != object::EGRESS_GATEWAY);
    if ours { names::label_value(meta, label::WORKLOAD).or(name) } else { None }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn resources(cpu: u64, memory: u64) -> Resources {
        Resources { cpu_millis: NonZeroU64::new(cpu), memory_bytes: NonZeroU64::new(memory), ephemeral_bytes: None }
    }

    fn hard(resources: &[Resources]) -> BTreeMap<String, String> {
        let quota = quota(&AppNamespace::of("a", &[]), resources);
        let hard = quota.spec.and_then(|spec| spec.hard).expect("a quota has limits");
        hard.into_iter().map(|(resource, limit)| (resource, limit.0)).collect()
    }

    #[test]
    fn a_quota_counts_only_when_every_workload_has_both_limits() {
        assert_eq!(hard(&[resources(500, 1 << 30), resources(500, 0)]).len(), 2);
        assert_eq!(hard(&[]).len(), 2);
        let counted = hard(&[resources(500, 1 << 30), resources(250, 1 << 30)]);
        assert_eq!(counted["limits.cpu"], "2000m");
        assert_eq!(counted["requests.memory"], ((2_u64 << 30) + (256 << 20)).saturating_mul(2).to_string());
        assert_eq!(counted["services.nodeports"], "0");
    }

    #[test]
    fn limits_at_the_end_of_the_numbers_do_not_overflow() {
        assert_eq!(hard(&[resources(u64::MAX, u64::MAX), resources(1, 1)])["limits.cpu"], format!("{}m", u64::MAX));
    }
}
