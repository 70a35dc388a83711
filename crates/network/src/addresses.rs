//! The addresses of the cluster itself, which no app may reach.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// Addresses of the cluster's own machines and API server, as read from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterAddresses {
    /// Every address of every node.
    pub nodes: BTreeSet<IpAddr>,
    /// Where the API server really answers. On managed clusters these lie in no range of the cluster's.
    pub api_server: BTreeSet<SocketAddr>,
}

/// The addresses that nodes report; host names among them are left out.
pub fn node_addresses(nodes: &[Node]) -> BTreeSet<IpAddr> {
    nodes
        .iter()
        .filter_map(|node| node.status.as_ref()?.addresses.as_ref())
        .flatten()
        .filter_map(|address| address.address.parse().ok())
        .collect()
}

/// The addresses and ports in the `EndpointSlice` of the Service `default/kubernetes`.
pub fn api_server_addresses(slice: &EndpointSlice) -> BTreeSet<SocketAddr> {
    let ports: Vec<u16> = slice
        .ports
        .iter()
        .flatten()
        .filter_map(|port| u16::try_from(port.port?).ok())
        .filter(|port| *port != 0)
        .collect();
    slice
        .endpoints
        .iter()
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|address| address.parse::<IpAddr>().ok())
        .flat_map(|address| ports.iter().map(move |port| SocketAddr::new(address, *port)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_address_of_a_node_counts_and_no_name() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "a"}, "status": {"addresses": [
            {"type": "InternalIP", "address": "172.18.0.2"}, {"type": "ExternalIP", "address": "203.0.113.9"},
            {"type": "InternalIP", "address": "fd00::2"}, {"type": "Hostname", "address": "a"}]}}))
        .expect("a node");
        let found: Vec<_> = node_addresses(&[node, Node::default()]).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["172.18.0.2", "203.0.113.9", "fd00::2"]);
    }

    #[test]
    fn the_api_server_is_where_its_endpoints_are() {
        let slice: EndpointSlice = serde_json::from_value(json!({"addressType": "IPv4", "ports": [{"port": 6443}],
            "endpoints": [{"addresses": ["172.18.0.2"]}, {"addresses": ["172.18.0.5"]}]}))
        .expect("a slice");
        let found: Vec<_> = api_server_addresses(&slice).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["172.18.0.2:6443", "172.18.0.5:6443"]);
    }
}
