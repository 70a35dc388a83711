//! What a process that lives on knows of the cluster without asking.

use std::time::Duration;

use futures::future::join;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_api::{Code, ObservedBundle, Outcome, ReasonKind, RuntimeAdapter as _, Written};
use pando_cluster::names::{label, label_value};
use pando_cluster::{Kind, ObjectKey};
use pando_fakecluster::behaviour::Behaviour;
use serde_json::json;

use super::apps_changes::endpoints;
use super::fixture::{SOON, labelled, meta, patch, pod, until};
use crate::apps::{App, Wire, has_ended, of_web, with};
use crate::bed::{Bed, eventually};

/// The calls that an observation makes, and what it says.
async fn observation(app: &App<'_>, wire: &Wire) -> (ObservedBundle, Vec<String>) {
    let before = wire.calls().len();
    let bundle = app.observe().await;
    (bundle, wire.calls().split_off(before))
}

/// How long a watch may take to be relied on again: until the server's next bookmark.
const CAUGHT_UP: Duration = Duration::from_mins(2);

/// Waits until an observation costs no call, and answers what it says.
async fn observed_without_a_call(app: &App<'_>, wire: &Wire) -> ObservedBundle {
    eventually(app.bed.env(), "an observation costs no call", CAUGHT_UP, || async {
        let (bundle, calls) = observation(app, wire).await;
        calls.is_empty().then_some(bundle)
    })
    .await
}

/// A policy that opens the app, made by somebody else.
async fn opened_by_hand(app: &App<'_>, name: &str) {
    let policy = NetworkPolicy { metadata: meta(&app.namespace, name), spec: Some(NetworkPolicySpec::default()) };
    app.bed.admin().make(&policy).await.expect("a policy");
}

fn tells_of(bundle: &ObservedBundle, name: &str) -> bool {
    bundle.drift.iter().any(|sentence| sentence.contains(name))
}

pub(super) async fn a_warm_process_observes_without_a_call(bed: &dyn Bed) {
    let (app, wire) = App::through(bed, "warm");
    app.runtime.warm().await.expect("the cluster can be watched");
    let (bundle, calls) = observation(&app, &wire).await;
    assert_eq!((bundle, calls), (ObservedBundle::default(), vec![]), "what is not there is known too");
    app.apply(&app.plan(&Behaviour::Run)).await;
    let warm = observed_without_a_call(&app, &wire).await;
    assert!(warm.exists && warm.workloads[0].running, "{warm:?}");
    assert_eq!(warm, app.elsewhere().observe().await, "a process that asks says the same");
    opened_by_hand(&app, "by-hand").await;
    eventually(bed.env(), "it is told without a call", SOON, || async {
        let (bundle, calls) = observation(&app, &wire).await;
        (calls.is_empty() && tells_of(&bundle, "by-hand")).then_some(())
    })
    .await;
}

/// However late a watch is: what an observation says is never older than what this process did before.
pub(super) async fn what_this_process_did_is_seen_at_once(bed: &dyn Bed) {
    for late in [Duration::ZERO, Duration::from_millis(200), Duration::from_secs(3)] {
        let (app, wire) = App::through(bed, "atonce");
        wire.delay(late);
        app.runtime.warm().await.expect("the cluster can be watched");
        let plan = app.plan(&Behaviour::Run);
        for round in 1..=2 {
            app.apply(&plan).await;
            let web = app.observed().await;
            assert!(web.running && !web.starting, "{late:?}, round {round}: {web:?}");
            app.stop().await;
            let web = app.observed().await;
            assert!(web.present && !web.running && !web.starting, "{late:?}, round {round}: {web:?}");
        }
        app.destroy().await;
        assert_eq!(app.observe().await, ObservedBundle::default(), "{late:?}");
        assert_eq!(of_web(&app.apply(&plan).await).outcome, Outcome::Created, "{late:?}");
        assert!(app.observed().await.running, "{late:?}");
    }
}

pub(super) async fn a_broken_watch_is_read_around(bed: &dyn Bed) {
    let (app, wire) = App::through(bed, "cut");
    app.runtime.warm().await.expect("the cluster can be watched");
    app.apply(&app.plan(&Behaviour::Run)).await;
    observed_without_a_call(&app, &wire).await;
    wire.cut();
    eventually(bed.env(), "the process knows that its watches are broken", SOON, || async {
        (!observation(&app, &wire).await.1.is_empty()).then_some(())
    })
    .await;
    opened_by_hand(&app, "while-cut").await;
    let (bundle, calls) = observation(&app, &wire).await;
    assert!(tells_of(&bundle, "while-cut"), "{bundle:?} by {calls:?}");
    wire.mend();
    assert!(tells_of(&observed_without_a_call(&app, &wire).await, "while-cut"), "it caught up");
}

pub(super) async fn a_silent_watch_is_believed_for_its_time_only(bed: &dyn Bed) {
    let (app, wire) = App::through(bed, "silent");
    app.runtime.warm().await.expect("the cluster can be watched");
    app.apply(&app.plan(&Behaviour::Run)).await;
    observed_without_a_call(&app, &wire).await;
    wire.silence();
    opened_by_hand(&app, "unheard").await;
    let silence = bed.env().now();
    let told = eventually(bed.env(), "the cluster is asked", Duration::from_secs(92), || async {
        let (bundle, calls) = observation(&app, &wire).await;
        (!calls.is_empty()).then_some(bundle)
    })
    .await;
    assert!(tells_of(&told, "unheard"), "{told:?}");
    let believed = bed.env().now().since(silence);
    assert!(believed >= Duration::from_secs(20), "a moment without news is no silence: {believed:?}");
    wire.mend();
    assert!(tells_of(&observed_without_a_call(&app, &wire).await, "unheard"), "it caught up");
}

pub(super) async fn a_version_that_has_expired_is_listed_anew(bed: &dyn Bed) {
    let (app, wire) = App::through(bed, "expired");
    app.runtime.warm().await.expect("the cluster can be watched");
    app.apply(&app.plan(&Behaviour::Run)).await;
    observed_without_a_call(&app, &wire).await;
    let lists = wire.lists(Kind::NetworkPolicy);
    wire.cut();
    opened_by_hand(&app, "meanwhile").await;
    app.elsewhere().stop().await;
    bed.forget_history();
    wire.mend();
    let bundle = observed_without_a_call(&app, &wire).await;
    assert!(tells_of(&bundle, "meanwhile") && !bundle.workloads[0].running, "{bundle:?}");
    assert!(wire.lists(Kind::NetworkPolicy) > lists, "what happened meanwhile is not kept as events any more");
}

pub(super) async fn an_ended_pod_leaves_the_endpoints_by_itself(bed: &dyn Bed) {
    let (app, wire) = App::through(bed, "leaves");
    app.runtime.warm().await.expect("the cluster can be watched");
    app.apply(&app.plan(&Behaviour::Exit { after: Duration::from_secs(3), code: 3 })).await;
    let behaviour = Behaviour::Exit { after: Duration::from_secs(1), code: 0 };
    let strange = Pod {
        metadata: labelled(&app.namespace, "theirs-1", &[(label::WORKLOAD, "theirs"), (label::REVISION, "1")]),
        ..pod(bed, &app.namespace, "theirs-1", &behaviour)
    };
    bed.admin().make(&strange).await.expect("a stranger's pod");
    let revision = |pod: &Pod| label_value(&pod.metadata, label::REVISION).map(str::to_owned);
    let calls = wire.calls().len();
    let key = app.key(Kind::Pod, "web-1");
    until(bed, &key, "has ended", |pod: &Pod| has_ended(pod).then_some(())).await;
    eventually(bed.env(), "it is named by no record", Duration::from_secs(1), || async {
        revision(&app.read::<Pod>("web-1").await).is_none().then_some(())
    })
    .await;
    eventually(bed.env(), "the name leads nowhere", SOON, || async { endpoints(&app).await.is_empty().then_some(()) })
        .await;
    let made = wire.calls().split_off(calls);
    assert!(made.iter().all(|call| call == "patch Pod web-1" || call.ends_with("/web-1")), "{made:?}");
    let theirs = app.key(Kind::Pod, "theirs-1");
    until(bed, &theirs, "has ended", |pod: &Pod| has_ended(pod).then_some(())).await;
    assert_eq!(app.observed().await.exit_code, Some(3), "it is remembered");
    assert_eq!(revision(&app.read::<Pod>("theirs-1").await).as_deref(), Some("1"), "a stranger's is left alone");
}

pub(super) async fn a_pod_that_lost_its_workloads_label_is_its_workloads_all_the_same(bed: &dyn Bed) {
    let (app, wire) = App::through(bed, "unlabelled");
    app.runtime.warm().await.expect("the cluster can be watched");
    app.apply(&app.plan(&Behaviour::Run)).await;
    let off = json!({"metadata": {"labels": {label::WORKLOAD: null}}});
    patch(bed, &app.key(Kind::Pod, "web-1"), off).await.expect("an administrator may do anything");
    let asked = app.elsewhere().observe().await;
    let [web] = &asked.workloads[..] else { panic!("one workload: {asked:?}") };
    assert!(web.name == "web" && web.running, "{asked:?}");
    assert!(tells_of(&asked, label::WORKLOAD), "nothing reaches it by name: {asked:?}");
    eventually(bed.env(), "the view says the same", SOON, || async {
        let (bundle, calls) = observation(&app, &wire).await;
        (calls.is_empty() && bundle == asked).then_some(())
    })
    .await;
}

pub(super) async fn a_policy_that_was_opened_is_told(bed: &dyn Bed) {
    let app = App::new(bed, "opened");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    let key = app.key(Kind::NetworkPolicy, "pando-default");
    assert_eq!(app.observe().await.drift, Vec::<String>::new());
    let anywhere = json!({"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]});
    for (change, word) in [
        (json!({"spec": {"ingress": [{}]}}), "ingress"),
        (json!({"spec": {"egress": [{}]}}), "egress"),
        (json!({"spec": {"egress": [anywhere]}}), "10.96.0.0/16"),
        (json!({"spec": {"podSelector": {"matchLabels": {"a": "b"}}}}), "podSelector"),
        (json!({"spec": {"policyTypes": ["Ingress"], "egress": null}}), "policyTypes"),
    ] {
        patch(bed, &key, change.clone()).await.expect("an administrator may do anything");
        let drift = app.observe().await.drift;
        let told = drift.iter().any(|sentence| sentence.contains("pando-default") && sentence.contains(word));
        assert!(told, "{change}: {drift:?}");
        assert_ne!(app.apply(&plan).await.written, Vec::<Written>::new(), "{change}");
        assert_eq!(app.observe().await.drift, Vec::<String>::new(), "{change}: it is repaired");
    }
}

pub(super) async fn what_is_on_its_way_is_told_from_what_was_stopped(bed: &dyn Bed) {
    let app = App::with(bed, "onitsway", &json!({"start_timeout_seconds": 45}));
    let other = app.elsewhere();
    let plan = app.plan(&Behaviour::Run);
    let missing = with(plan.clone(), |web| web.image = "registry.invalid/nothing:1".into());
    let looking = eventually(bed.env(), "it is on its way", SOON, || async {
        let bundle = other.observe().await;
        bundle.workloads.into_iter().find(|web| web.reason.as_ref().is_some_and(|it| it.kind == ReasonKind::Image))
    });
    let (_, web) = join(app.refused(&missing), looking).await;
    assert!(web.present && web.starting && !web.running, "{web:?}");
    let web = app.observed().await;
    assert!(web.present && !web.starting && !web.running && web.reason.is_none(), "it was taken away: {web:?}");
    app.apply(&plan).await;
    let web = app.observed().await;
    assert!(web.running && !web.starting, "{web:?}");
}

pub(super) async fn a_strangers_namespace_is_no_absent_one(bed: &dyn Bed) {
    let (app, wire) = App::through(bed, "strangers");
    app.runtime.warm().await.expect("the cluster can be watched");
    let metadata = ObjectMeta { name: Some(app.namespace.clone()), ..ObjectMeta::default() };
    bed.admin().make(&Namespace { metadata, ..Namespace::default() }).await.expect("a namespace");
    eventually(bed.env(), "that it is not ours is told without a call", SOON, || async {
        let before = wire.calls().len();
        let observed = app.runtime.observe(&app.bundle(), &app.context()).await;
        let refused = observed.is_err_and(|error| error.code == Code::AdapterFailed && error.remedy.is_some());
        (refused && wire.calls().len() == before).then_some(())
    })
    .await;
    let key = ObjectKey::cluster(Kind::Namespace, &*app.namespace);
    assert!(bed.admin().get(&key).await.expect("a read").is_some(), "it is untouched");
}
