//! Every case by kube's client, over the HTTP face of the cluster in memory, on tokio's paused clock.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use pando_conformance::beds::MemoryBed;
use pando_conformance::runner::{Plan, run, seed_from_environment};
use pando_conformance::{Bed as _, Case, Profile};
use pando_kubecluster::paused_env;

/// No case takes so much virtual time: it waits for something that never comes.
const LIMIT: Duration = Duration::from_hours(1);

fn run_case(case: &Case) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let bed = MemoryBed::over_http(paused_env(seed_from_environment().unwrap_or(1))).await;
        let outcome = bed.env().timeout(LIMIT, (case.run)(&bed)).await;
        outcome.unwrap_or_else(|elapsed| panic!("it waits for something that never comes: {elapsed}"));
    });
}

fn main() -> ExitCode {
    run(&Plan {
        name: "face",
        ceiling: MemoryBed::CEILING,
        profile: Profile::Full,
        threads: None,
        lacks: Box::new(MemoryBed::lacks),
        run: Arc::new(run_case),
    })
}
