//! The HTTP face: paths, framing, formats, and what it does not serve.

#[path = "api/bed.rs"]
#[expect(dead_code, reason = "shared with the tests of the API")]
mod bed;

use axum::body::Body;
use bed::{Bed, pod, secret};
use futures::StreamExt;
use http::Request;
use http_body_util::BodyExt;
use pando_fakecluster::face::router;
use serde_json::{Value, json};
use tower::ServiceExt;

const SECRETS: &str = "/api/v1/namespaces/pando-a/secrets";

#[test]
fn the_server_tells_what_it_is_and_serves() {
    let bed = Bed::new();
    let version = bed.get("/version").body;
    assert_eq!((&version["major"], &version["minor"]), (&json!("1"), &json!("34")));
    assert_eq!(bed.get("/api").body["versions"], json!(["v1"]));
    let groups = bed.get("/apis").body["groups"].as_array().expect("groups").len();
    assert_eq!(groups, 4);
    for (path, resource) in [
        ("/api/v1", "pods"),
        ("/api/v1", "pods/log"),
        ("/apis/networking.k8s.io/v1", "networkpolicies"),
        ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
        ("/apis/discovery.k8s.io/v1", "endpointslices"),
    ] {
        let list = bed.get(path).body;
        let names: Vec<_> = list["resources"].as_array().expect(path).iter().map(|it| &it["name"]).collect();
        assert!(names.contains(&&json!(resource)), "{path}: {names:?}");
    }
}

#[test]
fn what_is_not_served_is_refused_as_kubernetes_refuses_it() {
    let bed = Bed::new();
    bed.make("secrets", &secret("a", &json!({})));
    for (method, path, code, reason) in [
        ("GET", "/nothing", 404, "NotFound"),
        ("GET", "/api/v2/pods", 404, "NotFound"),
        ("GET", "/apis/apps/v1/deployments", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/pando-a/nodes", 404, "NotFound"),
        ("PUT", "/api/v1/namespaces/pando-a/secrets/a", 405, "MethodNotAllowed"),
        ("DELETE", SECRETS, 405, "MethodNotAllowed"),
        ("POST", "/api/v1/secrets", 405, "MethodNotAllowed"),
        ("POST", "/version", 405, "MethodNotAllowed"),
        ("DELETE", "/api/v1/namespaces/pando-a/secrets/a?dryRun=All", 400, "BadRequest"),
    ] {
        let body = if method == "POST" { secret("b", &json!({})) } else { json!({}) };
        let answer = bed.ask(method, path, &body);
        assert_eq!((answer.code, &answer.body["reason"]), (code, &json!(reason)), "{method} {path}");
        assert_eq!(answer.body["kind"], "Status");
    }
    assert_eq!(bed.get("/api/v1/namespaces/pando-a/secrets/a").code, 200, "the dry run deleted nothing");
}

#[test]
fn only_merge_patches_are_taken() {
    let bed = Bed::new();
    bed.make("secrets", &secret("a", &json!({})));
    for (format, code) in [
        ("application/merge-patch+json", 200),
        ("application/merge-patch+json; charset=utf-8", 200),
        ("application/json-patch+json", 415),
        ("application/strategic-merge-patch+json", 415),
        ("application/apply-patch+yaml", 415),
        ("application/json", 415),
    ] {
        let request = Request::patch(format!("{SECRETS}/a")).header("content-type", format);
        let request = request.body(Body::from(r#"{"metadata":{"labels":{"a":"b"}}}"#)).expect("a request");
        assert_eq!(bed.send(router(&bed.cluster), request).code, code, "{format}");
    }
    let broken = Request::post(SECRETS).header("content-type", "application/json").body(Body::from("{"));
    assert_eq!(bed.send(router(&bed.cluster), broken.expect("a request")).code, 400);
    let huge = Request::post(SECRETS).body(Body::from(vec![b' '; 3 * 1024 * 1024 + 1])).expect("a request");
    assert_eq!(bed.send(router(&bed.cluster), huge).code, 413);
}

#[test]
fn options_of_a_deletion_come_from_the_body_or_the_query() {
    let bed = Bed::new();
    for (name, query, body) in [
        ("by-body", "", json!({"gracePeriodSeconds": 3})),
        ("by-query", "?gracePeriodSeconds=3", json!(null)),
        ("by-both", "?gracePeriodSeconds=9", json!({"gracePeriodSeconds": 3})),
    ] {
        bed.make("pods", &pod(name));
        bed.place(name);
        let path = format!("/api/v1/namespaces/pando-a/pods/{name}");
        assert_eq!(bed.delete(&format!("{path}{query}"), &body).code, 200);
        assert_eq!(bed.get(&path).body["metadata"]["deletionGracePeriodSeconds"], 3, "{name}");
    }
}

/// The lines of a watch, each as its text and as JSON.
fn lines(bed: &Bed, query: &str) -> Vec<(String, Value)> {
    let request = Request::get(format!("{SECRETS}?{query}")).body(Body::empty()).expect("a request");
    let bytes = bed.sim.block_on(async {
        let response = router(&bed.cluster).oneshot(request).await.expect("the service never fails");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/json");
        response.into_body().collect().await.expect("the body never fails").to_bytes()
    });
    let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
    assert!(text.is_empty() || text.ends_with('\n'), "every line ends");
    text.lines().map(|line| (line.to_owned(), serde_json::from_str(line).expect("a line is JSON"))).collect()
}

#[test]
fn a_watch_is_lines_of_json_with_the_type_first() {
    let bed = Bed::new();
    let from = bed.get(SECRETS).body["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    bed.make("secrets", &secret("a", &json!({})));
    bed.delete(&format!("{SECRETS}/a"), &json!({}));
    // kube-rs begins its query with an empty pair.
    let told = lines(&bed, &format!("&watch=true&timeoutSeconds=70&allowWatchBookmarks=true&resourceVersion={from}"));
    let words: Vec<_> = told.iter().map(|(_, line)| line["type"].as_str().expect("a type")).collect();
    assert_eq!(words, ["ADDED", "DELETED", "BOOKMARK", "BOOKMARK"], "at 60 s and shortly before the end");
    for (text, line) in &told {
        assert!(text.starts_with(r#"{"type":""#), "{text}");
        assert_eq!((&line["object"]["kind"], &line["object"]["apiVersion"]), (&json!("Secret"), &json!("v1")));
    }
    let without = lines(&bed, &format!("watch=1&timeoutSeconds=70&resourceVersion={from}"));
    assert_eq!(without.len(), 2, "no bookmarks unless asked for");
}

/// Source: 1.34.
#[test]
fn an_expired_version_is_an_error_line_of_a_stream_that_began_well() {
    let bed = Bed::new();
    let told = lines(&bed, "watch=1&resourceVersion=1");
    assert_eq!(told.len(), 1);
    let line = &told[0].1;
    assert_eq!(
        (&line["type"], &line["object"]["code"], &line["object"]["reason"]),
        (&json!("ERROR"), &json!(410), &json!("Expired"))
    );
    assert!(line["object"]["message"].as_str().is_some_and(|it| it.starts_with("too old resource version: 1 (")));
}

/// Source: 1.34: without the match 422, without bookmarks no mark at the end.
#[test]
fn a_watch_can_begin_with_what_is_there_and_say_when_that_was_all() {
    let bed = Bed::new();
    bed.make("secrets", &secret("a", &json!({})));
    let initial = "watch=1&sendInitialEvents=true&timeoutSeconds=1";
    let told = lines(&bed, &format!("{initial}&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"));
    assert_eq!(told[0].1["type"], "ADDED");
    assert_eq!(told[1].1["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(bed.get(&format!("{SECRETS}?{initial}&allowWatchBookmarks=true")).code, 422);
    let unmarked = lines(&bed, &format!("{initial}&resourceVersionMatch=NotOlderThan"));
    assert_eq!(unmarked.len(), 1, "{unmarked:?}");
}

/// A line is there as soon as its event is: nothing waits for the stream to end.
#[test]
fn events_arrive_while_the_stream_is_open() {
    let bed = Bed::new();
    let from = bed.get(SECRETS).body["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    let request =
        Request::get(format!("{SECRETS}?watch=1&resourceVersion={from}")).body(Body::empty()).expect("a request");
    let response = bed.sim.block_on(router(&bed.cluster).oneshot(request)).expect("the service never fails");
    let mut body = response.into_body().into_data_stream();
    let begun = bed.sim.now();
    for name in ["a", "b"] {
        bed.make("secrets", &secret(name, &json!({})));
        let line = bed.sim.block_on(body.next()).expect("a line").expect("the body never fails");
        let line: Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!(line["object"]["metadata"]["name"], name);
    }
    assert_eq!(bed.sim.now(), begun, "no time passed");
}

/// Source: 1.34.
#[test]
fn the_log_of_a_pod_answers_by_its_state() {
    let bed = Bed::new();
    bed.make("pods", &pod("a"));
    let log = "/api/v1/namespaces/pando-a/pods/a/log";
    assert_eq!(bed.get("/api/v1/namespaces/pando-a/pods/none/log?container=app").code, 404);
    assert_eq!(bed.get(&format!("{log}?container=other")).code, 400);
    assert_eq!(bed.get(&format!("{log}?container=app")).code, 204, "not scheduled");
    assert_eq!(bed.get(log).code, 204, "the only container need not be named");
    bed.place("a");
    let waiting = bed.get(log);
    assert_eq!(waiting.code, 400);
    let message = waiting.body["message"].as_str().unwrap_or_default();
    assert_eq!(message, r#"container "app" in pod "a" is waiting to start: ContainerCreating"#);
    for bad in ["sinceSeconds=0", "tailLines=-1", "sinceSeconds=5&sinceTime=2026-01-01T00:00:00Z"] {
        assert_eq!(bed.get(&format!("{log}?{bad}")).code, 422, "{bad}");
    }
}
