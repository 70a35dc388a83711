//! What a canary is made of: pure functions of the settings and of what was found.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Namespace, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    Pod, PodSpec, ResourceRequirements, SecurityContext, Service, ServicePort, ServiceSpec, Toleration,
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

/// The nodes that an app's pod could be put on (S-61), in the order of their names.
pub(super) fn eligible<'a>(nodes: &'a [Node], settings: &Settings) -> Vec<&'a str> {
    let mut names: Vec<_> = nodes
        .iter()
        .filter(|node| is_eligible(node, settings))
        .filter_map(|node| node.metadata.name.as_deref())
        .collect();
    names.sort_unstable();
    names
}

fn is_eligible(node: &Node, settings: &Settings) -> bool {
    let spec = node.spec.as_ref();
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let is_closed = spec.and_then(|spec| spec.unschedulable).unwrap_or_default();
    let keeps_away = spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| {
        taint.effect != "PreferNoSchedule"
            && !settings
                .tolerations
                .iter()
                .any(|it| tolerates(it, &taint.key, taint.value.as_deref().unwrap_or_default(), &taint.effect))
    });
    let wanted = |(key, value): (&String, &String)| names::label_value(&node.metadata, key) == Some(value);
    is_ready && !is_closed && !keeps_away && settings.node_selector.iter().all(wanted)
}

/// <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>
fn tolerates(toleration: &Toleration, key: &str, value: &str, effect: &str) -> bool {
    let any_value = toleration.operator.as_deref() == Some("Exists");
    toleration.effect.as_deref().is_none_or(|it| it.is_empty() || it == effect)
        && toleration.key.as_deref().map_or(any_value, |it| it == key)
        && (any_value || toleration.value.as_deref().unwrap_or_default() == value)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn settings(key: &str, value: &str) -> Settings {
        let json = json!({"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/16", key: value});
        Settings::from_json(&json).expect("right settings")
    }

    fn node(name: &str, spec: &Value, ready: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"disk": name}}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
        .expect("a node")
    }

    #[test]
    fn nodes_are_eligible_as_the_scheduler_sees_them() {
        let taint = |effect: &str| json!({"taints": [{"key": "gpu", "value": "a", "effect": effect}]});
        let nodes = [
            node("tainted", &taint("NoSchedule"), "True"),
            node("avoided", &taint("PreferNoSchedule"), "True"),
            node("emptied", &taint("NoExecute"), "True"),
            node("cordoned", &json!({"unschedulable": true}), "True"),
            node("lost", &json!({}), "Unknown"),
            node("a", &json!({}), "True"),
        ];
        let names = |key, value| eligible(&nodes, &settings(key, value)).join(",");
        assert_eq!(names("node_selector", ""), "a,avoided");
        assert_eq!(names("node_selector", "disk=a"), "a");
        assert_eq!(names("tolerations", "gpu=a:NoSchedule"), "a,avoided,tainted");
        assert_eq!(names("tolerations", "gpu:NoExecute"), "a,avoided,emptied");
        assert_eq!(names("tolerations", "gpu=b:NoSchedule,other:NoExecute"), "a,avoided");
        assert_eq!(names("tolerations", ":NoSchedule"), "a,avoided,tainted");
    }

    #[test]
    fn a_canary_is_policed_as_an_app_is() {
        let (policed, other) = (AppNamespace::canary("aaaaaaaa"), AppNamespace::canary("bbbbbbbb"));
        let settings = settings("node_selector", "");
        let cluster = ClusterAddresses::default();
        let ours = policy(&policed, &other, &settings, &cluster).spec;
        let text = serde_json::to_string(&ours).expect("JSON").replace("pando-canary-bbbbbbbb", "pando");
        let apps = default_policy(&AppNamespace::of("blog", &[]), &settings.network, &cluster, Egress::Open).spec;
        assert_eq!(text, serde_json::to_string(&apps).expect("JSON"));
    }
}
