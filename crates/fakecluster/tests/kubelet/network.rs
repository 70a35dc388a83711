//! Which connections come about, and when a network plugin is late.

use std::time::Duration;

use crate::bed::{APP, Bed, pod, script, secs};
use pando_cluster::Kind;
use pando_fakecluster::behaviour::{Behaviour, Dial, Outcome, Target};
use pando_fakecluster::netpol::{End, Protocol};
use pando_fakecluster::{Delays, FakeConfig, FakeNode};
use serde_json::{Value, json};

fn listen(port: u16) -> Behaviour {
    Behaviour::Listen { ports: vec![port] }
}

fn dial(target: Target, every: Duration, during: Duration) -> Behaviour {
    Behaviour::Dial { targets: vec![target], every, during, then: Box::new(Behaviour::Run) }
}

fn deny(bed: &Bed, name: &str, types: &[&str]) {
    let spec = json!({"podSelector": {}, "policyTypes": types});
    bed.create(Kind::NetworkPolicy, json!({"metadata": {"name": name, "namespace": APP}, "spec": spec}));
}

fn outcomes(dials: &[Dial]) -> Vec<Outcome> {
    let mut outcomes: Vec<_> = dials.iter().map(|dial| dial.outcome).collect();
    outcomes.dedup();
    outcomes
}

fn verdicts(bed: &Bed, from: &str, to: &str, port: u16) -> [bool; 2] {
    let (from, to) = (End::Pod(Bed::name(from)), End::Pod(Bed::name(to)));
    [
        bed.fake.verdict(&from, &to, port, Protocol::Tcp).is_allowed(),
        bed.fake.enforced_verdict(&from, &to, port, Protocol::Tcp).is_allowed(),
    ]
}

#[test]
fn a_policy_in_the_store_rules_and_is_enforced() {
    let bed = Bed::new(script([("app", listen(80))]));
    bed.run(pod("web", json!({})));
    bed.run(pod("client", json!({})));
    bed.sim.advance(secs(1));
    assert_eq!(verdicts(&bed, "client", "web", 80), [true, true]);
    assert_eq!(bed.fake.connect(&Bed::name("client"), &Bed::name("web"), 80), Outcome::Open);
    assert_eq!(bed.fake.connect(&Bed::name("client"), &Bed::name("web"), 81), Outcome::Refused);
    deny(&bed, "deny", &["Ingress"]);
    assert_eq!(verdicts(&bed, "client", "web", 80), [false, false]);
    assert_eq!(bed.fake.connect(&Bed::name("client"), &Bed::name("web"), 80), Outcome::Dropped);
    assert_eq!(bed.fake.connect(&Bed::name("client"), &Bed::name("nobody"), 80), Outcome::NoRoute);
}

#[test]
fn a_changed_policy_is_enforced_later_than_it_is_stored() {
    let delays = Delays { policy_sync: secs(2), ..Delays::default() };
    let bed = Bed::new(FakeConfig { delays, ..script([("app", listen(80))]) });
    bed.run(pod("web", json!({})));
    bed.run(pod("client", json!({})));
    bed.sim.advance(secs(5));
    deny(&bed, "deny", &["Ingress"]);
    assert_eq!(verdicts(&bed, "client", "web", 80), [false, true]);
    bed.sim.advance(secs(2));
    assert_eq!(verdicts(&bed, "client", "web", 80), [false, false]);
}

/// As tried on Kubernetes 1.34: the plugin closes a fresh pod 0.4 to 2 s after its start.
#[test]
fn the_first_packets_of_a_fresh_pod_pass_before_its_policy_is_enforced() {
    let dials = dial(Target::address([203, 0, 113, 10], 443), Duration::from_millis(100), secs(5));
    let config = FakeConfig { policy_lag: Duration::from_millis(1300), ..script([("app", dials)]) };
    let bed = Bed::new(config);
    deny(&bed, "deny", &["Egress"]);
    bed.sim.advance(secs(60));
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(6));
    let dials = bed.fake.dials();
    assert_eq!(outcomes(&dials), [Outcome::Open, Outcome::Dropped]);
    assert_eq!(dials.iter().filter(|dial| dial.outcome == Outcome::Open).count(), 13);
    assert_eq!(verdicts(&bed, "web", "web", 443), [true, true], "itself");
}

#[test]
fn a_plugin_that_enforces_nothing_lets_everything_pass() {
    let bed = Bed::new(FakeConfig { policy_enforced: false, ..script([("app", listen(80))]) });
    deny(&bed, "deny", &["Ingress", "Egress"]);
    bed.run(pod("web", json!({})));
    bed.run(pod("client", json!({})));
    bed.sim.advance(secs(600));
    assert_eq!(verdicts(&bed, "client", "web", 80), [false, true]);
}

#[test]
fn the_isolation_gate_opens_once_the_plugin_has_closed_the_pod() {
    let gate = |limit| Behaviour::DialUntilClosed {
        targets: vec![Target::address([203, 0, 113, 10], 443)],
        in_a_row: 3,
        limit: secs(limit),
    };
    let init = json!({"spec": {"initContainers": [{"name": "gate", "image": "i"}]}});
    let run = |enforced, limit| {
        let bed = Bed::new(FakeConfig {
            policy_lag: secs(2),
            policy_enforced: enforced,
            ..script([("gate", gate(limit)), ("app", listen(80))])
        });
        deny(&bed, "deny", &["Egress"]);
        bed.run(pod("web", init.clone()));
        let took = bed.wait(secs(60), |bed| bed.phase("web") != "Pending");
        (bed.phase("web"), took, bed.state("web", "gate"))
    };
    let (phase, took, gate_state) = run(true, 30);
    assert_eq!((phase.as_str(), gate_state.as_str()), ("Running", "terminated Completed 0"));
    assert!((secs(2)..secs(4)).contains(&took), "{took:?}");
    let (phase, took, gate_state) = run(false, 30);
    assert_eq!((phase.as_str(), gate_state.as_str()), ("Failed", "terminated Error 1"));
    assert!((secs(30)..secs(32)).contains(&took), "{took:?}");
}

#[test]
fn the_api_server_is_judged_by_its_node_behind_its_service() {
    // Policy looks after the Service's address was rewritten, and a pod always reaches its own node.
    let bed = Bed::new(FakeConfig {
        api_server_addresses: vec!["172.18.0.2".to_owned()],
        nodes: vec![FakeNode::sized("node-1", 2), FakeNode::sized("node-2", 3)],
        ..FakeConfig::default()
    });
    for node in ["node-1", "node-2"] {
        bed.run(pod(node, json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}})));
    }
    deny(&bed, "deny", &["Egress"]);
    bed.sim.advance(secs(1));
    let knock = |from| bed.fake.dial(&End::Pod(Bed::name(from)), &End::Address([10, 96, 0, 1].into()), 443);
    assert_eq!([knock("node-1"), knock("node-2")], [Outcome::Open, Outcome::Dropped]);
}

#[test]
fn a_name_leads_to_whoever_has_the_address_behind_it() {
    let by_name = dial(Target::name(format!("web.{APP}.svc.cluster.local"), 80), secs(1), secs(30));
    let bed = Bed::new(script([
        ("client", by_name),
        ("app", Behaviour::Exit { after: secs(5), code: 1 }),
        ("other", listen(80)),
    ]));
    let spec = json!({"clusterIP": "None", "selector": {"workload": "web"}, "publishNotReadyAddresses": true, "ports": [{"port": 80}]});
    bed.create(Kind::Service, json!({"metadata": {"name": "web", "namespace": APP}, "spec": spec}));
    let here = |container: &str| -> Value {
        json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "node-1"}, "containers": [{"name": container}]}})
    };
    bed.run(pod("client", here("client")));
    bed.run(pod("web", here("app")));
    bed.sim.advance(secs(10));
    bed.run(pod("stranger", here("other")));
    bed.sim.advance(secs(25));
    let outcomes = outcomes(&bed.fake.dials());
    // No name, then a pod that does not listen, then nobody at its address, then a stranger who got it.
    assert_eq!(outcomes.last(), Some(&Outcome::Open), "{outcomes:?}");
    assert!(outcomes.starts_with(&[Outcome::NoRoute, Outcome::Refused]), "{outcomes:?}");
}

#[test]
fn a_program_whose_pod_is_gone_is_no_longer_isolated_as_that_pod() {
    let knocks = Behaviour::Dial {
        targets: vec![Target::address([203, 0, 113, 10], 443)],
        every: Duration::from_millis(100),
        during: secs(600),
        then: Box::new(Behaviour::IgnoreTerm),
    };
    let bed = Bed::new(script([("app", knocks)]));
    deny(&bed, "deny", &["Egress"]);
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(3));
    assert_eq!(outcomes(&bed.fake.dials()), [Outcome::Dropped]);
    bed.delete_pod("web", Some(0));
    bed.sim.advance(secs(10));
    let dials = bed.fake.dials();
    assert_eq!(outcomes(&dials), [Outcome::Dropped, Outcome::Open]);
    let last = dials.last().unwrap().at.since_start();
    assert!(last <= secs(5), "it is killed 2 s after its object: {last:?}");
}
