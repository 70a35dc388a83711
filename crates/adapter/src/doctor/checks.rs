//! What the cluster's answers mean to an operator: pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Service};
use pando_api::{Check, CheckState, Error, Isolation};
use pando_network::node_addresses;

use super::check;
use crate::call::name;
use crate::config::Settings;
use crate::nodes::{NONE_FITS, why_not};

pub(super) const API_SERVER: &str = "API server";
pub(super) const NODES: &str = "nodes";
pub(super) const PODS: &str = "pod ranges";
pub(super) const SERVICES: &str = "service ranges";
pub(super) const NODE_RANGE: &str = "node ranges";
pub(super) const ISOLATION: &str = "isolation";

/// An API server that takes longer makes every call of Pando's slow: an apply waits for six answers and more, one after the other.
const SLOW: Duration = Duration::from_millis(500);

/// How the API server answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    pub(super) median: Duration,
    pub(super) addresses: BTreeSet<SocketAddr>,
}

pub(super) fn failed(name: &str, error: &Error) -> Check {
    check(name, CheckState::Failed, &*error.message, error.remedy.as_deref())
}

pub(super) fn unknown(name: &str, why: &str) -> Check {
    check(name, CheckState::Unknown, why, None)
}

pub(super) fn answers(pace: &Result<Pace, Error>) -> Check {
    let pace = match pace {
        Ok(pace) => pace,
        Err(error) => return failed(API_SERVER, error),
    };
    if pace.addresses.is_empty() {
        let remedy = "see that the EndpointSlice `kubernetes` in the namespace default names the API server: policies close what it names";
        return check(API_SERVER, CheckState::Failed, "it answers, and tells no address of its own", Some(remedy));
    }
    let millis = pace.median.as_millis();
    let fact = format!("answers in {millis} ms; its own addresses are {}", joined(&pace.addresses));
    if pace.median > SLOW {
        let remedy =
            "look for what slows the API server down, or the way to it: an apply waits for several answers in a row";
        return check(API_SERVER, CheckState::Warned, fact, Some(remedy));
    }
    check(API_SERVER, CheckState::Passed, fact, None)
}

pub(super) fn nodes(nodes: &[Node], settings: &Settings) -> Check {
    let (mut fit, mut unfit) = (Vec::new(), Vec::new());
    for node in nodes {
        match why_not(node, settings) {
            None => fit.push(name(&node.metadata)),
            Some(why) => unfit.push(format!("{} ({why})", name(&node.metadata))),
        }
    }
    let left_out = if unfit.is_empty() { String::new() } else { format!("; not {}", unfit.join(", ")) };
    if fit.is_empty() {
        return check(NODES, CheckState::Failed, format!("none takes apps{left_out}"), Some(NONE_FITS));
    }
    check(NODES, CheckState::Passed, format!("apps run on {}{left_out}", fit.join(", ")), None)
}

/// Whether the ranges that policies leave out hold every pod: what they do not hold counts as the world outside.
pub(super) fn pod_ranges(nodes: &[Node], set: &[IpNet]) -> Check {
    let told = |node: &Node| -> Vec<IpNet> {
        let spec = node.spec.clone().unwrap_or_default();
        let all = spec.pod_cidrs.unwrap_or_else(|| spec.pod_cidr.into_iter().collect());
        all.iter().filter_map(|range| range.parse().ok()).collect()
    };
    let ranges: Vec<IpNet> = nodes.iter().flat_map(told).collect();
    if ranges.is_empty() {
        let fact = format!("set to {}; no node tells which addresses its pods get", joined(set));
        let remedy = "compare it with the addresses that `kubectl get pods -A -o wide` shows: each has to lie in pod_cidr, but for pods on the node's own network";
        return check(PODS, CheckState::Warned, fact, Some(remedy));
    }
    let outside: Vec<&IpNet> = ranges.iter().filter(|range| !set.iter().any(|set| set.contains(*range))).collect();
    if outside.is_empty() {
        return check(PODS, CheckState::Passed, format!("{} holds those of every node", joined(set)), None);
    }
    let fact = format!(
        "{} does not hold {}, which nodes give their pods: policies do not leave those out",
        joined(set),
        joined(outside)
    );
    let remedy = format!(
        "set pod_cidr to the ranges that the cluster was made with; they hold at least {}",
        joined(covering(&ranges))
    );
    check(PODS, CheckState::Failed, fact, Some(&remedy))
}

/// The same for Services.
pub(super) fn service_ranges(services: &[Service], set: &[IpNet]) -> Check {
    let is_api = |service: &&Service| service.metadata.namespace.as_deref() == Some("default");
    let addresses: Vec<IpAddr> = services
        .iter()
        .filter(is_api)
        .filter_map(|service| service.spec.as_ref())
        .flat_map(|spec| spec.cluster_ips.clone().unwrap_or_else(|| spec.cluster_ip.iter().cloned().collect()))
        .filter_map(|address| address.parse().ok())
        .collect();
    if addresses.is_empty() {
        return unknown(SERVICES, "the cluster has no Service `kubernetes` in the namespace default");
    }
    let outside: Vec<_> = addresses.iter().filter(|address| !set.iter().any(|set| set.contains(*address))).collect();
    if outside.is_empty() {
        return check(SERVICES, CheckState::Passed, format!("{} holds {}", joined(set), joined(&addresses)), None);
    }
    let fact = format!(
        "{} does not hold {}, which is the API server's Service: policies do not leave it out",
        joined(set),
        joined(outside)
    );
    let remedy = "set service_cidr to the range that the cluster was made with: `kubectl get servicecidrs` shows it, or the API server's option --service-cluster-ip-range";
    check(SERVICES, CheckState::Failed, fact, Some(remedy))
}

/// Whether nodes that join later are closed to apps before the next apply.
pub(super) fn node_ranges(nodes: &[Node], set: &[IpNet]) -> Check {
    let addresses = node_addresses(nodes);
    let each: Vec<IpNet> = addresses.iter().copied().map(IpNet::from).collect();
    let cover = joined(covering(&each));
    let remedy = format!(
        "set node_cidr to the ranges that nodes get their addresses from, which hold at least {cover}: then a node that joins is closed to apps at once"
    );
    if set.is_empty() {
        let fact = format!("not set: each apply closes the {} addresses that nodes have then", addresses.len());
        return check(NODE_RANGE, CheckState::Warned, fact, Some(&remedy));
    }
    let outside: Vec<_> = addresses.iter().filter(|address| !set.iter().any(|set| set.contains(*address))).collect();
    if outside.is_empty() {
        return check(NODE_RANGE, CheckState::Passed, format!("{} holds those of every node", joined(set)), None);
    }
    let fact =
        format!("{} does not hold {}: these are closed from each app's next apply on", joined(set), joined(outside));
    check(NODE_RANGE, CheckState::Warned, fact, Some(&remedy))
}

pub(super) fn isolated(found: &Isolation, now: Timestamp) -> Check {
    let ago = now.duration_since(found.checked).as_secs().max(0) / 60;
    let fact = format!(
        "network policies are enforced for {} on {}, {} ms after they are made; found out {ago} min ago",
        found.families.join(" and "),
        found.places.join(", "),
        found.time_to_deny_millis
    );
    check(ISOLATION, CheckState::Passed, fact, None)
}

/// The smallest range of each family that holds all of these, in order.
fn covering(ranges: &[IpNet]) -> Vec<IpNet> {
    let mut covers: Vec<IpNet> = Vec::new();
    for range in ranges {
        let same = |cover: &&mut IpNet| cover.addr().is_ipv4() == range.addr().is_ipv4();
        match covers.iter_mut().find(same) {
            None => covers.push(range.trunc()),
            Some(cover) => {
                while !cover.contains(range) {
                    let Some(wider) = cover.supernet() else { break };
                    *cover = wider;
                }
            }
        }
    }
    covers.sort_unstable();
    covers
}

fn joined(items: impl IntoIterator<Item: ToString>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use pando_api::Code;
    use serde_json::json;

    use super::*;

    fn ranges(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().expect("a range")).collect()
    }

    fn node(name: &str, address: &str, pods: &[&str]) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"podCIDRs": pods}, "status": {
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "conditions": [{"type": "Ready", "status": "True"}]}}))
        .expect("a node")
    }

    fn two() -> [Node; 2] {
        [node("a", "172.18.0.2", &["10.244.0.0/24", "fd00:10:244::/64"]), node("b", "172.18.0.9", &["10.244.1.0/24"])]
    }

    #[test]
    fn a_range_that_pods_lie_outside_of_is_told_with_one_that_holds_them() {
        let rows: &[(&[&str], CheckState, &str)] = &[
            (&["10.244.0.0/16", "fd00:10:244::/56"], CheckState::Passed, ""),
            (&["10.244.0.0/24", "fd00:10:244::/56"], CheckState::Failed, "10.244.0.0/23, fd00:10:244::/64"),
            (&["10.244.0.0/16"], CheckState::Failed, "fd00:10:244::/64"),
            (&["10.42.0.0/16"], CheckState::Failed, "10.244.0.0/23"),
        ];
        for (set, state, words) in rows {
            let check = pod_ranges(&two(), &ranges(set));
            assert_eq!(check.state, *state, "{check:?}");
            assert!(check.remedy.unwrap_or_default().contains(words));
        }
        assert_eq!(pod_ranges(&[node("a", "172.18.0.2", &[])], &ranges(&["10.0.0.0/8"])).state, CheckState::Warned);
    }

    #[test]
    fn a_service_outside_of_its_range_is_told() {
        let service = |namespace: &str, addresses: &[&str]| -> Service {
            serde_json::from_value(json!({"metadata": {"name": "kubernetes", "namespace": namespace},
                "spec": {"clusterIPs": addresses}}))
            .expect("a service")
        };
        let services = [service("other", &["10.0.0.7"]), service("default", &["10.96.0.1", "fd00::1"])];
        let state = |set| service_ranges(&services, &ranges(set)).state;
        assert_eq!(state(&["10.96.0.0/16", "fd00::/112"]), CheckState::Passed);
        assert_eq!(state(&["10.96.0.0/16"]), CheckState::Failed);
        assert_eq!(service_ranges(&services[..1], &ranges(&["10.96.0.0/16"])).state, CheckState::Unknown);
    }

    #[test]
    fn nodes_that_join_later_are_thought_of() {
        for (set, state) in [
            (&[][..], CheckState::Warned),
            (&["172.18.0.0/16"][..], CheckState::Passed),
            (&["172.18.0.0/30"][..], CheckState::Warned),
        ] {
            let check = node_ranges(&two(), &ranges(set));
            assert_eq!(check.state, state, "{check:?}");
            assert_eq!(check.remedy.is_some(), state == CheckState::Warned);
            assert!(check.remedy.is_none_or(|remedy| remedy.contains("172.18.0.0/28")));
        }
    }

    #[test]
    fn an_api_server_is_slow_silent_or_well() {
        let pace = |millis, addresses: &[&str]| Pace {
            median: Duration::from_millis(millis),
            addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
        };
        let state = |pace| answers(&pace).state;
        assert_eq!(state(Ok(pace(3, &["172.18.0.2:6443"]))), CheckState::Passed);
        assert_eq!(state(Ok(pace(501, &["172.18.0.2:6443"]))), CheckState::Warned);
        assert_eq!(state(Ok(pace(3, &[]))), CheckState::Failed);
        assert_eq!(state(Err(Error::new(Code::AdapterUnavailable, "no"))), CheckState::Failed);
    }

    #[test]
    fn ranges_are_covered_by_the_smallest_one_of_their_family() {
        for (given, expected) in [
            (&[][..], ""),
            (&["10.0.0.1/32"][..], "10.0.0.1/32"),
            (&["10.0.0.1/32", "10.0.0.2/32"][..], "10.0.0.0/30"),
            (&["0.0.0.0/32", "255.0.0.0/8", "fd00::1/128"][..], "0.0.0.0/0, fd00::1/128"),
        ] {
            assert_eq!(joined(covering(&ranges(given))), expected);
        }
    }
}
