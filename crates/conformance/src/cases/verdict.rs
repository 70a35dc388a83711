//! Whether what was found out of a cluster's isolation is kept, used again, and never believed for too long (S-12).

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use pando_api::{CheckState, Code, RuntimeAdapter as _};
use pando_cluster::names::object;
use pando_cluster::{Kind, MergePatch, ObjectKey, ResourceVersion};
use pando_fakecluster::FakeConfig;
use pando_fakecluster::behaviour::Behaviour;
use pando_network::canary::{Held, Standing};
use serde_json::json;

use crate::apps::{App, listen};
use crate::bed::Bed;
use crate::beds::MemoryBed;
use crate::verdict::{kept, passed};

const MINUTE: Duration = Duration::from_mins(1);

fn key() -> ObjectKey {
    ObjectKey::namespaced(Kind::ConfigMap, "pando", object::ISOLATION)
}

/// What is kept, for everybody.
async fn held(bed: &dyn Bed) -> Option<Standing> {
    let map = bed.admin().read::<ConfigMap>(Some("pando"), object::ISOLATION).await.expect("a read")?;
    Standing::from_texts(&map.data.unwrap_or_default())
}

/// Takes what is kept for a pass of so long ago.
async fn pass_of(bed: &dyn Bed, ago: Duration) {
    let standing = passed(bed.env().wall.now() - ago);
    let live = bed.admin().get(&key()).await.expect("a read").expect("a verdict is kept on every bed");
    let version = ResourceVersion::of(live.meta()).expect("it has a version");
    let data = kept("pando", &standing).to_json().expect("it is an object")["data"].clone();
    bed.admin().patch(&key(), &MergePatch::at(&version, json!({"data": data}))).await.expect("patched");
}

/// How many canaries were made there, of two namespaces each.
fn canaries(bed: &MemoryBed) -> usize {
    let is_canary = |key: &ObjectKey| key.kind == Kind::Namespace && key.name.starts_with("pando-canary-");
    let made = bed
        .fake()
        .writes()
        .into_iter()
        .filter(|call| call.verb == "create" && call.key.as_ref().is_some_and(is_canary));
    made.count() / 2
}

/// A cluster of its own without a verdict.
pub(super) async fn unknown(bed: &dyn Bed, change: fn(&mut FakeConfig)) -> MemoryBed {
    let bed = bed.memory().expect("a cluster in memory").beside(change).await;
    let live = bed.admin().get(&key()).await.expect("a read").expect("a verdict is kept on every bed");
    bed.fake().with(|store| store.remove(&live.key()));
    bed
}

fn open(config: &mut FakeConfig) {
    config.policy_enforced = false;
}

pub(super) async fn a_pass_is_found_out_once_and_used_by_every_process(bed: &dyn Bed) {
    let bed = unknown(bed, |_| {}).await;
    let app = App::new(&bed, "once");
    let (context, mut told) = listen(app.context());
    app.apply_as(&app.plan(&Behaviour::Run), &context).await;
    assert!(told.rest().iter().any(|told| told.step == "checking isolation"));
    assert_eq!(canaries(&bed), 1);
    app.apply(&app.plan(&Behaviour::Run)).await;
    let other = App::new(&bed, "other");
    other.apply(&other.plan(&Behaviour::Run)).await;
    other.runtime.health_check(&other.context()).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(canaries(&bed), 1);
    // After three hours it says nothing any more.
    pass_of(&bed, 181 * MINUTE).await;
    app.elsewhere().apply(&app.plan(&Behaviour::Run)).await;
    assert_eq!(canaries(&bed), 2);
}

pub(super) async fn no_app_is_started_where_policies_are_not_enforced(bed: &dyn Bed) {
    let bed = unknown(bed, open).await;
    let app = App::new(&bed, "open");
    for (wait, expected) in [(Duration::ZERO, 1), (4 * MINUTE, 1), (2 * MINUTE, 2)] {
        bed.env().sleep(wait).await;
        // Another process: it knows what is kept.
        let error = app.elsewhere().refused(&app.plan(&Behaviour::Run)).await;
        assert_eq!(error.code, Code::AdapterUnavailable, "{error}");
        assert!(error.message.contains("does not enforce network policies"), "{error}");
        let remedy = error.remedy.unwrap_or_default();
        assert!(remedy.contains("Calico") && remedy.contains("Cilium") && remedy.contains("five minutes"), "{remedy}");
        assert_eq!(canaries(&bed), expected);
        let made = bed.admin().read::<Namespace>(None, &app.namespace).await.expect("a read");
        assert!(made.is_none(), "it was refused before any write");
    }
}

pub(super) async fn a_pass_is_overthrown_by_two_runs_and_not_by_one(bed: &dyn Bed) {
    let bed = bed.memory().expect("a cluster in memory").beside(open).await;
    pass_of(&bed, 50 * MINUTE).await;
    // Apps are started by it until somebody looks; a gate would notice.
    let app = App::with(&bed, "doubted", &json!({"isolation_gate": false}));
    app.apply(&app.plan(&Behaviour::Run)).await;
    assert_eq!(canaries(&bed), 0);
    app.runtime.health_check(&app.context()).await.expect_err("policies are not enforced");
    assert_eq!(canaries(&bed), 2);
    assert!(matches!(held(&bed).await.map(|standing| standing.held), Some(Held::Failed(_))));
    app.elsewhere().refused(&app.plan(&Behaviour::Run)).await;
    assert_eq!(canaries(&bed), 2);
}

pub(super) async fn a_pass_stands_for_its_time_where_nothing_can_be_found_out(bed: &dyn Bed) {
    let bed = bed.memory().expect("a cluster in memory").beside(|_| {}).await;
    let broken = json!({"helper_image": "registry.invalid/nothing:1"});
    for (ago, healthy, starts) in [(50, true, true), (70, false, true), (181, false, false)] {
        pass_of(&bed, ago * MINUTE).await;
        let app = App::with(&bed, "vague", &broken);
        let health = app.runtime.health_check(&app.context()).await;
        assert_eq!(health.is_ok(), healthy, "{ago} min: {health:?}");
        // The gate's image cannot be had either: the apply gets as far as that, or not even there.
        let error = app.refused(&app.plan(&Behaviour::Run)).await;
        assert_eq!(!error.message.contains("could not be found out"), starts, "{ago} min: {error}");
    }
}

pub(super) async fn a_pass_that_ages_is_renewed_by_a_health_check(bed: &dyn Bed) {
    pass_of(bed, 46 * MINUTE).await;
    let before = held(bed).await.expect("a verdict");
    let app = App::new(bed, "renewed");
    let health = app.runtime.health_check(&app.context()).await.unwrap_or_else(|error| panic!("{error}"));
    let after = held(bed).await.expect("a verdict");
    assert!(after.at > before.at && after.at == health.isolation.checked, "{before:?} {after:?}");
    assert!(matches!(after.held, Held::Passed { .. }));
}

pub(super) async fn those_who_ask_at_once_wait_for_one_canary(bed: &dyn Bed) {
    let bed = unknown(bed, |_| {}).await;
    let app = App::new(&bed, "crowd");
    let (context, plan) = (app.context(), app.plan(&Behaviour::Run));
    let (first, second, applied) =
        futures::join!(app.runtime.health_check(&context), app.runtime.health_check(&context), app.apply(&plan));
    assert_eq!(first.expect("healthy"), second.expect("healthy"));
    assert_eq!(applied.workloads.len(), 1);
    assert_eq!(canaries(&bed), 1);
}

pub(super) async fn who_takes_the_verdict_away_has_it_found_out_anew(bed: &dyn Bed) {
    let bed = unknown(bed, |_| {}).await;
    let app = App::new(&bed, "anew");
    let first = app.runtime.health_check(&app.context()).await.expect("healthy").isolation.checked;
    bed.env().sleep(6 * MINUTE).await;
    assert_eq!(app.runtime.health_check(&app.context()).await.expect("healthy").isolation.checked, first);
    bed.fake().with(|store| store.remove(&key()));
    bed.env().sleep(6 * MINUTE).await;
    assert!(app.runtime.health_check(&app.context()).await.expect("healthy").isolation.checked > first);
    assert_eq!(canaries(&bed), 2);
}

pub(super) async fn a_doctor_finds_nothing_wrong_with_a_bed(bed: &dyn Bed) {
    let app = App::new(bed, "doctor");
    let diagnosis = app.runtime.diagnose(&app.context(), false).await;
    assert!(diagnosis.is_healthy(), "{diagnosis:#?}");
    let names: Vec<_> = diagnosis.checks.iter().map(|check| &*check.name).collect();
    assert_eq!(names, ["API server", "nodes", "pod ranges", "node ranges", "service ranges", "isolation"]);
    for check in &diagnosis.checks {
        assert_eq!(check.remedy.is_some(), check.state == CheckState::Warned, "{check:?}");
    }
}
