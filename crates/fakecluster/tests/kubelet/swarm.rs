//! Random lives of pods, and what must hold in all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use pando_cluster::Kind;
use pando_fakecluster::behaviour::Behaviour;
use pando_fakecluster::sim::Sim;
use pando_fakecluster::{Delays, FakeConfig, Image};
use serde_json::{Value, json};

use crate::bed::{APP, Bed, pod, script, secs};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Chance of the test's own, beside the cluster's.
struct Dice(pando_cluster::Env);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Sim::new(seed ^ 0xD1CE).env())
    }

    fn below(&self, bound: u64) -> u64 {
        self.0.random_u64() % bound
    }

    fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }

    fn millis(&self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }
}

fn config(dice: &Dice) -> FakeConfig {
    let gate = Behaviour::Exit { after: dice.millis(3000), code: i32::from(dice.below(8) == 0) };
    let trap = Behaviour::TrapTerm { exit_after: dice.millis(8000), code: 0 };
    FakeConfig {
        other_images: Image::Pulled { after: dice.millis(2000) },
        images: [("missing".to_owned(), Image::missing("missing"))].into(),
        delays: Delays {
            sandbox: dice.millis(1500),
            container: dice.millis(800),
            phase: dice.millis(2600),
            removal: dice.millis(900),
            ..Delays::default()
        },
        ..script([
            ("gate", gate),
            ("stubborn", Behaviour::IgnoreTerm),
            ("slow", trap),
            ("short", Behaviour::Exit { after: dice.millis(9000), code: i32::from(dice.below(2) == 0) }),
            ("broken", Behaviour::StartError { message: "no such file".to_owned() }),
            ("hungry", Behaviour::EatMemory),
        ])
    }
}

fn make(bed: &Bed, dice: &Dice, name: &str) {
    let container = *dice.pick(&["app", "stubborn", "slow", "short", "broken", "hungry"]);
    let image = if dice.below(8) == 0 { "missing" } else { "i" };
    let mut spec = json!({
        "containers": [{"name": container, "image": image}],
        "terminationGracePeriodSeconds": 1 + dice.below(10),
    });
    if dice.below(2) == 0 {
        spec["initContainers"] = json!([{"name": "gate", "image": "i"}]);
    }
    if dice.below(6) == 0 {
        spec["activeDeadlineSeconds"] = (1 + dice.below(15)).into();
    }
    bed.run(pod(name, json!({"spec": spec})));
}

fn act(bed: &Bed, dice: &Dice) {
    let name = *dice.pick(&NAMES);
    let node = *dice.pick(&["node-1", "node-2"]);
    match (dice.below(10), bed.is_gone(name)) {
        (0, _) => bed.fake.lose_node(node),
        (1, _) => bed.fake.crash_node(node),
        (2 | 3, _) => bed.fake.return_node(node),
        (4, false) => bed.delete_pod(name, Some(0)),
        (5 | 6, false) => bed.delete_pod(name, Some(u32::try_from(dice.below(6)).unwrap())),
        (7, false) => drop(bed.fake.kill(&Bed::name(name), "app")),
        (_, false) => {}
        (_, true) => make(bed, dice, name),
    }
}

/// Every address is one pod's at a time, as far as programs run.
fn no_address_is_shared(bed: &Bed) {
    let mut owners = BTreeMap::new();
    for running in bed.fake.running() {
        let Some(pod) = bed.find::<k8s_openapi::api::core::v1::Pod>(&running.pod.name) else { continue };
        if pod.metadata.uid.as_deref() == Some(&running.uid)
            && let Some(ip) = pod.status.and_then(|status| status.pod_ip)
        {
            let other = owners.insert(ip.clone(), running.uid.clone());
            assert!(other.is_none_or(|other| other == running.uid), "{ip} is shared");
        }
    }
}

fn rank(phase: &Value) -> u8 {
    match phase.as_str() {
        Some("Pending") => 0,
        Some("Running") => 1,
        Some("Succeeded" | "Failed") => 2,
        other => panic!("phase {other:?}"),
    }
}

/// A pod's status only ever goes forward: phase, address, containers.
fn history_goes_forward(bed: &Bed) {
    bed.fake.with(|store| {
        let oldest = store.oldest();
        for change in store.changes_after(oldest).unwrap().filter(|change| change.key.kind == Kind::Pod) {
            let Some(before) = change.before.as_deref() else { continue };
            let (before, after) = (&before["status"], &change.after["status"]);
            let key = &change.key;
            assert!(rank(&before["phase"]) <= rank(&after["phase"]), "{key}: {} → {}", before["phase"], after["phase"]);
            if rank(&before["phase"]) == 2 {
                assert_eq!(before["phase"], after["phase"], "{key}");
            }
            assert!(before["podIP"].is_null() || before["podIP"] == after["podIP"], "{key}");
            for list in ["initContainerStatuses", "containerStatuses"] {
                for was in before[list].as_array().into_iter().flatten() {
                    let is = after[list].as_array().unwrap().iter().find(|it| it["name"] == was["name"]).unwrap();
                    if was["state"]["terminated"].is_object() {
                        assert_eq!(was["state"], is["state"], "{key}: an ended container stays ended");
                    }
                    if was["state"]["running"].is_object() {
                        assert!(is["state"]["waiting"].is_null(), "{key}: a running container ends or runs");
                    }
                }
            }
        }
    });
}

#[test]
fn in_all_lives_status_goes_forward_and_nothing_is_left() {
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    for seed in 0..50 {
        let dice = Dice::new(seed);
        let bed = Bed::seeded(seed, config(&dice));
        for _ in 0..30 {
            act(&bed, &dice);
            bed.sim.advance(dice.millis(2500));
            no_address_is_shared(&bed);
        }
        bed.fake.with(|store| {
            for (_, pod) in store.within(Kind::Pod, APP) {
                *ends.entry(pod["status"]["phase"].as_str().unwrap().to_owned()).or_default() += 1;
            }
        });
        for node in ["node-1", "node-2"] {
            bed.fake.return_node(node);
        }
        bed.sim.settle();
        for name in NAMES.into_iter().filter(|name| !bed.is_gone(name)) {
            bed.delete_pod(name, None);
        }
        bed.sim.advance(secs(60));
        history_goes_forward(&bed);
        assert_eq!((bed.running(), NAMES.iter().filter(|name| !bed.is_gone(name)).count()), (vec![], 0), "seed {seed}");
        // All addresses were given back: the first one is free.
        bed.run(pod("last", json!({"spec": {"nodeName": "node-1", "containers": [{"name": "app"}]}})));
        bed.sim.advance(secs(10));
        assert_eq!(bed.ip("last"), "10.244.0.2", "seed {seed}");
    }
    println!("phases met: {ends:?}");
    // The generator proves itself: every phase came up.
    assert!(["Pending", "Running", "Succeeded", "Failed"].iter().all(|phase| ends.contains_key(*phase)), "{ends:?}");
}

#[test]
fn a_random_life_is_the_same_twice() {
    let life = |seed| {
        let dice = Dice::new(seed);
        let bed = Bed::seeded(seed, config(&dice));
        for _ in 0..25 {
            act(&bed, &dice);
            bed.sim.advance(dice.millis(2500));
        }
        let everything: Vec<_> = Kind::ALL
            .iter()
            .flat_map(|kind| bed.fake.with(|store| store.all(*kind).map(|(_, it)| it.clone()).collect::<Vec<_>>()))
            .collect();
        bed.sim.note(&serde_json::to_string(&everything).unwrap());
        bed.sim.trace_hash()
    };
    for seed in 0..20 {
        assert_eq!(life(seed), life(seed), "seed {seed}");
    }
}
