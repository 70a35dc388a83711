//! An app changes: replaced, stopped, started again, ended, renamed, taken away.

use std::time::Duration;

use futures::future::join;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_api::{BundlePlan, Code, ObservedBundle, Outcome, RuntimeAdapter as _};
use pando_cluster::names::{annotation, label, label_value, object};
use pando_cluster::{Kind, ObjectKey};
use pando_fakecluster::behaviour::Behaviour;
use serde_json::json;

use super::fixture::{SOON, delete, hold, map, release, service, until};
use crate::apps::{App, History, WEB, address, ended_with, has_ended, listen, may_run, of_web, uid, with, with_env};
use crate::bed::{Bed, eventually};

/// A program that ends at once, by itself.
const ENDS: Behaviour = Behaviour::Exit { after: Duration::ZERO, code: 3 };

pub(super) async fn a_changed_plan_replaces_the_pod_when_the_old_one_is_gone(bed: &dyn Bed) {
    let app = App::new(bed, "replaced");
    let history = History::of(&app).await;
    let first = with_env(app.plan(&Behaviour::TrapTerm { exit_after: Duration::from_secs(1), code: 0 }), &[("A", "1")]);
    let other_env = with_env(first.clone(), &[("A", "2")]);
    let other_command = with(other_env.clone(), |web| web.entrypoint = bed.command(&Behaviour::Run));
    let other_limit = with(other_command.clone(), |web| web.resources.memory_bytes = 64 << 20);
    app.apply(&first).await;
    for (revision, plan) in [("2", &other_env), ("3", &other_command), ("4", &other_limit)] {
        let old = uid(&app.pod().await);
        let result = app.apply(plan).await;
        assert_eq!(of_web(&result).outcome, Outcome::Replaced);
        let pod = app.pod().await;
        assert_ne!(uid(&pod), old);
        let record: Service = app.read(WEB).await;
        assert_eq!(label_value(&record.metadata, label::REVISION), Some(revision));
        let selector = record.spec.and_then(|spec| spec.selector).unwrap_or_default();
        assert_eq!(selector.get(label::REVISION).map(String::as_str), label_value(&pod.metadata, label::REVISION));
        assert!(app.observed().await.running);
    }
    let moments = history.until_now(&app).await;
    assert_eq!(moments.ever(|_| true).len(), 4, "each start is one pod");
    assert_eq!(moments.most(|_| true), 1, "the old object is gone before the new one is made");
}

pub(super) async fn two_callers_at_once_start_one_pod(bed: &dyn Bed) {
    let app = App::new(bed, "two");
    let history = History::of(&app).await;
    let other = app.elsewhere();
    let plan = app.plan(&Behaviour::Run);
    let (one, two) = join(app.apply(&plan), other.apply(&plan)).await;
    for result in [&one, &two] {
        assert_eq!(result.workloads.len(), 1, "{result:?}");
    }
    let pod = app.pod().await;
    assert!(app.observed().await.running);
    let moments = history.until_now(&app).await;
    assert_eq!(moments.most(may_run), 1, "never two that may run");
    let record: Service = app.read(WEB).await;
    let revision = label_value(&record.metadata, label::REVISION);
    assert_eq!(label_value(&pod.metadata, label::REVISION), revision, "the record names the one that is left");
}

/// What is left of an app that was stopped.
async fn is_stopped(app: &App<'_>) {
    let bundle = app.observe().await;
    let [web] = &*bundle.workloads else { panic!("one workload: {bundle:?}") };
    assert!(bundle.exists && web.present && !web.running, "{bundle:?}");
    assert_eq!((web.exit_code, &web.reason, web.healthy), (None, &None, None), "nobody is at fault");
    assert_eq!(app.all::<Pod>().await, []);
}

pub(super) async fn a_stopped_app_is_there_and_does_not_run(bed: &dyn Bed) {
    let app = App::new(bed, "stop");
    let history = History::of(&app).await;
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    let first = uid(&app.pod().await);
    app.stop().await;
    is_stopped(&app).await;
    let version = app.read::<Service>(WEB).await.metadata.resource_version;
    app.stop().await;
    is_stopped(&app).await;
    assert_eq!(app.read::<Service>(WEB).await.metadata.resource_version, version, "stopping twice changes nothing");
    let result = app.apply(&plan).await;
    assert_eq!(of_web(&result).outcome, Outcome::StartedAgain);
    assert!(app.observed().await.running);
    assert_ne!(uid(&app.pod().await), first);
    assert_eq!(history.until_now(&app).await.most(|_| true), 1);
}

/// Waits until the app has ended by itself, and answers its exit code.
async fn ended(app: &App<'_>) -> i32 {
    eventually(app.bed.env(), "the app has ended", SOON, || async { app.observed().await.exit_code }).await
}

pub(super) async fn an_app_that_ends_at_once_has_ended_with_its_code(bed: &dyn Bed) {
    let app = App::new(bed, "ends");
    let history = History::of(&app).await;
    let plan = app.plan(&ENDS);
    let mut before = None;
    for (round, expected) in [Outcome::Created, Outcome::StartedAgain].into_iter().enumerate() {
        let outcome = of_web(&app.apply(&plan).await).outcome.clone();
        assert!(ended_with(&outcome) == Some(3) || outcome == expected, "{round}: {outcome:?}");
        assert_eq!(ended(&app).await, 3);
        let web = app.observed().await;
        assert_eq!((web.running, web.present, web.restart_count, web.reason), (false, true, 0, None));
        assert!(web.started_at.is_some(), "it ran");
        let pod = app.pod().await;
        assert_ne!(before.replace(uid(&pod)), Some(uid(&pod)), "an ended pod is kept until the next one runs");
    }
    assert_eq!(history.until_now(&app).await.most(may_run), 1);
    app.stop().await;
    assert_eq!(app.observed().await.exit_code, Some(3), "an ended pod stays for its log when the app is stopped");
}

/// The addresses that the workload's name leads to.
pub(super) async fn endpoints(app: &App<'_>) -> Vec<String> {
    let slices: Vec<EndpointSlice> = app.all().await;
    let of_web = |slice: &&EndpointSlice| label_value(&slice.metadata, "kubernetes.io/service-name") == Some(WEB);
    let endpoints = slices.iter().filter(of_web).flat_map(|slice| slice.endpoints.clone());
    endpoints
        .filter(|endpoint| endpoint.conditions.as_ref().is_some_and(|it| it.ready != Some(false)))
        .flat_map(|endpoint| endpoint.addresses)
        .collect()
}

/// Waits until the controller of endpoints has done everything that it had to do by now.
async fn endpoints_are_settled(app: &App<'_>, name: &str) {
    let mut marker = service(&app.namespace, name, None);
    marker.spec.get_or_insert_default().selector = Some(map(&[("nobody", "has-this")]));
    app.bed.admin().make(&marker).await.expect("a Service");
    eventually(app.bed.env(), "the endpoints of a later Service are there", SOON, || async {
        let slices: Vec<EndpointSlice> = app.all().await;
        slices
            .iter()
            .any(|slice| label_value(&slice.metadata, "kubernetes.io/service-name") == Some(name))
            .then_some(())
    })
    .await;
}

pub(super) async fn an_ended_pod_leaves_the_endpoints_when_it_is_met(bed: &dyn Bed) {
    let app = App::new(bed, "endpoints");
    for (revision, meets) in ["observe", "stop"].into_iter().enumerate() {
        app.apply(&app.plan(&Behaviour::Exit { after: Duration::from_secs(3), code: 3 })).await;
        let name = format!("web-{}", revision + 1);
        let ip = address(&app.read::<Pod>(&name).await).to_string();
        eventually(bed.env(), "the app has an address", SOON, || async {
            endpoints(&app).await.contains(&ip).then_some(())
        })
        .await;
        until(bed, &app.key(Kind::Pod, &name), "has ended", |pod: &Pod| has_ended(pod).then_some(())).await;
        endpoints_are_settled(&app, &format!("marker-{revision}")).await;
        assert_eq!(endpoints(&app).await, [ip], "Kubernetes alone leaves an ended pod where it is");
        match meets {
            "observe" => assert_eq!(app.observed().await.exit_code, Some(3)),
            _ => app.stop().await,
        }
        eventually(bed.env(), "the name leads nowhere", SOON, || async {
            endpoints(&app).await.is_empty().then_some(())
        })
        .await;
        assert_eq!(app.observed().await.exit_code, Some(3), "it is remembered all the same");
    }
}

pub(super) async fn a_renamed_workload_leaves_nothing_of_the_old_name(bed: &dyn Bed) {
    let app = App::new(bed, "renamed");
    let plan = with_env(app.plan(&Behaviour::Run), &[("A", "1")]);
    app.apply(&plan).await;
    let old = uid(&app.pod().await);
    let renamed: BundlePlan = with(plan, |web| web.name = "site".into());
    let result = app.apply(&renamed).await;
    assert_eq!(of_web(&result).outcome, Outcome::Created);
    assert_ne!(uid(&app.pod().await), old);
    let names = |metas: Vec<ObjectMeta>| {
        let ours = |meta: &ObjectMeta| label_value(meta, label::WORKLOAD).is_some();
        metas.into_iter().filter(ours).filter_map(|meta| meta.name).collect::<Vec<_>>()
    };
    assert_eq!(names(app.all::<Pod>().await.into_iter().map(|it| it.metadata).collect()), ["site-1"]);
    assert_eq!(names(app.all::<Service>().await.into_iter().map(|it| it.metadata).collect()), ["site"]);
    assert_eq!(names(app.all::<Secret>().await.into_iter().map(|it| it.metadata).collect()), ["pando-env-site"]);
    assert_eq!(app.observed().await.name, "site");
}

pub(super) async fn a_destroyed_app_is_gone_with_its_namespace(bed: &dyn Bed) {
    let app = App::new(bed, "destroyed");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    let key = ObjectKey::cluster(Kind::Namespace, &*app.namespace);
    app.destroy().await;
    assert_eq!(bed.admin().get(&key).await.expect("a read"), None, "it is gone when the call returns");
    assert_eq!(app.observe().await, ObservedBundle::default());
    app.destroy().await;
    let result = app.apply(&plan).await;
    assert_eq!(of_web(&result).outcome, Outcome::Created, "and can come again");
}

pub(super) async fn data_stays_when_its_app_is_destroyed(bed: &dyn Bed) {
    let app = App::new(bed, "data");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "data", "namespace": &*app.namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }))
    .expect("a claim");
    let claim = bed.admin().make(&claim).await.expect("a claim, made by whomever");
    app.destroy().await;
    let kept: PersistentVolumeClaim = app.read("data").await;
    assert_eq!(kept.metadata.uid, claim.metadata.uid);
    assert_eq!(kept.metadata.deletion_timestamp, None);
    app.read::<NetworkPolicy>(object::DEFAULT_POLICY).await;
    for key in [app.key(Kind::Pod, "web-1"), app.key(Kind::Service, WEB), app.key(Kind::Secret, "pando-env-web")] {
        assert_eq!(bed.admin().get(&key).await.expect("a read"), None, "{key} goes");
    }
    let bundle = app.observe().await;
    assert!(bundle.exists && bundle.workloads.is_empty(), "{bundle:?}");
    app.destroy().await;
    let result = app.apply(&plan).await;
    assert_eq!(of_web(&result).outcome, Outcome::Created, "and the app can come again");
}

pub(super) async fn a_namespace_that_is_going_is_waited_for(bed: &dyn Bed) {
    let app = App::new(bed, "going");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    let key = ObjectKey::cluster(Kind::Namespace, &*app.namespace);
    let first = bed.admin().get(&key).await.expect("a read").expect("it is there").meta().uid.clone();
    let secret = app.key(Kind::Secret, "pando-env-web");
    hold(bed, &secret).await;
    delete(bed, &key).await;
    let (context, mut steps) = listen(app.context());
    let letting_go = async {
        let waiting = steps.until("waiting").await;
        assert!(waiting.waiting_for.contains(&app.namespace), "{waiting:?}");
        release(bed, &secret).await;
    };
    let (result, ()) = join(app.apply_as(&plan, &context), letting_go).await;
    assert_eq!(of_web(&result).outcome, Outcome::Created);
    let now = bed.admin().get(&key).await.expect("a read").expect("it is there").meta().uid.clone();
    assert_ne!(now, first, "it is a new one");
    assert!(app.observed().await.running);
}

pub(super) async fn a_namespace_that_does_not_go_is_an_error_with_its_cause(bed: &dyn Bed) {
    let app = App::new(bed, "stuck");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    hold(bed, &app.key(Kind::Secret, "pando-env-web")).await;
    delete(bed, &ObjectKey::cluster(Kind::Namespace, &*app.namespace)).await;
    let error = app.refused(&plan).await;
    assert_eq!(error.code, Code::AdapterFailed);
    let message = error.to_string();
    assert!(message.contains(&app.namespace) && message.contains("pando.dev/hold in 1 resource"), "{message}");
    assert!(error.remedy.is_some_and(|remedy| remedy.contains(&app.namespace)));
}

pub(super) async fn a_namespace_that_is_not_the_apps_is_refused_and_untouched(bed: &dyn Bed) {
    let theirs = ObjectMeta {
        labels: Some(map(&[(label::MANAGED_BY, "pando"), (label::BUNDLE, "somebody-else")])),
        annotations: Some(map(&[(annotation::BUNDLE_ID, "somebody-else")])),
        ..ObjectMeta::default()
    };
    let helms = ObjectMeta { labels: Some(map(&[(label::MANAGED_BY, "helm")])), ..ObjectMeta::default() };
    for (word, meta) in [("theirs", theirs), ("helm", helms), ("plain", ObjectMeta::default())] {
        let app = App::new(bed, word);
        let metadata = ObjectMeta { name: Some(app.namespace.clone()), ..meta };
        let made = bed.admin().make(&Namespace { metadata, ..Namespace::default() }).await.expect("a namespace");
        let (bundle, context) = (app.bundle(), app.context());
        let destroyed =
            app.runtime.destroy(&bundle, &pando_api::DestroyOptions { keep_volumes: false }, &context).await;
        for error in [
            app.refused(&app.plan(&Behaviour::Run)).await,
            app.runtime.observe(&bundle, &context).await.expect_err("it is not ours to look at"),
            app.runtime.stop(&bundle, &context).await.expect_err("it is not ours to stop"),
            destroyed.expect_err("it is not ours to destroy"),
        ] {
            assert_eq!(error.code, Code::AdapterFailed, "{word}: {error}");
            assert!(error.to_string().contains(&app.namespace) && error.remedy.is_some(), "{word}: {error}");
        }
        assert_eq!(bed.writes(&app.namespace).await, [], "{word}");
        let read: Option<Namespace> = bed.admin().read(None, &app.namespace).await.expect("a read");
        let identity =
            |meta: &ObjectMeta| (meta.uid.clone(), meta.deletion_timestamp.clone(), meta.annotations.clone());
        assert_eq!(read.map(|it| identity(&it.metadata)), Some(identity(&made.metadata)), "{word}");
        assert_eq!(app.all::<Service>().await, [], "{word}");
    }
}

/// A stop of an app that is just being started wins or comes too late; in neither case does something start afterwards.
pub(super) async fn what_is_stopped_while_it_starts_does_not_start_later(bed: &dyn Bed) {
    let app = App::new(bed, "crossed");
    let history = History::of(&app).await;
    let other = app.elsewhere();
    let plan = app.plan(&Behaviour::Run);
    let (context, mut steps) = listen(app.context());
    let stopping = async {
        steps.until("starting").await;
        other.stop().await;
    };
    let (_, ()) = join(app.runtime.apply(&plan, &context), stopping).await;
    other.stop().await;
    is_stopped(&app).await;
    assert!(history.until_now(&app).await.most(may_run) <= 1);
}
