//! Whether a health check finds out what the network is like, and never calls one closed that is not.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use k8s_openapi::api::core::v1::{Namespace, Node};
use pando_api::{Code, Error, Health};
use pando_cluster::names::{AppNamespace, MANAGER, label, role};
use pando_cluster::{Kind, ListRequest, Scope, Selector};
use pando_fakecluster::FakeConfig;
use serde_json::json;

use super::fixture::{SOON, map};
use super::verdict::unknown;
use crate::apps::App;
use crate::bed::{Bed, eventually};

/// A network that is as it is said to be by this.
type Network = fn(&mut FakeConfig);

/// Has it found out, whatever is held.
async fn check(app: &App<'_>) -> Result<Health, Error> {
    app.runtime.check_isolation(&app.context()).await
}

/// What a check found that could not find a closed network.
async fn unhealthy(app: &App<'_>) -> Error {
    let error = check(app).await.expect_err("this is not a healthy installation");
    assert_eq!(error.code, Code::AdapterUnavailable, "{error}");
    assert!(error.remedy.is_some(), "{error}");
    error
}

/// The names of the canaries' namespaces that there are, of whoever made them.
async fn canaries(bed: &dyn Bed) -> BTreeSet<String> {
    let labels = Selector::everything().equals(label::MANAGED_BY, MANAGER).equals(label::ROLE, role::CANARY);
    let request = ListRequest::of(Kind::Namespace, Scope::All).labelled(labels);
    let (namespaces, _) = bed.admin().list_all::<Namespace>(&request).await.expect("a list");
    namespaces.into_iter().filter_map(|namespace| namespace.metadata.name).collect()
}

/// Every canary's namespace that is there now goes; some may be another case's, which is still at it.
async fn nothing_stays(bed: &dyn Bed) {
    let now = canaries(bed).await;
    eventually(bed.env(), "the canaries' namespaces are gone", Duration::from_mins(3), || async {
        canaries(bed).await.is_disjoint(&now).then_some(())
    })
    .await;
}

pub(super) async fn a_closed_network_is_found_with_its_families_and_nodes(bed: &dyn Bed) {
    let app = App::new(bed, "canary");
    let isolation = check(&app).await.unwrap_or_else(|error| panic!("{error}")).isolation;
    assert_eq!(isolation.families, ["IPv4"]);
    assert!(isolation.time_to_deny_millis < 30_000, "{isolation:?}");
    let (nodes, _) = bed.admin().list_all::<Node>(&ListRequest::of(Kind::Node, Scope::All)).await.expect("the nodes");
    let named = |place: &String| nodes.iter().any(|node| node.metadata.name.as_ref() == Some(place));
    assert_eq!(isolation.places.len(), nodes.len().min(2), "{isolation:?}");
    assert!(isolation.places.iter().all(named), "{isolation:?}");
    nothing_stays(bed).await;
}

/// Each row: a network that leaves something open, and words of what is told of it.
pub(super) async fn a_network_that_leaves_anything_open_is_told_with_it(bed: &dyn Bed) {
    let rows: &[(&str, Network, &[&str])] = &[
        (
            "no policy is enforced",
            |config| config.policy_enforced = false,
            &["from an app's pod to a pod of another namespace", "the API server's own address", "node-1", "node-2"],
        ),
        (
            "policies are enforced too late for any gate",
            |config| config.delays.policy_sync = Duration::from_secs(45),
            &["does not enforce"],
        ),
    ];
    for (name, network, words) in rows {
        let bed = unknown(bed, *network).await;
        let error = unhealthy(&App::new(&bed, "open")).await;
        for word in *words {
            assert!(error.message.contains(word), "{name}: {error}");
        }
        let remedy = error.remedy.unwrap_or_default();
        assert!(remedy.contains("Calico") && remedy.contains("Cilium"), "{name}: {remedy}");
        nothing_stays(&bed).await;
    }
}

pub(super) async fn a_network_that_closes_late_passes_with_the_time_it_took(bed: &dyn Bed) {
    let late = |config: &mut FakeConfig| config.delays.policy_sync = Duration::from_secs(9);
    let bed = bed.memory().expect("a cluster in memory").beside(late).await;
    let health = check(&App::new(&bed, "late")).await.unwrap_or_else(|error| panic!("{error}"));
    let millis = health.isolation.time_to_deny_millis;
    assert!((9_000..12_000).contains(&millis), "{millis}");
}

pub(super) async fn a_helper_image_that_cannot_be_had_is_told(bed: &dyn Bed) {
    let app = App::with(bed, "unpulled", &json!({"helper_image": "registry.invalid/nothing:1"}));
    let error = unhealthy(&app).await;
    assert!(error.message.contains("could not be found out"), "{error}");
    assert!(error.remedy.unwrap_or_default().contains("registry.invalid/nothing:1"));
    nothing_stays(bed).await;
}

pub(super) async fn a_helper_image_without_the_tools_is_told_with_what_it_lacks(bed: &dyn Bed) {
    let app = App::with(bed, "toolless", &json!({"helper_image": bed.app_image()}));
    let error = unhealthy(&app).await;
    for word in ["could not be found out", bed.app_image(), "the image lacks", "httpd"] {
        assert!(error.message.contains(word), "{word}: {error}");
    }
    nothing_stays(bed).await;
}

/// Whoever called goes away at every moment of it.
pub(super) async fn a_check_that_nobody_waits_for_takes_away_what_it_made(bed: &dyn Bed) {
    let memory = bed.memory().expect("a cluster in memory");
    for moment in 0..12 {
        let slow = |config: &mut FakeConfig| config.latency = Duration::from_millis(40);
        let bed = memory.beside(slow).await;
        let app = App::new(&bed, "dropped");
        let gone = bed.env().sleep(Duration::from_millis(200 * moment));
        match select(pin!(check(&app)), pin!(gone)).await {
            Either::Left((done, _)) => assert!(done.is_ok(), "{done:?}"),
            Either::Right(_) => {}
        }
        eventually(bed.env(), "no canary is left", SOON, || async { canaries(&bed).await.is_empty().then_some(()) })
            .await;
    }
}

pub(super) async fn what_a_dead_process_left_is_swept_and_nothing_else(bed: &dyn Bed) {
    let stale = AppNamespace::canary("deadbeef").name();
    let fresh = AppNamespace::canary("alive234").name();
    let make = async |name: &str, labels: &[(&str, &str)]| {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.to_owned());
        namespace.metadata.labels = Some(map(labels));
        bed.admin().make(&namespace).await.expect("a namespace");
    };
    let ours = [(label::MANAGED_BY, MANAGER), (label::ROLE, role::CANARY)];
    make(&stale, &ours).await;
    make("strangers-canary", &ours[1..]).await;
    bed.env().sleep(Duration::from_mins(7)).await;
    make(&fresh, &ours).await;
    check(&App::new(bed, "sweeper")).await.unwrap_or_else(|error| panic!("{error}"));
    eventually(bed.env(), "the stale one is gone", SOON, || async {
        (!canaries(bed).await.contains(&stale)).then_some(())
    })
    .await;
    assert!(canaries(bed).await.contains(&fresh), "it may be at work");
    let strangers = bed.admin().read::<Namespace>(None, "strangers-canary").await.expect("a read");
    assert!(strangers.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_none()));
}
