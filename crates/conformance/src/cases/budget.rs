//! What the adapter asks of the API server, call by call. The numbers are exact, so that one more is noticed.

use std::fmt::Write as _;
use std::future::Future;
use std::time::Duration;

use pando_api::Outcome;
use pando_cluster::Kind;
use pando_fakecluster::api::ledger::Call;
use pando_fakecluster::behaviour::Behaviour;

use super::fixture::SOON;
use crate::apps::{App, of_web};
use crate::bed::{Bed, eventually};
use crate::beds::MemoryBed;
use crate::manifests::ACCOUNT;

/// How long one call takes; all else takes no time.
const LATENCY: Duration = Duration::from_millis(10);

/// A cluster on which time is spent by calls alone.
async fn cluster(bed: &dyn Bed) -> MemoryBed {
    let memory = bed.memory().expect("a cluster in memory");
    memory
        .beside(|config| {
            config.latency = LATENCY;
            config.policy_lag = Duration::ZERO;
        })
        .await
}

/// The calls of Pando's account so far.
fn calls(bed: &MemoryBed) -> Vec<Call> {
    let account = bed.fake().as_account(ACCOUNT);
    bed.fake().calls().into_iter().filter(|call| call.user == *account.user()).collect()
}

/// The calls that `work` makes.
async fn calls_of<T>(bed: &MemoryBed, work: impl Future<Output = T>) -> (T, Vec<Call>) {
    let before = calls(bed).len();
    let result = work.await;
    (result, calls(bed).split_off(before))
}

/// Call by call, for whoever finds another number than expected.
fn table(calls: &[Call]) -> String {
    calls.iter().fold(String::new(), |mut table, call| {
        let key = call.key.as_ref().map(ToString::to_string).unwrap_or_default();
        let (kind, start) = (call.kind.plural(), call.start.since_start());
        // Writing into a String cannot fail.
        let _ = write!(table, "\n{start:?} {} {kind} {key}", call.verb);
        table
    })
}

/// After how many round trips, one waiting for the other, the pod may run.
fn round_trips(calls: &[Call]) -> u128 {
    let began = calls.iter().map(|call| call.start).min().expect("there are calls");
    let opens = |call: &&Call| call.kind == Kind::Pod && call.verb == "patch";
    let opened = calls.iter().find(opens).and_then(|call| call.end).expect("the gate was opened");
    opened.since(began).as_nanos() / LATENCY.as_nanos()
}

pub(super) async fn a_first_apply_of_a_fresh_process(bed: &dyn Bed) {
    let bed = cluster(bed).await;
    let app = App::new(&bed, "cold");
    let (result, calls) = calls_of(&bed, app.apply(&app.plan(&Behaviour::Run))).await;
    assert_eq!(of_web(&result).outcome, Outcome::Created);
    assert_eq!((calls.len(), round_trips(&calls)), (15, 7), "{}", table(&calls));
}

pub(super) async fn a_first_apply_of_a_warm_process(bed: &dyn Bed) {
    let bed = cluster(bed).await;
    let app = App::new(&bed, "warm");
    app.runtime.warm().await.expect("the cluster can be read");
    eventually(bed.env(), "the namespaces are watched", SOON, || async {
        let watches = |call: &Call| call.kind == Kind::Namespace && call.verb == "watch" && call.end.is_some();
        calls(&bed).iter().any(watches).then_some(())
    })
    .await;
    let (result, calls) = calls_of(&bed, app.apply(&app.plan(&Behaviour::Run))).await;
    assert_eq!(of_web(&result).outcome, Outcome::Created);
    assert_eq!((calls.len(), round_trips(&calls)), (12, 6), "{}", table(&calls));
}

pub(super) async fn an_apply_of_a_satisfied_plan(bed: &dyn Bed) {
    let bed = cluster(bed).await;
    let app = App::new(&bed, "satisfied");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    let (result, calls) = calls_of(&bed, app.apply(&plan)).await;
    assert_eq!(of_web(&result).outcome, Outcome::Unchanged);
    let writes: Vec<_> = calls.iter().filter(|call| call.is_write()).collect();
    assert!(writes.is_empty(), "{}", table(&calls));
    assert_eq!(calls.len(), 9, "{}", table(&calls));
}

pub(super) async fn an_observation(bed: &dyn Bed) {
    let bed = cluster(bed).await;
    let app = App::new(&bed, "looked");
    app.apply(&app.plan(&Behaviour::Run)).await;
    let (bundle, calls) = calls_of(&bed, app.observe()).await;
    assert!(bundle.exists && !calls.iter().any(Call::is_write), "{}", table(&calls));
    assert_eq!(calls.len(), 7, "{}", table(&calls));
}

pub(super) async fn an_upstream_costs_no_call(bed: &dyn Bed) {
    let bed = cluster(bed).await;
    let app = App::new(&bed, "upstream");
    let (target, calls) = calls_of(&bed, async { app.upstream(80) }).await;
    assert!(calls.is_empty(), "{}", table(&calls));
    let name = format!("web.{}.svc.cluster.local", app.namespace);
    assert_eq!(target, pando_fakecluster::behaviour::Target::name(name, 80));
}
