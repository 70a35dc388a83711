//! Every case on the cluster in memory, on virtual time, many interleavings each.
//!
//! `PANDO_SEED=7` runs the one interleaving of seed 7.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use pando_conformance::beds::MemoryBed;
use pando_conformance::runner::{Plan, run, seed_from_environment, words_of};
use pando_conformance::{Case, Profile};
use pando_fakecluster::sim::Sim;

/// How many interleavings of each case are run.
const SEEDS: u64 = 16;

/// How many of a case that is long on a real cluster: it has many pods, and is long here too.
const SEEDS_OF_A_LONG_ONE: u64 = 2;

/// No case takes so much virtual time: it waits for something that never comes.
const LIMIT: Duration = Duration::from_hours(1);

/// Runs the case in the interleaving of `seed`; answers the hash of every choice that was made.
fn play(case: &Case, seed: u64) -> u64 {
    let sim = Sim::new(seed);
    sim.set_limit(LIMIT);
    sim.block_on(async {
        let bed = MemoryBed::direct(sim.env()).await;
        (case.run)(&bed).await;
    });
    sim.trace_hash()
}

fn run_case(case: &Case) {
    let enough = if case.profile == Profile::Full { SEEDS_OF_A_LONG_ONE } else { SEEDS };
    let seeds = seed_from_environment().map_or(0..enough, |seed| seed..seed + 1);
    for seed in seeds.clone() {
        let played = catch_unwind(AssertUnwindSafe(|| play(case, seed)));
        let hash = played.unwrap_or_else(|panic| {
            panic!(
                "{}\nto run it again: PANDO_SEED={seed} cargo test -p pando-conformance --test fake -- {}",
                words_of(&*panic),
                case.name
            )
        });
        if seed == seeds.start {
            // Nothing else here can be believed unless a seed decides everything.
            assert_eq!(hash, play(case, seed), "two runs of seed {seed} differ: something outside Env had a say");
        }
    }
}

fn main() -> ExitCode {
    run(&Plan {
        name: "fake",
        ceiling: MemoryBed::CEILING,
        profile: Profile::Full,
        threads: None,
        lacks: Box::new(MemoryBed::lacks),
        run: Arc::new(run_case),
    })
}
