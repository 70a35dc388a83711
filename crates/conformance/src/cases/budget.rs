//! What the adapter asks of the API server, call by call. The numbers are exact, so that one more is noticed.

use std::fmt::Write as _;
use std::future::Future;
use std::time::Duration;

use pando_api::{BundlePlan, FilePlan, MountPlan, Outcome, RegistryAuth, VolumePlan, WorkloadPlan};
use pando_cluster::Kind;
use pando_fakecluster::api::ledger::Call;
use pando_fakecluster::behaviour::Behaviour;

use super::fixture::SOON;
use crate::apps::{App, of_web, with, with_env};
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
    let app = warm(&bed, "warm").await;
    let (result, calls) = calls_of(&bed, app.apply(&app.plan(&Behaviour::Run))).await;
    assert_eq!(of_web(&result).outcome, Outcome::Created);
    assert_eq!((calls.len(), round_trips(&calls)), (10, 6), "{}", table(&calls));
}

/// An app whose adapter keeps a view of the cluster and has everything listed.
async fn warm<'a>(bed: &'a MemoryBed, word: &str) -> App<'a> {
    let app = App::new(bed, word);
    app.runtime.warm().await.expect("the cluster can be read");
    eventually(bed.env(), "everything is watched", SOON, || async {
        let watched =
            |kind: Kind| calls(bed).iter().any(|call| call.kind == kind && call.verb == "watch" && call.end.is_some());
        let kinds = [Kind::Namespace, Kind::Node, Kind::Pod, Kind::Service, Kind::PersistentVolumeClaim];
        kinds.into_iter().all(watched).then_some(())
    })
    .await;
    app
}

pub(super) async fn a_pull_credential_costs_one_call(bed: &dyn Bed) {
    let bed = cluster(bed).await;
    let private = |app: &App<'_>| {
        with(app.plan(&Behaviour::Run), |web| {
            let login =
                RegistryAuth { username: "u".to_owned(), password: "hunter2".into(), ..RegistryAuth::default() };
            web.pull_auth = Some(login);
        })
    };
    let cold = App::new(&bed, "coldprivate");
    let (_, calls) = calls_of(&bed, cold.apply(&private(&cold))).await;
    assert_eq!((calls.len(), round_trips(&calls)), (16, 7), "{}", table(&calls));
    let warm = warm(&bed, "warmprivate").await;
    let (_, calls) = calls_of(&bed, warm.apply(&private(&warm))).await;
    assert_eq!((calls.len(), round_trips(&calls)), (11, 6), "{}", table(&calls));
}

pub(super) async fn a_satisfied_plan_with_everything_costs_six_reads(bed: &dyn Bed) {
    let bed = cluster(bed).await;
    let app = warm(&bed, "everything").await;
    let plan = everything(&app);
    app.apply(&plan).await;
    let (result, calls) = calls_of(&bed, app.apply(&plan)).await;
    assert!(result.workloads.iter().all(|workload| workload.outcome == Outcome::Unchanged), "{result:?}");
    assert!(!calls.iter().any(Call::is_write), "{}", table(&calls));
    assert_eq!(calls.len(), 6, "{}", table(&calls));
}

/// Two workloads, one after the other, each with a volume; one secret, one carried file, one credential.
fn everything(app: &App<'_>) -> BundlePlan {
    let mut plan = with_env(app.plan(&Behaviour::Run), &[("PASSWORD", "hunter2")]);
    let mut db = WorkloadPlan { name: "db".to_owned(), ..plan.workloads[0].clone() };
    for (workload, id) in plan.workloads.iter_mut().chain([&mut db]).zip(["vol_1", "vol_2"]) {
        plan.volumes.push(VolumePlan { volume_id: id.to_owned(), name: id.to_owned(), size_bytes: 1 << 30 });
        workload.mounts = vec![MountPlan { volume_id: id.to_owned(), path: "/data".to_owned(), read_only: false }];
    }
    let web = &mut plan.workloads[0];
    web.depends_on = vec!["db".to_owned()];
    web.files = vec![FilePlan { path: "/etc/web.conf".to_owned(), content: "on\n".to_owned(), mode: 0 }];
    plan.workloads.push(db);
    plan
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
