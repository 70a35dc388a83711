//! What the control plane does by itself: placing pods, ending namespaces, accounts, claims, endpoints.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::bed::{APP, Bed, pod, script, secs};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use pando_cluster::{Cluster, Kind, Object, ObjectKey};
use pando_fakecluster::behaviour::Behaviour;
use pando_fakecluster::{Delays, FakeConfig, FakeNode};
use serde_json::{Value, json};

fn refusal(bed: &Bed, name: &str) -> String {
    let conditions = bed.pod(name).status.unwrap().conditions.unwrap_or_default();
    let found = conditions.into_iter().find(|it| it.type_ == "PodScheduled").unwrap();
    assert_eq!((found.status.as_str(), found.reason.as_deref()), ("False", Some("Unschedulable")));
    found.message.unwrap()
}

fn asks(cpu: &str, memory: &str) -> Value {
    json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}})
}

#[test]
fn a_gated_pod_is_not_placed_until_its_gate_opens() {
    let bed = Bed::new(FakeConfig::default());
    bed.run(pod("web", json!({"spec": {"schedulingGates": [{"name": "pando.dev/start"}]}})));
    bed.sim.advance(secs(600));
    assert_eq!(bed.condition("web", "PodScheduled"), "False SchedulingGated");
    assert_eq!((bed.node_of("web").as_str(), bed.phase("web").as_str()), ("", "Pending"));
    assert_eq!(bed.running(), Vec::<String>::new());
    bed.patch(Kind::Pod, "web", json!({"spec": {"schedulingGates": null}}));
    assert_eq!((bed.condition("web", "PodScheduled").as_str(), bed.phase("web").as_str()), ("True", "Running"));
}

#[test]
fn the_scheduler_says_why_no_node_will_do() {
    let full = |name: &str, number| FakeNode {
        allocatable: [("cpu", "1"), ("memory", "1Gi"), ("pods", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        ..FakeNode::sized(name, number)
    };
    let config = FakeConfig { nodes: vec![full("node-1", 2), full("node-2", 3)], ..FakeConfig::default() };
    let rows = [
        (
            json!({"spec": {"nodeSelector": {"disk": "ssd"}}}),
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
        ),
        (
            json!({"spec": {"containers": [asks("2", "1Mi")]}}),
            "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.",
        ),
        (
            json!({"spec": {"containers": [asks("2", "2Gi")], "nodeSelector": {"kubernetes.io/hostname": "node-1"}}}),
            "0/2 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 1 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.",
        ),
        (
            json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}}),
            "0/2 nodes are available: persistentvolumeclaim \"data\" not found. not found",
        ),
    ];
    for (spec, expected) in rows {
        let bed = Bed::new(config.clone());
        bed.run(pod("web", spec.clone()));
        assert_eq!(refusal(&bed, "web"), expected, "{spec}");
        assert_eq!(bed.told("web", "FailedScheduling"), [expected]);
        assert_eq!(bed.phase("web"), "Pending");
    }
}

#[test]
fn init_containers_count_by_the_largest_and_not_by_their_sum() {
    let bed = Bed::new(FakeConfig { nodes: vec![FakeNode::sized("node-1", 2)], ..FakeConfig::default() });
    let init = |cpu| {
        let mut one = asks(cpu, "1Mi");
        one["name"] = "one".into();
        one["image"] = "i".into();
        let mut two = one.clone();
        two["name"] = "two".into();
        json!({"spec": {"initContainers": [one, two], "containers": [asks("1", "1Mi")]}})
    };
    bed.run(pod("fits", init("4")));
    assert!(!bed.node_of("fits").is_empty());
    bed.run(pod("not", init("4")));
    assert!(refusal(&bed, "not").contains("1 Insufficient cpu"));
}

#[test]
fn a_pod_is_placed_once_there_is_room() {
    let bed = Bed::new(FakeConfig {
        nodes: vec![FakeNode::sized("node-1", 2)],
        ..script([("short", Behaviour::Exit { after: secs(30), code: 0 })])
    });
    let mut big = asks("3", "1Gi");
    big["name"] = "short".into();
    bed.run(pod("first", json!({"spec": {"containers": [big]}})));
    bed.run(pod("second", json!({"spec": {"containers": [asks("3", "1Gi")]}})));
    bed.sim.advance(secs(10));
    assert!(refusal(&bed, "second").contains("Insufficient cpu"));
    bed.wait(secs(60), |bed| bed.phase("first") == "Succeeded");
    assert_eq!(bed.phase("second"), "Running", "what has ended takes no room");
}

#[test]
fn cordoned_tainted_and_lost_nodes_take_no_pods() {
    let one = || FakeConfig { nodes: vec![FakeNode::sized("node-1", 2)], ..FakeConfig::default() };
    let key = ObjectKey::cluster(Kind::Node, "node-1");
    let change = |bed: &Bed, change: fn(&mut Value)| bed.fake.with(|store| store.update(&key, change));
    let bed = Bed::new(one());
    change(&bed, |node| node["spec"]["unschedulable"] = true.into());
    bed.run(pod("web", json!({})));
    assert!(refusal(&bed, "web").starts_with("0/1 nodes are available: 1 node(s) were unschedulable."));
    change(&bed, |node| node["spec"]["unschedulable"] = false.into());
    bed.sim.settle();
    assert_eq!(bed.phase("web"), "Running");

    let bed = Bed::new(one());
    change(&bed, |node| node["spec"]["taints"] = json!([{"key": "team", "value": "red", "effect": "NoSchedule"}]));
    bed.run(pod("web", json!({})));
    assert!(refusal(&bed, "web").contains("1 node(s) had untolerated taint {team: red}"));
    bed.run(pod("red", json!({"spec": {"tolerations": [{"key": "team", "operator": "Equal", "value": "red"}]}})));
    assert_eq!(bed.phase("red"), "Running");

    let bed = Bed::new(one());
    bed.fake.lose_node("node-1");
    bed.sim.advance(secs(41));
    bed.run(pod("web", json!({})));
    assert!(refusal(&bed, "web").contains("untolerated taint {node.kubernetes.io/unreachable: }"));

    let mut not_ready = one();
    not_ready.nodes[0].ready = false;
    let bed = Bed::new(not_ready);
    bed.run(pod("web", json!({})));
    assert!(refusal(&bed, "web").contains("untolerated taint {node.kubernetes.io/not-ready: }"));
}

#[test]
fn pods_are_spread_and_chance_breaks_ties() {
    let first: BTreeSet<_> = (0..20)
        .map(|seed| {
            let bed = Bed::seeded(seed, FakeConfig::default());
            for name in ["a", "b", "c", "d"] {
                bed.run(pod(name, json!({})));
            }
            let nodes = ["a", "b", "c", "d"].map(|name| bed.node_of(name));
            assert_eq!(nodes.iter().filter(|node| *node == "node-1").count(), 2, "seed {seed}");
            nodes[0].clone()
        })
        .collect();
    assert_eq!(first.len(), 2);
}

#[test]
fn a_cluster_without_nodes_says_so() {
    let bed = Bed::new(FakeConfig { nodes: vec![], ..FakeConfig::default() });
    bed.run(pod("web", json!({})));
    assert_eq!(refusal(&bed, "web"), "no nodes available to schedule pods");
}

#[test]
fn the_default_account_comes_after_its_namespace_and_pods_need_it() {
    let delays = Delays { service_account: secs(2), ..Delays::default() };
    let bed = Bed::new(FakeConfig { delays, ..FakeConfig::default() });
    bed.create(Kind::Namespace, json!({"metadata": {"name": "late"}}));
    let find = || bed.fake.with(|store| store.typed::<ServiceAccount>(Some("late"), "default"));
    bed.sim.advance(Duration::from_millis(1900));
    assert_eq!(find(), None);
    let early = Object::from_json(Kind::Pod, pod("web", json!({"metadata": {"namespace": "late"}}))).unwrap();
    let refused = bed.sim.block_on(bed.fake.create(&early)).unwrap_err().to_string();
    assert!(refused.contains("service account"), "{refused}");
    bed.sim.advance(secs(1));
    assert!(find().is_some());
    bed.sim.block_on(bed.fake.create(&early)).unwrap();
}

#[test]
fn a_deleted_account_is_made_again() {
    let bed = Bed::new(FakeConfig::default());
    bed.delete(&ObjectKey::namespaced(Kind::ServiceAccount, APP, "default"), None);
    assert!(bed.find::<ServiceAccount>("default").is_some());
}

#[test]
fn a_namespace_goes_after_everything_in_it() {
    let bed = Bed::new(script([("app", Behaviour::TrapTerm { exit_after: secs(3), code: 0 })]));
    bed.run(pod("web", json!({})));
    bed.create(Kind::Secret, json!({"metadata": {"name": "env", "namespace": APP}}));
    bed.sim.advance(secs(1));
    bed.delete(&ObjectKey::cluster(Kind::Namespace, APP), None);
    let namespace = || bed.fake.with(|store| store.typed::<Namespace>(None, APP));
    let dying = namespace().unwrap();
    let conditions = dying.status.unwrap().conditions.unwrap();
    let remaining = conditions.iter().find(|it| it.type_ == "NamespaceContentRemaining").unwrap();
    assert_eq!(remaining.message.as_deref(), Some("Some resources are remaining: pods. has 1 resource instances"));
    assert_eq!(bed.running(), ["web/app"], "pods keep their grace");
    let refused = Object::from_json(Kind::Secret, json!({"metadata": {"name": "late", "namespace": APP}})).unwrap();
    assert!(bed.sim.block_on(bed.fake.create(&refused)).is_err());
    bed.sim.advance(secs(5));
    assert_eq!(namespace(), None);
    assert_eq!(bed.running(), Vec::<String>::new());
    let left = bed.fake.with(|store| {
        let all = Kind::ALL.iter().flat_map(|kind| store.all(*kind).map(|(key, _)| key.clone()).collect::<Vec<_>>());
        all.filter(|key| key.namespace.as_deref() == Some(APP)).collect::<Vec<_>>()
    });
    assert_eq!(left, []);
}

#[test]
fn a_finalizer_inside_holds_the_namespace_and_is_named() {
    let bed = Bed::new(FakeConfig::default());
    let finalizers = json!(["test.dev/hold"]);
    bed.create(Kind::Secret, json!({"metadata": {"name": "held", "namespace": APP, "finalizers": finalizers}}));
    bed.delete(&ObjectKey::cluster(Kind::Namespace, APP), None);
    bed.sim.advance(secs(3600));
    let namespace = || bed.fake.with(|store| store.typed::<Namespace>(None, APP));
    let conditions = namespace().unwrap().status.unwrap().conditions.unwrap();
    let held = conditions.into_iter().find(|it| it.type_ == "NamespaceFinalizersRemaining").unwrap();
    assert_eq!(
        held.message.as_deref(),
        Some("Some content in the namespace has finalizers remaining: test.dev/hold in 1 resource instances")
    );
    bed.patch(Kind::Secret, "held", json!({"metadata": {"finalizers": null}}));
    assert_eq!(namespace(), None);
}

#[test]
fn a_claim_is_bound_by_its_first_pod_and_stays_while_a_pod_has_it() {
    let bed = Bed::new(script([("app", Behaviour::Exit { after: secs(1), code: 0 })]));
    bed.create(
        Kind::PersistentVolumeClaim,
        json!({"metadata": {"name": "data", "namespace": APP},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
    );
    let phase = || bed.find::<PersistentVolumeClaim>("data").unwrap().status.unwrap().phase.unwrap();
    bed.sim.advance(secs(60));
    assert_eq!(phase(), "Pending", "nobody has mounted it");
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let with = json!({"spec": {"volumes": volumes}});
    bed.run(pod("web", with.clone()));
    bed.wait(secs(10), |bed| bed.phase("web") == "Succeeded");
    assert_eq!(phase(), "Bound");
    bed.delete(&ObjectKey::namespaced(Kind::PersistentVolumeClaim, APP, "data"), None);
    bed.sim.advance(secs(60));
    assert!(bed.find::<PersistentVolumeClaim>("data").is_some(), "an ended pod holds it too");
    bed.run(pod("next", with));
    assert!(refusal(&bed, "next").contains("persistentvolumeclaim \"data\" is being deleted"));
    bed.delete_pod("next", None);
    bed.delete_pod("web", None);
    assert_eq!(bed.find::<PersistentVolumeClaim>("data"), None);
}

/// A headless Service for the pods of workload `name`, with what `with` says beside.
fn service(bed: &Bed, name: &str, publish: bool) {
    let spec = json!({"clusterIP": "None", "selector": {"workload": name}, "publishNotReadyAddresses": publish,
        "ports": [{"name": "http", "port": 80}]});
    bed.create(Kind::Service, json!({"metadata": {"name": name, "namespace": APP}, "spec": spec}));
}

fn resolve(bed: &Bed, name: &str) -> Vec<String> {
    bed.fake.resolve(&format!("{name}.{APP}.svc.cluster.local")).iter().map(ToString::to_string).collect()
}

#[test]
fn a_service_names_the_pods_it_selects() {
    let bed = Bed::new(FakeConfig::default());
    service(&bed, "web", false);
    assert_eq!(resolve(&bed, "web"), Vec::<String>::new());
    bed.run(pod("web", json!({})));
    assert_eq!(resolve(&bed, "web"), [bed.ip("web")]);
    let slices: Vec<EndpointSlice> = bed.fake.with(|store| store.typed_within(APP).collect());
    let [slice] = slices.as_slice() else { panic!("{slices:?}") };
    let labels = slice.metadata.labels.clone().unwrap();
    assert_eq!(labels["kubernetes.io/service-name"], "web");
    assert!(slice.metadata.name.as_deref().unwrap().starts_with("web-"));
    assert_eq!(slice.endpoints[0].target_ref.as_ref().unwrap().name.as_deref(), Some("web"));
    assert_eq!(slice.ports.as_ref().unwrap()[0].port, Some(80));
    bed.patch(Kind::Service, "web", json!({"spec": {"selector": {"workload": "other"}}}));
    assert_eq!(resolve(&bed, "web"), Vec::<String>::new(), "the selector moved on");
    bed.delete(&ObjectKey::namespaced(Kind::Service, APP, "web"), None);
    assert_eq!(bed.fake.with(|store| store.typed_within::<EndpointSlice>(APP).count()), 0);
}

#[test]
fn a_pod_that_is_not_ready_has_no_name_unless_its_service_says_so() {
    let probe = json!({"spec": {"containers": [{"readinessProbe": {"tcpSocket": {"port": 80}}}]}});
    for publish in [false, true] {
        let bed = Bed::new(FakeConfig::default());
        service(&bed, "web", publish);
        bed.run(pod("web", probe.clone()));
        bed.sim.advance(secs(30));
        assert_eq!(resolve(&bed, "web").len(), usize::from(publish));
    }
}

/// As tried on Kubernetes 1.34: 80 s after its end the slice still had the pod, ready.
#[test]
fn an_ended_pod_keeps_its_name_until_something_is_touched() {
    type Touch = fn(&Bed);
    let touches: [(&str, Touch); 3] = [
        ("the pod's label goes", |bed| {
            bed.patch(Kind::Pod, "web", json!({"metadata": {"labels": {"workload": null}}}));
        }),
        ("the Service gets an annotation", |bed| {
            bed.patch(Kind::Service, "web", json!({"metadata": {"annotations": {"test.dev/touch": "1"}}}));
        }),
        ("the selector moves on and back", |bed| {
            bed.patch(Kind::Service, "web", json!({"spec": {"selector": {"workload": "other"}}}));
            bed.patch(Kind::Service, "web", json!({"spec": {"selector": {"workload": "web"}}}));
        }),
    ];
    for (what, touch) in touches {
        for seed in 0..10 {
            let bed = Bed::seeded(seed, script([("app", Behaviour::Exit { after: secs(5), code: 3 })]));
            service(&bed, "web", true);
            bed.run(pod("web", json!({})));
            bed.wait(secs(10), |bed| bed.phase("web") == "Failed");
            bed.sim.advance(secs(80));
            let ip = bed.ip("web");
            assert_eq!(resolve(&bed, "web"), std::slice::from_ref(&ip), "seed {seed}");
            // Meanwhile its address is another's.
            bed.run(pod("thief", json!({"spec": {"nodeName": bed.node_of("web"), "containers": [{"name": "other"}]}})));
            bed.sim.advance(secs(1));
            assert_eq!(bed.ip("thief"), ip);
            touch(&bed);
            assert_eq!(resolve(&bed, "web"), Vec::<String>::new(), "{what}");
        }
    }
}

#[test]
fn a_terminating_pod_keeps_its_name_only_where_unready_ones_have_one() {
    for publish in [false, true] {
        let bed = Bed::new(script([("app", Behaviour::IgnoreTerm)]));
        service(&bed, "web", publish);
        bed.run(pod("web", json!({})));
        bed.sim.advance(secs(1));
        bed.delete_pod("web", Some(10));
        bed.sim.advance(secs(5));
        assert_eq!(resolve(&bed, "web").len(), usize::from(publish));
        bed.wait(secs(10), |bed| bed.is_gone("web"));
        assert_eq!(resolve(&bed, "web"), Vec::<String>::new());
    }
}
