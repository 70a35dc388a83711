//! Apps that the adapter before this one runs, as it left them (S-81).
//!
//! `adapter_before.json` is one such app: no revision, a random name, a digest of another kind, no gate.

use k8s_openapi::api::core::v1::{Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use pando_api::{BundlePlan, GateProof, HealthPlan, Outcome, PortPlan, Protocol, VolumePlan, WorkloadPlan, Written};
use pando_cluster::names::{AppNamespace, annotation, annotation_value, label, label_value};
use pando_cluster::{Kind, Object, ObjectKey};
use serde_json::{Value, json};

use super::fixture::{SOON, until};
use crate::apps::{App, Endpoints, History, changing, is_of, result_of, uid, with_env, with_volume};
use crate::bed::{Bed, eventually};

const BEFORE: &str = include_str!("adapter_before.json");

/// The volume of that app, and the key of its claim's contents.
const VOLUME: &str = "vol_01HQ8XYZ";

/// Makes the app as the adapter before this one did, each object changed by `change`, and waits until it runs.
async fn left_behind(app: &App<'_>, change: impl Fn(&str, &mut Value)) -> Pod {
    let admin = app.bed.admin();
    let named = AppNamespace::of(&app.id, &[]);
    let text = BEFORE.replace("NAMESPACE", &named.name()).replace("BUNDLE", named.label()).replace("ID", &app.id);
    let objects: Vec<Value> = serde_json::from_str(&text).expect("the fixture is JSON");
    for mut json in objects {
        let kind = json.as_object_mut().and_then(|object| object.remove("kind")).expect("a kind");
        let kind = Kind::ALL.iter().find(|known| kind == known.name()).expect("a kind");
        change(kind.name(), &mut json);
        if *kind == Kind::Pod {
            // It ran under the namespace's own account, which comes a moment after the namespace.
            eventually(app.bed.env(), "the namespace has its own account", SOON, || async {
                admin.read::<ServiceAccount>(Some(&app.namespace), "default").await.expect("a read")
            })
            .await;
        }
        let object = Object::from_json(*kind, json).expect("an object");
        admin.create(&object).await.expect("it is made");
    }
    until(app.bed, &app.key(Kind::Pod, "web-b4k2x"), "runs", |pod: &Pod| {
        (pod.status.as_ref()?.phase.as_deref() == Some("Running")).then(|| pod.clone())
    })
    .await
}

/// The plan by which it was made.
fn plan(app: &App<'_>) -> BundlePlan {
    let web = WorkloadPlan {
        name: "web".to_owned(),
        image: "busybox:1.37".to_owned(),
        entrypoint: vec!["httpd".to_owned()],
        command: ["-f", "-p", "8080", "-h", "/data"].map(str::to_owned).into(),
        ports: vec![PortPlan { number: 8080, protocol: Protocol::Tcp }],
        health: Some(HealthPlan { port: Some(8080), ..HealthPlan::default() }),
        resources: pando_api::ResourcePlan { cpu_millis: 250, memory_bytes: 128 << 20, ephemeral_bytes: 0 },
        exposed: true,
        ..WorkloadPlan::default()
    };
    let plan = app.whole([with_volume(web, VOLUME, "/data")]);
    let volumes = vec![VolumePlan { volume_id: VOLUME.to_owned(), name: "data".to_owned(), size_bytes: 10 << 30 }];
    with_env(BundlePlan { volumes, ..plan }, &[("GREETING", "hello")])
}

/// As the adapter before left it.
fn as_it_is(_: &str, _: &mut Value) {}

pub(super) async fn an_app_of_the_adapter_before_is_adopted_as_it_runs(bed: &dyn Bed) {
    let app = App::new(bed, "adopted");
    let before = left_behind(&app, as_it_is).await;
    let (history, endpoints) = (History::of(&app).await, Endpoints::of(&app).await);
    let result = app.apply(&plan(&app)).await;
    let web = result_of(&result, "web");
    assert_eq!(web.outcome, Outcome::Adopted);
    let gate = web.gate.as_ref().expect("it is told that it has none");
    assert_eq!((gate.proof, gate.millis), (GateProof::Ungated, None));
    let now = app.pod_of("web").await;
    assert_eq!(uid(&now), uid(&before), "it runs on");
    assert_eq!(now.spec, before.spec);
    assert_eq!(label_value(&now.metadata, label::REVISION), Some("0"));
    let digest = annotation_value(&now.metadata, annotation::PLAN_DIGEST);
    assert!(digest.is_some_and(|digest| digest != "0123456789abcdef0123456789abcdef"), "{digest:?}");
    let record: Service = app.read("web").await;
    let selector = record.spec.and_then(|spec| spec.selector).unwrap_or_default();
    assert_eq!(selector.get(label::REVISION).map(String::as_str), Some("0"), "{selector:?}");
    // What is around it is this adapter's from now on, isolation above all.
    let policy: NetworkPolicy = app.read("pando-default").await;
    let text = serde_json::to_string(&policy.spec).expect("a policy is JSON");
    assert!(text.contains("169.254.0.0/16"), "metadata services are closed now: {text}");
    let namespace = bed.admin().read::<Namespace>(None, &app.namespace).await.expect("a read").expect("it is there");
    assert_eq!(annotation_value(&namespace.metadata, annotation::BUNDLE_ID), Some(&*app.id));
    let disk = app.disk(VOLUME).await.expect("its claim is bound");
    let policy = disk.spec.and_then(|spec| spec.persistent_volume_reclaim_policy);
    assert_eq!(policy.as_deref(), Some("Retain"), "its data is kept from now on");

    let observed = app.observed().await;
    assert!(observed.running && observed.present && observed.restart_count == 0, "{observed:?}");
    let drift = app.observe().await.drift;
    assert!(drift.iter().any(|sentence| sentence.contains("outdated_template")), "{drift:?}");
    let leads = endpoints.until_now(&app, "web").await;
    let from = leads.iter().position(|now| now.contains(&uid(&before))).expect("its name led to it");
    assert!(leads[from..].iter().all(|now| now.contains(&uid(&before))), "and never stopped to: {leads:?}");
    for app in [&app, &app.elsewhere()] {
        let again = app.apply(&plan(app)).await;
        assert_eq!(result_of(&again, "web").outcome, Outcome::Unchanged);
        assert_eq!(again.written, Vec::<Written>::new());
    }
    assert_eq!(history.until_now(&app).await.ever(|_| true).len(), 1, "no other pod was ever made");
}

pub(super) async fn an_adopted_app_is_replaced_stopped_and_started_as_any_other(bed: &dyn Bed) {
    let app = App::new(bed, "successor");
    left_behind(&app, as_it_is).await;
    let plan = plan(&app);
    app.apply(&plan).await;
    let history = History::of(&app).await;
    let (claim, disk) = (app.claim(VOLUME).await, app.disk(VOLUME).await);
    let adopted = uid(&app.pod_of("web").await);
    let changed = with_env(plan, &[("GREETING", "hello, world")]);
    let result = app.apply(&changed).await;
    assert_eq!(result_of(&result, "web").outcome, Outcome::Replaced);
    assert_eq!(result_of(&result, "web").gate.as_ref().map(|gate| gate.proof), Some(GateProof::Proved));
    let now = app.pod_of("web").await;
    assert_ne!(uid(&now), adopted);
    assert_eq!(now.metadata.name.as_deref(), Some("web-1"));
    app.stop().await;
    assert_eq!(app.all::<Pod>().await, []);
    assert_eq!(result_of(&app.apply(&changed).await, "web").outcome, Outcome::StartedAgain);
    let moments = history.until_now(&app).await;
    assert_eq!(moments.most(|pod| is_of(pod, "web")), 1, "the old object is gone before the new one is made");
    assert_eq!(app.claim(VOLUME).await.metadata.uid, claim.metadata.uid);
    let name = |disk: Option<k8s_openapi::api::core::v1::PersistentVolume>| disk.and_then(|disk| disk.metadata.uid);
    assert_eq!(name(app.disk(VOLUME).await), name(disk), "the data is the same");
}

/// A name, and what a plan asks for that the pod is not.
type Difference = (&'static str, fn(&mut WorkloadPlan));

pub(super) async fn a_pod_that_is_not_as_planned_is_replaced_and_not_adopted(bed: &dyn Bed) {
    let differences: [Difference; 4] = [
        ("an argument", |web| "-vp".clone_into(&mut web.command[1])),
        ("a value of the environment", |web| {
            web.env.insert("GREETING".to_owned(), pando_api::Secret::new("bonjour"));
        }),
        ("a limit", |web| web.resources.memory_bytes = 64 << 20),
        ("a file", |web| {
            let (path, content) = ("/etc/a.conf".to_owned(), String::new());
            web.files.push(pando_api::FilePlan { path, content, mode: 0 });
        }),
    ];
    for (name, change) in differences {
        let app = App::new(bed, "differs");
        let before = uid(&left_behind(&app, as_it_is).await);
        let history = History::of(&app).await;
        let changed = changing(plan(&app), "web", change);
        let result = app.apply(&changed).await;
        let outcome = &result_of(&result, "web").outcome;
        assert!(matches!(outcome, Outcome::Replaced | Outcome::Ended { .. }), "{name}: {outcome:?}");
        let now = app.pod_of("web").await;
        assert!(uid(&now) != before && now.metadata.name.as_deref() == Some("web-1"), "{name}: {now:?}");
        assert_eq!(history.until_now(&app).await.most(|pod| is_of(pod, "web")), 1, "{name}");
    }
}

pub(super) async fn a_pod_of_the_adapter_before_that_has_ended_or_is_doubled_is_not_adopted(bed: &dyn Bed) {
    let app = App::new(bed, "doubled");
    left_behind(&app, as_it_is).await;
    // It had a second one of the same workload at times: which of the two is it?
    let objects: Vec<Value> = serde_json::from_str(BEFORE).expect("JSON");
    let mut second = objects.into_iter().find(|object| object["kind"] == "Pod").expect("a pod");
    second["kind"] = json!("Pod");
    second["metadata"]["name"] = json!("web-zz9zz");
    second["metadata"]["namespace"] = json!(app.namespace);
    second["metadata"]["labels"]["pando.dev/bundle"] = json!(AppNamespace::of(&app.id, &[]).label());
    let second = Object::from_json(Kind::Pod, second).expect("a pod");
    bed.admin().create(&second).await.expect("it is made");
    let result = app.apply(&plan(&app)).await;
    assert_eq!(result_of(&result, "web").outcome, Outcome::Replaced);
    let [only]: [Pod; 1] = app.all::<Pod>().await.try_into().expect("one pod is left");
    assert_eq!(only.metadata.name.as_deref(), Some("web-1"));
    let key = ObjectKey::cluster(Kind::Namespace, &*app.namespace);
    assert!(bed.admin().get(&key).await.expect("a read").is_some());
}
