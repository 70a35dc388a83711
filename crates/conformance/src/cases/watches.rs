//! Being told of what happens to objects.

use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ServiceAccount;
use pando_cluster::{
    ClusterError, EventStream, Failure, Kind, ListRequest, Object, ResourceVersion, Scope, Selector, WatchEvent,
    WatchRequest,
};
use serde_json::json;

use super::fixture::{SOON, account, delete, key, labelled, namespace, patch, secret};
use crate::bed::Bed;

/// Asks for the accounts of a namespace that carry the label `watched`, from `version` on.
fn watched(namespace: &str, version: ResourceVersion) -> WatchRequest {
    WatchRequest {
        kind: Kind::ServiceAccount,
        scope: Scope::Namespace(namespace.to_owned()),
        labels: Selector::everything().exists("watched"),
        fields: Selector::everything(),
        from: version,
        timeout: Duration::from_mins(2),
    }
}

fn marked(namespace: &str, name: &str) -> ServiceAccount {
    ServiceAccount { metadata: labelled(namespace, name, &[("watched", "yes")]), ..ServiceAccount::default() }
}

/// The version of the namespace's accounts now.
async fn version_now(bed: &dyn Bed, namespace: &str) -> ResourceVersion {
    let request = ListRequest::of(Kind::ServiceAccount, Scope::Namespace(namespace.to_owned()));
    bed.admin().list(&request).await.expect("a list").version
}

/// The next event that is no bookmark: what happened, to what, and its label `step`.
async fn next(bed: &dyn Bed, events: &mut EventStream) -> (&'static str, String, String) {
    loop {
        let event = bed.env().timeout(SOON, events.next()).await.expect("an event in time");
        let (what, object) = match event.expect("the watch is open").expect("no error") {
            WatchEvent::Added(object) => ("added", object),
            WatchEvent::Modified(object) => ("modified", object),
            WatchEvent::Deleted(object) => ("deleted", object),
            WatchEvent::Bookmark(_) => continue,
        };
        return (what, object.key().name, step(&object));
    }
}

fn step(object: &Object) -> String {
    object.meta().labels.as_ref().and_then(|labels| labels.get("step")).cloned().unwrap_or_default()
}

fn told(what: &'static str, name: &str, step: &str) -> (&'static str, String, String) {
    (what, name.to_owned(), step.to_owned())
}

pub(super) async fn a_watch_from_a_list_misses_nothing(bed: &dyn Bed) {
    let namespace = namespace(bed, "watch").await;
    let admin = bed.admin();
    let version = version_now(bed, &namespace).await;
    // What happens before the watch is opened is told too, since it begins at the version of the list.
    let key = key(Kind::ServiceAccount, &namespace, "a");
    admin.make(&marked(&namespace, "a")).await.expect("an account");
    let mut events = admin.watch(&watched(&namespace, version)).await.expect("a watch");
    patch(bed, &key, json!({"metadata": {"labels": {"step": "1"}}})).await.expect("a patch");
    patch(bed, &key, json!({"metadata": {"labels": {"step": "2"}}})).await.expect("a patch");
    delete(bed, &key).await;
    admin.make(&marked(&namespace, "a")).await.expect("an account");
    let expected = [
        told("added", "a", ""),
        told("modified", "a", "1"),
        told("modified", "a", "2"),
        told("deleted", "a", "2"),
        told("added", "a", ""),
    ];
    for expected in expected {
        assert_eq!(next(bed, &mut events).await, expected);
    }
}

pub(super) async fn only_what_is_asked_for_is_told(bed: &dyn Bed) {
    let (here, elsewhere) = (namespace(bed, "here").await, namespace(bed, "elsewhere").await);
    let admin = bed.admin();
    let version = version_now(bed, &here).await;
    let mut events = admin.watch(&watched(&here, version)).await.expect("a watch");
    admin.make(&marked(&elsewhere, "a")).await.expect("an account");
    admin.make(&account(&here, "unmarked")).await.expect("an account");
    admin.make(&secret(&here, "watched", &[])).await.expect("a Secret");
    admin.make(&marked(&here, "last")).await.expect("an account");
    // Events come in the order of the writes: the last one first means none of the others.
    assert_eq!(next(bed, &mut events).await, told("added", "last", ""));
}

pub(super) async fn an_object_that_loses_its_labels_is_told_as_gone(bed: &dyn Bed) {
    let namespace = namespace(bed, "relabel").await;
    let admin = bed.admin();
    let key = key(Kind::ServiceAccount, &namespace, "a");
    admin.make(&account(&namespace, "a")).await.expect("an account");
    let mut events = admin.watch(&watched(&namespace, version_now(bed, &namespace).await)).await.expect("a watch");
    for labels in [
        json!({"watched": "yes", "step": "1"}),
        json!({"step": "2"}),
        json!({"watched": null, "step": "3"}),
        json!({"step": "4"}),
        json!({"watched": "again", "step": "5"}),
    ] {
        patch(bed, &key, json!({"metadata": {"labels": labels}})).await.expect("a patch");
    }
    assert_eq!(next(bed, &mut events).await, told("added", "a", "1"));
    assert_eq!(next(bed, &mut events).await, told("modified", "a", "2"));
    let (what, name, _) = next(bed, &mut events).await;
    assert_eq!((what, name.as_str()), ("deleted", "a"));
    assert_eq!(next(bed, &mut events).await, told("added", "a", "5"));
}

pub(super) async fn a_version_that_is_no_longer_kept_has_expired(bed: &dyn Bed) {
    let namespace = namespace(bed, "expired").await;
    bed.forget_history();
    // It may be said at once or as the stream's first item.
    let error: ClusterError = match bed.admin().watch(&watched(&namespace, ResourceVersion::new("1"))).await {
        Err(error) => error,
        Ok(mut events) => {
            let first = bed.env().timeout(SOON, events.next()).await.expect("an answer in time");
            let error = first.expect("an item").expect_err("version 1 is long gone");
            assert!(events.next().await.is_none(), "after an error the stream is over");
            error
        }
    };
    assert!(matches!(error.failure, Failure::Expired(_)), "{error}");
}

pub(super) async fn a_watch_ends_in_its_time(bed: &dyn Bed) {
    let namespace = namespace(bed, "ends").await;
    let version = version_now(bed, &namespace).await;
    let request = WatchRequest { timeout: Duration::from_secs(2), ..watched(&namespace, version) };
    let begun = bed.env().now();
    let mut events = bed.admin().watch(&request).await.expect("a watch");
    let end = bed.env().timeout(SOON, events.next()).await.expect("it ends");
    assert!(end.is_none(), "{end:?}");
    assert!(bed.env().now().since(begun) >= Duration::from_millis(1900), "not before its time");
}

pub(super) async fn a_quiet_watch_is_told_that_nothing_happened(bed: &dyn Bed) {
    let namespace = namespace(bed, "quiet").await;
    let version = version_now(bed, &namespace).await;
    let request = WatchRequest { timeout: Duration::from_secs(290), ..watched(&namespace, version.clone()) };
    let mut events = bed.admin().watch(&request).await.expect("a watch");
    bed.admin().make(&account(&namespace, "unmarked")).await.expect("an account");
    let event = bed.env().timeout(Duration::from_secs(90), events.next()).await.expect("a sign of life in time");
    let WatchEvent::Bookmark(newer) = event.expect("the watch is open").expect("no error") else {
        panic!("nothing happened to what is watched");
    };
    assert_ne!(newer, version, "a watch can go on from after the write it was not told of");
}
