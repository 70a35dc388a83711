//! The policy that every app's namespace has.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pando_cluster::names::{AppNamespace, label, object};

use crate::ClusterAddresses;

/// What the policies need to know of the installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// The ranges of pods' addresses.
    pub pod_ranges: Vec<IpNet>,
    /// The ranges of Services' addresses.
    pub service_ranges: Vec<IpNet>,
    /// Ranges of nodes' addresses beyond what nodes themselves report.
    pub node_ranges: Vec<IpNet>,
    /// Further ranges that no app may reach, metadata services above all.
    pub closed_ranges: Vec<IpNet>,
    /// Who may reach the apps.
    pub proxy: Proxy,
    /// Who answers names.
    pub dns: Dns,
}

/// Pando's own server, the only way to an app from outside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The namespace it runs in.
    pub namespace: String,
}

/// Where the cluster's names are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// The namespace of the DNS pods.
    pub namespace: String,
    /// The labels of the DNS pods.
    pub labels: BTreeMap<String, String>,
    /// Addresses that answer beside them, such as a cache on each node.
    pub addresses: Vec<IpAddr>,
}

/// What an app may reach outside the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// Everything but the cluster itself and the closed ranges.
    Open,
    /// Nothing directly; an egress gateway has a policy of its own.
    Restricted,
}

const DNS_PORT: i32 = 53;

/// The policy `pando-default` (S-24): selects every pod, in both directions.
///
/// In: the app's own pods, and Pando's server. Out: own pods, DNS and, where egress is open, the outside: all
/// addresses but those of pods, Services, nodes, closed ranges and the API server. Verdicts fall after address
/// translation, so the API server's real addresses must be closed, not only its Service's.
///
/// A family without configured pod and service ranges gets no outside rule at all: what is not known cannot be
/// left out of it. Requirements.
#[must_use]
pub fn default_policy(
    app: &AppNamespace,
    config: &NetworkConfig,
    cluster: &ClusterAddresses,
    egress: Egress,
) -> NetworkPolicy {
    let mut out = vec![to(vec![same_namespace()], None), dns_pods(&config.dns)];
    out.extend(dns_addresses(&config.dns));
    if egress == Egress::Open {
        out.extend(outside(config, cluster));
    }
    NetworkPolicy {
        metadata: app.owned_meta(object::DEFAULT_POLICY),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector::default()), // empty: every pod of the namespace
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                from: Some(vec![same_namespace(), proxy(&config.proxy)]),
                ports: None,
            }]),
            egress: Some(out),
        }),
    }
}

/// Those of `addresses` that an app's policy lets it reach, though they are the cluster's own: nodes that came
/// after the policy was written, for one (S-24).
pub fn open_addresses(policy: &NetworkPolicy, addresses: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
    let blocks: Vec<(IpNet, Vec<IpNet>)> = policy
        .spec
        .iter()
        .flat_map(|spec| spec.egress.iter().flatten())
        // A rule with ports is DNS; any other rule opens every port.
        .filter(|rule| rule.ports.is_none())
        .flat_map(|rule| rule.to.iter().flatten())
        .filter_map(|peer| peer.ip_block.as_ref())
        .filter_map(|block| {
            let except = block.except.iter().flatten().filter_map(|range| range.parse().ok()).collect();
            Some((block.cidr.parse().ok()?, except))
        })
        .collect();
    let open = |address: &IpAddr| {
        blocks
            .iter()
            .any(|(range, except)| range.contains(address) && !except.iter().any(|closed| closed.contains(address)))
    };
    addresses.into_iter().filter(open).collect()
}

/// One rule for each family that the cluster is known to use.
fn outside(config: &NetworkConfig, cluster: &ClusterAddresses) -> Vec<NetworkPolicyEgressRule> {
    let everything = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
    let same_family =
        |a: &IpNet, b: &IpNet| matches!((a, b), (IpNet::V4(_), IpNet::V4(_)) | (IpNet::V6(_), IpNet::V6(_)));
    let single = |address: IpAddr| IpNet::from(address);
    let closed: Vec<IpNet> = [&config.pod_ranges, &config.service_ranges, &config.node_ranges, &config.closed_ranges]
        .into_iter()
        .flatten()
        .copied()
        .chain(cluster.nodes.iter().copied().map(single))
        .chain(cluster.api_server.iter().map(|server| single(server.ip())))
        .collect();
    everything
        .into_iter()
        .filter(|all| {
            [&config.pod_ranges, &config.service_ranges]
                .iter()
                .all(|ranges| ranges.iter().any(|range| same_family(range, all)))
        })
        .map(|all| {
            let closed: Vec<IpNet> = closed.iter().copied().filter(|range| same_family(range, &all)).collect();
            // Merged and sorted, so that the same facts always make the same policy.
            let except = IpNet::aggregate(&closed).iter().map(ToString::to_string).collect();
            let block = IPBlock { cidr: all.to_string(), except: Some(except) };
            to(vec![NetworkPolicyPeer { ip_block: Some(block), ..NetworkPolicyPeer::default() }], None)
        })
        .collect()
}

fn same_namespace() -> NetworkPolicyPeer {
    NetworkPolicyPeer { pod_selector: Some(LabelSelector::default()), ..NetworkPolicyPeer::default() }
}

/// The labels of the pods of Pando's own server, by which the policies admit them.
pub fn server_labels() -> BTreeMap<String, String> {
    [("app.kubernetes.io/name", "pando"), ("app.kubernetes.io/component", "server")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// Both selectors in one peer: pods with these labels in that namespace, not either.
fn proxy(proxy: &Proxy) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        namespace_selector: Some(namespace_named(&proxy.namespace)),
        pod_selector: Some(LabelSelector { match_labels: Some(server_labels()), match_expressions: None }),
        ip_block: None,
    }
}

fn dns_pods(dns: &Dns) -> NetworkPolicyEgressRule {
    let peer = NetworkPolicyPeer {
        namespace_selector: Some(namespace_named(&dns.namespace)),
        pod_selector: Some(LabelSelector { match_labels: Some(dns.labels.clone()), match_expressions: None }),
        ip_block: None,
    };
    to(vec![peer], Some(dns_ports()))
}

fn dns_addresses(dns: &Dns) -> Option<NetworkPolicyEgressRule> {
    let peers: Vec<_> = dns
        .addresses
        .iter()
        .map(|address| NetworkPolicyPeer {
            ip_block: Some(IPBlock { cidr: IpNet::from(*address).to_string(), except: None }),
            ..NetworkPolicyPeer::default()
        })
        .collect();
    (!peers.is_empty()).then(|| to(peers, Some(dns_ports())))
}

fn dns_ports() -> Vec<NetworkPolicyPort> {
    ["UDP", "TCP"]
        .map(|protocol| NetworkPolicyPort {
            protocol: Some(protocol.to_owned()),
            port: Some(IntOrString::Int(DNS_PORT)),
            end_port: None,
        })
        .into()
}

fn to(peers: Vec<NetworkPolicyPeer>, ports: Option<Vec<NetworkPolicyPort>>) -> NetworkPolicyEgressRule {
    NetworkPolicyEgressRule { to: Some(peers), ports }
}

/// Selects by the label that Kubernetes itself puts on every namespace, which nobody can forge (BR-65).
fn namespace_named(name: &str) -> LabelSelector {
    matching([(label::NAMESPACE_NAME, name)])
}

fn matching<const N: usize>(labels: [(&str, &str); N]) -> LabelSelector {
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    LabelSelector { match_labels: Some(labels.into()), match_expressions: None }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> NetworkConfig {
        NetworkConfig {
            pod_ranges: vec!["10.244.0.0/16".parse().expect("a range")],
            service_ranges: vec!["10.96.0.0/16".parse().expect("a range")],
            node_ranges: Vec::new(),
            closed_ranges: vec!["169.254.0.0/16".parse().expect("a range"), "fe80::/10".parse().expect("a range")],
            proxy: Proxy { namespace: "pando".to_owned() },
            dns: Dns {
                namespace: "kube-system".to_owned(),
                labels: [("k8s-app".to_owned(), "kube-dns".to_owned())].into(),
                addresses: Vec::new(),
            },
        }
    }

    fn addresses() -> ClusterAddresses {
        ClusterAddresses {
            nodes: ["172.18.0.3", "172.18.0.2"].map(|it| it.parse().expect("an address")).into(),
            api_server: ["172.18.0.2:6443", "198.51.100.7:443"].map(|it| it.parse().expect("an address")).into(),
        }
    }

    fn app() -> AppNamespace {
        AppNamespace::of("app_01HQ8ABC", &[])
    }

    #[test]
    fn the_default_policy_says_exactly_this() {
        let policy = serde_json::to_value(default_policy(&app(), &config(), &addresses(), Egress::Open)).expect("JSON");
        let dns = json!([{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]);
        assert_eq!(
            policy,
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"name": "pando-default", "namespace": "pando-app-01hq8abc",
                    "labels": {"app.kubernetes.io/managed-by": "pando", "pando.dev/bundle": "app-01hq8abc"}},
                "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
                    "ingress": [{"from": [{"podSelector": {}},
                        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "pando"}},
                         "podSelector": {"matchLabels": {"app.kubernetes.io/name": "pando", "app.kubernetes.io/component": "server"}}}]}],
                    "egress": [
                        {"to": [{"podSelector": {}}]},
                        {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}], "ports": dns},
                        {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except":
                            ["10.96.0.0/16", "10.244.0.0/16", "169.254.0.0/16", "172.18.0.2/31", "198.51.100.7/32"]}}]}]}})
        );
    }

    #[test]
    fn restricted_egress_opens_nothing_outside() {
        let policy = default_policy(&app(), &config(), &addresses(), Egress::Restricted);
        assert!(!format!("{policy:?}").contains("0.0.0.0/0"));
    }

    #[test]
    fn a_family_that_is_not_configured_gets_no_outside_rule() {
        let both = NetworkConfig {
            pod_ranges: ["10.244.0.0/16", "fd00:1::/56"].map(|it| it.parse().expect("a range")).into(),
            service_ranges: ["10.96.0.0/16", "fd00:2::/112"].map(|it| it.parse().expect("a range")).into(),
            ..config()
        };
        let half = NetworkConfig { service_ranges: config().service_ranges, ..both.clone() };
        for (config, v6) in [(config(), false), (half, false), (both, true)] {
            let policy = default_policy(&app(), &config, &addresses(), Egress::Open);
            assert_eq!(format!("{policy:?}").contains("::/0"), v6, "{config:?}");
        }
    }

    #[test]
    fn a_dns_cache_on_the_nodes_is_reached_on_its_port_only() {
        let mut config = config();
        config.dns.addresses = vec!["169.254.20.10".parse().expect("an address")];
        let policy = default_policy(&app(), &config, &addresses(), Egress::Open);
        let rule = &policy.spec.as_ref().and_then(|spec| spec.egress.as_ref()).expect("egress rules")[2];
        assert_eq!(rule.ports.as_ref().map(Vec::len), Some(2));
        assert_eq!(open_addresses(&policy, config.dns.addresses), Vec::<IpAddr>::new(), "DNS alone opens no address");
    }

    #[test]
    fn a_node_that_came_later_is_found_open() {
        let policy = default_policy(&app(), &config(), &addresses(), Egress::Open);
        let nodes = ["172.18.0.2", "172.18.0.9", "fd00::9"].map(|it| it.parse::<IpAddr>().expect("an address"));
        assert_eq!(open_addresses(&policy, nodes), ["172.18.0.9".parse::<IpAddr>().expect("an address")]);
    }
}
