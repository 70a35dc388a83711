//! The evaluator against the documented cases, and the cases against wrong evaluators.

mod cases;
mod flaws;

use std::collections::BTreeSet;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use pando_fakecluster::netpol::{
    Connection, End, Plugin, Policies, Protocol, ServiceFacts, ServicePort, TargetPort, Verdict, validate,
};
use serde_json::Value;

use crate::cases::{RIGHT, end, load, run, word};
use crate::flaws::FLAWS;

#[test]
fn every_documented_case_comes_out_as_documented() {
    let (begin, cases) = load();
    let mut failed = 0;
    for case in &cases {
        if let Err(wrong) = run(case, &begin, RIGHT) {
            failed += 1;
            println!("{} ({})", case.id, case.title);
            for line in wrong {
                println!("    {line}");
            }
        }
    }
    println!("{} passed, {failed} failed", cases.len() - failed);
    assert_eq!(failed, 0);
}

#[test]
fn every_wrong_evaluator_is_caught() {
    let (begin, cases) = load();
    let names: BTreeSet<_> = FLAWS.iter().map(|flaw| flaw.name).collect();
    assert_eq!(names.len(), FLAWS.len());
    let mut missed = Vec::new();
    for flaw in FLAWS {
        let caught: Vec<_> =
            cases.iter().filter(|case| run(case, &begin, *flaw).is_err()).map(|case| &case.id).collect();
        println!("{}: {} cases, e.g. {:?}", flaw.name, caught.len(), &caught[..caught.len().min(3)]);
        if caught.is_empty() {
            missed.push(flaw.name);
        }
    }
    println!("{} of {} wrong evaluators caught", FLAWS.len() - missed.len(), FLAWS.len());
    assert_eq!(missed, Vec::<&str>::new());
}

fn policy(spec: Value) -> NetworkPolicy {
    serde_json::from_value(serde_json::json!({"metadata": {"namespace": "x", "name": "p"}, "spec": spec})).unwrap()
}

#[test]
fn a_refusal_reads_as_kubernetes_writes_it() {
    let rows = [
        (
            serde_json::json!({"ingress": [{"ports": [{"port": 0}]}]}),
            "spec.ingress[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
        ),
        (serde_json::json!({"egress": [{"to": [{}]}]}), "spec.egress[0].to[0]: Required value: must specify a peer"),
        (
            serde_json::json!({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0"}}]}]}),
            "spec.egress[0].to[0].ipBlock.cidr: Invalid value: \"10.0.0.0\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        ),
        (
            serde_json::json!({"ingress": [{"ports": [{"port": 90, "endPort": 80}]}]}),
            "spec.ingress[0].ports[0].endPort: Invalid value: 80: must be greater than or equal to `port`",
        ),
        (
            serde_json::json!({"ingress": [{"ports": [{"port": "8080"}]}]}),
            "spec.ingress[0].ports[0].port: Invalid value: \"8080\": must contain at least one letter (a-z)",
        ),
        (
            serde_json::json!({"policyTypes": ["Both"]}),
            "spec.policyTypes[0]: Unsupported value: \"Both\": supported values: \"Egress\", \"Ingress\"",
        ),
    ];
    for (spec, expected) in rows {
        let errors = validate(&policy(spec.clone())).expect_err(expected);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected], "{spec}");
    }
}

#[test]
fn every_broken_field_is_named() {
    let spec = serde_json::json!({"ingress": [{"ports": [{"port": 0}, {"protocol": "ICMP"}], "from": [{}]}]});
    let fields: Vec<_> = validate(&policy(spec)).unwrap_err().into_iter().map(|error| error.field).collect();
    assert_eq!(
        fields,
        ["spec.ingress[0].ports[0].port", "spec.ingress[0].ports[1].protocol", "spec.ingress[0].from[0]"]
    );
}

#[test]
fn a_denial_names_the_end_and_the_policies() {
    let (mut state, _) = load();
    state.policies = vec![policy(serde_json::json!({"podSelector": {}, "policyTypes": ["Ingress"]}))];
    let decide = |from, to| {
        let connection = Connection::tcp(end(from), end(to), 80);
        Policies::new(&state.policies).enforced_by(Plugin::default(), &state.world, &connection).to_string()
    };
    assert_eq!(decide("y/a", "x/a"), "denied: x/p isolates x/a for ingress, and no rule admits this");
    assert_eq!(decide("x/a", "y/a"), "allowed: egress not isolated, ingress not isolated");
    assert_eq!(decide("x/nobody", "y/a"), "no endpoint: pod x/nobody has no address");
}

#[test]
fn an_open_connection_that_a_new_policy_forbids_is_the_plugins_affair() {
    let (mut state, _) = load();
    state.policies = vec![policy(serde_json::json!({"podSelector": {}, "policyTypes": ["Ingress"]}))];
    let policies = Policies::new(&state.policies);
    let open = |from, to| Connection { established: true, ..Connection::tcp(end(from), end(to), 80) };
    assert_eq!(policies.documented(&state.world, &open("y/a", "x/a")), Verdict::Undefined);
    assert!(matches!(policies.documented(&state.world, &open("x/a", "y/a")), Verdict::Defined(it) if it.is_allowed()));
}

#[test]
fn an_address_is_judged_as_whoever_has_it() {
    let (mut state, _) = load();
    // The API server's Service leads to a node: it is judged after the rewriting, as that node.
    state.world.services.insert(
        ("default".to_owned(), "kubernetes".to_owned()),
        ServiceFacts {
            cluster_ip: Some("10.96.0.1".parse().unwrap()),
            ports: vec![ServicePort { port: 443, target: TargetPort::Number(6443), protocol: Protocol::Tcp }],
            external: vec![("192.168.10.11".parse().unwrap(), 6443)],
            ..ServiceFacts::default()
        },
    );
    state.policies = vec![policy(serde_json::json!({"podSelector": {}, "policyTypes": ["Egress"]}))];
    let policies = Policies::new(&state.policies);
    let decide = |from, address: &str, port| {
        let connection = Connection::tcp(end(from), End::Address(address.parse().unwrap()), port);
        word(&policies.enforced_by(Plugin::default(), &state.world, &connection))
    };
    assert_eq!(decide("x/a", "10.96.0.1", 443), "allow", "its own node");
    assert_eq!(decide("x/b", "10.96.0.1", 443), "deny", "another node");
    assert_eq!(decide("y/a", "10.96.0.1", 443), "allow", "not isolated");
    assert_eq!(decide("y/a", "10.96.0.1", 80), "no-endpoint");
    assert_eq!(decide("x/a", "10.1.1.1", 80), "allow", "its own address");
    assert_eq!(decide("x/a", "10.1.2.2", 80), "deny");
    assert_eq!(decide("x/a", "203.0.113.10", 443), "deny");
}
