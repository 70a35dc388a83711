//! An app comes to be: what the adapter makes of a plan, and what it tells of it.

use data_encoding::HEXLOWER;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use pando_api::{Change, Code, GateProof, ObservedBundle, Outcome, RuntimeAdapter as _, Written};
use pando_cluster::names::{annotation, annotation_value, label};
use pando_cluster::{Kind, ListRequest, ObjectKey, Scope, Selector};
use pando_fakecluster::behaviour::Behaviour;
use sha2::{Digest as _, Sha256};

use super::fixture::{SOON, until};
use crate::apps::{App, WEB, listen, of_web, places_that_hold, uid, with, with_env};
use crate::bed::{Bed, eventually};

pub(super) async fn a_new_app_gets_all_it_stands_on_before_its_pod(bed: &dyn Bed) {
    let app = App::new(bed, "first");
    let result = app.apply(&app.plan(&Behaviour::Run)).await;
    assert_eq!(result.handle, app.namespace);
    assert_eq!(of_web(&result).outcome, Outcome::Created);
    let gate = of_web(&result).gate.as_ref().expect("a new pod passes its gate");
    assert!(gate.proof == GateProof::Proved && gate.millis.is_some(), "{gate:?}");
    let written: Vec<_> = result.written.iter().map(|it| (&*it.kind, &*it.name, it.change)).collect();
    let created = |range: std::ops::Range<usize>| {
        assert!(written[range.clone()].iter().all(|(_, _, change)| *change == Change::Created), "{written:?}");
        written[range].iter().map(|(kind, name, _)| (*kind, *name)).collect::<Vec<_>>()
    };
    assert_eq!(created(0..2), [("Namespace", &*app.namespace), ("RoleBinding", "pando-app-manager")]);
    // In whatever order: nothing of it needs another.
    let mut ground = created(2..7);
    ground.sort_unstable();
    let expected = [
        ("NetworkPolicy", "pando-default"),
        ("ResourceQuota", "pando-quota"),
        ("Secret", "pando-env-web"),
        ("Service", "web"),
        ("ServiceAccount", "pando-app"),
    ];
    assert_eq!(ground, expected);
    assert_eq!(created(7..8), [("Pod", "web-1")]);
    assert_eq!(written[8..], [("Pod", "web-1", Change::Changed)], "its gate is opened last");
    for written in &result.written {
        let key = match &*written.kind {
            "Namespace" => ObjectKey::cluster(Kind::Namespace, &*written.name),
            kind => {
                let kind = Kind::ALL.iter().find(|known| known.name() == kind).expect("a kind");
                app.key(*kind, &written.name)
            }
        };
        let object = bed.admin().get(&key).await.expect("a read").unwrap_or_else(|| panic!("{key} is there"));
        let asked = annotation_value(object.meta(), annotation::REQUEST_ID);
        assert_eq!(asked, Some(&*app.context().request_id), "{key} tells who wrote it");
    }
}

pub(super) async fn a_running_app_is_observed_with_its_image_and_its_start(bed: &dyn Bed) {
    let app = App::new(bed, "observed");
    let begun = bed.env().wall.now();
    app.apply(&app.plan(&Behaviour::Run)).await;
    let bundle = app.observe().await;
    assert!(bundle.exists && bundle.volumes.is_empty(), "{bundle:?}");
    assert_eq!(bundle.drift, Vec::<String>::new());
    let web = app.observed().await;
    assert_eq!((&*web.name, web.present, web.running, web.restarting), (WEB, true, true, false));
    assert_eq!((web.exit_code, web.restart_count, web.healthy, &web.reason), (None, 0, None, &None));
    let (kind, digits) = web.image_digest.split_once(':').expect("a digest");
    assert!(kind == "sha256" && digits.len() == 64, "{}", web.image_digest);
    // Kubernetes counts in whole seconds.
    let started = web.started_at.expect("it runs");
    assert!(started.as_second() >= begun.as_second() && started <= bed.env().wall.now(), "{started} after {begun}");
}

pub(super) async fn what_never_was_is_nothing_to_observe_stop_or_destroy(bed: &dyn Bed) {
    let app = App::new(bed, "never");
    assert_eq!(app.observe().await, ObservedBundle::default());
    app.stop().await;
    app.destroy().await;
    assert_eq!(bed.admin().get(&ObjectKey::cluster(Kind::Namespace, &*app.namespace)).await.expect("a read"), None);
}

pub(super) async fn its_service_is_headless_and_selects_exactly_its_pod(bed: &dyn Bed) {
    let app = App::new(bed, "service");
    app.apply(&with(app.plan(&Behaviour::Run), |web| {
        web.ports = serde_json::from_str(r#"[{"number": 8080}, {"number": 53, "protocol": "udp"}]"#).expect("ports");
    }))
    .await;
    let service: Service = app.read(WEB).await;
    let spec = service.spec.expect("a spec");
    assert_eq!(spec.cluster_ip.as_deref(), Some("None"));
    assert_eq!(spec.publish_not_ready_addresses, Some(true), "an app has a name before it is healthy");
    let ports: Vec<_> = spec.ports.iter().flatten().map(|port| (port.name.as_deref(), port.port)).collect();
    assert_eq!(ports, [(Some("udp-53"), 53), (Some("tcp-8080"), 8080)]);
    let selector = spec.selector.unwrap_or_default();
    let labels = selector.iter().fold(Selector::everything(), |labels, (key, value)| labels.equals(key, value));
    let request = ListRequest::of(Kind::Pod, Scope::All).labelled(labels);
    let (selected, _) = bed.admin().list_all::<Pod>(&request).await.expect("a list");
    let here: Vec<_> =
        selected.iter().filter(|pod| pod.metadata.namespace.as_deref() == Some(&*app.namespace)).map(uid).collect();
    assert_eq!(here, [uid(&app.pod().await)]);
    assert!(selector.contains_key(label::REVISION), "a pod of another start is not selected: {selector:?}");
}

pub(super) async fn the_environment_reaches_the_app_as_it_was_written(bed: &dyn Bed) {
    let app = App::new(bed, "env");
    // What a shell, YAML or Kubernetes itself would each like to change.
    let value = "a b\n\"c\" 'd' $HOME $(HOME) $$ \\n ü ";
    let digest = HEXLOWER.encode(&Sha256::digest(value.as_bytes()));
    let check = format!("[ \"$(printf %s \"$GREETING\" | sha256sum)\" = '{digest}  -' ] || exit 7; exec sleep 3600");
    let plan = with(app.plan(&Behaviour::Run), |web| {
        web.entrypoint = ["sh", "-c"].map(str::to_owned).into();
        web.command = vec![check];
    });
    let result = app.apply(&with_env(plan, &[("GREETING", value), ("EMPTY", "")])).await;
    assert_eq!(of_web(&result).outcome, Outcome::Created);
    let secret: Secret = app.read("pando-env-web").await;
    let data = secret.data.unwrap_or_default();
    let stored: Vec<_> = data.iter().map(|(key, value)| (&**key, &*value.0)).collect();
    assert_eq!(stored, [("EMPTY", b"".as_slice()), ("GREETING", value.as_bytes())]);
    let web = app.observed().await;
    assert!(web.running, "it found another environment than the plan's: {web:?}");
}

pub(super) async fn the_environment_is_in_its_secret_and_nowhere_else(bed: &dyn Bed) {
    let app = App::new(bed, "secret");
    let canary = format!("canary-of-{}", app.id);
    let plan = with_env(app.plan(&Behaviour::Run), &[("TOKEN", &canary)]);
    let (context, mut steps) = listen(app.context());
    let mut told = vec![format!("{plan:?}"), format!("{:?}", app.apply_as(&plan, &context).await)];
    told.extend(steps.rest().iter().map(|progress| format!("{progress:?}")));
    told.push(format!("{:?}", app.observe().await));
    told.push(format!("{:?}", app.runtime));
    assert_eq!(places_that_hold(&app, &canary).await, [app.key(Kind::Secret, "pando-env-web")]);
    // A start that fails has more to tell.
    let failing = with(plan, |web| web.entrypoint = bed.command(&Behaviour::StartError { message: String::new() }));
    let error = app.refused(&failing).await;
    let mut causes: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = causes {
        told.push(format!("{cause} {cause:?}"));
        causes = cause.source();
    }
    told.push(format!("{:?} {:?}", error.remedy, error.details));
    assert_eq!(places_that_hold(&app, &canary).await, [app.key(Kind::Secret, "pando-env-web")]);
    for told in told {
        assert!(!told.contains(&canary), "{told}");
    }
}

pub(super) async fn a_satisfied_plan_is_not_written_again(bed: &dyn Bed) {
    let app = App::new(bed, "same");
    let plan = with_env(app.plan(&Behaviour::Run), &[("GREETING", "hello")]);
    app.apply(&plan).await;
    let (pod, before) = (uid(&app.pod().await), bed.writes(&app.namespace).await);
    assert!(before.iter().any(|write| write.plural == "pods" && write.verb == "patch"), "writes are told: {before:?}");
    // The same process, and one that knows nothing yet.
    for app in [&app, &app.elsewhere()] {
        let result = app.apply(&plan).await;
        assert_eq!((of_web(&result).outcome.clone(), of_web(&result).gate.clone()), (Outcome::Unchanged, None));
        assert_eq!(result.written, Vec::<Written>::new());
    }
    assert_eq!(bed.writes(&app.namespace).await, before);
    assert_eq!(uid(&app.pod().await), pod);
}

pub(super) async fn a_plan_that_is_wrong_writes_nothing(bed: &dyn Bed) {
    let app = App::new(bed, "wrong");
    let plan = || app.plan(&Behaviour::Run);
    for (plan, code, words) in [
        (with(plan(), |web| web.name = "My_DB".into()), Code::ValidInvalid, "my-db"),
        (with(plan(), |web| web.image = String::new()), Code::ValidInvalid, "image"),
        (with_env(plan(), &[("A B", "x")]), Code::ValidInvalid, "A B"),
        (with_env(plan(), &[("A", "x\0y")]), Code::ValidInvalid, "NUL"),
        (
            {
                let mut open = plan();
                open.network.private = false;
                open
            },
            Code::ValidInvalid,
            "network.private",
        ),
        (
            {
                let mut restricted = plan();
                restricted.network.egress.block_private = true;
                restricted
            },
            Code::PlanCapabilityUnsupported,
            "egress",
        ),
    ] {
        let error = app.refused(&plan).await;
        assert!(error.code == code && error.to_string().contains(words), "{words}: {error}");
    }
    assert_eq!(bed.writes(&app.namespace).await, []);
    assert_eq!(bed.admin().get(&ObjectKey::cluster(Kind::Namespace, &*app.namespace)).await.expect("a read"), None);
}

pub(super) async fn a_start_tells_what_it_waits_for(bed: &dyn Bed) {
    let app = App::new(bed, "steps");
    let (context, mut steps) = listen(app.context());
    app.apply_as(&app.plan(&Behaviour::Run), &context).await;
    let told: Vec<_> = steps.rest().into_iter().map(|progress| progress.step).collect();
    let at = |step: &str| told.iter().position(|told| told == step).unwrap_or_else(|| panic!("{step} in {told:?}"));
    assert!(at("preparing the namespace") < at("starting") && at("starting") < at("proving isolation"), "{told:?}");
}

/// A health check that never passes leaves the app as reachable as one without: no signal is not unhealthy, and an
/// unhealthy app still runs.
pub(super) async fn health_has_no_verdict_until_its_time_and_stops_nothing(bed: &dyn Bed) {
    let app = App::new(bed, "health");
    let listening = Behaviour::Listen { ports: vec![8080] };
    let checked = |port: u32| {
        with(app.plan(&listening), |web| {
            let check = pando_api::HealthPlan {
                port: Some(port),
                interval_seconds: 1,
                timeout_seconds: 1,
                retries: 2,
                ..pando_api::HealthPlan::default()
            };
            web.health = Some(check);
        })
    };
    app.apply(&checked(8080)).await;
    eventually(bed.env(), "it is healthy", SOON, || async { app.observed().await.healthy.filter(|it| *it) }).await;
    app.apply(&checked(8081)).await;
    let key = app.key(Kind::Pod, "web-2");
    until(bed, &key, "runs", |pod: &Pod| (pod.status.as_ref()?.phase.as_deref() == Some("Running")).then_some(()))
        .await;
    eventually(bed.env(), "it is unhealthy", SOON, || async { app.observed().await.healthy.filter(|it| !it) }).await;
    let web = app.observed().await;
    assert!(web.running && web.reason.is_none(), "{web:?}");
    app.runtime.stop(&app.bundle(), &app.context()).await.expect("it can be stopped");
    assert_eq!(app.observed().await.healthy, None, "what does not run has no health");
}
