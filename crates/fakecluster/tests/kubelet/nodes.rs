//! What really runs, where the API says otherwise: lost nodes, forced deletions, addresses given back.

use std::collections::BTreeSet;

use crate::bed::{APP, Bed, pod, script, secs};
use pando_cluster::Kind;
use pando_fakecluster::behaviour::Behaviour;
use pando_fakecluster::{FakeConfig, FakeNode};
use serde_json::json;

#[test]
fn the_programs_of_a_pod_that_was_deleted_by_force_outlive_its_object() {
    let bed = Bed::new(script([("app", Behaviour::IgnoreTerm)]));
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    let mounts = json!([{"volumeMounts": [{"name": "data", "mountPath": "/data"}]}]);
    bed.create(
        Kind::PersistentVolumeClaim,
        json!({"metadata": {"name": "data", "namespace": APP},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
    );
    let spec = json!({"spec": {"volumes": volumes, "containers": mounts, "nodeSelector": {"kubernetes.io/hostname": "node-1"}}});
    let first = bed.run(pod("web", spec.clone()));
    bed.sim.advance(secs(1));
    bed.delete_pod("web", Some(0));
    assert!(bed.is_gone("web"));
    let second = bed.run(pod("web", spec));
    bed.sim.advance(secs(1));
    let writers: BTreeSet<_> =
        bed.fake.running().into_iter().filter(|it| it.claims == ["data"]).map(|it| it.uid).collect();
    let both = [first, second].map(|pod| pod.metadata.uid.unwrap());
    assert_eq!(writers, both.clone().into(), "two writers on one volume");
    bed.sim.advance(secs(1));
    assert_eq!(bed.fake.running().into_iter().map(|it| it.uid).collect::<Vec<_>>(), both[1..]);
}

#[test]
fn an_address_is_given_back_at_the_end_and_soon_anothers() {
    let bed = Bed::new(script([("short", Behaviour::Exit { after: secs(1), code: 0 })]));
    let here = |container: &str| json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "node-1"}, "containers": [{"name": container}]}});
    bed.run(pod("first", here("short")));
    bed.wait(secs(10), |bed| bed.phase("first") == "Succeeded");
    bed.run(pod("second", here("app")));
    bed.sim.advance(secs(1));
    assert_eq!(bed.ip("second"), bed.ip("first"), "the ended pod still shows it");
    bed.run(pod("third", here("app")));
    bed.sim.advance(secs(1));
    assert_ne!(bed.ip("third"), bed.ip("second"));
}

#[test]
fn a_lost_node_is_noticed_late_and_its_programs_go_on() {
    let bed = Bed::new(script([("app", Behaviour::Run)]));
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(1));
    let node = bed.node_of("web");
    let ready = |bed: &Bed| {
        let conditions = bed.node(&node).status.unwrap().conditions.unwrap();
        conditions.into_iter().find(|it| it.type_ == "Ready").unwrap().status
    };
    bed.fake.lose_node(&node);
    bed.sim.advance(secs(39));
    assert_eq!(ready(&bed), "True");
    bed.sim.advance(secs(1));
    assert_eq!(ready(&bed), "Unknown");
    assert_eq!((bed.phase("web").as_str(), bed.condition("web", "Ready").as_str()), ("Running", "False NodeNotReady"));
    bed.delete_pod("web", Some(5));
    bed.sim.advance(secs(3600));
    assert!(!bed.is_gone("web"), "nobody confirms its end");
    assert_eq!(bed.running(), ["web/app"]);
    bed.fake.return_node(&node);
    bed.wait(secs(10), |bed| bed.is_gone("web"));
    assert_eq!((ready(&bed).as_str(), bed.running()), ("True", vec![]));
}

#[test]
fn a_pod_that_was_forced_away_from_a_lost_node_comes_back_to_life_with_it() {
    let bed = Bed::new(script([("app", Behaviour::IgnoreTerm)]));
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(1));
    let node = bed.node_of("web");
    bed.fake.lose_node(&node);
    bed.sim.advance(secs(60));
    bed.delete_pod("web", Some(0));
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(10));
    assert_eq!(bed.running(), ["web/app", "web/app"], "the old one writes on");
    assert_ne!(bed.node_of("web"), node);
    bed.fake.return_node(&node);
    bed.sim.advance(secs(3));
    assert_eq!(bed.running(), ["web/app"]);
}

#[test]
fn pods_are_evicted_from_a_node_that_stays_lost() {
    let bed = Bed::new(FakeConfig::default());
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(1));
    bed.fake.lose_node(&bed.node_of("web"));
    bed.sim.advance(secs(339));
    assert!(bed.pod("web").metadata.deletion_timestamp.is_none());
    bed.sim.advance(secs(2));
    assert!(bed.pod("web").metadata.deletion_timestamp.is_some());
}

#[test]
fn what_a_crashed_node_ran_has_ended_and_shows_so_once_it_is_back() {
    let bed = Bed::new(script([("app", Behaviour::IgnoreTerm)]));
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(1));
    let node = bed.node_of("web");
    bed.fake.crash_node(&node);
    bed.sim.advance(secs(60));
    assert_eq!((bed.running(), bed.phase("web").as_str()), (vec![], "Running"), "nobody is there to tell");
    bed.fake.return_node(&node);
    bed.sim.advance(secs(1));
    assert_eq!((bed.phase("web").as_str(), bed.state("web", "app").as_str()), ("Failed", "terminated Error 137"));
}

#[test]
fn a_pod_made_for_its_node_runs_there_without_a_scheduler() {
    let bed = Bed::new(FakeConfig::default());
    bed.run(pod("web", json!({"spec": {"nodeName": "node-2"}})));
    assert_eq!((bed.node_of("web").as_str(), bed.phase("web").as_str()), ("node-2", "Running"));
    assert_eq!(bed.condition("web", "PodScheduled"), "True");
    assert_eq!(bed.told("web", "Scheduled"), Vec::<String>::new());
}

#[test]
fn an_evicted_pod_has_failed_and_says_why() {
    let bed = Bed::new(script([("app", Behaviour::IgnoreTerm)]));
    bed.run(pod("web", json!({})));
    let words = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ";
    assert!(bed.fake.evict(&Bed::name("web"), words));
    bed.wait(secs(10), |bed| bed.phase("web") == "Failed");
    let status = bed.pod("web").status.unwrap();
    assert_eq!((status.reason.as_deref(), status.message.as_deref()), (Some("Evicted"), Some(words)));
    assert_eq!((bed.state("web", "app").as_str(), bed.running()), ("terminated Error 137", vec![]));
    assert_eq!(bed.told("web", "Evicted"), [words]);
    assert!(!bed.fake.evict(&Bed::name("nobody"), words));
}

#[test]
fn a_node_whose_disk_is_full_takes_no_new_pods_until_it_has_room() {
    let bed = Bed::new(FakeConfig { nodes: vec![FakeNode::sized("node-1", 2)], ..FakeConfig::default() });
    bed.run(pod("old", json!({})));
    bed.fake.set_disk_pressure("node-1", true);
    bed.run(pod("new", json!({})));
    let words = "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: }. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    assert_eq!(bed.told("new", "FailedScheduling"), [words]);
    assert_eq!(bed.phase("old"), "Running");
    bed.fake.set_disk_pressure("node-1", false);
    bed.sim.settle();
    assert_eq!(bed.phase("new"), "Running");
}

#[test]
fn the_pods_of_a_node_that_was_taken_away_go_after_a_while() {
    let bed = Bed::new(FakeConfig::default());
    bed.run(pod("web", json!({})));
    let node = bed.node_of("web");
    bed.fake.remove_node(&node);
    bed.sim.advance(secs(39));
    assert_eq!((bed.phase("web").as_str(), bed.running()), ("Running", vec![]), "it is only said so");
    bed.sim.advance(secs(2));
    assert!(bed.is_gone("web"));
    bed.fake.return_node(&node);
    bed.run(pod("next", json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}})));
    assert_eq!(bed.phase("next"), "Running");
}
