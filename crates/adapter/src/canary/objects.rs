//! What a canary is made of: pure functions of the settings and of what was found.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Namespace, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
    PodSpec, ResourceRequirements, SecurityContext, Service, ServicePort, ServiceSpec,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_cluster::names::{self, AppNamespace, label, role};
use pando_network::canary::{PORT, Part, Prober, Seat, Server};
use pando_network::{ClusterAddresses, Egress, NetworkConfig, Proxy, default_policy};

use crate::config::Settings;
use crate::objects::workload_meta;
use crate::pod::{bare, confined};
use crate::sight;

/// What the servers are called, and their Service.
pub(super) const SERVER: &str = "server";

/// What the probers are called.
const PROBER: &str = "prober";

/// Left behind by a process that died, a pod ends by itself after so long.
const LIVES: i64 = 300;

/// One of a canary's two namespaces. It is no app's: it has no label of a bundle.
pub(super) fn namespace(of: &AppNamespace) -> Namespace {
    let labels = [(label::MANAGED_BY, names::MANAGER), (label::ROLE, role::CANARY), (label::POD_SECURITY, "baseline")];
    Namespace {
        metadata: ObjectMeta {
            name: Some(of.name()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

/// The policy that an app would have in `policed`, if Pando's server were in `other`.
pub(super) fn policy(
    policed: &AppNamespace,
    other: &AppNamespace,
    settings: &Settings,
    cluster: &ClusterAddresses,
) -> NetworkPolicy {
    let network = NetworkConfig { proxy: Proxy { namespace: other.name() }, ..settings.network.clone() };
    default_policy(policed, &network, cluster, Egress::Open)
}

/// Gives the servers of a namespace a name.
pub(super) fn service(of: &AppNamespace) -> Service {
    let port = ServicePort { name: Some("http".to_owned()), port: PORT.into(), ..ServicePort::default() };
    Service {
        metadata: meta(of, SERVER, SERVER.to_owned()),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            cluster_ip: Some("None".to_owned()),
            selector: Some([(label::WORKLOAD.to_owned(), SERVER.to_owned())].into()),
            publish_not_ready_addresses: Some(true),
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// The server number `index` of a namespace, on that node.
pub(super) fn server(of: &AppNamespace, index: usize, node: &str, page: &str, settings: &Settings) -> Pod {
    pod(meta(of, SERVER, format!("{SERVER}-{index}")), &Part::Server { page: page.to_owned() }, node, settings)
}

/// The prober number `index` of a namespace.
pub(super) fn prober(of: &AppNamespace, index: usize, prober: &Prober, page: &str, settings: &Settings) -> Pod {
    let mut metadata = meta(of, PROBER, format!("{PROBER}-{index}"));
    if prober.seat == Seat::Proxy {
        metadata.labels.get_or_insert_default().extend(pando_network::server_labels());
    }
    let targets = prober.legs.iter().map(|leg| leg.target.clone()).collect();
    pod(metadata, &Part::Prober { page: page.to_owned(), targets }, &prober.node, settings)
}

fn meta(of: &AppNamespace, part: &str, name: String) -> ObjectMeta {
    let mut metadata = workload_meta(of, part, name);
    metadata.labels.get_or_insert_default().insert(label::ROLE.to_owned(), role::CANARY.to_owned());
    metadata
}

fn pod(metadata: ObjectMeta, part: &Part, node: &str, settings: &Settings) -> Pod {
    let amounts = |cpu: &str, memory: &str| -> Option<BTreeMap<String, Quantity>> {
        Some(
            [("cpu", cpu), ("memory", memory)]
                .map(|(key, amount)| (key.to_owned(), Quantity(amount.to_owned())))
                .into(),
        )
    };
    let mut container = part.container(&settings.helper_image);
    container.resources =
        Some(ResourceRequirements { requests: amounts("10m", "32Mi"), limits: amounts("250m", "64Mi"), claims: None });
    container.security_context = Some(SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        ..SecurityContext::default()
    });
    Pod {
        metadata,
        spec: Some(PodSpec {
            termination_grace_period_seconds: Some(1),
            active_deadline_seconds: Some(LIVES),
            runtime_class_name: settings.runtime_class.clone(),
            affinity: Some(on(node)),
            security_context: Some(confined()),
            containers: vec![container],
            ..bare(settings)
        }),
        status: None,
    }
}

/// On that node and no other, by the scheduler: so what keeps it from there is told.
fn on(node: &str) -> Affinity {
    let this_one = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![this_one]), match_expressions: None };
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector { node_selector_terms: vec![term] }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}

/// A server as it runs.
pub(super) fn running(pod: &Pod) -> Server {
    let status = pod.status.as_ref();
    let addresses = status.iter().flat_map(|status| status.pod_ips.iter().flatten());
    Server {
        node: sight::node(pod).to_owned(),
        addresses: addresses.filter_map(|address| address.ip.parse().ok()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_canary_is_policed_as_an_app_is() {
        let (policed, other) = (AppNamespace::canary("aaaaaaaa"), AppNamespace::canary("bbbbbbbb"));
        let json = json!({"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/16"});
        let settings = Settings::from_json(&json).expect("right settings");
        let cluster = ClusterAddresses::default();
        let ours = policy(&policed, &other, &settings, &cluster).spec;
        let text = serde_json::to_string(&ours).expect("JSON").replace("pando-canary-bbbbbbbb", "pando");
        let apps = default_policy(&AppNamespace::of("blog", &[]), &settings.network, &cluster, Egress::Open).spec;
        assert_eq!(text, serde_json::to_string(&apps).expect("JSON"));
    }
}
