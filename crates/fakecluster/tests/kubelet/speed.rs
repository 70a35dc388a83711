//! How many clusters and scenarios a second: the suites above rest on it.

use crate::bed::{Bed, pod, script, secs};
use pando_fakecluster::behaviour::Behaviour;
use serde_json::json;

/// Counts steps, not seconds: those are the machine's.
#[test]
fn a_short_scenario_takes_few_steps() {
    let bed = Bed::new(script([("gate", Behaviour::Exit { after: secs(1), code: 0 })]));
    let cluster = bed.sim.steps();
    bed.run(pod("web", json!({"spec": {"initContainers": [{"name": "gate", "image": "i"}]}})));
    bed.sim.advance(secs(5));
    bed.delete_pod("web", None);
    bed.sim.advance(secs(5));
    let scenario = bed.sim.steps() - cluster;
    println!("{cluster} steps to a cluster with a namespace, {scenario} for a pod's life");
    assert!(bed.is_gone("web"));
    assert!(cluster < 250 && scenario < 500, "{cluster} {scenario}");
    let before = bed.sim.steps();
    bed.sim.advance(secs(86_000));
    assert!(bed.sim.steps() - before < 5, "a cluster at rest does nothing");
}
