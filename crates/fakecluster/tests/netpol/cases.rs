//! The documented cases: how they are written, and how one is run.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use pando_fakecluster::netpol::{
    Connection, ContainerPort, Decision, End, Family, HostPods, Phase, Plugin, PodName, PodSeat, Policies, Protocol,
    ServiceFacts, ServicePort, TargetPort, Verdict, World, validate,
};
use serde::Deserialize;
use serde_json::Value;

const CASES: &str = include_str!("../data/netpol-cases.json");

#[derive(Deserialize)]
struct File {
    world: RawWorld,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct RawWorld {
    nodes: BTreeMap<String, RawNode>,
    namespaces: BTreeMap<String, RawNamespace>,
    pods: BTreeMap<String, RawPod>,
    services: BTreeMap<String, RawService>,
}

#[derive(Deserialize)]
struct RawNode {
    ips: Vec<IpAddr>,
}

#[derive(Deserialize)]
struct RawNamespace {
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawPod {
    labels: BTreeMap<String, String>,
    node: Option<String>,
    #[serde(default)]
    ips: Vec<IpAddr>,
    #[serde(default)]
    ports: Vec<RawPort>,
    phase: Option<String>,
    #[serde(default, rename = "terminating")]
    _terminating: bool,
    ready: Option<bool>,
    #[serde(default)]
    host_network: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPort {
    name: Option<String>,
    container_port: u16,
    protocol: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawService {
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    selector: BTreeMap<String, String>,
    ports: Vec<RawServicePort>,
    #[serde(default)]
    publish_not_ready_addresses: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawServicePort {
    port: u16,
    target_port: Value,
    protocol: String,
}

#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) title: String,
    #[serde(default)]
    setup: Vec<Value>,
    policies: Vec<NetworkPolicy>,
    #[serde(default)]
    probes: Vec<Probe>,
    #[serde(default)]
    then: Vec<Step>,
    rejected: Option<String>,
}

#[derive(Deserialize)]
struct Step {
    #[serde(rename = "do")]
    operations: Vec<Value>,
    probes: Vec<Probe>,
}

#[derive(Deserialize)]
struct Probe {
    from: String,
    to: String,
    #[serde(default)]
    port: u16,
    protocol: String,
    family: Option<String>,
    expect: String,
    modes: Option<BTreeMap<String, String>>,
}

/// The state a case has come to.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) world: World,
    pub(crate) policies: Vec<NetworkPolicy>,
}

fn protocol(name: &str) -> Protocol {
    Protocol::parse(name).unwrap_or_else(|| panic!("protocol {name}"))
}

fn split(key: &str) -> (String, String) {
    let (namespace, name) = key.split_once('/').unwrap_or_else(|| panic!("{key} is no namespace/name"));
    (namespace.to_owned(), name.to_owned())
}

fn pod_name(key: &str) -> PodName {
    let (namespace, name) = split(key);
    PodName { namespace, name }
}

fn seat(raw: RawPod) -> PodSeat {
    let port =
        |raw: RawPort| ContainerPort { name: raw.name, port: raw.container_port, protocol: protocol(&raw.protocol) };
    PodSeat {
        uid: String::new(),
        labels: raw.labels,
        node: raw.node,
        ips: raw.ips,
        ports: raw.ports.into_iter().map(port).collect(),
        phase: match raw.phase.as_deref() {
            Some("Pending") => Phase::Pending,
            Some("Succeeded" | "Failed") => Phase::Ended,
            Some("Running") | None => Phase::Running,
            Some(other) => panic!("phase {other}"),
        },
        ready: raw.ready.unwrap_or(true),
        host_network: raw.host_network,
        unguarded: false,
    }
}

fn service(raw: RawService) -> ServiceFacts {
    let port = |raw: RawServicePort| ServicePort {
        port: raw.port,
        target: match raw.target_port {
            Value::Number(number) => TargetPort::Number(number.as_u64().unwrap().try_into().unwrap()),
            other => TargetPort::Name(other.as_str().unwrap().to_owned()),
        },
        protocol: protocol(&raw.protocol),
    };
    ServiceFacts {
        cluster_ip: raw.cluster_ip.parse().ok(),
        selector: raw.selector,
        ports: raw.ports.into_iter().map(port).collect(),
        publish_not_ready: raw.publish_not_ready_addresses,
        external: Vec::new(),
    }
}

impl State {
    fn begin(raw: RawWorld) -> Self {
        let mut world = World::default();
        for (name, namespace) in raw.namespaces {
            world.set_namespace(&name, namespace.labels);
        }
        world.nodes = raw.nodes.into_iter().map(|(name, node)| (name, node.ips)).collect();
        world.pods = raw.pods.into_iter().map(|(key, pod)| (pod_name(&key), seat(pod))).collect();
        world.services = raw.services.into_iter().map(|(key, it)| (split(&key), service(it))).collect();
        Self { world, policies: Vec::new() }
    }

    fn apply(&mut self, operation: &Value) {
        let text = |field: &str| operation[field].as_str().unwrap_or_else(|| panic!("{field} in {operation}"));
        match text("op") {
            "create-policy" => self.policies.push(serde_json::from_value(operation["policy"].clone()).unwrap()),
            "delete-policy" => {
                let before = self.policies.len();
                self.policies.retain(|policy| {
                    policy.metadata.namespace.as_deref() != Some(text("namespace"))
                        || policy.metadata.name.as_deref() != Some(text("name"))
                });
                assert_eq!(self.policies.len() + 1, before, "{operation}");
            }
            "create-pod" => {
                let pod = serde_json::from_value(operation["object"].clone()).unwrap();
                self.world.pods.insert(pod_name(text("pod")), seat(pod));
            }
            "patch-pod" => self.patch(&pod_name(text("pod")), operation["set"].as_object().unwrap()),
            "create-namespace" => {
                let labels = serde_json::from_value(operation["labels"].clone()).unwrap();
                self.world.set_namespace(text("namespace"), labels);
            }
            "delete-namespace" => {
                self.world.remove_namespace(text("namespace"));
                self.policies.retain(|policy| policy.metadata.namespace.as_deref() != Some(text("namespace")));
            }
            "create-service" => {
                let object = serde_json::from_value(operation["object"].clone()).unwrap();
                self.world.services.insert(split(text("service")), service(object));
            }
            other => panic!("unknown operation {other}"),
        }
    }

    fn patch(&mut self, pod: &PodName, set: &serde_json::Map<String, Value>) {
        let pod = self.world.pods.get_mut(pod).unwrap();
        for (field, value) in set {
            match field.as_str() {
                "labels" => pod.labels = serde_json::from_value(value.clone()).unwrap(),
                "phase" => {
                    assert!(matches!(value.as_str(), Some("Succeeded" | "Failed")), "{value}");
                    pod.phase = Phase::Ended;
                }
                // A pod that is asked to end keeps everything until it has.
                "terminating" => {}
                other => panic!("unknown field {other}"),
            }
        }
    }
}

pub(crate) fn end(text: &str) -> End {
    match text.split_once(':') {
        Some(("node", name)) => End::Node(name.to_owned()),
        Some(("ip", address)) => End::Address(address.parse().unwrap()),
        Some(("svc", key)) => {
            let (namespace, name) = split(key);
            End::Service(namespace, name)
        }
        _ => End::Pod(pod_name(text)),
    }
}

fn connection(probe: &Probe) -> Connection {
    Connection {
        from: end(&probe.from),
        to: end(&probe.to),
        port: probe.port,
        protocol: protocol(&probe.protocol),
        family: if probe.family.as_deref() == Some("v6") { Family::V6 } else { Family::V4 },
        established: false,
    }
}

pub(crate) fn word(decision: &Decision) -> &'static str {
    match decision {
        Decision::Allowed { .. } => "allow",
        Decision::Denied { .. } => "deny",
        Decision::NoEndpoint(_) => "no-endpoint",
    }
}

/// A wrong evaluator: the right one, lied to about the policies, the world or the connection.
#[derive(Clone, Copy)]
pub(crate) struct Flaw {
    pub(crate) name: &'static str,
    pub(crate) policies: fn(&State) -> Vec<NetworkPolicy>,
    pub(crate) world: fn(&mut World),
    pub(crate) connection: fn(&State, &mut Connection),
}

/// No lie.
pub(crate) const RIGHT: Flaw =
    Flaw { name: "right", policies: |state| state.policies.clone(), world: |_| {}, connection: |_, _| {} };

/// What of `probes` comes out otherwise than expected.
fn differences(state: &State, probes: &[Probe], flaw: Flaw) -> Vec<String> {
    let mut world = state.world.clone();
    (flaw.world)(&mut world);
    let policies = Policies::new(&(flaw.policies)(state));
    let mut wrong = Vec::new();
    for probe in probes {
        let mut connection = connection(probe);
        (flaw.connection)(state, &mut connection);
        let mut check = |what: &str, expected: &str, got: &str, why: &str| {
            if expected != got {
                let Probe { from, to, port, protocol, .. } = probe;
                wrong.push(format!("{from} → {to} {protocol} {port}{what}: expected {expected}, got {got} ({why})"));
            }
        };
        match policies.documented(&world, &connection) {
            Verdict::Undefined => check("", &probe.expect, "undefined", ""),
            Verdict::Defined(decision) => check("", &probe.expect, word(&decision), &decision.to_string()),
        }
        for (mode, expected) in probe.modes.iter().flatten() {
            let host_pods = match mode.as_str() {
                "ignore" => HostPods::AreNodes,
                "apply" => HostPods::ArePods,
                other => panic!("mode {other}"),
            };
            let plugin = Plugin { host_pods, ..Plugin::default() };
            let decision = policies.enforced_by(plugin, &world, &connection);
            check(&format!(" ({mode})"), expected, word(&decision), &decision.to_string());
        }
    }
    wrong
}

/// Whether the case comes out as it should; else what did not.
pub(crate) fn run(case: &Case, begin: &State, flaw: Flaw) -> Result<(), Vec<String>> {
    let mut state = begin.clone();
    if let Some(field) = &case.rejected {
        let [policy] = case.policies.as_slice() else { panic!("{} rejects one policy", case.id) };
        return match validate(policy) {
            Err(errors) if errors.iter().any(|error| error.field == *field) => Ok(()),
            other => Err(vec![format!("should be refused at {field}, got {other:?}")]),
        };
    }
    for policy in &case.policies {
        assert_eq!(validate(policy), Ok(()), "{}", case.id);
    }
    case.setup.iter().for_each(|operation| state.apply(operation));
    state.policies.extend(case.policies.iter().cloned());
    let mut wrong = differences(&state, &case.probes, flaw);
    for step in &case.then {
        step.operations.iter().for_each(|operation| state.apply(operation));
        wrong.extend(differences(&state, &step.probes, flaw));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Cases beside the file's, each for a wrong evaluator that the file lets through.
const OWN_CASES: &str = r#"[
    {
        "id": "OWN-01", "title": "a range has both its ends and nothing beyond",
        "policies": [{"metadata": {"namespace": "x", "name": "range"}, "spec": {"podSelector": {},
            "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 80, "endPort": 81}]}]}}],
        "probes": [
            {"from": "y/a", "to": "x/a", "port": 79, "protocol": "TCP", "expect": "deny"},
            {"from": "y/a", "to": "x/a", "port": 80, "protocol": "TCP", "expect": "allow"},
            {"from": "y/a", "to": "x/a", "port": 81, "protocol": "TCP", "expect": "allow"},
            {"from": "y/a", "to": "x/a", "port": 82, "protocol": "TCP", "expect": "deny"}
        ]
    }
]"#;

pub(crate) fn load() -> (State, Vec<Case>) {
    let file: File = serde_json::from_str(CASES).unwrap();
    assert_eq!(file.cases.len(), 131);
    let own: Vec<Case> = serde_json::from_str(OWN_CASES).unwrap();
    (State::begin(file.world), file.cases.into_iter().chain(own).collect())
}
