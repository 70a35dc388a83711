//! How an app differs from what was made of it, in sentences. Nothing is repaired here: core decides.

use std::net::SocketAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicy};
use pando_cluster::Kind;
use pando_cluster::converge::difference;
use pando_cluster::names::{annotation, annotation_value, is_ours, label, label_value, object};
use pando_network::{ClusterAddresses, Egress, default_policy, open_addresses};
use serde_json::{Value, json};

use crate::call::name;
use crate::digest::template_digest;
use crate::objects::{workload_of_pod, workload_of_record};
use crate::observe::Objects;
use crate::record::{Revision, pod_revision};
use crate::sight;

/// The parts of a policy, each a question of its own: whom it selects, for which direction it speaks, what it lets in and out.
const PARTS: [&str; 4] = ["podSelector", "policyTypes", "ingress", "egress"];

impl Objects<'_> {
    /// What differs from what was made.
    pub(crate) fn drift(&self) -> Vec<String> {
        let mut drift = Vec::new();
        self.policies_drift(&mut drift);
        self.pods_drift(&mut drift);
        self.records_drift(&mut drift);
        drift
    }

    fn policies_drift(&self, drift: &mut Vec<String>) {
        for policy in self.policies.iter().filter(|policy| !is_ours(&policy.metadata)) {
            drift.push(format!(
                "network policy {:?} was not made by Pando; policies add up, so it may open the app to others",
                name(&policy.metadata)
            ));
        }
        match self.policies.iter().find(|policy| policy.metadata.name.as_deref() == Some(object::DEFAULT_POLICY)) {
            None => {
                drift.push(format!("network policy {:?} is missing: the app is not isolated", object::DEFAULT_POLICY));
            }
            Some(policy) => self.default_policy_drift(policy, drift),
        }
    }

    /// A policy is written with the addresses known then. So the rules are compared without what they leave out, the ranges
    /// that the settings close must be left out, and of the cluster's addresses those that are not are newer.
    fn default_policy_drift(&self, live: &NetworkPolicy, drift: &mut Vec<String>) {
        let named = object::DEFAULT_POLICY;
        let desired = default_policy(self.app, &self.settings.network, &ClusterAddresses::default(), Egress::Open);
        let (wanted, found) = (rules(&desired), rules(live));
        let part = |policy: &Value, part: &str| json!({"spec": {part: &policy["spec"][part]}});
        let differs = |it: &&str| !difference(Kind::NetworkPolicy, &part(&wanted, it), &part(&found, it)).is_none();
        let parts: Vec<_> = PARTS.iter().copied().filter(differs).collect();
        if !parts.is_empty() {
            drift.push(format!(
                "network policy {named:?} is not as Pando writes it ({}): somebody changed it, and the app may be open to others; the next apply repairs it",
                parts.join(", ")
            ));
        }
        for range in left_open(&desired, live) {
            drift.push(format!(
                "network policy {named:?} lets the app reach {range}, which the settings close; the next apply repairs it"
            ));
        }
        let addresses = &self.cluster.addresses;
        let nodes = open_addresses(live, addresses.nodes.iter().copied()).into_iter().map(|address| ("node", address));
        let servers = open_addresses(live, addresses.api_server.iter().map(SocketAddr::ip));
        for (what, address) in nodes.chain(servers.into_iter().map(|address| ("API server", address))) {
            drift.push(format!("{what} address {address} came after the app's policy was written and is open to it"));
        }
    }

    fn pods_drift(&self, drift: &mut Vec<String>) {
        let template = template_digest(self.settings);
        for pod in self.pods.iter().filter(|pod| !sight::has_ended(pod)) {
            let workload = workload_of_pod(pod).unwrap_or_default();
            if annotation_value(&pod.metadata, annotation::TEMPLATE_DIGEST) != Some(&template) {
                drift.push(format!("workload {workload:?} runs by an outdated template; its next replacement ends that (outdated_template)"));
            }
            let has_record = self.records.iter().any(|record| workload_of_record(record) == Some(workload));
            if !has_record && !sight::is_going(pod) {
                drift.push(format!("workload {workload:?} runs without its Service, so nothing reaches it by name"));
            }
            drift.extend(unlabelled(pod));
            drift.extend(self.unselected(workload, pod));
        }
    }

    /// A start or a stop that was cut short leaves the record at a revision that is not the running pod's.
    fn unselected(&self, workload: &str, pod: &Pod) -> Option<String> {
        let record = self.records.iter().find(|record| workload_of_record(record) == Some(workload))?;
        let (named, has) = (Revision::of(&record.metadata)?, pod_revision(pod)?);
        (sight::is_running(pod, false) && named != has).then(|| {
            format!("workload {workload:?} runs by a start that its Service no longer selects, so nothing reaches it by name")
        })
    }

    fn records_drift(&self, drift: &mut Vec<String>) {
        for record in &self.records {
            let selector = record.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let selected = selector.and_then(|selector| selector.get(label::REVISION)).map(String::as_str);
            if selected != label_value(&record.metadata, label::REVISION) {
                drift.push(format!("Service {:?} does not select its workload's newest start", name(&record.metadata)));
            }
        }
    }
}

/// A record selects its pod by both labels: without one of them nobody reaches the app.
fn unlabelled(pod: &Pod) -> Option<String> {
    let has_lost = |key: &&str| label_value(&pod.metadata, key).is_none();
    let lost: Vec<_> = [label::WORKLOAD, label::REVISION].into_iter().filter(has_lost).collect();
    (!lost.is_empty() && !sight::is_going(pod)).then(|| {
        format!(
            "pod {:?} has lost its label {}, so nothing reaches it by name",
            name(&pod.metadata),
            lost.join(" and ")
        )
    })
}

/// The policy as JSON, without what its rules for the outside leave out.
fn rules(policy: &NetworkPolicy) -> Value {
    let mut policy = policy.clone();
    let rules = policy.spec.iter_mut().flat_map(|spec| spec.egress.iter_mut().flatten());
    let peers = rules.filter(|rule| rule.ports.is_none()).flat_map(|rule| rule.to.iter_mut().flatten());
    for block in peers.filter_map(|peer| peer.ip_block.as_mut()) {
        block.except = None;
    }
    serde_json::to_value(&policy).unwrap_or_default()
}

/// The ranges that `desired` leaves out of the outside and `live` does not.
fn left_open(desired: &NetworkPolicy, live: &NetworkPolicy) -> Vec<IpNet> {
    let mut open = Vec::new();
    for block in outside(live) {
        let closed = except(block);
        for wanted in outside(desired).filter(|wanted| wanted.cidr == block.cidr) {
            open.extend(except(wanted).into_iter().filter(|range| !closed.iter().any(|net| net.contains(range))));
        }
    }
    open
}

/// The blocks of rules that open every port: DNS has its own.
fn outside(policy: &NetworkPolicy) -> impl Iterator<Item = &IPBlock> {
    let rules = policy.spec.iter().flat_map(|spec| spec.egress.iter().flatten()).filter(|rule| rule.ports.is_none());
    rules.flat_map(|rule| rule.to.iter().flatten()).filter_map(|peer| peer.ip_block.as_ref())
}

fn except(block: &IPBlock) -> Vec<IpNet> {
    block.except.iter().flatten().filter_map(|range| range.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use pando_cluster::names::AppNamespace;

    use super::*;
    use crate::known::ClusterFacts;
    use crate::observe::tests::{cluster, nothing, pod, record, settings, state};

    fn app() -> AppNamespace {
        AppNamespace::of("a", &[])
    }

    fn addresses(nodes: &[&str]) -> ClusterAddresses {
        ClusterAddresses {
            nodes: nodes.iter().map(|node| node.parse().expect("an address")).collect(),
            api_server: ["172.18.0.2:6443"].map(|server| server.parse().expect("an address")).into(),
        }
    }

    /// The policy as an apply wrote it when these nodes were known, with a change of its spec laid over it.
    fn policy(nodes: &[&str], change: impl FnOnce(&mut Value)) -> NetworkPolicy {
        let policy = default_policy(&app(), &settings().network, &addresses(nodes), Egress::Open);
        let mut json = serde_json::to_value(policy).expect("JSON");
        change(&mut json["spec"]);
        serde_json::from_value(json).expect("a policy")
    }

    /// What is told of these policies where the cluster has two nodes.
    fn told(policies: Vec<NetworkPolicy>) -> Vec<String> {
        let (app, settings) = (app(), settings());
        let cluster = ClusterFacts { addresses: addresses(&["172.18.0.3", "172.18.0.4"]), ..cluster() };
        Objects { policies, ..nothing(&app, &settings, &cluster) }.drift()
    }

    #[test]
    fn a_policy_as_it_was_written_is_no_drift() {
        assert_eq!(told(vec![policy(&["172.18.0.3", "172.18.0.4"], |_| {})]), [""; 0]);
        let gone = policy(&["172.18.0.3", "172.18.0.4", "172.18.0.77"], |_| {});
        assert_eq!(told(vec![gone]), [""; 0], "a node that went leaves nothing open");
    }

    /// Adds a rule to a part of the policy.
    fn add(spec: &mut Value, part: &str, rule: Value) {
        spec[part].as_array_mut().expect("rules").push(rule);
    }

    /// Leaves exactly these ranges out of the outside, whose rule is the last.
    fn leave_out(spec: &mut Value, ranges: &[&str]) {
        let rules = spec["egress"].as_array_mut().expect("rules");
        rules.last_mut().expect("an outside rule")["to"][0]["ipBlock"]["except"] = json!(ranges);
    }

    type Change = fn(&mut Value);

    #[test]
    fn every_way_to_open_the_policy_is_told() {
        let rows: [(&str, Change, &str); 9] = [
            ("anybody in", |spec| spec["ingress"] = json!([{}]), "(ingress)"),
            ("one more in", |spec| add(spec, "ingress", json!({"from": [{"namespaceSelector": {}}]})), "(ingress)"),
            ("out anywhere", |spec| add(spec, "egress", json!({})), "(egress)"),
            ("one out", |spec| add(spec, "egress", json!({"to": [{"ipBlock": {"cidr": "10.96.0.1/32"}}]})), "(egress)"),
            ("some pods only", |spec| spec["podSelector"] = json!({"matchLabels": {"a": "b"}}), "(podSelector)"),
            ("one direction only", |spec| spec["policyTypes"] = json!(["Ingress"]), "(policyTypes)"),
            (
                "other pods",
                |spec| leave_out(spec, &["10.96.0.0/16", "169.254.0.0/16", "172.18.0.0/24"]),
                "10.244.0.0/16",
            ),
            (
                "half of the Services",
                |spec| leave_out(spec, &["10.96.0.0/17", "10.244.0.0/16", "169.254.0.0/16", "172.18.0.0/24"]),
                "10.96.0.0/16",
            ),
            ("everything", |spec| leave_out(spec, &[]), "169.254.0.0/16"),
        ];
        for (what, change, word) in rows {
            let drift = told(vec![policy(&["172.18.0.3", "172.18.0.4"], change)]);
            let is_told = |it: &String| it.contains("pando-default") && it.contains(word);
            assert!(drift.iter().any(is_told), "{what}: {drift:?}");
        }
    }

    #[test]
    fn a_node_that_came_later_is_told_as_that() {
        let drift = told(vec![policy(&["172.18.0.3"], |_| {})]);
        let [sentence] = &drift[..] else { panic!("{drift:?}") };
        assert!(sentence.contains("node address 172.18.0.4") && sentence.contains("came after"), "{sentence}");
    }

    #[test]
    fn a_policy_that_is_missing_or_a_strangers_is_told() {
        let mut strange = policy(&[], |_| {});
        strange.metadata.name = Some("open".to_owned());
        strange.metadata.labels = None;
        let drift = told(vec![strange]);
        assert!(drift[0].contains("\"open\" was not made by Pando") && drift[1].contains("is missing"), "{drift:?}");
    }

    /// The change with the app's container running.
    fn running(change: &Value) -> Value {
        let mut running = state("Running", &json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}));
        json_patch::merge(&mut running, change);
        running
    }

    #[test]
    fn records_and_pods_that_do_not_fit_are_told() {
        let (app, settings, cluster) = (app(), settings(), cluster());
        let current = json!({"metadata": {"annotations": {annotation::TEMPLATE_DIGEST: template_digest(&settings)}}});
        let told = |records: Vec<Service>, pods: Vec<Pod>| {
            let policies = vec![policy(&[], |_| {})];
            Objects { records, pods, policies, ..nothing(&app, &settings, &cluster) }.drift()
        };
        let mut crooked = record("web", "4");
        crooked
            .spec
            .as_mut()
            .and_then(|spec| spec.selector.as_mut())
            .expect("a selector")
            .insert(label::REVISION.to_owned(), "3".to_owned());
        let mut unlabelled = pod("4", &current);
        unlabelled.metadata.labels.as_mut().expect("labels").remove(label::WORKLOAD);
        assert_eq!(told(vec![record("web", "4")], vec![pod("4", &current)]), [""; 0]);
        assert_eq!(told(vec![record("web", "4")], vec![]), [""; 0], "a stopped one fits");
        assert_eq!(
            told(vec![record("web", "4")], vec![pod("4", &state("Failed", &json!({"terminated": {"exitCode": 1}})))]),
            [""; 0],
            "an ended one fits"
        );
        for (what, records, pods, word) in [
            ("an old template", vec![record("web", "4")], vec![pod("4", &json!({}))], "outdated_template"),
            ("no record", vec![], vec![pod("4", &current)], "without its Service"),
            ("a record that selects another", vec![crooked], vec![pod("4", &current)], "does not select"),
            (
                "a start that was cut short",
                vec![record("web", "5")],
                vec![pod("4", &running(&current))],
                "no longer selects",
            ),
            ("a lost label", vec![record("web", "4")], vec![unlabelled], "has lost its label pando.dev/workload"),
        ] {
            let drift = told(records, pods);
            assert!(drift.len() == 1 && drift[0].contains(word), "{what}: {drift:?}");
        }
    }
}
