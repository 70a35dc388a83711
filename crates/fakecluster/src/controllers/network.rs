//! The network: names, addresses, and which connections come about.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::networking::v1::NetworkPolicy;
use pando_cluster::Kind;
use serde_json::Value;

use super::machines::State;
use super::objects::{has_ended, text};
use crate::FakeCluster;
use crate::behaviour::Outcome;
use crate::netpol::{
    Connection, ContainerPort, Decision, End, Phase, PodName, PodSeat, Policies, Protocol, ServiceFacts, ServicePort,
    TargetPort, World,
};
use crate::store::Store;

/// What every cluster's nodes and API server listen on.
const NODE_PORTS: [u16; 2] = [6443, 10250];

/// The network plugin's agent: brings the policies in the store into force, a little later.
pub(super) async fn agent(fake: FakeCluster) {
    let mut seen = 0;
    loop {
        let touched = fake.with(|store| {
            let changes = store.changes_after(seen);
            let touched = changes.is_none_or(|mut all| all.any(|change| change.key.kind == Kind::NetworkPolicy));
            seen = store.revision();
            touched
        });
        if touched {
            let lag = fake.config().delays.policy_sync;
            if !lag.is_zero() {
                fake.env().sleep(lag).await;
            }
            let policies = fake.view().policies;
            fake.machines().with(|state| state.policies = policies);
        }
        fake.changed(seen).await;
    }
}

/// The store as the network looks at it, kept until the store changes.
#[derive(Clone, Debug)]
pub(super) struct View {
    world: Arc<World>,
    policies: Arc<Policies>,
}

/// Keeps the latest [`View`].
#[derive(Debug, Default)]
pub(crate) struct ViewCache(Mutex<Option<(u64, View)>>);

impl FakeCluster {
    /// What the policies in the store do to a new connection, for a network plugin that has handled them all.
    pub fn verdict(&self, from: &End, to: &End, port: u16, protocol: Protocol) -> Decision {
        let view = self.view();
        view.policies.enforced_by(self.config().plugin, &view.world, &connection(from, to, port, protocol))
    }

    /// What the network really does to a new connection at this moment: the plugin may be late with a fresh pod
    /// or a changed policy, or enforce nothing.
    pub fn enforced_verdict(&self, from: &End, to: &End, port: u16, protocol: Protocol) -> Decision {
        let (world, policies) = self.enforced();
        policies.enforced_by(self.config().plugin, &world, &connection(from, to, port, protocol))
    }

    /// What comes of a TCP connection that a pod opens to another at this moment.
    pub fn connect(&self, from: &PodName, to: &PodName, port: u16) -> Outcome {
        self.dial(&End::Pod(from.clone()), &End::Pod(to.clone()), port)
    }

    /// What comes of a TCP connection between any two ends at this moment.
    pub fn dial(&self, from: &End, to: &End, port: u16) -> Outcome {
        let (world, policies) = self.enforced();
        let connection = connection(from, to, port, Protocol::Tcp);
        match policies.enforced_by(self.config().plugin, &world, &connection) {
            Decision::NoEndpoint(_) => Outcome::NoRoute,
            Decision::Denied { .. } => Outcome::Dropped,
            Decision::Allowed { .. } => match world.destination(&connection) {
                Some((ip, port)) => self.knock(&world, ip, port),
                None => Outcome::NoRoute,
            },
        }
    }

    /// The addresses that the cluster's DNS has for `name`, e.g. `web.pando-blog.svc.cluster.local`.
    ///
    /// A headless Service's are those of its slices that are ready; empty stands for NXDOMAIN.
    pub fn resolve(&self, name: &str) -> Vec<IpAddr> {
        let Some((service, namespace)) = name.strip_suffix(".svc.cluster.local").and_then(|it| it.split_once('.'))
        else {
            return Vec::new();
        };
        self.with(|store| addresses(store, namespace, service))
    }

    /// A connection of a program: its pod's object may be gone, or be another pod's by now.
    pub(super) fn dial_from(&self, uid: &str, to: &End, port: u16) -> Outcome {
        let sandbox = self.machines().with(|state| state.sandboxes.get(uid).cloned());
        let Some(sandbox) = sandbox else { return Outcome::NoRoute };
        let known = self.with(|store| {
            let key = pando_cluster::ObjectKey::namespaced(Kind::Pod, &sandbox.pod.namespace, &sandbox.pod.name);
            store.get(&key).is_some_and(|pod| text(pod, "/metadata/uid") == uid)
        });
        match (known, sandbox.ip) {
            (true, _) => self.dial(&End::Pod(sandbox.pod), to, port),
            // Nobody knows its labels any more.
            (false, Some(ip)) => self.dial(&End::Address(ip), to, port),
            (false, None) => self.dial(&End::Node(sandbox.node), to, port),
        }
    }

    pub(super) fn view(&self) -> View {
        let mut cache = self.views().0.lock().unwrap_or_else(PoisonError::into_inner);
        self.with(|store| match &*cache {
            Some((revision, view)) if *revision == store.revision() => view.clone(),
            _ => {
                let view = View { world: Arc::new(world(store)), policies: Arc::new(policies(store)) };
                *cache = Some((store.revision(), view.clone()));
                view
            }
        })
    }

    /// The world as it really is, and the policies that are in force.
    fn enforced(&self) -> (World, Arc<Policies>) {
        let mut world = World::clone(&self.view().world);
        let (now, config) = (self.env().now(), self.config());
        let policies = self.machines().with(|state| {
            for (uid, sandbox) in &state.sandboxes {
                let Some(seat) = world.pods.get_mut(&sandbox.pod).filter(|seat| seat.uid == *uid) else { continue };
                seat.ips = sandbox.ip.into_iter().collect();
                seat.unguarded = now < sandbox.since.plus(config.policy_lag);
            }
            Arc::clone(&state.policies)
        });
        if !config.policy_enforced {
            world.pods.values_mut().for_each(|seat| seat.unguarded = true);
        }
        (world, policies)
    }

    /// Whether somebody answers at an address.
    fn knock(&self, world: &World, ip: IpAddr, port: u16) -> Outcome {
        let config = self.config();
        let answers = if config.pod_cidr.contains(&ip) {
            self.machines().with(|state| state.listens(ip, port))
        } else if let Some((node, _)) = world.nodes.iter().find(|(_, ips)| ips.contains(&ip)) {
            NODE_PORTS.contains(&port) || self.machines().with(|state| listens_on_node(state, node, port))
        } else {
            // Outside, somebody always answers; inside the Services' range, nobody but Services does.
            !config.service_cidr.contains(&ip)
        };
        if answers { Outcome::Open } else { Outcome::Refused }
    }
}

fn listens_on_node(state: &State, node: &str, port: u16) -> bool {
    let host = state.sandboxes.iter().filter(|(_, sandbox)| sandbox.ip.is_none() && sandbox.node == node);
    host.into_iter().any(|(uid, _)| state.listens_in(uid, port))
}

fn connection(from: &End, to: &End, port: u16, protocol: Protocol) -> Connection {
    Connection { protocol, ..Connection::tcp(from.clone(), to.clone(), port) }
}

fn addresses(store: &Store, namespace: &str, name: &str) -> Vec<IpAddr> {
    let key = pando_cluster::ObjectKey::namespaced(Kind::Service, namespace, name);
    let Some(service) = store.get(&key) else { return Vec::new() };
    if let Ok(ip) = text(service, "/spec/clusterIP").parse() {
        return vec![ip];
    }
    let slices = store
        .within(Kind::EndpointSlice, namespace)
        .filter(|(_, slice)| slice["metadata"]["labels"]["kubernetes.io/service-name"] == name);
    let endpoints = slices.flat_map(|(_, slice)| slice["endpoints"].as_array().into_iter().flatten());
    let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] != false);
    let mut ips: Vec<IpAddr> = ready
        .flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten())
        .filter_map(|ip| ip.as_str()?.parse().ok())
        .collect();
    ips.sort();
    ips.dedup();
    ips
}

fn policies(store: &Store) -> Policies {
    let all: Vec<NetworkPolicy> = store.all_typed().collect();
    Policies::new(&all)
}

fn world(store: &Store) -> World {
    let mut world = World::default();
    for (key, namespace) in store.all(Kind::Namespace) {
        let labels = serde_json::from_value(namespace["metadata"]["labels"].clone()).unwrap_or_default();
        world.set_namespace(&key.name, labels);
    }
    for (key, node) in store.all(Kind::Node) {
        world.nodes.insert(key.name.clone(), ips(&node["status"]["addresses"], "address"));
    }
    for (key, pod) in store.all(Kind::Pod) {
        world.pods.insert(PodName::new(key.namespace.clone().unwrap_or_default(), &key.name), seat(pod));
    }
    for (key, service) in store.all(Kind::Service) {
        let namespace = key.namespace.clone().unwrap_or_default();
        let mut facts = service_facts(service);
        if facts.selector.is_empty() {
            facts.external = by_hand(store, &namespace, &key.name);
        }
        world.services.insert((namespace, key.name.clone()), facts);
    }
    world
}

fn ips(list: &Value, field: &str) -> Vec<IpAddr> {
    list.as_array().into_iter().flatten().filter_map(|it| it[field].as_str()?.parse().ok()).collect()
}

fn protocol(object: &Value) -> Protocol {
    object["protocol"].as_str().and_then(Protocol::parse).unwrap_or(Protocol::Tcp)
}

fn number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|it| u16::try_from(it).ok())
}

fn seat(pod: &Value) -> PodSeat {
    let spec = &pod["spec"];
    let host_network = spec["hostNetwork"] == true;
    let containers = ["containers", "initContainers"].map(|list| spec[list].as_array());
    let ports = containers.into_iter().flatten().flatten().flat_map(|it| it["ports"].as_array().into_iter().flatten());
    let ports = ports.filter_map(|port| {
        let name = port["name"].as_str().map(str::to_owned);
        Some(ContainerPort { name, port: number(&port["containerPort"])?, protocol: protocol(port) })
    });
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    PodSeat {
        uid: text(pod, "/metadata/uid").to_owned(),
        labels: serde_json::from_value(pod["metadata"]["labels"].clone()).unwrap_or_default(),
        node: spec["nodeName"].as_str().map(str::to_owned),
        ips: if host_network { Vec::new() } else { ips(&pod["status"]["podIPs"], "ip") },
        ports: ports.collect(),
        phase: match text(pod, "/status/phase") {
            "Running" => Phase::Running,
            _ if has_ended(pod) => Phase::Ended,
            _ => Phase::Pending,
        },
        ready: conditions.into_iter().any(|it| it["type"] == "Ready" && it["status"] == "True"),
        host_network,
        unguarded: false,
    }
}

fn service_facts(service: &Value) -> ServiceFacts {
    let spec = &service["spec"];
    let ports = spec["ports"].as_array().into_iter().flatten().filter_map(|port| {
        let number_of = number(&port["port"])?;
        let target = match &port["targetPort"] {
            Value::String(name) => TargetPort::Name(name.clone()),
            other => TargetPort::Number(number(other).unwrap_or(number_of)),
        };
        Some(ServicePort { port: number_of, target, protocol: protocol(port) })
    });
    ServiceFacts {
        cluster_ip: spec["clusterIP"].as_str().and_then(|it| it.parse().ok()),
        selector: serde_json::from_value(spec["selector"].clone()).unwrap_or_default(),
        ports: ports.collect(),
        publish_not_ready: spec["publishNotReadyAddresses"] == true,
        external: Vec::new(),
    }
}

/// The endpoints of a Service without selector, from slices that somebody wrote for it.
fn by_hand(store: &Store, namespace: &str, service: &str) -> Vec<(IpAddr, u16)> {
    let slices = store
        .within(Kind::EndpointSlice, namespace)
        .filter(|(_, slice)| slice["metadata"]["labels"]["kubernetes.io/service-name"] == service);
    let mut all = Vec::new();
    for (_, slice) in slices {
        let ports = slice["ports"].as_array().into_iter().flatten().filter_map(|port| number(&port["port"]));
        let ports: Vec<_> = ports.collect();
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        let addresses = endpoints.flat_map(|it| it["addresses"].as_array().into_iter().flatten());
        for ip in addresses.filter_map(|ip| ip.as_str()?.parse().ok()) {
            all.extend(ports.iter().map(|port| (ip, *port)));
        }
    }
    all
}
