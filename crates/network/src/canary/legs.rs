//! Who dials whom.
//!
//! One namespace, the *policed* one, gets the policy of an app; the other has none. Where there are two nodes, policed pods are on both,
//! since plugins enforce on each node by an agent of its own, and the others dial them from their own node and from another one, since
//! packets that stay on a node take another way.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::PORT;

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub const fn of(address: IpAddr) -> Self {
        if address.is_ipv6() { Self::V6 } else { Self::V4 }
    }

    /// As people write it: `IPv4` or `IPv6`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A way that packets may take, as the policy of an app sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// From a policed pod to a pod of another namespace: the policy closes it.
    Out,
    /// From a pod of another namespace to a policed pod: the policy closes it.
    In,
    /// From a policed pod to the API server's own addresses: the policy closes it, and gates rely on that.
    ApiServer,
    /// From a policed pod to a pod of its own namespace: the policy admits it.
    Own,
    /// The same, by the name of a Service: the policy admits the question too.
    Name,
    /// From a pod that is labelled as Pando's server to a policed pod: the policy admits it.
    Proxy,
    /// Between two pods without a policy.
    Free,
}

impl Way {
    /// Whether the policy closes it.
    pub const fn is_closed(self) -> bool {
        matches!(self, Self::Out | Self::In | Self::ApiServer)
    }

    /// The way in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Out => "from an app's pod to a pod of another namespace",
            Self::In => "from a pod of another namespace to an app's pod",
            Self::ApiServer => "from an app's pod to the API server's own address",
            Self::Own => "from an app's pod to one of its own",
            Self::Name => "from an app's pod to one of its own by name",
            Self::Proxy => "from Pando's server to an app's pod",
            Self::Free => "between pods that no policy selects",
        }
    }
}

/// Where a prober dials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether the page of a canary's server is asked for; else a connection is enough.
    pub http: bool,
    /// An address, in brackets where an IPv6 one is asked for a page, or a name.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl Target {
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let http = match words.next()? {
            "http" => true,
            "tcp" => false,
            _ => return None,
        };
        let (host, port) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        words.next().is_none().then_some(Self { http, host, port })
    }

    fn page(address: IpAddr) -> Self {
        let host = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
        Self { http: true, host, port: PORT }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", if self.http { "http" } else { "tcp" }, self.host, self.port)
    }
}

/// One thing that a prober tries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Which way.
    pub way: Way,
    /// By which family; `None` where a name decides.
    pub family: Option<Family>,
    /// The node of the pod that it leads to; none where it leads to no pod.
    pub to: Option<String>,
    /// Where to.
    pub target: Target,
}

/// Whose namespace a prober is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// The policed one.
    Policed,
    /// The other one, as anybody.
    Stranger,
    /// The other one, labelled as Pando's server.
    Proxy,
}

/// A pod that dials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prober {
    /// Where it stands.
    pub seat: Seat,
    /// The node that it is on.
    pub node: String,
    /// What it tries.
    pub legs: Vec<Leg>,
}

/// A pod that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The node that it is on.
    pub node: String,
    /// Its addresses, at most one of each family.
    pub addresses: Vec<IpAddr>,
}

/// The probers of a canary: one in the policed namespace on each of its servers' nodes; a stranger and Pando's server on the first.
///
/// `name` is that of a Service of the policed servers. Of the API server's addresses those count whose family pods have.
pub fn probers(policed: &[Server], other: &Server, name: &str, api_server: &BTreeSet<SocketAddr>) -> Vec<Prober> {
    let Some(first) = policed.first() else { return Vec::new() };
    let families: BTreeSet<Family> = other.addresses.iter().copied().map(Family::of).collect();
    let api_server = api_server.iter().filter(|address| families.contains(&Family::of(address.ip())));
    let api_server: Vec<_> = api_server
        .map(|address| Leg {
            way: Way::ApiServer,
            family: Some(Family::of(address.ip())),
            to: None,
            target: Target { http: false, host: address.ip().to_string(), port: address.port() },
        })
        .collect();
    let by_name = || Leg {
        way: Way::Name,
        family: None,
        to: None,
        target: Target { http: true, host: name.to_owned(), port: PORT },
    };
    let mut probers: Vec<_> = policed
        .iter()
        .map(|server| {
            // A neighbour on another node where there is one: its own pods are more than the one beside it.
            let neighbour = policed.iter().find(|other| other.node != server.node).unwrap_or(server);
            let legs = to(Way::Out, other).chain(to(Way::Own, neighbour)).chain([by_name()]).chain(api_server.clone());
            Prober { seat: Seat::Policed, node: server.node.clone(), legs: legs.collect() }
        })
        .collect();
    let all = |way| policed.iter().flat_map(move |server| to(way, server));
    probers.push(Prober {
        seat: Seat::Stranger,
        node: first.node.clone(),
        legs: all(Way::In).chain(to(Way::Free, other)).collect(),
    });
    probers.push(Prober { seat: Seat::Proxy, node: first.node.clone(), legs: all(Way::Proxy).collect() });
    probers
}

fn to(way: Way, server: &Server) -> impl Iterator<Item = Leg> {
    server.addresses.iter().map(move |address| Leg {
        way,
        family: Some(Family::of(*address)),
        to: Some(server.node.clone()),
        target: Target::page(*address),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(node: &str, addresses: &[&str]) -> Server {
        let addresses = addresses.iter().map(|it| it.parse().expect("an address")).collect();
        Server { node: node.to_owned(), addresses }
    }

    fn api() -> BTreeSet<SocketAddr> {
        ["172.18.0.2:6443", "[fd01::2]:6443"].map(|it| it.parse().expect("an address")).into()
    }

    /// Every closed way of every family has, in the same prober, an admitted one of that family beside it.
    #[test]
    fn every_closed_leg_has_a_control_beside_it() {
        let policed = [server("a", &["10.0.0.1", "fd00::1"]), server("b", &["10.0.0.2", "fd00::2"])];
        let probers = probers(&policed, &server("b", &["10.0.0.3", "fd00::3"]), "web.x", &api());
        for prober in &probers {
            for leg in prober.legs.iter().filter(|leg| leg.way.is_closed()) {
                let control = |it: &&Leg| !it.way.is_closed() && it.family == leg.family;
                assert!(prober.legs.iter().any(|it| control(&it)), "{leg:?} of {prober:?}");
            }
        }
        let count = |way: Way| probers.iter().flat_map(|it| &it.legs).filter(|leg| leg.way == way).count();
        // Both families, on both nodes.
        assert_eq!(
            [Way::Out, Way::In, Way::ApiServer, Way::Own, Way::Name, Way::Proxy, Way::Free].map(count),
            [4, 4, 4, 4, 2, 4, 2]
        );
    }

    #[test]
    fn the_api_server_is_dialled_by_the_families_of_pods() {
        let policed = [server("a", &["10.0.0.1"])];
        let probers = probers(&policed, &server("a", &["10.0.0.3"]), "web.x", &api());
        let targets = probers.iter().flat_map(|it| &it.legs).filter(|leg| leg.way == Way::ApiServer);
        assert_eq!(targets.map(|leg| leg.target.to_string()).collect::<Vec<_>>(), ["tcp 172.18.0.2 6443"]);
    }

    #[test]
    fn a_single_node_is_enough() {
        let policed = [server("a", &["10.0.0.1"])];
        let probers = probers(&policed, &server("a", &["10.0.0.3"]), "web.x", &BTreeSet::new());
        assert_eq!(probers.iter().map(|it| it.seat).collect::<Vec<_>>(), [Seat::Policed, Seat::Stranger, Seat::Proxy]);
    }

    #[test]
    fn targets_are_written_and_read() {
        for text in ["http 10.0.0.1 8080", "http [fd00::1] 8080", "tcp 172.18.0.2 6443", "http web.x.svc 80"] {
            assert_eq!(Target::read(text).map(|it| it.to_string()).as_deref(), Some(text));
        }
        for text in ["", "udp a 1", "tcp a", "tcp a b", "tcp a 1 2", "http a 70000"] {
            assert_eq!(Target::read(text), None, "{text:?}");
        }
    }
}
