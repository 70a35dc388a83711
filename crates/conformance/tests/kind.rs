//! Every case on a real cluster, as Pando's own account. `cargo xtask e2e` says which cluster.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use pando_conformance::beds::RealCluster;
use pando_conformance::runner::{Plan, nothing, run};
use pando_conformance::{Bed as _, Case};

/// No case takes so long on any cluster: it hangs.
const LIMIT: Duration = Duration::from_mins(5);

/// A case mostly waits for the cluster.
const AT_ONCE: usize = 6;

fn main() -> ExitCode {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let Some(cluster) = runtime.block_on(RealCluster::from_environment()) else {
        return nothing(RealCluster::HOW);
    };
    let (profile, ceiling, facts) = (cluster.profile(), cluster.ceiling(), cluster.clone());
    let run_case = move |case: &Case| {
        runtime.block_on(async {
            let bed = cluster.bed();
            let outcome = AssertUnwindSafe(bed.env().timeout(LIMIT, (case.run)(&bed))).catch_unwind().await;
            bed.clear().await;
            match outcome {
                Ok(in_time) => in_time.unwrap_or_else(|elapsed| panic!("it hangs: {elapsed}")),
                Err(panic) => resume_unwind(panic),
            }
        });
    };
    run(&Plan {
        name: "kind",
        ceiling,
        profile,
        threads: Some(AT_ONCE),
        lacks: Box::new(move |need| facts.lacks(need)),
        run: Arc::new(run_case),
    })
}
