//! Policies, compiled to be asked quickly.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::selector::LabelMatch;
use super::world::Protocol;

/// Names a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A set of policies, defaulted as the API server defaults them.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    by_namespace: BTreeMap<String, Vec<Policy>>,
}

/// One policy.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) name: PolicyName,
    pub(super) selects: LabelMatch,
    /// The rules for connections to its pods; `None` when it says nothing about them.
    pub(super) ingress: Option<Vec<Rule>>,
    /// The rules for connections from its pods; `None` when it says nothing about them.
    pub(super) egress: Option<Vec<Rule>>,
}

/// One rule: a peer AND a port.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// Empty: every peer.
    pub(super) peers: Vec<Peer>,
    /// `None`: every port of every protocol. A list without entries opens nothing.
    pub(super) ports: Option<Vec<Port>>,
}

#[derive(Clone, Debug)]
pub(super) enum Peer {
    /// Pods; without `namespaces`, those of the policy's own namespace.
    Pods { namespaces: Option<LabelMatch>, pods: LabelMatch },
    /// Addresses.
    Block { cidr: IpNet, except: Vec<IpNet> },
    /// What the API server would have refused; it matches nobody.
    Nobody,
}

#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) protocol: Protocol,
    pub(super) number: PortNumber,
}

#[derive(Clone, Debug)]
pub(super) enum PortNumber {
    Any,
    /// From one number to another, both included.
    Range(u16, u16),
    /// A container port of the destination.
    Named(String),
}

impl Policies {
    /// Reads policies. One without a name or namespace counts under an empty one.
    pub fn new<'a>(policies: impl IntoIterator<Item = &'a NetworkPolicy>) -> Self {
        let mut all = Self::default();
        for policy in policies {
            all.add(policy);
        }
        all
    }

    /// Adds one policy.
    pub fn add(&mut self, policy: &NetworkPolicy) {
        let name = PolicyName {
            namespace: policy.metadata.namespace.clone().unwrap_or_default(),
            name: policy.metadata.name.clone().unwrap_or_default(),
        };
        let spec = policy.spec.clone().unwrap_or_default();
        let compiled = Policy::new(name, &spec);
        self.by_namespace.entry(compiled.name.namespace.clone()).or_default().push(compiled);
    }

    pub(super) fn of(&self, namespace: &str) -> &[Policy] {
        self.by_namespace.get(namespace).map_or(&[], Vec::as_slice)
    }
}

impl Policy {
    fn new(name: PolicyName, spec: &NetworkPolicySpec) -> Self {
        let named = |direction: &str| {
            let types = spec.policy_types.as_deref().unwrap_or_default();
            types.iter().any(|named| named == direction)
        };
        // Without policyTypes: ingress always, egress when there is a rule for it.
        let undefaulted = spec.policy_types.as_ref().is_none_or(Vec::is_empty);
        let has_egress = spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
        let ingress =
            || spec.ingress.iter().flatten().map(|rule| Rule::new(rule.from.as_deref(), rule.ports.as_deref()));
        let egress = || spec.egress.iter().flatten().map(|rule| Rule::new(rule.to.as_deref(), rule.ports.as_deref()));
        Self {
            name,
            selects: matcher(spec.pod_selector.as_ref()),
            ingress: (undefaulted || named("Ingress")).then(|| ingress().collect()),
            egress: ((undefaulted && has_egress) || named("Egress")).then(|| egress().collect()),
        }
    }
}

impl Rule {
    fn new(peers: Option<&[NetworkPolicyPeer]>, ports: Option<&[NetworkPolicyPort]>) -> Self {
        let ports = ports.unwrap_or_default();
        Self {
            peers: peers.unwrap_or_default().iter().map(Peer::new).collect(),
            ports: (!ports.is_empty()).then(|| ports.iter().filter_map(Port::new).collect()),
        }
    }
}

impl Peer {
    fn new(peer: &NetworkPolicyPeer) -> Self {
        match (&peer.ip_block, &peer.namespace_selector, &peer.pod_selector) {
            (Some(block), None, None) => Self::block(block),
            (None, None, None) | (Some(_), _, _) => Self::Nobody,
            (None, namespaces, pods) => {
                Self::Pods { namespaces: namespaces.as_ref().map(LabelMatch::new), pods: matcher(pods.as_ref()) }
            }
        }
    }

    fn block(block: &IPBlock) -> Self {
        let Ok(cidr) = IpNet::from_str(&block.cidr) else {
            return Self::Nobody;
        };
        let except = block.except.iter().flatten().filter_map(|except| IpNet::from_str(except).ok()).collect();
        Self::Block { cidr, except }
    }

    /// Whether an ipBlock covers `ip`.
    pub(super) fn covers(&self, ip: IpAddr) -> bool {
        match self {
            Self::Block { cidr, except } => cidr.contains(&ip) && !except.iter().any(|except| except.contains(&ip)),
            Self::Pods { .. } | Self::Nobody => false,
        }
    }
}

impl Port {
    /// `None` for what the API server would have refused: such an entry opens nothing.
    fn new(port: &NetworkPolicyPort) -> Option<Self> {
        let protocol = Protocol::parse(port.protocol.as_deref().unwrap_or("TCP"))?;
        let number = match (&port.port, port.end_port) {
            (None, _) => PortNumber::Any,
            (Some(IntOrString::String(name)), _) => PortNumber::Named(name.clone()),
            (Some(IntOrString::Int(first)), last) => {
                PortNumber::Range(u16::try_from(*first).ok()?, u16::try_from(last.unwrap_or(*first)).ok()?)
            }
        };
        Some(Self { protocol, number })
    }
}

fn matcher(selector: Option<&LabelSelector>) -> LabelMatch {
    selector.map(LabelMatch::new).unwrap_or_default()
}
