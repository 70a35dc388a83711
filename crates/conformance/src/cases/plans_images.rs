//! Images: had before the version before is ended, by whoever may have them.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState, Pod, Secret, Service};
use pando_api::{BundlePlan, Code, Outcome, RegistryAuth, Secret as Hidden, Written};
use pando_cluster::names::{annotation, annotation_value, label, label_value, role};
use pando_fakecluster::behaviour::Behaviour;
use pando_fakecluster::{FakeNode, Image, Login};
use serde_json::json;

use super::fixture::SOON;
use crate::apps::{App, Endpoints, History, changing, is_of, listen, may_run, places_that_hold, result_of, uid};
use crate::bed::{Bed, eventually};

/// An image that no registry has.
const MISSING: &str = "registry.invalid/nothing:1";

/// Whether the pod only pulls an image.
fn is_pull(pod: &Pod) -> bool {
    label_value(&pod.metadata, label::ROLE) == Some(role::PULL)
}

/// A web server and its image's other name, which is another image for all that Pando knows.
fn server(app: &App<'_>) -> (BundlePlan, String) {
    let plan = app.whole([app.part("web", &Behaviour::Listen { ports: vec![8080] }), app.part("db", &Behaviour::Run)]);
    (plan, format!("docker.io/library/{}", app.bed.image()))
}

/// Waits until the workload's name leads to its pod, and to nobody else.
async fn leads_to(app: &App<'_>, endpoints: &Endpoints, pod: &str) {
    eventually(app.bed.env(), "the name leads to the pod", SOON, || async {
        let leads = endpoints.until_now(app, "web").await;
        leads.last().is_some_and(|now| now.len() == 1 && now.contains(pod)).then_some(())
    })
    .await;
}

/// Nothing that pulls is left but what was told to end, and that goes.
async fn pull_goes(app: &App<'_>) {
    let pulls: Vec<Pod> = app.all::<Pod>().await.into_iter().filter(is_pull).collect();
    assert!(pulls.iter().all(|pod| pod.metadata.deletion_timestamp.is_some()), "{pulls:?}");
    eventually(app.bed.env(), "the pull's pod goes", SOON, || async {
        (!app.all::<Pod>().await.iter().any(is_pull)).then_some(())
    })
    .await;
}

pub(super) async fn an_image_that_cannot_be_had_leaves_the_version_before_it_serving(bed: &dyn Bed) {
    let app = App::with(bed, "badtag", &json!({"start_timeout_seconds": 45}));
    let (plan, _) = server(&app);
    app.apply(&plan).await;
    let uids = app.uids_of(["web", "db"]).await;
    let endpoints = Endpoints::of(&app).await;
    leads_to(&app, &endpoints, &uids["web"]).await;
    let history = History::of(&app).await;
    let record = app.read::<Service>("web").await.metadata.resource_version;
    let error = app.refused(&changing(plan.clone(), "web", |web| MISSING.clone_into(&mut web.image))).await;
    assert_eq!(error.code, Code::AdapterFailed, "{error}");
    for word in [MISSING, "was left running"] {
        assert!(error.to_string().contains(word), "{word:?} in {error}");
    }
    assert!(error.remedy.as_deref().is_some_and(|remedy| remedy.contains("image's name")), "{error:?}");
    assert_eq!(app.uids_of(["web", "db"]).await, uids);
    assert!(app.observed_of("web").await.running);
    assert_eq!(app.read::<Service>("web").await.metadata.resource_version, record, "its record was not touched");
    let leads = endpoints.until_now(&app, "web").await;
    assert!(leads.last().is_some_and(|now| now.contains(&uids["web"])), "{leads:?}");
    let from = leads.iter().position(|now| now.contains(&uids["web"])).expect("it led there");
    assert!(leads[from..].iter().all(|now| now.len() == 1), "it led there all the while: {leads:?}");
    let moments = history.until_now(&app).await;
    assert_eq!(moments.ever(|pod| is_of(pod, "web")).len(), 1, "no other pod of it was made");
    assert_eq!(moments.ever(is_pull).len(), 1, "one that tried the image was");
    pull_goes(&app).await;
    assert_eq!(app.apply(&plan).await.written, Vec::<Written>::new(), "the plan before is still satisfied");
}

pub(super) async fn a_new_image_is_had_before_the_version_before_it_is_ended(bed: &dyn Bed) {
    let app = App::new(bed, "swap");
    let (plan, other_image) = server(&app);
    if let Some(memory) = bed.memory() {
        memory.fake().set_image(&other_image, Image::Pulled { after: Duration::from_secs(20) });
    }
    app.apply(&plan).await;
    let before = app.uids_of(["web", "db"]).await;
    let endpoints = Endpoints::of(&app).await;
    leads_to(&app, &endpoints, &before["web"]).await;
    let history = History::of(&app).await;
    let result = app.apply(&changing(plan, "web", |web| web.image.clone_from(&other_image))).await;
    assert_eq!(result_of(&result, "web").outcome, Outcome::Replaced);
    assert_eq!(result_of(&result, "db").outcome, Outcome::Unchanged);
    let after = app.uids_of(["web", "db"]).await;
    assert!(after["web"] != before["web"] && after["db"] == before["db"]);
    leads_to(&app, &endpoints, &after["web"]).await;

    let moments = history.until_now(&app).await;
    let web = |pod: &Pod| is_of(pod, "web");
    let is = |pod: &Pod, which: &str| pod.metadata.uid.as_deref() == Some(which);
    let pulled = moments.first(|pods| pods.values().any(|pod| is_pull(pod) && could_not_start(pod)));
    let told = |pod: &Pod| is(pod, &before["web"]) && pod.metadata.deletion_timestamp.is_some();
    let told = moments.first(|pods| pods.values().any(told)).expect("the old pod was told to end");
    assert!(pulled.is_some_and(|pulled| pulled <= told), "pulled {pulled:?}, told to end {told:?}");
    assert_eq!(moments.most(web), 1, "the old object is gone before the new one is made");
    assert_eq!(moments.ever(web).len(), 2);
    assert_eq!(
        moments.ever(|pod| is_pull(pod) && ran(pod)).len(),
        0,
        "nothing of the image ran beside the old version"
    );
    let strays = |pod: &Pod| {
        let spec = pod.spec.as_ref().expect("a stored pod has a spec");
        spec.enable_service_links != Some(false) || spec.automount_service_account_token != Some(false)
    };
    assert!(moments.ever(strays).is_empty(), "no pod of ours is given a token or others' Services");
    let is_kept = |pod: &Pod| annotation_value(&pod.metadata, annotation::SAFE_TO_EVICT) == Some("false");
    assert!(moments.ever(|pod| web(pod) && !is_kept(pod)).is_empty(), "nobody ends an app to save a node");
    let runs = |pod: &Pod| is(pod, &after["web"]) && ran(pod);
    let runs = moments.first(|pods| pods.values().any(runs)).expect("the new pod runs");
    println!(
        "{}: nobody served for {:?}: from the old pod told to end to the new one's app running",
        app.id,
        runs.since(told)
    );

    let leads = endpoints.until_now(&app, "web").await;
    assert!(leads.iter().all(|now| now.len() <= 1), "never two: {leads:?}");
    let first_new = leads.iter().position(|now| now.contains(&after["web"])).expect("it leads to the new one");
    assert!(leads[first_new..].iter().all(|now| !now.contains(&before["web"])), "never back: {leads:?}");
}

/// The states of the pod's containers.
fn states(pod: &Pod) -> impl Iterator<Item = &ContainerState> {
    let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    containers.filter_map(|container| container.state.as_ref())
}

/// Whether the app of the pod runs.
fn ran(pod: &Pod) -> bool {
    states(pod).any(|state| state.running.is_some())
}

/// Whether the pod's image is there and its program is not.
fn could_not_start(pod: &Pod) -> bool {
    states(pod).any(|state| state.terminated.as_ref().is_some_and(|end| end.reason.as_deref() == Some("StartError")))
}

pub(super) async fn where_there_is_no_room_to_pull_ahead_the_apply_goes_on(bed: &dyn Bed) {
    let allocatable = [("cpu", "300m"), ("memory", "1Gi"), ("pods", "110"), ("ephemeral-storage", "10Gi")];
    let allocatable = allocatable.map(|(name, amount)| (name.to_owned(), amount.to_owned()));
    let node = FakeNode { allocatable: allocatable.into(), ..FakeNode::sized("node-1", 2) };
    let small = bed.memory().expect("a cluster in memory").beside(|config| config.nodes = vec![node]).await;
    let app = App::with(&small, "noroom", &json!({"unschedulable_seconds": 1}));
    let (plan, other_image) = server(&app);
    let plan = changing(plan, "web", |web| web.resources.cpu_millis = 300);
    let plan = crate::apps::without(plan, "db");
    app.apply(&plan).await;
    let history = History::of(&app).await;
    let result = app.apply(&changing(plan, "web", |web| web.image = other_image)).await;
    assert_eq!(result_of(&result, "web").outcome, Outcome::Replaced);
    let moments = history.until_now(&app).await;
    assert_eq!((moments.ever(is_pull).len(), moments.most(may_run)), (1, 2), "it was tried, beside the old one");
    assert!(moments.ever(|pod| is_pull(pod) && pod.spec.as_ref().is_some_and(|it| it.node_name.is_some())).is_empty());
    assert_eq!(moments.most(|pod| is_of(pod, "web")), 1);
    pull_goes(&app).await;
}

pub(super) async fn a_pull_that_a_dead_caller_left_behind_goes_with_the_next_apply(bed: &dyn Bed) {
    let fake = bed.memory().expect("a cluster in memory").fake();
    let app = App::new(bed, "leftpull");
    let (plan, other_image) = server(&app);
    app.apply(&plan).await;
    fake.set_image(&other_image, Image::Pulled { after: Duration::from_mins(5) });
    let changed = changing(plan.clone(), "web", |web| web.image.clone_from(&other_image));
    let (context, mut steps) = listen(app.context());
    {
        // Whoever waits for the apply stops doing so in the middle of the pull.
        let applying = std::pin::pin!(pando_api::RuntimeAdapter::apply(&app.runtime, &changed, &context));
        let pulling = std::pin::pin!(async {
            steps.until("pulling the image").await;
            eventually(bed.env(), "the pull is under way", SOON, || async {
                app.all::<Pod>().await.iter().any(is_pull).then_some(())
            })
            .await;
        });
        futures::future::select(applying, pulling).await;
    }
    let before = uid(&app.pod_of("web").await);
    let result = app.apply(&plan).await;
    assert_eq!(result_of(&result, "web").outcome, Outcome::Unchanged);
    pull_goes(&app).await;
    assert_eq!(uid(&app.pod_of("web").await), before);
}

/// An image that only `pando` with the password may have, and a plan that has it.
fn private(app: &App<'_>, password: &str) -> BundlePlan {
    let auth = RegistryAuth {
        registry: "registry.test".to_owned(),
        username: "pando".to_owned(),
        password: Hidden::new(password),
        ..RegistryAuth::default()
    };
    let plan = app.whole([app.part("web", &Behaviour::Run), app.part("db", &Behaviour::Run)]);
    changing(plan, "web", |web| {
        "registry.test/private:1".clone_into(&mut web.image);
        web.pull_auth = Some(auth);
    })
}

pub(super) async fn a_private_image_is_pulled_with_the_plans_credential_only(bed: &dyn Bed) {
    let fake = bed.memory().expect("a cluster in memory").fake();
    let login = Login::new("pando", "pass of the case");
    fake.set_image("registry.test/private:1", Image::Private { login, after: Duration::from_secs(1) });
    let app = App::with(bed, "private", &json!({"start_timeout_seconds": 45}));
    let right = private(&app, "pass of the case");
    for (name, plan) in [
        ("no credential", changing(right.clone(), "web", |web| web.pull_auth = None)),
        ("a wrong one", private(&app, "another")),
    ] {
        let begun = bed.env().now();
        let error = app.refused(&plan).await;
        assert!(bed.env().now().since(begun) <= Duration::from_secs(20), "{name}");
        assert_eq!(error.code, Code::AdapterFailed, "{name}: {error}");
        for word in ["registry.test/private:1", "401 Unauthorized"] {
            assert!(error.to_string().contains(word), "{name}: {word:?} in {error}");
        }
        assert!(app.pods_of("web").await.is_empty(), "{name}");
        assert!(app.observed_of("db").await.running, "{name}");
    }
    let result = app.apply(&right).await;
    assert_eq!(result_of(&result, "db").outcome, Outcome::Unchanged);
    assert!(app.observed_of("web").await.running);
    assert_eq!(places_that_hold(&app, "pass of the case").await, [], "it is nowhere to be read");
    let secret: Secret = app.read("pando-pull").await;
    let held = secret.data.unwrap_or_default().remove(".dockerconfigjson").expect("what a kubelet reads");
    assert!(String::from_utf8_lossy(&held.0).contains("pass of the case"), "but where the kubelet reads it");
    assert_eq!(app.apply(&right).await.written, Vec::<Written>::new());
    let web = uid(&app.pod_of("web").await);
    // A token is short-lived: a new one is written, and is no reason to start anything anew.
    let renewed = app.apply(&private(&app, "pass of the case, renewed")).await;
    let told: Vec<_> = renewed.written.iter().map(|it| (&*it.kind, &*it.name)).collect();
    assert_eq!(told, [("Secret", "pando-pull")]);
    assert_eq!(uid(&app.pod_of("web").await), web);
    let public = changing(right, "web", |web| {
        web.pull_auth = None;
        app.bed.image().clone_into(&mut web.image);
    });
    app.apply(&public).await;
    let secrets: Vec<Secret> = app.all().await;
    assert!(secrets.iter().all(|it| it.metadata.name.as_deref() != Some("pando-pull")), "unused, it is removed");
}

pub(super) async fn an_image_that_one_may_not_have_is_told_in_time(bed: &dyn Bed) {
    let fake = bed.memory().expect("a cluster in memory").fake();
    for (word, image) in [
        ("denied", Image::denied("registry.test/theirs:1")),
        ("platform", Image::other_platform("registry.test/theirs:1")),
    ] {
        fake.set_image("registry.test/theirs:1", image);
        let app = App::new(bed, word);
        let plan = app.whole([app.part("web", &Behaviour::Run)]);
        let begun = bed.env().now();
        let error =
            app.refused(&changing(plan, "web", |web| "registry.test/theirs:1".clone_into(&mut web.image))).await;
        let waited = bed.env().now().since(begun);
        assert!(waited <= Duration::from_secs(20), "{word}: {waited:?}");
        assert_eq!(error.code, Code::AdapterFailed, "{word}: {error}");
        assert_eq!(error.details["reason"]["kind"], "image", "{word}: {error}");
        assert_eq!(app.all::<Pod>().await, [], "{word}");
    }
}
