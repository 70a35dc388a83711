//! What an apply is said to do beforehand is what it does, and saying it writes nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use pando_api::{BundlePlan, Change, Fate, Foreseen, Preview, Written};
use pando_cluster::Kind;
use pando_cluster::names::object;
use pando_fakecluster::behaviour::Behaviour;
use serde_json::json;

use super::fixture::patch;
use crate::apps::{App, WEB, with, with_env};
use crate::bed::Bed;

/// What is told of the plan, by a call that wrote nothing.
async fn told(app: &App<'_>, plan: &BundlePlan) -> Preview {
    let before = app.bed.writes(&app.namespace).await;
    let preview = app.runtime.preview(plan, &app.context()).await.expect("what is there can be read");
    assert_eq!(app.bed.writes(&app.namespace).await, before, "a dry run writes nothing");
    preview
}

/// What was done to an object in the end, and the fields that were changed.
fn done(written: &[Written]) -> BTreeMap<(String, String), (Fate, Vec<String>)> {
    let mut done: BTreeMap<(String, String), (Fate, Vec<String>)> = BTreeMap::new();
    for Written { kind, name, change, fields } in written {
        let key = (kind.clone(), name.clone());
        let before = done.remove(&key);
        let now = match (before, change) {
            (None | Some((Fate::Leave, _)), Change::Created) | (Some((Fate::Create, _)), Change::Changed) => {
                Some((Fate::Create, Vec::new()))
            }
            (Some(_), Change::Created) => Some((Fate::Replace, Vec::new())),
            (Some((Fate::Create, _)), Change::Deleted) => None,
            (before, Change::Changed) => {
                let earlier = before.map(|(_, fields)| fields).unwrap_or_default();
                Some((Fate::Change, [earlier, fields.clone()].concat()))
            }
            (_, Change::Deleted) => Some((Fate::Remove, Vec::new())),
        };
        done.extend(now.map(|now| (key, now)));
    }
    done
}

/// Whether what was told is what was done: to the same objects the same, in the same fields.
fn is_what_was_done(preview: &Preview, written: &[Written]) {
    let done = done(written);
    let told: BTreeMap<_, _> = preview
        .objects
        .iter()
        .filter(|object| object.would != Fate::Leave)
        .map(|object| ((object.kind.clone(), object.name.clone()), object))
        .collect();
    let fates = |(key, fate): (&(String, String), Fate)| (key.clone(), fate);
    let foreseen: BTreeMap<_, _> = told.iter().map(|(key, object)| fates((key, object.would))).collect();
    let happened: BTreeMap<_, _> = done.iter().map(|(key, (fate, _))| fates((key, *fate))).collect();
    assert_eq!(foreseen, happened, "foreseen, and done");
    for (key, (_, written)) in &done {
        let fields: Vec<_> = told[key].fields.iter().map(|change| &*change.field).collect();
        if told[key].would == Fate::Change {
            let covers = |whole: &str, part: &str| {
                part == whole || part.strip_prefix(whole).is_some_and(|rest| rest.starts_with('.'))
            };
            assert!(
                fields.iter().all(|field| written.iter().any(|whole| covers(whole, field))),
                "{key:?}: {fields:?} {written:?}"
            );
            assert!(
                written.iter().all(|whole| fields.iter().any(|field| covers(whole, field))),
                "{key:?}: {fields:?} {written:?}"
            );
        }
    }
}

/// The one workload's end, and the fields in which it differs.
fn of_web(preview: &Preview) -> (Foreseen, Vec<&str>) {
    let web = preview.workloads.iter().find(|workload| workload.workload == WEB).expect("it is told of");
    (web.would, web.differs.iter().map(|change| &*change.field).collect())
}

/// Applies the plan, and proves that what was told of it is what came of it and that then nothing is left to do.
async fn proved(app: &App<'_>, plan: &BundlePlan) -> Preview {
    let preview = told(app, plan).await;
    assert!(!preview.is_satisfied(), "{preview:?}");
    let result = app.apply(plan).await;
    is_what_was_done(&preview, &result.written);
    let after = told(app, plan).await;
    assert!(after.is_satisfied(), "{after:?}");
    preview
}

pub(super) async fn what_is_told_of_a_new_app_is_what_is_made(bed: &dyn Bed) {
    let app = App::new(bed, "new");
    let plan = with_env(app.plan(&Behaviour::Run), &[("PASSWORD", "hunter2-hunter2")]);
    let preview = proved(&app, &plan).await;
    assert_eq!((of_web(&preview), &*preview.handle), ((Foreseen::Created, vec![]), &*app.namespace));
    assert!(preview.objects.iter().all(|object| object.would == Fate::Create), "{preview:?}");
}

pub(super) async fn what_is_told_of_a_change_is_what_is_done(bed: &dyn Bed) {
    let app = App::new(bed, "changed");
    let first = with_env(app.plan(&Behaviour::Run), &[("PASSWORD", "hunter2-hunter2"), ("SAME", "same")]);
    app.apply(&first).await;
    // The same image by another name: every bed has it.
    let other_image = with(first.clone(), |web| web.image = format!("docker.io/library/{}", bed.image()));
    let preview = proved(&app, &other_image).await;
    assert_eq!(of_web(&preview), (Foreseen::Replaced, vec!["image"]));
    let web = &preview.workloads[0];
    let (before, after) = (web.differs[0].before.clone(), web.differs[0].after.clone());
    assert_eq!((before, after), (Some(json!(bed.image())), Some(json!(format!("docker.io/library/{}", bed.image())))));
    assert!(web.waits_for.iter().any(|wait| wait.contains("to be pulled")), "{web:?}");
    let other_env = with_env(other_image, &[("PASSWORD", "hunter3-hunter3"), ("NEW", "new-new")]);
    let preview = proved(&app, &other_env).await;
    assert_eq!(of_web(&preview), (Foreseen::Replaced, vec!["env.NEW", "env.PASSWORD"]));
    let printed = format!("{preview:?} {}", json!(preview));
    for secret in ["hunter2", "hunter3", "new-new", "aHVudGVy"] {
        assert!(!printed.contains(secret), "{secret} in {printed}");
    }
    let other_limit = with(other_env, |web| web.resources.memory_bytes = 64 << 20);
    assert_eq!(of_web(&proved(&app, &other_limit).await), (Foreseen::Replaced, vec!["resources"]));
    let other_program = with(other_limit, |web| web.entrypoint = bed.command(&Behaviour::IgnoreTerm));
    assert_eq!(of_web(&proved(&app, &other_program).await), (Foreseen::Replaced, vec!["entrypoint"]));
}

pub(super) async fn what_is_told_of_a_stopped_app_is_what_is_done(bed: &dyn Bed) {
    let app = App::new(bed, "stopped");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    app.stop().await;
    let preview = proved(&app, &plan).await;
    assert_eq!(of_web(&preview), (Foreseen::StartedAgain, vec![]));
    assert_eq!(preview.workloads[0].why, "it was stopped");
}

pub(super) async fn what_is_told_of_a_workload_that_left_is_what_is_done(bed: &dyn Bed) {
    let app = App::new(bed, "left");
    let plan = app.plan(&Behaviour::Run);
    let mut two = plan.clone();
    let mut db = two.workloads[0].clone();
    "db".clone_into(&mut db.name);
    two.workloads.push(db);
    app.apply(&two).await;
    let preview = proved(&app, &plan).await;
    let told: Vec<_> = preview.workloads.iter().map(|workload| (&*workload.workload, workload.would)).collect();
    assert_eq!(told, [(WEB, Foreseen::Unchanged), ("db", Foreseen::Removed)]);
    let removed: Vec<_> =
        preview.objects.iter().filter(|object| object.would == Fate::Remove).map(|object| &*object.kind).collect();
    assert_eq!(removed, ["Service", "Pod", "Secret"], "{preview:?}");
}

pub(super) async fn what_was_changed_by_hand_is_told_with_both_values(bed: &dyn Bed) {
    let app = App::new(bed, "byhand");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    let opened = json!({"spec": {"hard": {"services.nodeports": "5"}}});
    patch(bed, &app.key(Kind::ResourceQuota, object::QUOTA), opened).await.expect("an administrator may");
    let pod: Pod = app.pod().await;
    let name = pod.metadata.name.expect("a stored pod has a name");
    let unlabelled = json!({"metadata": {"labels": {"pando.dev/revision": null}}});
    patch(bed, &app.key(Kind::Pod, &name), unlabelled).await.expect("an administrator may");
    let preview = proved(&app, &plan).await;
    assert_eq!(of_web(&preview), (Foreseen::Unchanged, vec![]));
    let changed: Vec<_> = preview
        .objects
        .iter()
        .filter(|object| object.would == Fate::Change)
        .flat_map(|object| {
            object.fields.iter().map(|change| json!([object.kind, change.field, change.before, change.after]))
        })
        .collect();
    let expected = [
        json!(["ResourceQuota", "spec.hard.services.nodeports", "5", "0"]),
        json!(["Pod", "metadata.labels.pando.dev/revision", null, "1"]),
    ];
    assert_eq!(changed, expected);
}

pub(super) async fn what_an_apply_would_refuse_is_refused_beforehand(bed: &dyn Bed) {
    let app = App::new(bed, "refused");
    let wrong = with(app.plan(&Behaviour::Run), |web| "My_DB".clone_into(&mut web.name));
    let refused = app.refused(&wrong).await;
    let foreseen = app.runtime.preview(&wrong, &app.context()).await.expect_err("it is no plan");
    assert_eq!((foreseen.code, &foreseen.message), (refused.code, &refused.message));
}
