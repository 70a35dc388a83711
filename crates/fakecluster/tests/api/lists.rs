//! Lists: order, selectors, pages, versions.

use serde_json::{Value, json};

use crate::bed::{Answer, Bed, pod, secret, with};

const PODS: &str = "/api/v1/namespaces/pando-a/pods";

fn names(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.code, 200, "{answer:?}");
    let items = answer.body["items"].as_array().expect("items");
    items.iter().map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
}

fn numbered(count: usize) -> Bed {
    let bed = Bed::new();
    for number in 0..count {
        bed.make("secrets", &secret(&format!("s-{number:02}"), &json!({})));
    }
    bed
}

/// Source: 1.34 (32 objects, pages of one version; the version of a list is the store's).
#[test]
fn pages_show_one_version_whatever_happens_meanwhile() {
    let bed = numbered(7);
    let path = "/api/v1/namespaces/pando-a/secrets";
    let first = bed.get(&format!("{path}?limit=3"));
    assert_eq!(names(&first), ["s-00", "s-01", "s-02"]);
    assert_eq!(first.body["metadata"]["remainingItemCount"], 4);
    assert_eq!((&first.body["kind"], &first.body["apiVersion"]), (&json!("SecretList"), &json!("v1")));
    assert_eq!(first.body["items"][0]["kind"], Value::Null, "the list says the kind");

    bed.delete(&format!("{path}/s-03"), &json!({}));
    bed.make("secrets", &secret("s-035", &json!({})));
    let token = first.body["metadata"]["continue"].as_str().expect("a token");
    let second = bed.get(&format!("{path}?limit=3&continue={token}"));
    assert_eq!(names(&second), ["s-03", "s-04", "s-05"], "as it was");
    assert_eq!(second.body["metadata"]["resourceVersion"], first.body["metadata"]["resourceVersion"]);
    let token = second.body["metadata"]["continue"].as_str().expect("a token");
    let third = bed.get(&format!("{path}?limit=3&continue={token}"));
    assert_eq!(names(&third), ["s-06"]);
    assert_eq!(third.body["metadata"]["continue"], Value::Null);
}

/// Source: `apiserver/pkg/storage/etcd3/store.go`: the answer brings a token that goes on inconsistently.
#[test]
fn a_page_token_expires_with_the_history() {
    let bed = numbered(5);
    let path = "/api/v1/namespaces/pando-a/secrets";
    let first = bed.get(&format!("{path}?limit=2"));
    let token = first.body["metadata"]["continue"].as_str().expect("a token");
    bed.delete(&format!("{path}/s-02"), &json!({}));
    bed.cluster.compact();
    let expired = bed.get(&format!("{path}?limit=2&continue={token}"));
    assert_eq!((expired.code, &expired.body["reason"]), (410, &json!("Expired")));
    let message = expired.body["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("The provided continue parameter is too old to display a consistent list result."));
    let token = expired.body["metadata"]["continue"].as_str().expect("another token");
    assert_eq!(names(&bed.get(&format!("{path}?limit=9&continue={token}"))), ["s-03", "s-04"]);
}

/// Source: 1.34.
#[test]
fn a_lists_version_is_read_as_kubernetes_reads_it() {
    let bed = numbered(3);
    let path = "/api/v1/namespaces/pando-a/secrets";
    let now: u64 =
        bed.get(path).body["metadata"]["resourceVersion"].as_str().expect("a version").parse().expect("digits");
    bed.make("secrets", &secret("s-09", &json!({})));
    let exact = bed.get(&format!("{path}?resourceVersion={now}&resourceVersionMatch=Exact"));
    assert_eq!(names(&exact), ["s-00", "s-01", "s-02"]);
    assert_eq!(names(&bed.get(&format!("{path}?resourceVersion={now}"))).len(), 4, "not older than");
    assert_eq!(names(&bed.get(&format!("{path}?resourceVersion=0&limit=1"))).len(), 4, "from a cache without pages");
    let future = bed.get(&format!("{path}?resourceVersion={}", now + 100));
    assert_eq!((future.code, &future.body["reason"]), (504, &json!("Timeout")));
    assert_eq!(future.retry_after.as_deref(), Some("1"));
    assert_eq!(future.body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    bed.cluster.compact();
    bed.make("secrets", &secret("s-10", &json!({})));
    assert_eq!(bed.get(&format!("{path}?resourceVersion={now}&resourceVersionMatch=Exact")).code, 410);
    for bad in ["resourceVersion=x", "continue=%21%21", "limit=many", "labelSelector=a+in", "fieldSelector=spec.x%3D1"]
    {
        assert_eq!(bed.get(&format!("{path}?{bad}")).code, 400, "{bad}");
    }
}

#[test]
fn lists_are_ordered_and_select_by_label_and_field() {
    let bed = Bed::new();
    bed.make_namespace("other", &json!({}));
    for (name, labels) in
        [("c", json!({"app": "web"})), ("a", json!({"app": "web", "old": ""})), ("b", json!({"app": "db"}))]
    {
        bed.make("pods", &with(pod(name), &json!({"metadata": {"labels": labels}})));
    }
    bed.place("c");
    let elsewhere = with(pod("z"), &json!({"metadata": {"labels": {"app": "web"}}}));
    assert_eq!(bed.post("/api/v1/namespaces/other/pods", &elsewhere).code, 201);
    for (query, expected) in [
        ("", &["a", "b", "c"][..]),
        ("?labelSelector=app%3Dweb", &["a", "c"]),
        ("?labelSelector=app%3Dweb,%21old", &["c"]),
        ("?labelSelector=app+in+(db,cache)", &["b"]),
        ("?labelSelector=app+notin+(db)", &["a", "c"]),
        ("?fieldSelector=metadata.name%3Db", &["b"]),
        ("?fieldSelector=status.phase%3DRunning", &["c"]),
        ("?fieldSelector=spec.nodeName%21%3Delsewhere", &["a", "b"]),
        ("?&labelSelector=app%3Dweb&fieldSelector=spec.nodeName%3D", &["a"]),
    ] {
        assert_eq!(names(&bed.get(&format!("{PODS}{query}"))), expected, "{query}");
    }
    assert_eq!(names(&bed.get("/api/v1/pods?labelSelector=app%3Dweb")), ["z", "a", "c"], "by namespace, then name");
    let selected = bed.get(&format!("{PODS}?labelSelector=app%3Dweb&limit=1"));
    assert_eq!(selected.body["metadata"]["remainingItemCount"], Value::Null, "not told with a selector");
    assert!(selected.body["metadata"]["continue"].is_string());
}
