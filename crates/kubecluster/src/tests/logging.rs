//! What is logged, and what never is.

use std::cell::RefCell;
use std::io;
use std::sync::Once;

use axum::response::IntoResponse;
use futures::StreamExt;
use http::header::WARNING;
use pando_cluster::{Cluster, Kind, ListRequest, MergePatch, Object, ObjectKey, ResourceVersion, Scope, WatchRequest};
use serde_json::json;
use tracing::Level;

use super::{answer, cluster, pod_json, pod_key, watch_of_pods};

thread_local! {
    /// What this thread logs, once somebody wants to know; a test and all its tasks are on one thread.
    static LOG: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

struct Sink;

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.iter_mut().for_each(|log| log.extend_from_slice(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Begins to keep what this thread logs, at the finest level.
fn keep_log() {
    static ONE_FOR_ALL: Once = Once::new();
    // One for the process: with one a thread, tests that end switch off log lines of those that run.
    ONE_FOR_ALL.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .with_ansi(false)
            .without_time()
            .with_writer(|| Sink)
            .init();
    });
    LOG.set(Some(Vec::new()));
}

/// What was logged since.
fn logged() -> String {
    LOG.with_borrow(|log| String::from_utf8(log.clone().unwrap_or_default()).expect("text"))
}

fn lines_with(word: &str) -> Vec<String> {
    logged().lines().filter(|line| line.contains(word)).map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn a_warning_of_the_server_is_told_once_at_its_full_weight() {
    keep_log();
    let cluster = cluster(|_| async {
        ([(WARNING, r#"299 - "would violate PodSecurity""#)], answer(200, pod_json("web-1").to_string()))
            .into_response()
    });
    for _ in 0..3 {
        assert!(cluster.get(&pod_key("web-1")).await.expect("a pod").is_some());
    }
    let lines = lines_with("would violate PodSecurity");
    let weights: Vec<_> = lines.iter().map(|line| line.split_whitespace().next().unwrap_or_default()).collect();
    assert_eq!(weights, ["WARN", "DEBUG", "DEBUG"], "{lines:?}");
    assert!(lines[0].contains("Pod a/web-1"), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_left_out_is_named() {
    keep_log();
    let odd = json!({"metadata": {"namespace": "b", "name": "odd"}, "spec": {"containers": "many"}});
    let cluster = cluster(move |seen| {
        let odd = odd.clone();
        async move {
            if seen.uri.contains("watch=") {
                return answer(200, format!("{}\n", json!({"type": "ADDED", "object": odd})));
            }
            answer(200, json!({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [odd]}).to_string())
        }
    });
    cluster.list(&ListRequest::of(Kind::Pod, Scope::All)).await.expect("a page");
    assert_eq!(cluster.watch(&watch_of_pods()).await.expect("a watch").count().await, 0);
    let lines = lines_with("cannot be read");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains(r#"namespace="b" name="odd""#)), "{lines:?}");
    assert_eq!(cluster.left_out(), 2);
}

/// At the finest level, through every call and every way in which an answer can be odd.
#[tokio::test(start_paused = true)]
async fn a_secrets_bytes_reach_no_log() {
    keep_log();
    let secret = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"namespace": "a", "name": "s"},
        "data": {"P": "aHVudGVyMg=="}, "stringData": {"Q": "hunter2"}});
    let odd =
        json!({"kind": "Secret", "metadata": {"namespace": "a", "name": "odd"}, "data": {"P": "hunter2 hunter2"}});
    let cluster = cluster({
        let (secret, odd) = (secret.clone(), odd.clone());
        move |seen| {
            let (secret, odd) = (secret.clone(), odd.clone());
            async move {
                let list = json!({"kind": "SecretList", "metadata": {"resourceVersion": "1"}, "items": [secret, odd]});
                if seen.uri.contains("watch=") {
                    let lines = [&secret, &odd].map(|it| format!("{}\n", json!({"type": "ADDED", "object": it})));
                    return answer(200, lines.concat() + "hunter2\n");
                }
                match seen.name() {
                    "s" => answer(200, secret.to_string()),
                    "odd" => answer(200, odd.to_string()),
                    "refused" => answer(400, odd.to_string()),
                    _ => answer(200, list.to_string()),
                }
            }
        }
    });
    let key = |name| ObjectKey::namespaced(Kind::Secret, "a", name);
    let object = Object::from_json(Kind::Secret, secret).expect("a secret");
    let patch = MergePatch::at(&ResourceVersion::new("1"), json!({"data": {"P": "aHVudGVyMg=="}}));
    assert!(cluster.get(&key("s")).await.is_ok());
    assert!(cluster.get(&key("odd")).await.is_err());
    assert!(cluster.get(&key("refused")).await.is_err());
    assert!(cluster.patch(&key("s"), &patch).await.is_ok());
    assert!(cluster.patch(&key("refused"), &patch).await.is_err());
    assert!(cluster.create(&object).await.is_err(), "the answer is a list");
    assert!(cluster.list(&ListRequest::of(Kind::Secret, Scope::All)).await.is_ok());
    let watched = WatchRequest { kind: Kind::Secret, ..watch_of_pods() };
    let events: Vec<_> = cluster.watch(&watched).await.expect("a watch").collect().await;
    assert!(matches!(&events[..], [Ok(_), Err(_)]), "{events:?}");

    let text = logged();
    assert!(text.contains("/api/v1/namespaces/a/secrets/odd"), "calls are logged: {text}");
    assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "{text}");
}
