//! Each verb of the port over the wire.

use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::header::RETRY_AFTER;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_cluster::{
    Cluster, DeleteOptions, Failure, Kind, ListRequest, LogRequest, MergePatch, Object, ObjectKey, ResourceVersion,
    Scope, Uid, WatchEvent,
};
use serde_json::json;

use super::{Record, answer, cluster, pod_json, pod_key, recorded, status, watch_of_pods};

fn log_of_web() -> LogRequest {
    LogRequest {
        namespace: "a".to_owned(),
        pod: "web-1".to_owned(),
        container: "app".to_owned(),
        follow: true,
        since: None,
        tail_lines: None,
        limit_bytes: None,
        timestamps: false,
    }
}

#[tokio::test(start_paused = true)]
async fn writes_arrive_as_they_were_asked_for() {
    let record = Record::default();
    let cluster = cluster({
        let record = record.clone();
        move |seen| {
            record.lock().expect("no panic").push(seen);
            async { answer(200, pod_json("web-1").to_string()) }
        }
    });
    let pod = Object::from_json(Kind::Pod, pod_json("web-1")).expect("a pod");
    let patch = MergePatch::at(&ResourceVersion::new("7"), json!({"spec": {"schedulingGates": null}}));
    assert_eq!(cluster.create(&pod).await.expect("created"), pod);
    assert_eq!(cluster.patch(&pod_key("web-1"), &patch).await.expect("patched"), pod);
    cluster.delete(&pod_key("web-1"), &DeleteOptions::of(Uid::new("u-1"))).await.expect("deleted");

    let seen = recorded(&record);
    let lines: Vec<_> =
        seen.iter().map(|it| format!("{} {} {}", it.method, it.uri, it.header("content-type"))).collect();
    assert_eq!(
        lines,
        [
            "POST /api/v1/namespaces/a/pods?fieldValidation=Strict application/json",
            "PATCH /api/v1/namespaces/a/pods/web-1?fieldValidation=Strict application/merge-patch+json",
            "DELETE /api/v1/namespaces/a/pods/web-1 application/json",
        ]
    );
    assert!(seen.iter().all(|it| it.header("user-agent").starts_with("pando-k8s/")), "{seen:?}");
    assert_eq!(seen[0].json()["metadata"]["name"], "web-1");
    assert_eq!(seen[1].json(), *patch.as_json());
    assert_eq!(seen[2].json()["preconditions"], json!({"uid": "u-1"}));
}

#[tokio::test(start_paused = true)]
async fn only_kubernetes_own_word_is_absence() {
    let cluster = cluster(|seen| async move {
        match seen.name() {
            "gone" => status(404, "NotFound", r#"pods "gone" not found"#),
            "group" => (http::StatusCode::NOT_FOUND, "404 page not found\n").into_response(),
            _ => answer(404, "<html>"),
        }
    });
    assert!(matches!(cluster.get(&pod_key("gone")).await, Ok(None)));
    for name in ["group", "proxy"] {
        let got = cluster.get(&pod_key(name)).await.expect_err("no proof of absence");
        assert!(matches!(got.failure, Failure::Malformed(_)), "{got}");
        let deleted = cluster.delete(&pod_key(name), &DeleteOptions::of(Uid::new("u"))).await.expect_err("no proof");
        assert!(!deleted.is_not_found(), "{deleted}");
    }
}

#[tokio::test(start_paused = true)]
async fn pages_follow_each_other_and_what_was_left_out_is_counted() {
    let cluster = cluster(|seen| async move {
        let second = seen.uri.contains("continue=next%3D");
        let items = if second { json!([pod_json("c")]) } else { json!([pod_json("b"), 17, pod_json("a")]) };
        let next = if second { "" } else { "next=" };
        answer(200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9", "continue": next}, "items": items}).to_string())
    });
    let request = ListRequest::of(Kind::Pod, Scope::All);
    let first = cluster.list(&request).await.expect("a page");
    let second = cluster.list(&ListRequest { after: first.next.clone(), ..request }).await.expect("a page");
    let names: Vec<_> = first.items.iter().chain(&second.items).map(|it| it.key().name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!((second.next, cluster.left_out()), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn refusals_keep_their_meaning_and_their_wait() {
    let cluster = cluster(|seen| async move {
        match seen.name() {
            "busy" => ([(RETRY_AFTER, "3")], status(429, "TooManyRequests", "wait")).into_response(),
            "rights" => status(
                403,
                "Forbidden",
                r#"pods "x" is forbidden: User "u" cannot get resource "pods" in API group "" in the namespace "a""#,
            ),
            "etcd" => status(500, "InternalError", "etcdserver: request timed out"),
            _ => status(401, "Unauthorized", "Unauthorized"),
        }
    });
    let rows = [
        ("busy", Failure::Overloaded { retry_after: Some(Duration::from_secs(3)) }),
        ("rights", Failure::Forbidden { verb: "get".to_owned(), resource: "pods".to_owned() }),
        ("etcd", Failure::Timeout { may_have_happened: true }),
        ("who", Failure::Unauthorized),
    ];
    for (name, expected) in rows {
        assert_eq!(cluster.get(&pod_key(name)).await.expect_err(name).failure, expected, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_secrets_bytes_reach_no_error() {
    let cluster = cluster(|seen| async move {
        // Whatever is between may repeat what it refuses; an API server's own answer may be cut or odd.
        match (seen.method.as_str(), seen.name()) {
            ("GET", "cut") => answer(200, r#"{"kind":"Secret","metadata":{"name":"cut"},"data":{"P":"aHVudGVyMg"#),
            ("PATCH", "strict") => status(
                422,
                "Invalid",
                r#" "" is invalid: patch: Invalid value: "{\"data\":{\"P\":\"aHVudGVyMg==\"},\"tpyo\":1}": strict decoding error: unknown field "tpyo""#,
            ),
            ("GET", _) => answer(200, r#"{"metadata":{"namespace":"a","name":"odd"},"data":{"P":"hunter2!"}}"#),
            _ => (http::StatusCode::BAD_REQUEST, seen.body).into_response(),
        }
    });
    let key = |name| ObjectKey::namespaced(Kind::Secret, "a", name);
    let secret = Secret {
        metadata: ObjectMeta { name: Some("s".to_owned()), namespace: Some("a".to_owned()), ..ObjectMeta::default() },
        data: Some([("P".to_owned(), ByteString(b"hunter2".to_vec()))].into()),
        ..Secret::default()
    };
    let patch = MergePatch::at(&ResourceVersion::new("1"), json!({"data": {"P": "aHVudGVyMg=="}}));
    let errors = [
        cluster.get(&key("cut")).await.expect_err("cut"),
        cluster.get(&key("odd")).await.expect_err("odd"),
        cluster.create(&secret.into()).await.expect_err("refused"),
        cluster.patch(&key("s"), &patch).await.expect_err("refused"),
        cluster.patch(&key("strict"), &patch).await.expect_err("refused"),
    ];
    for error in errors {
        let printed = format!("{error} {error:?}");
        assert!(!printed.contains("hunter2") && !printed.contains("aHVudGVyMg"), "{printed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_events_as_they_come_and_ends_with_the_answer() {
    let cluster = cluster(|seen| async move {
        assert!(seen.uri.starts_with("/api/v1/pods?watch=true&allowWatchBookmarks=true"), "{}", seen.uri);
        let line = |kind: &str| format!("{}\n", json!({"type": kind, "object": pod_json("web-1")}));
        let chunks = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"].map(|kind| Ok::<_, std::io::Error>(line(kind)));
        answer(200, Body::from_stream(stream::iter(chunks)))
    });
    let events: Vec<_> = cluster.watch(&watch_of_pods()).await.expect("a watch").try_collect().await.expect("events");
    let expected = [
        matches!(&events[0], WatchEvent::Added(it) if it.key() == pod_key("web-1")),
        matches!(&events[1], WatchEvent::Modified(_)),
        matches!(&events[2], WatchEvent::Deleted(_)),
        matches!(&events[3], WatchEvent::Bookmark(version) if version.as_str() == "7"),
        events.len() == 4,
    ];
    assert_eq!(expected, [true; 5], "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn an_expired_version_is_told_at_the_opening_as_in_the_stream() {
    let at_opening = cluster(|_| async { status(410, "Expired", "too old resource version: 1 (503)") });
    let error = at_opening.watch(&watch_of_pods()).await.err().expect("expired");
    assert!(error.is_expired(), "{error}");
    let in_stream = cluster(|_| async {
        let object =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410});
        answer(200, format!("{}\n", json!({"type": "ERROR", "object": object})))
    });
    let events: Vec<_> = in_stream.watch(&watch_of_pods()).await.expect("a watch").collect().await;
    assert!(matches!(&events[..], [Err(error)] if error.is_expired()), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cut_watch_is_no_end() {
    let cluster = cluster(|_| async {
        let line = format!("{}\n", json!({"type": "ADDED", "object": pod_json("web-1")}));
        let chunks = [Ok(line), Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))];
        answer(200, Body::from_stream(stream::iter(chunks)))
    });
    let events: Vec<_> = cluster.watch(&watch_of_pods()).await.expect("a watch").collect().await;
    let [Ok(WatchEvent::Added(_)), Err(error)] = &events[..] else { panic!("{events:?}") };
    assert!(matches!(error.failure, Failure::Unavailable(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_log_is_bytes_and_a_pod_without_a_place_has_none() {
    let whole = cluster(|_| async {
        answer(200, Body::from_stream(stream::iter(["one\ntw", "o"].map(Ok::<_, std::io::Error>))))
    });
    let bytes: Vec<Bytes> = whole.logs(&log_of_web()).await.expect("a log").try_collect().await.expect("bytes");
    assert_eq!(bytes.concat(), b"one\ntwo");

    let unplaced = cluster(|_| async { answer(204, "") });
    assert_eq!(unplaced.logs(&log_of_web()).await.expect("a log").count().await, 0);

    let waiting = cluster(|_| async {
        status(400, "BadRequest", r#"container "app" in pod "web-1" is waiting to start: PodInitializing"#)
    });
    let error = waiting.logs(&log_of_web()).await.err().expect("refused");
    assert_eq!(
        error.to_string(),
        r#"could not read the log of Pod a/web-1: container "app" in pod "web-1" is waiting to start: PodInitializing"#
    );

    let cut = cluster(|_| async {
        let chunks = [Ok("one"), Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))];
        answer(200, Body::from_stream(stream::iter(chunks)))
    });
    let pieces: Vec<_> = cut.logs(&log_of_web()).await.expect("a log").collect().await;
    assert!(matches!(&pieces[..], [Ok(_), Err(_)]), "{pieces:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_breaks_off_may_have_happened() {
    let cluster = cluster(|_| async {
        let chunks = [Ok("{"), Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))];
        answer(201, Body::from_stream(stream::iter(chunks)))
    });
    let pod = Object::from_json(Kind::Pod, pod_json("web-1")).expect("a pod");
    let written = cluster.create(&pod).await.expect_err("cut");
    assert_eq!(written.failure, Failure::Timeout { may_have_happened: true });
    let read = cluster.get(&pod_key("web-1")).await.expect_err("cut");
    assert!(matches!(read.failure, Failure::Unavailable(_)), "{read}");
}
