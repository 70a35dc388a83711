//! Whole plans: several workloads that depend on each other, come, leave, and fail beside each other.

use std::time::Duration;

use futures::future::join;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_api::{
    ApplyResult, BundlePlan, CallContext, Code, Outcome, RuntimeAdapter as _, VolumePlan, WorkloadPlan, Written,
};
use pando_cluster::names::{label, label_value};
use pando_cluster::{Kind, budget};
use pando_fakecluster::Image;
use pando_fakecluster::behaviour::{Behaviour, Outcome as Dialled};
use serde_json::json;

use super::fixture::{SOON, patch};
use crate::apps::{
    App, History, after, changing, healthy_on, is_of, may_run, pod_name, result_of, uid, with_env, with_volume, without,
};
use crate::bed::{Bed, eventually};

/// What became of each workload, in the result's order.
fn outcomes(result: &ApplyResult) -> Vec<(&str, &Outcome)> {
    result.workloads.iter().map(|it| (&*it.workload, &it.outcome)).collect()
}

/// What an error says became of each workload, in its order.
fn told(error: &pando_api::Error) -> Vec<(&str, &str)> {
    let workloads = error.details["workloads"].as_array().expect("what became of the workloads");
    workloads.iter().filter_map(|it| it["workload"].as_str().zip(it["outcome"].as_str())).collect()
}

/// Whether the pod passes its health check.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub(super) async fn a_web_server_starts_after_its_database_and_finds_it_by_name(bed: &dyn Bed) {
    let app = App::new(bed, "pair");
    let history = History::of(&app).await;
    let database = healthy_on(5432, app.part("db", &Behaviour::Listen { ports: vec![5432] }));
    let dialling = Behaviour::Dial {
        targets: vec![app.part_at("db", 5432)],
        every: Duration::from_millis(200),
        during: Duration::from_secs(8),
        then: Box::new(Behaviour::Run),
    };
    let result = app.apply(&app.whole([after("db", app.part("web", &dialling)), database])).await;
    assert_eq!(outcomes(&result), [("web", &Outcome::Created), ("db", &Outcome::Created)], "in the plan's order");
    assert_eq!(result_of(&result, "web").unready_dependencies, Vec::<String>::new());
    let web = pod_name(&app.pod_of("web").await);
    eventually(bed.env(), "the web server reaches its database", SOON, || async {
        bed.dialled(&web, "app").await.iter().any(|(_, outcome)| *outcome == Dialled::Open).then_some(())
    })
    .await;
    let moments = history.until_now(&app).await;
    let begins = |workload: &'static str| moments.first(|pods| pods.values().any(|pod| is_of(pod, workload)));
    let ready = moments.first(|pods| pods.values().any(|pod| is_of(pod, "db") && is_ready(pod)));
    assert!(ready.is_some() && begins("web") > ready, "{:?}, {ready:?}", begins("web"));
}

pub(super) async fn a_dependency_that_never_becomes_ready_is_named(bed: &dyn Bed) {
    let app = App::new(bed, "unready");
    // It runs, and nobody listens where its health is asked.
    let database = healthy_on(5433, app.part("db", &Behaviour::Listen { ports: vec![5432] }));
    let plan =
        app.whole([database, after("db", app.part("web", &Behaviour::Run)), app.part("worker", &Behaviour::Run)]);
    let history = History::of(&app).await;
    let begun = bed.env().now();
    let result = app.apply(&plan).await;
    let waited = bed.env().now().since(begun);
    assert!(waited >= budget::DEPENDENCY_READY && waited < budget::DEPENDENCY_READY + SOON, "{waited:?}");
    let unready = |workload: &str| result_of(&result, workload).unready_dependencies.clone();
    assert_eq!((unready("web"), unready("db"), unready("worker")), (vec!["db".to_owned()], vec![], vec![]));
    for workload in ["db", "web", "worker"] {
        assert!(app.observed_of(workload).await.running, "{workload} runs all the same");
    }
    let moments = history.until_now(&app).await;
    let begins = |workload: &'static str| moments.first(|pods| pods.values().any(|pod| is_of(pod, workload)));
    let (web, worker) = (begins("web").expect("it began"), begins("worker").expect("it began"));
    assert!(web.since(worker) >= budget::DEPENDENCY_READY / 2, "who depends on nobody does not wait");
    let begun = bed.env().now();
    assert_eq!(app.apply(&plan).await.written, Vec::<Written>::new());
    assert!(bed.env().now().since(begun) < SOON, "who runs already waits for nobody");
}

pub(super) async fn who_depends_on_a_failed_one_is_skipped_and_the_others_are_up(bed: &dyn Bed) {
    let app = App::with(bed, "skipped", &json!({"start_timeout_seconds": 45}));
    let image = "registry.invalid/nothing:1";
    let good = app.whole([
        after("web", app.part("edge", &Behaviour::Run)),
        after("db", app.part("web", &Behaviour::Run)),
        app.part("worker", &Behaviour::Run),
        app.part("db", &Behaviour::Run),
    ]);
    let bad = changing(good.clone(), "db", |db| image.clone_into(&mut db.image));
    let error = app.refused(&bad).await;
    assert!(error.code == Code::AdapterFailed && error.to_string().contains(image), "{error}");
    assert_eq!(told(&error), [("edge", "skipped"), ("web", "skipped"), ("worker", "created"), ("db", "failed")]);
    for (place, cause) in [(0, "\"web\""), (1, "\"db\"")] {
        let reason = error.details["workloads"][place]["reason"].as_str().unwrap_or_default();
        assert!(reason.contains(cause), "{cause} in {reason}");
    }
    let pods: Vec<Pod> = app.all().await;
    assert!(pods.len() == 1 && is_of(&pods[0], "worker"), "{pods:?}");
    let result = app.apply(&good).await;
    let (created, kept) = (&Outcome::Created, &Outcome::Unchanged);
    let expected = |outcome: &Outcome| *outcome == Outcome::StartedAgain || outcome == created;
    for workload in ["edge", "web", "db"] {
        let outcome = &result_of(&result, workload).outcome;
        assert!(expected(outcome), "{workload}: {outcome:?}");
    }
    assert_eq!(&result_of(&result, "worker").outcome, kept);
    assert_eq!(uid(&app.pod_of("worker").await), uid(&pods[0]), "nobody touched it");
}

pub(super) async fn of_several_failures_the_first_of_the_plan_is_told(bed: &dyn Bed) {
    let app = App::with(bed, "several", &json!({"unschedulable_seconds": 12}));
    let no_program = Behaviour::StartError { message: "exec: \"/no-such-program\": no such file".to_owned() };
    let mut huge = app.part("huge", &Behaviour::Run);
    huge.resources.memory_bytes = 1 << 50;
    // The second one fails first.
    let error = app.refused(&app.whole([huge, app.part("broken", &no_program)])).await;
    assert!(error.code == Code::CapacityWouldOversubscribe && error.to_string().contains("\"huge\""), "{error}");
    assert_eq!(told(&error), [("huge", "failed"), ("broken", "failed")]);
    let second = error.details["workloads"][1]["reason"].as_str().unwrap_or_default();
    assert!(second.contains("could not be started"), "{second}");
    assert_eq!(app.all::<Pod>().await, []);
}

/// The names of an app's objects of a kind that are some workload's.
fn names(metas: impl Iterator<Item = ObjectMeta>) -> Vec<String> {
    let ours = metas.filter(|meta| label_value(meta, label::WORKLOAD).is_some());
    ours.filter_map(|meta| meta.name).collect()
}

/// The names of all that workloads of the app have.
async fn belongings(app: &App<'_>) -> Vec<String> {
    let mut all = names(app.all::<Pod>().await.into_iter().map(|it| it.metadata));
    all.extend(names(app.all::<Service>().await.into_iter().map(|it| it.metadata)));
    all.extend(names(app.all::<Secret>().await.into_iter().map(|it| it.metadata)));
    all.extend(names(app.all::<ConfigMap>().await.into_iter().map(|it| it.metadata)));
    all
}

pub(super) async fn what_leaves_a_plan_goes_and_its_data_stays(bed: &dyn Bed) {
    let app = App::new(bed, "leaves");
    let plan = app.blog();
    app.apply(&plan).await;
    assert_eq!(
        belongings(&app).await,
        ["db-1", "web-1", "db", "web", "pando-env-db", "pando-env-web", "pando-files-web"]
    );
    let (uids, claim) = (app.uids_of(["db", "web"]).await, app.claim("vol_uploads").await);
    let result = app.apply(&without(plan.clone(), "web")).await;
    assert_eq!(outcomes(&result), [("db", &Outcome::Unchanged)]);
    assert_eq!(belongings(&app).await, ["db-1", "db", "pando-env-db"]);
    let kept = app.claim("vol_uploads").await;
    assert_eq!((kept.metadata.uid.as_ref(), kept.metadata.deletion_timestamp), (claim.metadata.uid.as_ref(), None));
    assert_eq!(uid(&app.pod_of("db").await), uids["db"], "who stays in the plan is not touched");
    let result = app.apply(&plan).await;
    assert_eq!(outcomes(&result), [("web", &Outcome::Created), ("db", &Outcome::Unchanged)], "it can come again");
    assert_eq!(app.claim("vol_uploads").await.metadata.uid, claim.metadata.uid, "and has its data");
    assert_eq!(uid(&app.pod_of("db").await), uids["db"]);
}

pub(super) async fn only_the_workload_that_was_changed_is_replaced(bed: &dyn Bed) {
    let app = App::new(bed, "onlyone");
    let plan = app.blog();
    app.apply(&plan).await;
    let history = History::of(&app).await;
    let mut uids = app.uids_of(["db", "web"]).await;
    let one_more = {
        let mut plan = plan.clone();
        plan.workloads.push(app.part("worker", &Behaviour::Run));
        plan
    };
    let other_file = changing(one_more.clone(), "web", |web| "title = news\n".clone_into(&mut web.files[0].content));
    let other_env = changing(other_file.clone(), "db", |db| {
        db.env.insert("PASSWORD".to_owned(), pando_api::Secret::new("another"));
    });
    for (plan, changed, outcome) in [
        (&one_more, "worker", Outcome::Created),
        (&other_file, "web", Outcome::Replaced),
        (&other_env, "db", Outcome::Replaced),
    ] {
        let result = app.apply(plan).await;
        for (workload, became) in outcomes(&result) {
            let expected = if workload == changed { &outcome } else { &Outcome::Unchanged };
            assert_eq!(became, expected, "{workload} beside {changed}");
        }
        let now = app.uids_of(["db", "web", "worker"]).await;
        for (workload, before) in &uids {
            assert_eq!(now[workload] == *before, workload != changed, "{workload} beside {changed}");
        }
        uids = now;
    }
    let moments = history.until_now(&app).await;
    for workload in ["db", "web", "worker"] {
        assert_eq!(moments.most(|pod| is_of(pod, workload)), 1, "{workload}");
    }
}

/// The same plan, with everything that has no order in another one.
fn reordered(mut plan: BundlePlan) -> BundlePlan {
    plan.workloads.reverse();
    plan.volumes.reverse();
    for workload in &mut plan.workloads {
        workload.ports.reverse();
        workload.mounts.reverse();
        workload.files.reverse();
        workload.depends_on.reverse();
    }
    plan
}

pub(super) async fn a_satisfied_plan_of_many_parts_is_not_written_in_whatever_order(bed: &dyn Bed) {
    let app = App::new(bed, "order");
    let mut blog = app.blog();
    blog.volumes.push(VolumePlan { volume_id: "vol_cache".to_owned(), name: "cache".to_owned(), size_bytes: 0 });
    let plan = changing(blog, "web", |web| {
        web.ports.push(pando_api::PortPlan { number: 8081, protocol: pando_api::Protocol::Udp });
        let file = |path: &str| pando_api::FilePlan { path: path.to_owned(), content: path.to_owned(), mode: 0 };
        web.files.extend([file("/etc/blog/a.conf"), file("/etc/b.conf")]);
        *web = with_volume(web.clone(), "vol_cache", "/srv/cache");
    });
    app.apply(&plan).await;
    let (uids, before) = (app.uids_of(["db", "web"]).await, bed.writes(&app.namespace).await);
    for plan in [&plan, &reordered(plan.clone())] {
        for app in [&app, &app.elsewhere()] {
            let result = app.apply(plan).await;
            assert!(result.workloads.iter().all(|it| it.outcome == Outcome::Unchanged), "{result:?}");
            assert_eq!(result.written, Vec::<Written>::new());
        }
    }
    assert_eq!(bed.writes(&app.namespace).await, before);
    assert_eq!(app.uids_of(["db", "web"]).await, uids);
}

/// Takes a label off the workload's pod, as an administrator may.
async fn unlabel(app: &App<'_>, pod: &Pod, key: &str) {
    let name = pod.metadata.name.as_deref().expect("a stored pod has a name");
    let off = json!({"metadata": {"labels": {key: null}}});
    patch(app.bed, &app.key(Kind::Pod, name), off).await.expect("a label is taken off");
}

/// The labels by which a workload's pod is found.
const LABELS: [&str; 2] = [label::WORKLOAD, label::REVISION];

pub(super) async fn a_pod_whose_labels_were_taken_off_is_found_and_labelled_again(bed: &dyn Bed) {
    let app = App::new(bed, "unlabelled");
    let plan = app.whole([app.part("web", &Behaviour::Run), app.part("db", &Behaviour::Run)]);
    app.apply(&plan).await;
    let history = History::of(&app).await;
    let before = app.pod_of("web").await;
    for key in LABELS {
        unlabel(&app, &before, key).await;
        let result = app.apply(&plan).await;
        assert_eq!(result_of(&result, "web").outcome, Outcome::Unchanged, "{key}");
        assert!(result.written.iter().any(|it| it.kind == "Pod" && it.fields.join(" ").contains(key)), "{result:?}");
        let now = app.pod_of("web").await;
        assert_eq!((uid(&now), &now.metadata.labels), (uid(&before), &before.metadata.labels), "{key}");
        assert_eq!(app.apply(&plan).await.written, Vec::<Written>::new(), "{key}: once");
    }
    assert_eq!(history.until_now(&app).await.ever(|_| true).len(), 2, "no pod was made");
}

pub(super) async fn a_pod_whose_labels_were_taken_off_is_replaced_by_one_and_not_joined(bed: &dyn Bed) {
    let app = App::new(bed, "stripped");
    let plan = |round: usize| with_env(app.plan(&Behaviour::Run), &[("ROUND", &round.to_string())]);
    app.apply(&plan(0)).await;
    let history = History::of(&app).await;
    for (round, key) in LABELS.into_iter().enumerate() {
        let before = app.pod_of("web").await;
        unlabel(&app, &before, key).await;
        let result = app.apply(&plan(round + 1)).await;
        assert_eq!(result_of(&result, "web").outcome, Outcome::Replaced, "{key}");
        assert_ne!(uid(&app.pod_of("web").await), uid(&before), "{key}");
    }
    assert_eq!(history.until_now(&app).await.most(may_run), 1, "never two that may run");
}

pub(super) async fn a_pod_whose_labels_were_taken_off_is_ended_with_its_app(bed: &dyn Bed) {
    for key in LABELS {
        let app = App::new(bed, "orphan");
        let plan =
            app.whole([app.part("web", &Behaviour::Run), with_volume(app.part("db", &Behaviour::Run), "vol", "/d")]);
        app.apply(&plan).await;
        unlabel(&app, &app.pod_of("db").await, key).await;
        app.stop().await;
        assert_eq!(app.all::<Pod>().await, [], "{key}: stopped");
        app.apply(&plan).await;
        unlabel(&app, &app.pod_of("db").await, key).await;
        app.apply(&without(plan.clone(), "db")).await;
        let left: Vec<Pod> = app.all().await;
        assert!(left.len() == 1 && is_of(&left[0], "web"), "{key}: {left:?}");
        unlabel(&app, &left[0], key).await;
        app.destroy().await;
        assert_eq!(app.all::<Pod>().await, [], "{key}: destroyed");
    }
}

/// A caller who waits for so long and no longer.
fn hurried(app: &App<'_>, seconds: u64) -> CallContext {
    CallContext { deadline: Some(Duration::from_secs(seconds)), ..app.context() }
}

pub(super) async fn an_apply_without_time_left_ends_nothing_that_runs(bed: &dyn Bed) {
    let fake = bed.memory().expect("a cluster in memory").fake();
    let app = App::new(bed, "notime");
    let plan = app.whole([app.part("web", &Behaviour::Run)]);
    app.apply(&plan).await;
    let before = uid(&app.pod_of("web").await);
    let slow = "registry.test/slow:1";
    fake.set_image(slow, Image::Pulled { after: Duration::from_mins(30) });
    let changed = changing(plan.clone(), "web", |web| slow.clone_into(&mut web.image));
    // The caller's time, and then the time that a start may take at all.
    for (context, limit) in [(hurried(&app, 20), 20), (app.context(), 600)] {
        let begun = bed.env().now();
        let error = app.runtime.apply(&changed, &context).await.expect_err("the image takes longer");
        let waited = bed.env().now().since(begun).as_secs();
        assert!(waited >= limit && waited < limit + 5, "{waited} s of {limit}");
        assert!(error.code == Code::AdapterFailed && error.to_string().contains("was left running"), "{error}");
        assert_eq!(uid(&app.pod_of("web").await), before);
        assert!(app.observed_of("web").await.running);
    }
    assert_eq!(app.apply(&plan).await.written, Vec::<Written>::new());
}

/// A database that never becomes ready, and somebody who waits for it.
fn patient_pair(app: &App<'_>) -> [WorkloadPlan; 2] {
    let database = healthy_on(5433, app.part("db", &Behaviour::Listen { ports: vec![5432] }));
    [after("db", app.part("web", &Behaviour::Run)), database]
}

pub(super) async fn an_apply_ends_at_its_deadline_with_what_it_waited_for(bed: &dyn Bed) {
    let app = App::new(bed, "deadline");
    let plan = app.whole(patient_pair(&app));
    let begun = bed.env().now();
    let error = app.runtime.apply(&plan, &hurried(&app, 45)).await.expect_err("it takes longer");
    let waited = bed.env().now().since(begun);
    assert!(waited >= Duration::from_secs(45) && waited < Duration::from_secs(55), "{waited:?}");
    assert_eq!(error.code, Code::AdapterFailed, "{error}");
    assert!(error.to_string().contains("db to be ready"), "{error}");
    assert!(error.remedy.is_some());
    let pods: Vec<Pod> = app.all().await;
    assert!(pods.iter().all(|pod| is_of(pod, "db")), "nothing of what had not come to its end is left: {pods:?}");
}

pub(super) async fn a_call_whose_turn_does_not_come_in_time_says_so(bed: &dyn Bed) {
    let app = App::new(bed, "queued");
    let plan = app.whole(patient_pair(&app));
    let slow = hurried(&app, 45);
    let (context, mut steps) = crate::apps::listen(slow);
    let queued = async {
        steps.until("waiting").await;
        let begun = bed.env().now();
        let applied = app.runtime.apply(&app.plan(&Behaviour::Run), &hurried(&app, 2)).await;
        let stopped = app.runtime.stop(&app.bundle(), &hurried(&app, 1)).await;
        (applied.map(|_| ()), stopped, bed.env().now().since(begun))
    };
    let (first, (applied, stopped, waited)) = join(app.runtime.apply(&plan, &context), queued).await;
    for answer in [applied, stopped] {
        let error = answer.expect_err("another call is in progress");
        assert_eq!(error.code, Code::AdapterUnavailable, "{error}");
        assert!(error.to_string().contains("another call") && error.remedy.is_some(), "{error}");
    }
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_secs(6), "{waited:?}");
    assert!(first.expect_err("nothing disturbed it, up to its own deadline").to_string().contains("db to be ready"));
    assert!(app.observed_of("db").await.running, "who did not get a turn changed nothing");
}
