//! The facts that a verdict rests on.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// The label that the control plane puts on every namespace.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Names a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl PodName {
    /// The pod `name` in `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Who is where, with which labels and addresses.
#[derive(Clone, Debug, Default)]
pub struct World {
    // Private, so that no namespace lacks its name's label.
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// The addresses of each node.
    pub nodes: BTreeMap<String, Vec<IpAddr>>,
    /// The pods, ended ones included.
    pub pods: BTreeMap<PodName, PodSeat>,
    /// The Services, by namespace and name.
    pub services: BTreeMap<(String, String), ServiceFacts>,
}

impl World {
    /// Adds or replaces a namespace; the label with its name is added as the control plane adds it.
    pub fn set_namespace(&mut self, name: &str, mut labels: BTreeMap<String, String>) {
        labels.insert(NAME_LABEL.to_owned(), name.to_owned());
        self.namespaces.insert(name.to_owned(), labels);
    }

    /// Removes a namespace, its pods and Services included.
    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
        self.pods.retain(|pod, _| pod.namespace != name);
        self.services.retain(|(namespace, _), _| namespace != name);
    }

    /// The labels of a namespace; none for one that is not there.
    pub fn namespace_labels(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(name)
    }
}

/// A pod as the network sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSeat {
    /// Its identity; verdicts do not look at it.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The node it runs on, once it has one.
    pub node: Option<String>,
    /// Its own addresses, of either family. Empty for a pod on the host's network, which has its node's.
    pub ips: Vec<IpAddr>,
    /// The ports its containers declare.
    pub ports: Vec<ContainerPort>,
    /// How far it is.
    pub phase: Phase,
    /// Whether it is ready to serve; only asked when a Service picks a backend.
    pub ready: bool,
    /// Whether it uses the network of its node.
    pub host_network: bool,
    /// Whether the network plugin has not got round to it yet, so that no policy isolates it for now.
    pub unguarded: bool,
}

/// How far a pod is. A terminating pod is still `Running`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Not all of its containers have started. It may have an address and run init containers.
    Pending,
    /// It runs.
    #[default]
    Running,
    /// It has ended: whatever address it shows is no longer its own.
    Ended,
}

/// A port that a container declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPort {
    /// The name a policy may use for it.
    pub name: Option<String>,
    /// Its number.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
}

/// A Service as far as the network rewrites addresses for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFacts {
    /// Its virtual address; `None` for a headless one, whose name leads to the pods themselves.
    pub cluster_ip: Option<IpAddr>,
    /// The labels of its pods; empty selects nothing.
    pub selector: BTreeMap<String, String>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// Whether pods that are not ready are given out too.
    pub publish_not_ready: bool,
    /// Where it leads when it has no selector and its endpoints were written by hand.
    pub external: Vec<(IpAddr, u16)>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// The port clients dial.
    pub port: u16,
    /// The port of the pod.
    pub target: TargetPort,
    /// The protocol.
    pub protocol: Protocol,
}

/// Where a Service's port leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPort {
    /// To that number.
    Number(u16),
    /// To the container port of that name.
    Name(String),
}

/// A transport protocol. Policies are defined for the first three only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// ICMP, e.g. a ping; it has no ports.
    Icmp,
}

impl Protocol {
    /// The protocol Kubernetes spells `name`; `None` for one it does not know.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "TCP" => Self::Tcp,
            "UDP" => Self::Udp,
            "SCTP" => Self::Sctp,
            "ICMP" => Self::Icmp,
            _ => return None,
        })
    }
}

/// An address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// `IPv4`.
    #[default]
    V4,
    /// `IPv6`.
    V6,
}

impl Family {
    /// The first of `ips` that is of this family.
    pub fn pick(self, ips: &[IpAddr]) -> Option<IpAddr> {
        ips.iter().copied().find(|ip| ip.is_ipv4() == (self == Self::V4))
    }
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// A pod.
    Pod(PodName),
    /// A node itself.
    Node(String),
    /// Whoever has that address: a pod, a node, a Service, or somebody outside the cluster.
    Address(IpAddr),
    /// A Service, by namespace and name; only as a destination.
    Service(String, String),
}

/// A connection that somebody opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Who opens it.
    pub from: End,
    /// To whom.
    pub to: End,
    /// The port that is dialled; without meaning for ICMP.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// Which addresses are used between pods and nodes.
    pub family: Family,
    /// It was open before the policies came to be as they are. What becomes of it then is not defined.
    pub established: bool,
}

impl Connection {
    /// A new TCP connection over `IPv4`.
    pub fn tcp(from: End, to: End, port: u16) -> Self {
        Self { from, to, port, protocol: Protocol::Tcp, family: Family::V4, established: false }
    }
}
