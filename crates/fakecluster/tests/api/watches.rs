//! Watches: what is told, when bookmarks come, how they end.

use std::time::Duration;

use futures::StreamExt;
use pando_cluster::{
    Cluster, ClusterError, EventStream, Kind, ListRequest, ObjectKey, ResourceVersion, Scope, Selector, WatchEvent,
    WatchRequest,
};
use serde_json::json;

use crate::bed::{Bed, NAMESPACE, pod, secret, with};

fn request(kind: Kind, from: &str) -> WatchRequest {
    WatchRequest {
        kind,
        scope: Scope::Namespace(NAMESPACE.to_owned()),
        labels: Selector::everything(),
        fields: Selector::everything(),
        from: ResourceVersion::new(from),
        timeout: Duration::from_mins(5),
    }
}

fn version_of(bed: &Bed) -> String {
    let list = ListRequest::of(Kind::Secret, Scope::All);
    bed.sim.block_on(bed.cluster.list(&list)).expect("a list").version.as_str().to_owned()
}

fn short(event: &Result<WatchEvent, ClusterError>) -> String {
    match event {
        Ok(WatchEvent::Added(object)) => format!("+{}", object.key().name),
        Ok(WatchEvent::Modified(object)) => format!("~{}", object.key().name),
        Ok(WatchEvent::Deleted(object)) => format!("-{}", object.key().name),
        Ok(WatchEvent::Bookmark(_)) => "bookmark".to_owned(),
        Err(error) => format!("error: {error}"),
    }
}

/// Everything the watch tells until it ends, bookmarks aside.
fn all(bed: &Bed, stream: EventStream) -> Vec<String> {
    let events: Vec<_> = bed.sim.block_on(stream.collect());
    events.iter().map(short).filter(|event| event != "bookmark").collect()
}

fn label(bed: &Bed, name: &str, value: &serde_json::Value) {
    let path = format!("/api/v1/namespaces/pando-a/secrets/{name}");
    assert_eq!(bed.patch(&path, &json!({"metadata": {"labels": {"app": value}}})).code, 200);
}

#[test]
fn a_watch_replays_the_history_and_goes_on() {
    let bed = Bed::new();
    bed.make("secrets", &secret("before", &json!({})));
    let from = version_of(&bed);
    bed.make("secrets", &secret("a", &json!({})));
    label(&bed, "a", &json!("x"));
    let stream = bed.sim.block_on(bed.cluster.watch(&request(Kind::Secret, &from))).expect("a watch");
    bed.delete("/api/v1/namespaces/pando-a/secrets/a", &json!({}));
    bed.make("secrets", &secret("b", &json!({})));
    bed.make_namespace("other", &json!({}));
    assert_eq!(all(&bed, stream), ["+a", "~a", "-a", "+b"]);
}

/// Source: `cacher.go` `convertToWatchEvent`: an object that ceases to match is told as deleted, in its last
/// matching state, at the version of the change.
#[test]
fn an_object_that_changes_its_labels_comes_and_goes() {
    let bed = Bed::new();
    bed.make("secrets", &secret("a", &json!({})));
    let from = version_of(&bed);
    let selected = WatchRequest { labels: Selector::everything().equals("app", "web"), ..request(Kind::Secret, &from) };
    label(&bed, "a", &json!("db"));
    label(&bed, "a", &json!("web"));
    bed.patch("/api/v1/namespaces/pando-a/secrets/a", &json!({"data": {"k": "YQ=="}}));
    label(&bed, "a", &json!("db"));
    let last = bed.get("/api/v1/namespaces/pando-a/secrets/a").body["metadata"]["resourceVersion"].clone();
    bed.delete("/api/v1/namespaces/pando-a/secrets/a", &json!({}));
    let stream = bed.sim.block_on(bed.cluster.watch(&selected)).expect("a watch");
    let events: Vec<_> = bed.sim.block_on(stream.collect());
    let told: Vec<_> = events.iter().map(short).filter(|event| event != "bookmark").collect();
    assert_eq!(told, ["+a", "~a", "-a"]);
    let Some(Ok(WatchEvent::Deleted(gone))) = events.iter().find(|event| short(event) == "-a") else {
        panic!("no deletion in {told:?}");
    };
    assert_eq!(gone.meta().labels.as_ref().and_then(|it| it.get("app")).map(String::as_str), Some("web"));
    assert_eq!(gone.meta().resource_version.as_deref(), last.as_str());
}

#[test]
fn a_field_that_changes_counts_like_a_label() {
    let bed = Bed::new();
    bed.make("pods", &pod("a"));
    let from = version_of(&bed);
    let running =
        WatchRequest { fields: Selector::everything().equals("status.phase", "Running"), ..request(Kind::Pod, &from) };
    let stream = bed.sim.block_on(bed.cluster.watch(&running)).expect("a watch");
    bed.place("a");
    let key = ObjectKey::namespaced(Kind::Pod, NAMESPACE, "a");
    bed.cluster.with(|store| store.update(&key, |pod| pod["status"]["phase"] = "Failed".into()));
    assert_eq!(all(&bed, stream), ["+a", "-a"]);
}

/// Source: 1.34: HTTP 200, then an error of code 410 in the stream.
#[test]
fn a_version_that_is_no_longer_kept_is_told_in_the_stream() {
    let bed = Bed::new();
    let stream = bed.sim.block_on(bed.cluster.watch(&request(Kind::Secret, "1"))).expect("a watch opens");
    let events: Vec<_> = bed.sim.block_on(stream.collect());
    let [Err(error)] = events.as_slice() else { panic!("{events:?}") };
    assert!(error.is_expired(), "{error}");
    assert!(error.to_string().contains("too old resource version: 1 ("), "{error}");

    let from = version_of(&bed);
    bed.make("secrets", &secret("a", &json!({})));
    bed.cluster.compact();
    let stream = bed.sim.block_on(bed.cluster.watch(&request(Kind::Secret, &from))).expect("a watch opens");
    let events: Vec<_> = bed.sim.block_on(stream.collect());
    assert!(matches!(events.as_slice(), [Err(error)] if error.is_expired()), "{events:?}");
}

/// A watch reads at its own pace; what it was too slow for is lost and said to be.
#[test]
fn a_slow_reader_is_told_that_it_missed_something() {
    let bed = Bed::new();
    let stream = bed.sim.block_on(bed.cluster.watch(&request(Kind::Secret, &version_of(&bed)))).expect("a watch");
    bed.make("secrets", &secret("a", &json!({})));
    bed.cluster.compact();
    let told = all(&bed, stream);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("no longer kept"), "{told:?}");
}

/// Source: 1.34: a quiet watch of 100 s had bookmarks at 60.8 s and 98.8 s, then a clean end.
#[test]
fn a_quiet_watch_gets_bookmarks_and_a_clean_end() {
    let bed = Bed::new();
    let quiet = WatchRequest { timeout: Duration::from_secs(100), ..request(Kind::Secret, &version_of(&bed)) };
    let told = bed.sim.block_on(async {
        let begun = bed.sim.now();
        let mut stream = bed.cluster.watch(&quiet).await.expect("a watch");
        let mut told = Vec::new();
        while let Some(event) = stream.next().await {
            told.push((short(&event), bed.sim.now().since(begun).as_secs()));
        }
        told.push(("end".to_owned(), bed.sim.now().since(begun).as_secs()));
        told
    });
    let expected = [("bookmark", 60), ("bookmark", 98), ("end", 100)];
    assert_eq!(told, expected.map(|(what, at)| (what.to_owned(), at)));
}

#[test]
fn a_watch_goes_on_from_a_bookmark() {
    let bed = Bed::new();
    let stream = bed.sim.block_on(bed.cluster.watch(&request(Kind::Secret, &version_of(&bed)))).expect("a watch");
    // Something else happens, of which this watch is told nothing.
    bed.make_namespace("other", &json!({}));
    let events: Vec<_> = bed.sim.block_on(stream.take(1).collect());
    let [Ok(WatchEvent::Bookmark(version))] = events.as_slice() else { panic!("{events:?}") };
    bed.make("secrets", &secret("a", &json!({})));
    let stream = bed.sim.block_on(bed.cluster.watch(&request(Kind::Secret, version.as_str()))).expect("a watch");
    assert_eq!(all(&bed, stream), ["+a"]);
}

/// Source: 1.34: 200, silence, a clean end.
#[test]
fn a_version_of_the_future_is_waited_for() {
    let bed = Bed::new();
    let now: u64 = version_of(&bed).parse().expect("digits");
    let stream = bed.sim.block_on(bed.cluster.watch(&request(Kind::Secret, &(now + 1).to_string()))).expect("a watch");
    bed.make("secrets", &secret("a", &json!({})));
    bed.make("secrets", &secret("b", &json!({})));
    assert_eq!(all(&bed, stream), ["+b"], "the first of them is the version itself");
}

#[test]
fn version_zero_begins_with_what_is_there() {
    let bed = Bed::new();
    bed.make("secrets", &with(secret("a", &json!({})), &json!({"metadata": {"labels": {"x": "y"}}})));
    let stream = bed.sim.block_on(bed.cluster.watch(&request(Kind::Secret, "0"))).expect("a watch");
    label(&bed, "a", &json!("z"));
    assert_eq!(all(&bed, stream), ["+a", "~a"]);
}
