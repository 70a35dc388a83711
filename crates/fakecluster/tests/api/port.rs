//! The fake as the port: the same answers classified, the ledger, latency, and what a dropped call leaves.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Pod, Secret};
use pando_cluster::{
    Cluster, DeleteOptions, Failure, Kind, ListRequest, MergePatch, ObjectKey, ResourceVersion, Scope, Uid,
};
use pando_fakecluster::sim::{Sim, drop_at};
use pando_fakecluster::{FakeCluster, FakeConfig};
use serde_json::json;

use crate::bed::{Bed, NAMESPACE, quota, secret};

fn typed<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> T {
    serde_json::from_value(json).expect("an object")
}

fn named(name: &str) -> Secret {
    let mut secret: Secret = typed(secret(name, &json!({"k": "YQ=="})));
    secret.metadata.namespace = Some(NAMESPACE.to_owned());
    secret
}

fn pod(name: &str) -> Pod {
    let mut pod: Pod = typed(crate::bed::pod(name));
    pod.metadata.namespace = Some(NAMESPACE.to_owned());
    pod
}

fn key(kind: Kind, name: &str) -> ObjectKey {
    ObjectKey::namespaced(kind, NAMESPACE, name)
}

#[test]
fn an_object_lives_and_dies_through_the_port() {
    let bed = Bed::new();
    let cluster: &dyn Cluster = &bed.cluster;
    bed.sim.block_on(async {
        let made = cluster.make(&named("a")).await.expect("created");
        let uid = Uid::of(&made.metadata).expect("a uid");
        let version = ResourceVersion::of(&made.metadata).expect("a version");
        let place = key(Kind::Secret, "a");
        assert_eq!(cluster.read::<Secret>(Some(NAMESPACE), "a").await.expect("read"), Some(made));

        let patch = MergePatch::at(&version, json!({"metadata": {"labels": {"a": "b"}}}));
        let changed = cluster.change::<Secret>(&place, &patch).await.expect("patched");
        assert_eq!(changed.metadata.labels.as_ref().and_then(|it| it.get("a")).map(String::as_str), Some("b"));
        let stale = cluster.change::<Secret>(&place, &patch).await.expect_err("stale");
        assert!(stale.is_conflict(), "{stale}");

        let other = DeleteOptions::of(Uid::new("other"));
        assert!(cluster.delete(&place, &other).await.expect_err("another one").is_conflict());
        let old = DeleteOptions { version: Some(version), ..DeleteOptions::of(uid.clone()) };
        assert!(cluster.delete(&place, &old).await.expect_err("an older one").is_conflict());
        cluster.delete(&place, &DeleteOptions::of(uid.clone())).await.expect("deleted");
        assert!(cluster.delete(&place, &DeleteOptions::of(uid)).await.expect_err("gone").is_not_found());
        assert_eq!(cluster.get(&place).await.expect("read"), None);
    });
}

/// Each of the meanings that 403, 404 and 409 have.
#[test]
fn every_refusal_is_classified_as_what_it_is() {
    let bed = Bed::new();
    bed.make("resourcequotas", &quota("q", &json!({"pods": "1"})));
    bed.sim.settle();
    let cluster: &dyn Cluster = &bed.cluster;
    bed.sim.block_on(async {
        cluster.make(&pod("a")).await.expect("created");
        let failure = |pod: Pod| async move { cluster.make(&pod).await.expect_err("refused").failure };
        assert!(matches!(failure(pod("b")).await, Failure::QuotaExceeded(_)));
        let mut homeless = pod("b");
        homeless.spec.as_mut().expect("a spec").service_account_name = Some("gone".to_owned());
        assert!(matches!(failure(homeless).await, Failure::ServiceAccountMissing(_)));
        let mut lost = pod("b");
        lost.metadata.namespace = Some("nowhere".to_owned());
        assert_eq!(failure(lost).await, Failure::NotFound);
        let mut bad = pod("b");
        bad.spec.as_mut().expect("a spec").hostname = Some("Web".to_owned());
        let Failure::Invalid { causes, .. } = failure(bad).await else { panic!("not invalid") };
        assert_eq!(causes.first().map(|cause| cause.field.as_str()), Some("spec.hostname"));
        cluster.make(&named("s")).await.expect("created");
        let twice = cluster.make(&named("s")).await.expect_err("taken").failure;
        assert_eq!(twice, Failure::AlreadyExists { being_deleted: false });
    });
}

#[test]
fn all_pages_together_are_the_list_and_survive_an_expired_token() {
    let bed = Bed::new();
    for number in 0..5 {
        bed.make("secrets", &secret(&format!("s-{number}"), &json!({})));
    }
    let cluster: &dyn Cluster = &bed.cluster;
    let request = ListRequest { limit: Some(2), ..ListRequest::of(Kind::Secret, Scope::All) };
    let (all, version) = bed.sim.block_on(cluster.list_all::<Secret>(&request)).expect("a list");
    assert_eq!(all.len(), 5);
    let first = bed.sim.block_on(cluster.list(&request)).expect("a page");
    assert_eq!((first.items.len(), &first.version), (2, &version));
    bed.delete("/api/v1/namespaces/pando-a/secrets/s-4", &json!({}));
    bed.cluster.compact();
    let next = ListRequest { after: first.next, ..request };
    let error = bed.sim.block_on(cluster.list(&next)).expect_err("expired");
    assert!(error.is_expired(), "{error}");
}

/// A call is one unit that lands between two others, wherever its caller is dropped.
#[test]
fn a_dropped_call_has_landed_whole_or_not_at_all() {
    let (mut landed, mut lost) = (0, 0);
    for polls in 0..6 {
        let bed = Bed::new();
        let cluster: &dyn Cluster = &bed.cluster;
        let answer = bed.sim.block_on(drop_at(cluster.make(&named("a")), polls));
        let there = bed.cluster.with(|store| store.get(&key(Kind::Secret, "a")).is_some());
        match answer {
            Some(made) => assert!(made.is_ok() && there),
            None if there => landed += 1,
            None => lost += 1,
        }
        let newest = bed.cluster.calls().pop();
        if let Some(call) = newest.filter(|call| call.kind == Kind::Secret) {
            assert_eq!(call.code.is_some(), there, "the ledger knows whether it landed");
        }
    }
    assert!(landed > 0 && lost > 0, "landed without answer: {landed}, never arrived: {lost}");
}

#[test]
fn calls_take_their_latency_half_of_it_before_they_land() {
    let latency = Duration::from_millis(10);
    let bed = Bed::of(FakeConfig { latency, nodes: vec![], ..FakeConfig::default() });
    let cluster = bed.cluster.clone();
    let begun = bed.sim.now();
    bed.sim.block_on(async { (&cluster as &dyn Cluster).make(&named("a")).await }).expect("created");
    assert_eq!(bed.sim.now().since(begun), latency);
    let written = bed.cluster.with(|store| {
        let change = store.changes_after(store.revision() - 1).into_iter().flatten().next().map(|change| change.at);
        change.expect("the newest change")
    });
    assert_eq!(written.since(begun), latency / 2);
}

#[test]
fn the_ledger_holds_every_call_and_only_calls() {
    let bed = Bed::new();
    let before = bed.cluster.calls().len();
    let pando = bed.cluster.as_account("system:serviceaccount:pando:pando");
    bed.cluster
        .with(|store| store.insert(Kind::Secret, json!({"metadata": {"namespace": NAMESPACE, "name": "quiet"}})));
    bed.sim.block_on(async {
        let cluster: &dyn Cluster = &pando;
        cluster.make(&named("a")).await.expect("created");
        cluster.get(&key(Kind::Secret, "a")).await.expect("read");
        cluster.get(&key(Kind::Secret, "none")).await.expect("read");
        cluster.list(&ListRequest::of(Kind::Secret, Scope::All)).await.expect("listed");
    });
    let calls = bed.cluster.calls().split_off(before);
    let told: Vec<_> = calls
        .iter()
        .map(|call| (call.verb, call.key.as_ref().map(|key| key.name.as_str()), call.code, call.user.to_string()))
        .collect();
    let user = || "system:serviceaccount:pando:pando".to_owned();
    assert_eq!(
        told,
        [
            ("create", Some("a"), Some(201), user()),
            ("get", Some("a"), Some(200), user()),
            ("get", Some("none"), Some(404), user()),
            ("list", None, Some(200), user()),
        ]
    );
    assert!(calls.iter().all(|call| call.end.is_some()));
    assert_eq!(bed.cluster.writes().iter().filter(|call| call.kind == Kind::Secret).count(), 1);
}

/// Compare and swap: whoever comes second is told, whichever of them that is.
#[test]
fn of_two_patches_for_one_version_exactly_one_lands() {
    let mut winners = [0, 0];
    for seed in 0..32 {
        let sim = Sim::new(seed);
        let fake = FakeCluster::new(sim.env(), FakeConfig { nodes: vec![], ..FakeConfig::default() });
        let home = json!({"metadata": {"name": NAMESPACE}});
        fake.with(|store| store.insert(Kind::Namespace, home));
        let outcomes = sim.block_on(async {
            let made = (&fake as &dyn Cluster).make(&named("a")).await.expect("created");
            let version = ResourceVersion::of(&made.metadata).expect("a version");
            let (tell, told) = futures::channel::mpsc::unbounded();
            for caller in 0..2_usize {
                let (fake, tell) = (fake.clone(), tell.clone());
                let patch = MergePatch::at(&version, json!({"metadata": {"labels": {"by": caller.to_string()}}}));
                sim.env().spawn_detached("caller", async move {
                    let outcome = Cluster::patch(&fake, &key(Kind::Secret, "a"), &patch).await;
                    tell.unbounded_send((caller, outcome)).expect("somebody listens");
                });
            }
            drop(tell);
            told.collect::<Vec<_>>().await
        });
        let (won, lost): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|(_, outcome)| outcome.is_ok());
        assert_eq!((won.len(), lost.len()), (1, 1), "seed {seed}");
        assert!(lost.iter().all(|(_, outcome)| outcome.as_ref().is_err_and(pando_cluster::ClusterError::is_conflict)));
        winners[won[0].0] += 1;
    }
    assert!(winners.iter().all(|wins| *wins > 0), "the seed decides who is first: {winners:?}");
}

/// The whole store and every call, twice from one seed.
#[test]
fn one_seed_makes_one_history() {
    let run = |seed: u64| {
        let sim = Sim::new(seed);
        let fake = FakeCluster::new(sim.env(), FakeConfig::default());
        sim.block_on(async {
            let cluster: &dyn Cluster = &fake;
            let home = json!({"metadata": {"name": NAMESPACE}});
            fake.with(|store| store.insert(Kind::Namespace, home));
            for name in ["a", "b", "c"] {
                cluster.make(&named(name)).await.expect("created");
            }
        });
        sim.advance(Duration::from_secs(5));
        let objects = fake.with(|store| {
            let all = Kind::ALL.iter().flat_map(|kind| store.all(*kind));
            all.map(|(key, object)| format!("{key} {object}")).collect::<Vec<_>>()
        });
        (objects, fake.calls())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).0, run(6).0, "uids are drawn from the seed");
}
