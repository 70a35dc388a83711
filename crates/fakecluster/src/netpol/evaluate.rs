//! From facts and policies to a verdict.

use std::fmt;
use std::net::IpAddr;

use super::policy::{Peer, Policies, Policy, PolicyName, Port, PortNumber, Rule};
use super::world::{Connection, End, Family, Phase, PodName, PodSeat, Protocol, ServiceFacts, TargetPort, World};

/// Which way a policy looks at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// At connections to its pods.
    Ingress,
    /// At connections from its pods.
    Egress,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        })
    }
}

/// What becomes of a connection, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is let through at both ends, replies included.
    Allowed {
        /// Why the client may open it.
        egress: Grounds,
        /// Why the server may be reached.
        ingress: Grounds,
    },
    /// No rule at one end lets it through.
    Denied {
        /// At which end: egress is the client's.
        direction: Direction,
        /// The pod at that end.
        pod: PodName,
        /// The policies that isolate the pod in that direction.
        isolated_by: Vec<PolicyName>,
    },
    /// There is nobody at one end: no such pod, one that has ended or has no address yet, a Service without
    /// backends.
    NoEndpoint(String),
}

/// Why one end lets a connection through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grounds {
    /// That end is no pod, or one that policies do not reach.
    NotAPod,
    /// A pod cannot block itself.
    Itself,
    /// A pod cannot block the node it runs on.
    OwnNode,
    /// No policy isolates the pod in that direction.
    NotIsolated,
    /// A rule admits it: the policy, and the rule's index in its direction.
    Rule(PolicyName, usize),
    /// Policies are not defined for the protocol, and the plugin lets it pass.
    OtherProtocol,
    /// The plugin does not judge the pod's connections yet, or never does.
    NotEnforced,
}

impl Decision {
    /// Whether the connection comes about.
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed { .. })
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed { egress, ingress } => write!(f, "allowed: egress {egress}, ingress {ingress}"),
            Self::Denied { direction, pod, isolated_by } => {
                let names: Vec<_> = isolated_by.iter().map(ToString::to_string).collect();
                write!(f, "denied: {} isolates {pod} for {direction}, and no rule admits this", names.join(" and "))
            }
            Self::NoEndpoint(who) => write!(f, "no endpoint: {who}"),
        }
    }
}

impl fmt::Display for Grounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPod => f.write_str("not judged (no pod)"),
            Self::Itself => f.write_str("not judged (the pod itself)"),
            Self::OwnNode => f.write_str("not judged (the pod's node)"),
            Self::NotIsolated => f.write_str("not isolated"),
            Self::Rule(policy, rule) => write!(f, "by rule {rule} of {policy}"),
            Self::OtherProtocol => f.write_str("not judged (protocol)"),
            Self::NotEnforced => f.write_str("not judged (not enforced)"),
        }
    }
}

/// What Kubernetes' documentation says about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every plugin that follows the documentation decides so.
    Defined(Decision),
    /// The documentation leaves it to the plugin.
    Undefined,
}

/// How a plugin treats pods on the network of their node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostPods {
    /// As their node: no policy selects them, neither as targets nor as peers. The common way.
    #[default]
    AreNodes,
    /// As pods.
    ArePods,
}

/// When a plugin looks at the address of a connection to a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceRewrite {
    /// After it was rewritten to a backend's: an `ipBlock` sees the backend. The common way.
    #[default]
    BeforePolicy,
    /// Before: an `ipBlock` sees the Service's own address.
    AfterPolicy,
}

/// The choices that the documentation leaves to a network plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plugin {
    /// Pods on the host's network.
    pub host_pods: HostPods,
    /// Services' addresses.
    pub service_rewrite: ServiceRewrite,
    /// Whether protocols without ports pass whatever the policies say; else only a rule without ports admits them.
    pub other_protocols_pass: bool,
    /// Whether a pod's connections to its own node are judged like any others, as kube-router does against the
    /// documentation; else they pass. Those from the node always pass: probes come from there.
    pub judges_own_node: bool,
}

impl Plugin {
    /// Every plugin that follows the documentation.
    fn every() -> impl Iterator<Item = Self> {
        [HostPods::AreNodes, HostPods::ArePods].into_iter().flat_map(|host_pods| {
            [ServiceRewrite::BeforePolicy, ServiceRewrite::AfterPolicy].into_iter().flat_map(move |service_rewrite| {
                [false, true].map(|other_protocols_pass| Self {
                    host_pods,
                    service_rewrite,
                    other_protocols_pass,
                    judges_own_node: false,
                })
            })
        })
    }
}

impl Policies {
    /// What the documentation says about `connection`.
    pub fn documented(&self, world: &World, connection: &Connection) -> Verdict {
        let mut decisions = Plugin::every().flat_map(|plugin| self.per_backend(world, connection, plugin));
        let Some(first) = decisions.next() else {
            return Verdict::Undefined;
        };
        // What becomes of open connections is the plugin's affair; they had been allowed, so only going on is sure.
        let cut_maybe = connection.established && !first.is_allowed();
        if cut_maybe || decisions.any(|other| other.is_allowed() != first.is_allowed()) {
            return Verdict::Undefined;
        }
        Verdict::Defined(first)
    }

    /// What `plugin` does to `connection`. Of several backends of a Service, the first by name is taken.
    pub fn enforced_by(&self, plugin: Plugin, world: &World, connection: &Connection) -> Decision {
        let mut decisions = self.per_backend(world, connection, plugin);
        // There is always one: without a backend, it says so.
        decisions.swap_remove(0)
    }

    fn per_backend(&self, world: &World, connection: &Connection, plugin: Plugin) -> Vec<Decision> {
        match routes(world, connection, plugin.host_pods) {
            Ok(routes) => routes.iter().map(|route| self.judge(world, route, plugin)).collect(),
            Err(nobody) => vec![Decision::NoEndpoint(nobody)],
        }
    }

    fn judge(&self, world: &World, route: &Route<'_>, plugin: Plugin) -> Decision {
        if plugin.other_protocols_pass && route.protocol == Protocol::Icmp {
            return Decision::Allowed { egress: Grounds::OtherProtocol, ingress: Grounds::OtherProtocol };
        }
        let judge = |direction, this: &Seat<'_>, other: &Seat<'_>, seen| {
            let own_node_passes = direction == Direction::Ingress || !plugin.judges_own_node;
            self.one_end(world, direction, this, &Traffic { other, other_ip: seen, route, own_node_passes })
        };
        let dialled = match plugin.service_rewrite {
            ServiceRewrite::BeforePolicy => route.to.ip,
            ServiceRewrite::AfterPolicy => route.dialled,
        };
        let egress = match judge(Direction::Egress, &route.from, &route.to, dialled) {
            Ok(grounds) => grounds,
            Err(denied) => return denied,
        };
        match judge(Direction::Ingress, &route.to, &route.from, route.from.ip) {
            Ok(ingress) => Decision::Allowed { egress, ingress },
            Err(denied) => denied,
        }
    }

    /// Whether the policies of `this` end let the traffic through.
    fn one_end(
        &self,
        world: &World,
        direction: Direction,
        this: &Seat<'_>,
        traffic: &Traffic<'_>,
    ) -> Result<Grounds, Decision> {
        let Who::Pod(name, seat) = this.who else {
            return Ok(Grounds::NotAPod);
        };
        match traffic.other.who {
            Who::Pod(other, _) if other == name => return Ok(Grounds::Itself),
            Who::Node(node) if traffic.own_node_passes && seat.node.as_deref() == Some(node) => {
                return Ok(Grounds::OwnNode);
            }
            Who::Pod(..) | Who::Node(_) | Who::Outside => {}
        }
        if seat.unguarded {
            return Ok(Grounds::NotEnforced);
        }
        let mut isolated_by = Vec::new();
        for policy in self.of(&name.namespace) {
            let Some(rules) = policy.rules(direction).filter(|_| policy.selects.matches(&seat.labels)) else {
                continue;
            };
            if let Some(rule) = rules.iter().position(|rule| traffic.admitted_by(rule, policy, world)) {
                return Ok(Grounds::Rule(policy.name.clone(), rule));
            }
            isolated_by.push(policy.name.clone());
        }
        if isolated_by.is_empty() {
            return Ok(Grounds::NotIsolated);
        }
        Err(Decision::Denied { direction, pod: name.clone(), isolated_by })
    }
}

impl Policy {
    fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// Who sits at an address.
#[derive(Clone, Copy)]
enum Who<'a> {
    Pod(&'a PodName, &'a PodSeat),
    Node(&'a str),
    Outside,
}

/// An end, found.
#[derive(Clone, Copy)]
struct Seat<'a> {
    who: Who<'a>,
    ip: IpAddr,
}

/// A connection between two ends that exist, with its addresses rewritten.
struct Route<'a> {
    from: Seat<'a>,
    to: Seat<'a>,
    /// The address the client dialled: the backend's, or its Service's.
    dialled: IpAddr,
    /// The port at the backend.
    port: u16,
    protocol: Protocol,
}

/// A route as one of its ends sees it.
struct Traffic<'a> {
    other: &'a Seat<'a>,
    /// The other's address as the plugin shows it to an `ipBlock`.
    other_ip: IpAddr,
    route: &'a Route<'a>,
    own_node_passes: bool,
}

impl Traffic<'_> {
    fn admitted_by(&self, rule: &Rule, policy: &Policy, world: &World) -> bool {
        (rule.peers.is_empty() || rule.peers.iter().any(|peer| self.is_with(peer, policy, world)))
            && rule.ports.as_ref().is_none_or(|ports| ports.iter().any(|port| self.is_on(port)))
    }

    fn is_with(&self, peer: &Peer, policy: &Policy, world: &World) -> bool {
        let Peer::Pods { namespaces, pods } = peer else {
            return peer.covers(self.other_ip);
        };
        let Who::Pod(name, seat) = self.other.who else {
            return false;
        };
        let namespace = match namespaces {
            None => name.namespace == policy.name.namespace,
            Some(selector) => world.namespace_labels(&name.namespace).is_some_and(|labels| selector.matches(labels)),
        };
        namespace && pods.matches(&seat.labels)
    }

    /// Policies speak of the port at the server, in both directions.
    fn is_on(&self, port: &Port) -> bool {
        let route = self.route;
        port.protocol == route.protocol
            && match &port.number {
                PortNumber::Any => true,
                PortNumber::Range(first, last) => (*first..=*last).contains(&route.port),
                PortNumber::Named(name) => match route.to.who {
                    Who::Pod(_, seat) => seat.ports.iter().any(|declared| {
                        declared.name.as_ref() == Some(name)
                            && declared.protocol == route.protocol
                            && declared.port == route.port
                    }),
                    Who::Node(_) | Who::Outside => false,
                },
            }
    }
}

/// The ways a connection can take, one for each backend; at least one, or a word on who is missing.
fn routes<'a>(world: &'a World, connection: &'a Connection, host_pods: HostPods) -> Result<Vec<Route<'a>>, String> {
    let family = match (&connection.from, &connection.to) {
        (End::Address(ip), _) | (_, End::Address(ip)) if ip.is_ipv6() => Family::V6,
        (End::Address(_), _) | (_, End::Address(_)) => Family::V4,
        _ => connection.family,
    };
    let look = Look { world, family, host_pods };
    let from = look.seat(&connection.from)?;
    let route = |to: Seat<'a>, dialled, port| Route { from, to, dialled, port, protocol: connection.protocol };
    let service = match &connection.to {
        End::Service(namespace, name) => {
            let found = world.services.get_key_value(&(namespace.clone(), name.clone()));
            Some(found.ok_or_else(|| format!("no Service {namespace}/{name}"))?)
        }
        End::Address(ip) => world.services.iter().find(|(_, service)| service.cluster_ip == Some(*ip)),
        End::Pod(_) | End::Node(_) => None,
    };
    let Some(((namespace, name), service)) = service else {
        let to = look.seat(&connection.to)?;
        return Ok(vec![route(to, to.ip, connection.port)]);
    };
    let backends = look.backends(namespace, service, connection);
    if backends.is_empty() {
        return Err(format!("no backend of Service {namespace}/{name} on port {}", connection.port));
    }
    Ok(backends.into_iter().map(|(to, port)| route(to, service.cluster_ip.unwrap_or(to.ip), port)).collect())
}

impl World {
    /// The address and port that a connection ends at, Services resolved; of several backends, the first by name.
    pub fn destination(&self, connection: &Connection) -> Option<(IpAddr, u16)> {
        let routes = routes(self, connection, HostPods::AreNodes).ok()?;
        routes.first().map(|route| (route.to.ip, route.port))
    }
}

/// Finds who is behind an end.
struct Look<'a> {
    world: &'a World,
    family: Family,
    host_pods: HostPods,
}

impl<'a> Look<'a> {
    fn seat(&self, end: &'a End) -> Result<Seat<'a>, String> {
        match end {
            End::Pod(name) => {
                let found = self.world.pods.get_key_value(name);
                found.and_then(|(name, seat)| self.pod(name, seat)).ok_or_else(|| format!("pod {name} has no address"))
            }
            End::Node(name) => {
                let ips = self.world.nodes.get(name).map_or(&[][..], Vec::as_slice);
                let ip = self.family.pick(ips).ok_or_else(|| format!("node {name} has no address"))?;
                Ok(Seat { who: Who::Node(name), ip })
            }
            End::Address(ip) => Ok(self.at(*ip)),
            End::Service(namespace, name) => Err(format!("Service {namespace}/{name} opens no connections")),
        }
    }

    /// The pod's seat; `None` once it has ended and while it has no address.
    fn pod(&self, name: &'a PodName, seat: &'a PodSeat) -> Option<Seat<'a>> {
        if seat.phase == Phase::Ended {
            return None;
        }
        if !seat.host_network {
            return Some(Seat { who: Who::Pod(name, seat), ip: self.family.pick(&seat.ips)? });
        }
        let (node, ips) = self.world.nodes.get_key_value(seat.node.as_deref()?)?;
        let who = match self.host_pods {
            HostPods::AreNodes => Who::Node(node),
            HostPods::ArePods => Who::Pod(name, seat),
        };
        Some(Seat { who, ip: self.family.pick(ips)? })
    }

    fn at(&self, ip: IpAddr) -> Seat<'a> {
        let of_pod = |(_, seat): &(&PodName, &PodSeat)| seat.phase != Phase::Ended && seat.ips.contains(&ip);
        let pod = self.world.pods.iter().find(of_pod).map(|(name, seat)| Who::Pod(name, seat));
        let node = || self.world.nodes.iter().find(|(_, ips)| ips.contains(&ip)).map(|(name, _)| Who::Node(name));
        Seat { who: pod.or_else(node).unwrap_or(Who::Outside), ip }
    }

    /// The backends that `connection` may be given by a Service, with the port at each.
    fn backends(&self, namespace: &str, service: &'a ServiceFacts, connection: &Connection) -> Vec<(Seat<'a>, u16)> {
        let declared = service
            .ports
            .iter()
            .find(|declared| declared.port == connection.port && declared.protocol == connection.protocol);
        if service.selector.is_empty() {
            let given = declared.map_or(&[][..], |_| &service.external);
            return given.iter().map(|(ip, port)| (self.at(*ip), *port)).collect();
        }
        let mine = self.world.pods.iter().filter(|(name, seat)| {
            name.namespace == namespace
                && (seat.ready || service.publish_not_ready)
                && service.selector.iter().all(|(key, value)| seat.labels.get(key) == Some(value))
        });
        mine.filter_map(|(name, pod)| {
            let port = match (service.cluster_ip, declared) {
                // A headless name leads to the pod itself: whatever port is dialled is the pod's.
                (None, _) => connection.port,
                (Some(_), declared) => match &declared?.target {
                    TargetPort::Number(port) => *port,
                    TargetPort::Name(target) => {
                        let named = |port: &&super::ContainerPort| {
                            port.name.as_ref() == Some(target) && port.protocol == connection.protocol
                        };
                        pod.ports.iter().find(named)?.port
                    }
                },
            };
            Some((self.pod(name, pod)?, port))
        })
        .collect()
    }
}
