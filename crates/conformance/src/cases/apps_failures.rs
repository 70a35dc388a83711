//! An app that cannot be started: why, what to do about it, and that nothing of it is left.

use std::time::Duration;

use futures::future::join;
use k8s_openapi::api::core::v1::Pod;
use pando_api::{BundlePlan, Code, Error, FilePlan, Outcome, RuntimeAdapter as _, WorkloadPlan};
use pando_cluster::{Kind, budget};
use pando_fakecluster::Image;
use pando_fakecluster::behaviour::Behaviour;
use serde_json::{Value, json};

use super::fixture::{SOON, delete};
use crate::apps::{
    App, History, changing, ended_with, listen, of_web, pod_name, result_of, uid, with, with_env, with_volume,
};
use crate::bed::{Bed, eventually};

/// What an error of a start must tell.
struct Told<'a> {
    code: Code,
    /// The kind of its cause, as it is written.
    cause: &'a str,
    /// Words of its sentence.
    words: &'a [&'a str],
    /// Words of its remedy.
    remedy: &'a str,
}

/// The error says what it must, and nothing of the start is left.
async fn is_told(app: &App<'_>, error: &Error, told: &Told<'_>) {
    assert_eq!(error.code, told.code, "{error}");
    assert_eq!(error.details["reason"]["kind"], told.cause, "{error}");
    for word in told.words {
        assert!(error.to_string().contains(word), "{word:?} in {error}");
    }
    let remedy = error.remedy.as_deref().unwrap_or_default();
    assert!(remedy.contains(told.remedy), "{:?} in {remedy:?}", told.remedy);
    let of_web = &error.details["workloads"][0];
    assert_eq!((&of_web["workload"], &of_web["outcome"]), (&json!("web"), &json!("failed")));
    assert!(error.details["written"].as_array().is_some_and(|written| !written.is_empty()));
    assert_eq!(app.all::<Pod>().await, [], "no pod is left that could start later");
    let web = app.observed().await;
    assert!(web.present && !web.running, "{web:?}");
}

async fn fails(app: &App<'_>, plan: &BundlePlan, told: &Told<'_>) {
    let error = app.refused(plan).await;
    is_told(app, &error, told).await;
}

/// Settings in which a start that hangs is over soon.
fn impatient() -> Value {
    json!({"start_timeout_seconds": 60})
}

pub(super) async fn an_image_that_cannot_be_had_is_told_by_its_name(bed: &dyn Bed) {
    let app = App::with(bed, "noimage", &impatient());
    let by_digest = format!("registry.invalid/nothing@sha256:{}", "0".repeat(64));
    for image in ["registry.invalid/nothing:1", &by_digest] {
        let plan = with(app.plan(&Behaviour::Run), |web| web.image = image.into());
        let told = Told { code: Code::AdapterFailed, cause: "image", words: &[image], remedy: "image's name" };
        fails(&app, &plan, &told).await;
    }
    app.apply(&app.plan(&Behaviour::Run)).await;
    assert!(app.observed().await.running, "one that can be had is started all the same");
}

pub(super) async fn a_registry_that_limits_pulls_is_told_as_that(bed: &dyn Bed) {
    let fake = bed.memory().expect("a cluster in memory").fake();
    let image = "registry.test/limited:1";
    let message =
        format!("failed to pull and unpack image {image:?}: 429 Too Many Requests - toomanyrequests: slow down");
    fake.set_image(image, Image::Fails { message });
    let app = App::new(bed, "limited");
    let plan = with(app.plan(&Behaviour::Run), |web| web.image = image.into());
    let begun = bed.env().now();
    let told = Told { code: Code::AdapterRegistryRateLimited, cause: "image", words: &[image], remedy: "wait" };
    fails(&app, &plan, &told).await;
    let waited = bed.env().now().since(begun);
    assert!(waited >= Duration::from_secs(30) && waited < SOON, "it may pass: {waited:?}");
}

pub(super) async fn a_registry_that_comes_back_in_time_is_waited_for(bed: &dyn Bed) {
    let fake = bed.memory().expect("a cluster in memory").fake();
    let image = "registry.test/away:1";
    fake.set_image(
        image,
        Image::Fails { message: format!("failed to resolve reference {image:?}: dial tcp: i/o timeout") },
    );
    let app = App::new(bed, "away");
    let plan = with(app.plan(&Behaviour::Run), |web| web.image = image.into());
    let (context, mut steps) = listen(app.context());
    let healing = async {
        while !steps.until("preparing the container").await.waiting_for.contains("i/o timeout") {}
        fake.set_image(image, Image::Pulled { after: Duration::from_secs(1) });
    };
    let (result, ()) = join(app.apply_as(&plan, &context), healing).await;
    assert_eq!(of_web(&result).outcome, Outcome::Created);
}

pub(super) async fn what_no_node_has_room_for_is_told_in_the_schedulers_words(bed: &dyn Bed) {
    let nowhere = json!({"unschedulable_seconds": 1, "node_selector": "pando.dev/nobody-has-this=yes"});
    let app = App::with(bed, "nowhere", &nowhere);
    let told = Told {
        code: Code::CapacityWouldOversubscribe,
        cause: "scheduling",
        words: &["didn't match Pod's node affinity/selector"],
        remedy: "add a node",
    };
    fails(&app, &app.plan(&Behaviour::Run), &told).await;
    let app = App::with(bed, "huge", &json!({"unschedulable_seconds": 1}));
    let huge = with(app.plan(&Behaviour::Run), |web| web.resources.memory_bytes = 1 << 50);
    let told = Told {
        code: Code::CapacityWouldOversubscribe,
        cause: "scheduling",
        words: &["Insufficient memory"],
        remedy: "ask for less",
    };
    fails(&app, &huge, &told).await;
}

pub(super) async fn a_program_that_is_not_there_is_told_without_the_runtimes_words(bed: &dyn Bed) {
    let app = App::new(bed, "noprogram");
    let plan =
        app.plan(&Behaviour::StartError { message: "exec: \"/no-such-program\": stat: no such file".to_owned() });
    let told = Told {
        code: Code::AdapterFailed,
        cause: "start_error",
        words: &["could not be started"],
        remedy: "entrypoint",
    };
    let error = app.refused(&plan).await;
    is_told(&app, &error, &told).await;
    // Those may hold what the program was given.
    assert!(!error.to_string().contains("stat") && !format!("{:?}", error.details).contains("exec:"), "{error:?}");
}

pub(super) async fn a_container_that_cannot_be_configured_is_told_with_its_cause(bed: &dyn Bed) {
    let app = App::new(bed, "noconfig");
    let plan = with_env(app.plan(&Behaviour::Run), &[("A", "1")]);
    let (context, mut steps) = listen(app.context());
    // While the pod proves its isolation, what its app is configured from goes.
    let spoiling = async {
        steps.until("proving isolation").await;
        delete(bed, &app.key(Kind::Secret, "pando-env-web")).await;
    };
    let (answer, ()) = join(app.runtime.apply(&plan, &context), spoiling).await;
    let told = Told {
        code: Code::AdapterFailed,
        cause: "config",
        words: &["secret \"pando-env-web\" not found"],
        remedy: "environment",
    };
    is_told(&app, &answer.expect_err("its environment is gone"), &told).await;
    app.apply(&plan).await;
    assert!(app.observed().await.running, "the next apply makes it again");
}

pub(super) async fn an_app_that_takes_too_much_memory_was_killed_for_it(bed: &dyn Bed) {
    let app = App::new(bed, "memory");
    let plan = with(app.plan(&Behaviour::EatMemory), |web| web.resources.memory_bytes = 64 << 20);
    let outcome = of_web(&app.apply(&plan).await).outcome.clone();
    assert!(outcome == Outcome::Created || ended_with(&outcome) == Some(137), "{outcome:?}");
    eventually(bed.env(), "it was killed", SOON, || async {
        app.observed().await.exit_code.filter(|code| *code == 137)
    })
    .await;
    let web = app.observed().await;
    let reason = web.reason.expect("a killed app has a reason");
    // The node notices the cause of some only; the limit makes it probable for the others.
    let known = matches!(reason.kind, pando_api::ReasonKind::OutOfMemory | pando_api::ReasonKind::Killed);
    assert!(known && reason.sentence.contains("memory") && !web.running, "{reason:?}");
    assert_eq!(app.apply(&plan).await.workloads.len(), 1, "it is started again when core says so, not by itself");
}

pub(super) async fn memory_is_named_where_the_node_noticed_it(bed: &dyn Bed) {
    let fake = bed.memory().expect("a cluster in memory").fake();
    let app = App::new(bed, "oom");
    app.apply(&app.plan(&Behaviour::Run)).await;
    assert!(fake.kill_for_memory(&pod_name(&app.pod().await), "app"));
    let reason = eventually(bed.env(), "it was killed", SOON, || async { app.observed().await.reason }).await;
    assert_eq!(reason.kind, pando_api::ReasonKind::OutOfMemory);
}

pub(super) async fn a_lost_node_is_told_and_its_app_does_not_count_as_running(bed: &dyn Bed) {
    let fake = bed.memory().expect("a cluster in memory").fake();
    let app = App::new(bed, "lostnode");
    app.apply(&app.plan(&Behaviour::Run)).await;
    let pod = app.pod().await;
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("it is on a node");
    fake.lose_node(&node);
    let reason = eventually(bed.env(), "the node is lost", 2 * SOON, || async {
        let web = app.observed().await;
        web.reason.filter(|_| !web.running)
    })
    .await;
    assert_eq!(reason.kind, pando_api::ReasonKind::NodeLost);
    assert!(reason.sentence.contains(&node), "{}", reason.sentence);
    // It cannot be ended there, and a second one beside it would be two.
    let history = History::of(&app).await;
    let error = app.refused(&app.plan(&Behaviour::Listen { ports: vec![8080] })).await;
    assert!(error.code == Code::AdapterFailed && error.to_string().contains(&node), "{error}");
    assert_eq!(history.until_now(&app).await.most(|_| true), 1);
}

pub(super) async fn a_caller_waits_no_longer_than_it_said(bed: &dyn Bed) {
    let fake = bed.memory().expect("a cluster in memory").fake();
    let image = "registry.test/slow:1";
    fake.set_image(image, Image::Pulled { after: Duration::from_mins(5) });
    let app = App::new(bed, "hurried");
    let plan = with(app.plan(&Behaviour::Run), |web| web.image = image.into());
    let context = pando_api::CallContext { deadline: Some(Duration::from_secs(20)), ..app.context() };
    let begun = bed.env().now();
    let error = app.runtime.apply(&plan, &context).await.expect_err("the image takes longer");
    let waited = bed.env().now().since(begun);
    assert!(waited >= Duration::from_secs(20) && waited < Duration::from_secs(25), "{waited:?}");
    assert_eq!(error.code, Code::AdapterFailed, "{error}");
    assert_eq!(app.all::<Pod>().await, []);
}

/// A web server, and a database with data; both run.
async fn pair(app: &App<'_>) -> BundlePlan {
    let database = with_volume(app.part("db", &Behaviour::Run), "vol_data", "/data");
    let plan = app.whole([app.part("web", &Behaviour::Run), database]);
    app.apply(&plan).await;
    plan
}

/// What must be the same of an app's database and its data, whatever becomes of the web server beside it.
async fn database(app: &App<'_>) -> (String, Option<String>, Option<String>) {
    let observed = app.observed_of("db").await;
    assert!(observed.running, "{observed:?}");
    let (claim, disk) = (app.claim("vol_data").await, app.disk("vol_data").await.expect("it is bound"));
    assert_eq!(claim.metadata.deletion_timestamp, None);
    (uid(&app.pod_of("db").await), claim.metadata.uid, disk.metadata.uid)
}

/// A failure of the web server: its name, what brings it about, what is told, how long it may take, and whether the version before
/// runs on.
type Failing<'a> = (&'a str, &'a (dyn Fn(&mut WorkloadPlan) + Sync), Told<'a>, Duration, bool);

pub(super) async fn a_start_that_fails_leaves_the_rest_of_its_app_alone(bed: &dyn Bed) {
    let app = App::with(bed, "rest", &json!({"start_timeout_seconds": 45, "unschedulable_seconds": 2}));
    // What is to come up has all the time that it may take.
    let patient = app.elsewhere();
    let plan = pair(&patient).await;
    let before = database(&app).await;
    let image = "registry.invalid/nothing:1";
    let no_program = bed.command(&Behaviour::StartError { message: "exec: no such file".to_owned() });
    let failures: [Failing<'_>; 3] = [
        (
            "an image that cannot be had",
            &|web| image.clone_into(&mut web.image),
            Told { code: Code::AdapterFailed, cause: "image", words: &[image, "left running"], remedy: "image's name" },
            Duration::from_secs(45),
            true,
        ),
        (
            "no room",
            &|web| web.resources.memory_bytes = 1 << 50,
            Told {
                code: Code::CapacityWouldOversubscribe,
                cause: "scheduling",
                words: &["Insufficient memory"],
                remedy: "ask for less",
            },
            Duration::from_secs(2),
            false,
        ),
        (
            "no such program",
            &|web| web.entrypoint.clone_from(&no_program),
            Told {
                code: Code::AdapterFailed,
                cause: "start_error",
                words: &["could not be started"],
                remedy: "entrypoint",
            },
            Duration::ZERO,
            false,
        ),
    ];
    for (name, change, told, limit, runs_on) in failures {
        let web = uid(&app.pod_of("web").await);
        let begun = bed.env().now();
        let error = app.refused(&changing(plan.clone(), "web", change)).await;
        let waited = bed.env().now().since(begun);
        // What the stop of the version before and the start itself take comes on top.
        assert!(waited <= limit + Duration::from_secs(30), "{name}: {waited:?}");
        assert_eq!((error.code, &error.details["reason"]["kind"]), (told.code, &json!(told.cause)), "{name}: {error}");
        for word in told.words {
            assert!(error.to_string().contains(word), "{name}: {word:?} in {error}");
        }
        assert!(error.remedy.as_deref().is_some_and(|remedy| remedy.contains(told.remedy)), "{name}: {error:?}");
        assert_eq!(error.details["workloads"][1], json!({"workload": "db", "outcome": "unchanged"}), "{name}");
        let left: Vec<_> = app.pods_of("web").await.iter().map(uid).collect();
        assert_eq!(left, if runs_on { vec![web] } else { vec![] }, "{name}");
        let stays = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
        let staying = app.all::<Pod>().await.iter().filter(stays).count();
        assert_eq!(staying, 1 + left.len(), "{name}: nothing else is left behind");
        assert_eq!(database(&app).await, before, "{name}");
        patient.apply(&plan).await;
        assert!(app.observed_of("web").await.running, "{name}: it can be started again");
    }
    assert_eq!(database(&app).await, before);
}

pub(super) async fn a_crash_is_an_outcome_with_its_code_and_its_last_words(bed: &dyn Bed) {
    let app = App::new(bed, "crash");
    let plan = pair(&app).await;
    let before = database(&app).await;
    let secret = format!("secret of {}", app.id);
    let lines = vec!["opening".to_owned(), format!("login {secret} refused"), "giving up".to_owned()];
    for (word, after) in [("at once", Duration::ZERO), ("later", Duration::from_secs(3))] {
        let dies = Behaviour::Print { lines: lines.clone(), then: Box::new(Behaviour::Exit { after, code: 3 }) };
        let plan = changing(plan.clone(), "web", |web| {
            web.entrypoint = bed.command(&dies);
            web.env.insert("LOGIN".to_owned(), pando_api::Secret::new(secret.clone()));
        });
        let result = app.apply(&plan).await;
        match &result_of(&result, "web").outcome {
            Outcome::Ended { exit_code, reason, log } => {
                assert_eq!((exit_code, reason), (&Some(3), &None), "{word}");
                let log = log.as_deref().unwrap_or_default();
                assert!(log.contains("opening") && log.ends_with("giving up\n"), "{word}: {log:?}");
                assert!(!log.contains(&secret), "{word}: {log:?}");
            }
            // What ran before may have ended by now.
            outcome => assert!(matches!(outcome, Outcome::Replaced | Outcome::StartedAgain), "{word}: {outcome:?}"),
        }
        eventually(bed.env(), "it has ended", SOON, || async {
            app.observed_of("web").await.exit_code.filter(|code| *code == 3)
        })
        .await;
        let observed = app.observed_of("web").await;
        assert!(!observed.running && observed.present && observed.restart_count == 0, "{word}: {observed:?}");
        assert_eq!(result_of(&app.apply(&plan).await, "db").outcome, Outcome::Unchanged, "{word}");
        assert_eq!(database(&app).await, before, "{word}");
    }
}

pub(super) async fn a_file_that_is_gone_is_told_by_what_only_events_say(bed: &dyn Bed) {
    let app = App::new(bed, "nofile");
    let plan = changing(pair(&app).await, "web", |web| {
        let (path, content) = ("/etc/web.conf".to_owned(), "a".to_owned());
        web.files.push(FilePlan { path, content, mode: 0 });
    });
    let before = database(&app).await;
    let (context, mut steps) = listen(app.context());
    // Between the making of the file's object and the kubelet's reading of it.
    let spoiling = async {
        steps.until("starting").await;
        delete(bed, &app.key(Kind::ConfigMap, "pando-files-web")).await;
    };
    let begun = bed.env().now();
    let (answer, ()) = join(app.runtime.apply(&plan, &context), spoiling).await;
    let waited = bed.env().now().since(begun);
    let error = answer.expect_err("its file is gone");
    assert_eq!((error.code, &error.details["reason"]["kind"]), (Code::AdapterFailed, &json!("mount")), "{error}");
    for word in ["FailedMount", "pando-files-web", "not found"] {
        assert!(error.to_string().contains(word), "{word:?} in {error}");
    }
    assert!(waited >= budget::MOUNT_ERROR && waited < budget::MOUNT_ERROR + SOON, "{waited:?}");
    assert!(app.pods_of("web").await.is_empty());
    assert_eq!(database(&app).await, before);
    app.apply(&plan).await;
    assert!(app.observed_of("web").await.running, "the next apply makes it again");
}

pub(super) async fn an_evicted_app_is_told_as_that_and_comes_back_by_an_apply(bed: &dyn Bed) {
    let app = App::new(bed, "evicted");
    let good = pair(&app).await;
    let before = database(&app).await;
    // More than its limit, for a node that looks.
    let writes = "head -c 67108864 /dev/zero >/tmp/big; trap 'exit 143' TERM; while :; do sleep 3600 & wait $!; done";
    let plan = changing(good.clone(), "web", |web| {
        *web = WorkloadPlan { name: "web".to_owned(), ..app.scripted("web", writes) };
        web.resources.ephemeral_bytes = 1 << 20;
    });
    app.apply(&plan).await;
    if let Some(memory) = bed.memory() {
        let message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ";
        assert!(memory.fake().evict(&pod_name(&app.pod_of("web").await), message));
    }
    let web = eventually(bed.env(), "it is evicted", 2 * SOON, || async {
        let web = app.observed_of("web").await;
        web.reason.is_some().then_some(web)
    })
    .await;
    let reason = web.reason.expect("it has one");
    assert_eq!(reason.kind, pando_api::ReasonKind::Evicted, "{reason:?}");
    assert!(reason.sentence.contains("ephemeral"), "{reason:?}");
    assert_eq!((web.running, web.present, web.exit_code), (false, true, None), "the app gave no code itself");
    assert_eq!(database(&app).await, before);
    app.apply(&good).await;
    assert!(app.observed_of("web").await.running);
    assert_eq!(app.pods_of("web").await.len(), 1, "what was left of the evicted one is gone");
    assert_eq!(database(&app).await, before);
}

pub(super) async fn a_node_that_comes_back_has_its_app_once(bed: &dyn Bed) {
    let fake = bed.memory().expect("a cluster in memory").fake();
    let app = App::new(bed, "returned");
    let plan = app.whole([with_volume(app.part("web", &Behaviour::Run), "vol_data", "/data")]);
    app.apply(&plan).await;
    let history = History::of(&app).await;
    let first = app.pod_of("web").await;
    let node = first.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("it is on a node");
    fake.lose_node(&node);
    eventually(bed.env(), "the node is lost", 2 * SOON, || async {
        let web = app.observed_of("web").await;
        web.reason.filter(|reason| reason.kind == pando_api::ReasonKind::NodeLost && !web.running)
    })
    .await;
    let changed = with_env(plan, &[("ROUND", "2")]);
    let error = app.refused(&changed).await;
    assert!(error.to_string().contains(&node), "{error}");
    assert!(fake.running().iter().any(|program| program.uid == uid(&first)), "it runs on, whatever the API says of it");
    fake.return_node(&node);
    eventually(bed.env(), "what was told to end has ended", 2 * SOON, || async {
        app.pods_of("web").await.is_empty().then_some(())
    })
    .await;
    assert!(!app.observed_of("web").await.running);
    app.apply(&changed).await;
    let observed = app.observed_of("web").await;
    assert!(observed.running && observed.reason.is_none(), "{observed:?}");
    assert_eq!(history.until_now(&app).await.most(|_| true), 1, "never two");
    let disks = fake.disks();
    let disk = &disks[&app.disk("vol_data").await.and_then(|disk| disk.metadata.name).expect("it is bound")];
    assert_eq!(disk.overlapping_writers(), []);
    assert!(disk.holds(&uid(&first)), "its data is the same");
}
