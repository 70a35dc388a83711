//! The isolation gate: network plugins are late for fresh pods, and no app may start before its network is closed.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicySpec};
use pando_api::{Code, GateProof, Outcome};
use pando_cluster::Kind;
use pando_fakecluster::behaviour::{Behaviour, Outcome as Dialled, Target};
use pando_fakecluster::netpol::PodName;
use serde_json::json;

use super::fixture::{SOON, delete, meta};
use crate::apps::{App, History, address, of_web, with};
use crate::bed::{Bed, eventually};

/// How many pods without a gate are given the chance to show what it is for.
const UNGATED: usize = 8;

/// What no app may reach: the API server, the metadata service and two other apps.
async fn forbidden(bed: &dyn Bed, others: &[&App<'_>]) -> Vec<Target> {
    let slice: Option<EndpointSlice> = bed.admin().read(Some("default"), "kubernetes").await.expect("a read");
    let slice = slice.expect("every cluster has it");
    let mut targets = vec![Target::address([10, 96, 0, 1], 443)];
    targets.extend(pando_network::api_server_addresses(&slice).iter().map(|it| Target::address(it.ip(), it.port())));
    targets.push(Target::address([169, 254, 169, 254], 80));
    for other in others {
        targets.push(Target::address(address(&other.pod().await), 8080));
    }
    targets
}

/// Starts a fresh pod, in an app of its own, that dials `targets` from its first instruction on for 5 s, and answers what
/// came of it all.
async fn dial_at_once(bed: &dyn Bed, targets: &[Target], gate: bool) -> Vec<Dialled> {
    let dial = Behaviour::Dial {
        targets: targets.to_vec(),
        every: Duration::from_millis(250),
        during: Duration::from_secs(5),
        then: Box::new(Behaviour::Exit { after: Duration::ZERO, code: 0 }),
    };
    let app = App::with(bed, "fresh", &json!({"isolation_gate": gate}));
    let result = app.apply(&app.plan(&dial)).await;
    let passed = of_web(&result).gate.as_ref().map(|gate| gate.proof);
    assert_eq!(passed, Some(if gate { GateProof::Proved } else { GateProof::Off }));
    eventually(bed.env(), "it has dialled long enough", SOON, || async {
        app.observed().await.exit_code.filter(|code| *code == 0)
    })
    .await;
    let dialled = bed.dialled(&PodName::new(&app.namespace, "web-1"), "app").await;
    assert!(dialled.len() >= targets.len(), "it dialled each of {targets:?}: {dialled:?}");
    dialled.into_iter().map(|(_, outcome)| outcome).collect()
}

/// How many connections came about.
fn open(dialled: &[Dialled]) -> usize {
    dialled.iter().filter(|outcome| **outcome == Dialled::Open).count()
}

/// Fresh pods, a few at once, and before them some without a gate: on a busy node a plugin is often early enough for
/// those too, so they come one by one, until one shows what the gate is for.
async fn fresh_pods_reach_nobody(bed: &dyn Bed, pods: usize, at_once: usize) {
    let (one, other) = (App::new(bed, "one"), App::new(bed, "two"));
    for app in [&one, &other] {
        app.apply(&app.plan(&Behaviour::Listen { ports: vec![8080] })).await;
    }
    let targets = forbidden(bed, &[&one, &other]).await;
    let mut open_without = 0;
    for _ in 0..UNGATED {
        open_without = open(&dial_at_once(bed, &targets, false).await);
        if open_without > 0 {
            break;
        }
    }
    assert!(open_without > 0, "of {UNGATED} pods without a gate none came through, so this proves nothing");
    // A program dials one after the other, and a dropped packet takes it a second: each target is somebody's first.
    let fresh = stream::iter(0..pods).map(async |number| {
        let mut targets = targets.clone();
        let first = number % targets.len();
        targets.rotate_left(first);
        dial_at_once(bed, &targets, true).await
    });
    let with = fresh.buffer_unordered(at_once).collect::<Vec<_>>().await.concat();
    assert_eq!(open(&with), 0, "of {} connections from {pods} fresh pods", with.len());
}

pub(super) async fn eight_fresh_pods_reach_nobody_from_their_first_instruction(bed: &dyn Bed) {
    fresh_pods_reach_nobody(bed, 8, 2).await;
}

pub(super) async fn forty_fresh_pods_reach_nobody_from_their_first_instruction(bed: &dyn Bed) {
    fresh_pods_reach_nobody(bed, 40, 5).await;
}

/// The state of the container `name`, wherever it is listed.
fn status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = [&status.init_container_statuses, &status.container_statuses];
    all.into_iter().flatten().flatten().find(|container| container.name == name)
}

/// Whether the pod's app runs or has run.
fn app_ran(pod: &Pod) -> bool {
    let state = status(pod, "app").and_then(|app| app.state.as_ref());
    state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
}

pub(super) async fn a_gate_that_never_closes_is_an_error_with_its_node(bed: &dyn Bed) {
    let app = App::with(bed, "open", &json!({"isolation_gate_seconds": 5}));
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    app.stop().await;
    // Policies add up: with this one, the app's own closes nothing.
    let everything = NetworkPolicySpec {
        policy_types: Some(vec!["Egress".to_owned()]),
        egress: Some(vec![NetworkPolicyEgressRule::default()]),
        ..NetworkPolicySpec::default()
    };
    let open = NetworkPolicy { metadata: meta(&app.namespace, "opened-by-hand"), spec: Some(everything) };
    bed.admin().make(&open).await.expect("a policy");
    let history = History::of(&app).await;
    let error = app.refused(&plan).await;
    assert_eq!((error.code, &error.details["reason"]["kind"]), (Code::AdapterFailed, &json!("gate")), "{error}");
    let node = error.details["node"].as_str().filter(|node| !node.is_empty()).expect("the node");
    let message = error.to_string();
    assert!(message.contains(node) && message.contains("443 is open"), "{message}");
    assert!(error.remedy.as_ref().is_some_and(|remedy| remedy.contains("isolation_gate_seconds")), "{error:?}");
    assert_eq!(app.all::<Pod>().await, []);
    let moments = history.until_now(&app).await;
    assert_eq!(moments.ever(|_| true).len(), 1, "one pod was tried");
    assert!(moments.ever(app_ran).is_empty(), "nothing of the app has run");
    delete(bed, &app.key(Kind::NetworkPolicy, "opened-by-hand")).await;
    let result = app.apply(&plan).await;
    assert_eq!(of_web(&result).gate.as_ref().map(|gate| gate.proof), Some(GateProof::Proved));
}

pub(super) async fn a_gate_whose_probe_cannot_run_is_not_passed(bed: &dyn Bed) {
    // A shell is in it, and nothing to dial with.
    let app = App::with(bed, "noprobe", &json!({"helper_image": bed.app_image()}));
    let history = History::of(&app).await;
    let error = app.refused(&app.plan(&Behaviour::Run)).await;
    assert_eq!((error.code, &error.details["reason"]["kind"]), (Code::AdapterFailed, &json!("gate")), "{error}");
    assert_eq!(app.all::<Pod>().await, []);
    assert!(history.until_now(&app).await.ever(app_ran).is_empty(), "nothing of the app has run");
}

pub(super) async fn a_gate_passes_as_whatever_user_the_app_runs(bed: &dyn Bed) {
    let app = App::new(bed, "user");
    let plan = with(app.plan(&Behaviour::Run), |web| {
        web.settings.run_as_user = Some(1000);
        web.settings.run_as_group = Some(1000);
        web.resources.memory_bytes = 64 << 20;
    });
    let result = app.apply(&plan).await;
    assert_eq!(of_web(&result).outcome, Outcome::Created);
    let gate = of_web(&result).gate.as_ref().expect("it passed its gate");
    assert_eq!(gate.proof, GateProof::Proved);
    let pod = app.pod().await;
    let left = status(&pod, "gate").and_then(|gate| gate.state.as_ref()?.terminated.as_ref()?.message.clone());
    let millis = gate.millis.expect("it says how long it took");
    assert_eq!(left.as_deref().map(str::trim), Some(&*format!("closed after {millis} ms")));
    assert!(app.observed().await.running);
}
