//! Creates, patches and deletions: codes, reasons, messages, and what is stored.

use serde_json::{Value, json};

use crate::bed::{Bed, NAMESPACE, path_of, pod, secret, service, with};

const PODS: &str = "/api/v1/namespaces/pando-a/pods";

/// Source: 1.34, and `apimachinery/pkg/api/errors/errors.go` for the sentences.
#[test]
fn refusals_have_kubernetes_code_reason_and_words() {
    let bed = Bed::new();
    bed.make("pods", &pod("taken"));
    bed.make("pods", &pod("dying"));
    bed.place("dying");
    assert_eq!(bed.delete(&format!("{PODS}/dying"), &json!({})).code, 200);
    let rows = [
        ("GET", format!("{PODS}/no"), json!(null), 404, "NotFound", r#"pods "no" not found"#),
        ("PATCH", format!("{PODS}/no"), json!({}), 404, "NotFound", r#"pods "no" not found"#),
        ("DELETE", format!("{PODS}/no"), json!({}), 404, "NotFound", r#"pods "no" not found"#),
        ("POST", "/api/v1/namespaces/no/pods".into(), pod("a"), 404, "NotFound", r#"namespaces "no" not found"#),
        ("POST", PODS.into(), pod("taken"), 409, "AlreadyExists", r#"pods "taken" already exists"#),
        (
            "POST",
            PODS.into(),
            pod("dying"),
            409,
            "AlreadyExists",
            r#"object is being deleted: pods "dying" already exists"#,
        ),
        (
            "PATCH",
            format!("{PODS}/taken"),
            json!({"metadata": {"resourceVersion": "1"}}),
            409,
            "Conflict",
            r#"Operation cannot be fulfilled on pods "taken": the object has been modified; please apply your changes to the latest version and try again"#,
        ),
        (
            "PATCH",
            format!("{PODS}/taken"),
            json!({"metadata": {"uid": "x"}}),
            422,
            "Invalid",
            r#"Pod "taken" is invalid: metadata.uid: Invalid value: "x": field is immutable"#,
        ),
        (
            "PATCH",
            format!("{PODS}/taken"),
            json!({"metadata": {"name": "other"}}),
            400,
            "BadRequest",
            "the name of the object (other) does not match the name on the URL (taken)",
        ),
        (
            "POST",
            PODS.into(),
            with(pod("a"), &json!({"metadata": {"namespace": "other"}})),
            400,
            "BadRequest",
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            "POST",
            PODS.into(),
            with(pod("a"), &json!({"metadata": {"resourceVersion": "5"}})),
            500,
            "",
            "resourceVersion should not be set on objects to be created",
        ),
        (
            "POST",
            PODS.into(),
            with(pod("a"), &json!({"spec": {"serviceAccountName": "gone"}})),
            403,
            "Forbidden",
            r#"pods "a" is forbidden: error looking up service account pando-a/gone: serviceaccount "gone" not found"#,
        ),
        (
            "POST",
            PODS.into(),
            with(pod("a"), &json!({"spec": {"runtimeClassName": "nope"}})),
            403,
            "Forbidden",
            r#"pods "a" is forbidden: pod rejected: RuntimeClass "nope" not found"#,
        ),
        (
            "DELETE",
            "/api/v1/namespaces/kube-system".into(),
            json!({}),
            403,
            "Forbidden",
            r#"namespaces "kube-system" is forbidden: this namespace may not be deleted"#,
        ),
    ];
    for (method, path, body, code, reason, message) in rows {
        let answer = bed.ask(method, &path, &body);
        assert_eq!(
            (answer.code, answer.body["reason"].as_str().unwrap_or_default(), answer.body["message"].as_str()),
            (code, reason, Some(message)),
            "{method} {path} {body}"
        );
        assert_eq!((&answer.body["kind"], &answer.body["status"]), (&json!("Status"), &json!("Failure")));
        assert_eq!(answer.body["code"], code);
    }
}

/// Source: 1.34 (a namespace that is going is told by a cause, not by the reason).
#[test]
fn a_namespace_that_is_going_takes_nothing_new() {
    let bed = Bed::new();
    // A finalizer of somebody's keeps it, whatever the namespace controller does.
    let path = format!("/api/v1/namespaces/{NAMESPACE}");
    assert_eq!(bed.patch(&path, &json!({"metadata": {"finalizers": ["example.com/keep"]}})).code, 200);
    let answer = bed.delete(&path, &json!({}));
    assert_eq!((answer.code, &answer.body["status"]["phase"]), (200, &json!("Terminating")));
    let answer = bed.post(PODS, &pod("late"));
    assert_eq!(
        (answer.code, answer.body["message"].as_str()),
        (
            403,
            Some(
                r#"pods "late" is forbidden: unable to create new content in namespace pando-a because it is being terminated"#
            )
        )
    );
    assert_eq!(
        answer.body["details"],
        json!({"name": "late", "kind": "pods", "causes": [{
            "reason": "NamespaceTerminating", "message": "namespace pando-a is being terminated",
            "field": "metadata.namespace",
        }]})
    );
    // A second deletion changes nothing.
    let version = bed.get(&path).body["metadata"]["resourceVersion"].clone();
    assert_eq!(bed.delete(&path, &json!({})).code, 200);
    assert_eq!(bed.get(&path).body["metadata"]["resourceVersion"], version);
}

/// Source: `pkg/apis/core/v1/defaults.go`, `pkg/registry/core/pod/strategy.go`.
#[test]
fn a_new_pod_is_stored_with_kubernetes_defaults() {
    let bed = Bed::new();
    let stored = bed.make(
        "pods",
        &with(
            pod("web-1"),
            &json!({"spec": {
                "schedulingGates": [{"name": "pando.dev/start"}],
                "containers": [{"name": "app", "image": "app", "ports": [{"containerPort": 80}],
                    "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}}],
            }}),
        ),
    );
    let spec = &stored["spec"];
    assert_eq!(
        (&spec["restartPolicy"], &spec["terminationGracePeriodSeconds"], &spec["dnsPolicy"], &spec["schedulerName"]),
        (&json!("Always"), &json!(30), &json!("ClusterFirst"), &json!("default-scheduler"))
    );
    assert_eq!(spec["serviceAccount"], "pando-app");
    let container = &spec["containers"][0];
    assert_eq!(container["imagePullPolicy"], "Always", "no tag");
    assert_eq!(container["ports"][0]["protocol"], "TCP");
    let amounts = json!({"cpu": "1", "memory": "1Gi"});
    assert_eq!(container["resources"], json!({"limits": amounts, "requests": amounts}));
    assert_eq!(stored["status"]["phase"], "Pending");
    assert_eq!(stored["status"]["qosClass"], "Guaranteed");
    let condition = &stored["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"]),
        (&json!("PodScheduled"), &json!("False"), &json!("SchedulingGated"))
    );
    let meta = &stored["metadata"];
    assert_eq!(meta["creationTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!((meta["uid"].as_str().map(str::len), &meta["generation"]), (Some(36), &json!(1)));
}

#[test]
fn what_only_the_server_sets_is_not_taken_from_a_client() {
    let bed = Bed::new();
    let stored = bed.make(
        "pods",
        &with(
            pod("a"),
            &json!({
                "metadata": {"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z",
                    "deletionTimestamp": "2001-01-01T00:00:00Z", "deletionGracePeriodSeconds": 3},
                "status": {"phase": "Running", "podIP": "10.0.0.1"},
            }),
        ),
    );
    assert_ne!(stored["metadata"]["uid"], "mine");
    assert_eq!(stored["metadata"]["deletionTimestamp"], Value::Null);
    assert_eq!((&stored["status"]["phase"], &stored["status"]["podIP"]), (&json!("Pending"), &Value::Null));

    let patched = bed.patch(
        &format!("{PODS}/a"),
        &json!({
            "metadata": {"creationTimestamp": "2001-01-01T00:00:00Z", "labels": {"a": "b"}},
            "status": {"phase": "Running"},
        }),
    );
    assert_eq!(patched.code, 200);
    assert_eq!(patched.body["metadata"]["creationTimestamp"], stored["metadata"]["creationTimestamp"]);
    assert_eq!(patched.body["status"]["phase"], "Pending", "the status has a path of its own");
    assert_eq!(patched.body["metadata"]["labels"]["a"], "b");
}

/// Source: 1.34; RFC 7386 for the merge.
#[test]
fn a_patch_that_changes_nothing_leaves_the_version() {
    let bed = Bed::new();
    let made = bed.make("secrets", &secret("s", &json!({"a": "YQ==", "b": "Yg=="})));
    let path = "/api/v1/namespaces/pando-a/secrets/s";
    let version = &made["metadata"]["resourceVersion"];
    for (patch, changes) in [
        (json!({}), false),
        (json!({"data": {"a": "YQ=="}}), false),
        (json!({"data": {"gone": null}}), false),
        (json!({"metadata": {"labels": {}, "finalizers": []}}), false),
        (json!({"metadata": {"resourceVersion": version}, "data": {"a": "YQ=="}}), false),
        (json!({"data": {"b": null}}), true),
        (json!({"stringData": {"c": "hello"}}), true),
    ] {
        let before = bed.get(path).body;
        let answer = bed.patch(path, &patch);
        assert_eq!(answer.code, 200, "{patch}: {answer:?}");
        let moved = answer.body["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"];
        assert_eq!(moved, changes, "{patch}");
    }
    assert_eq!(bed.get(path).body["data"], json!({"a": "YQ==", "c": "aGVsbG8="}));
}

/// Source: 1.34: the same code, reason and details for uid and version; the words differ by kind.
#[test]
fn a_deletion_with_a_false_precondition_is_a_conflict() {
    let bed = Bed::new();
    let uid = bed.make("pods", &pod("a"))["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let options = json!({"preconditions": {"uid": "other"}});
    let answer = bed.delete(&format!("{PODS}/a"), &options);
    let message = format!(
        r#"Operation cannot be fulfilled on Pod "a": the UID in the precondition (other) does not match the UID in record ({uid}). The object might have been deleted and then recreated"#
    );
    assert_eq!((answer.code, answer.body["reason"].as_str()), (409, Some("Conflict")));
    assert_eq!(answer.body["message"].as_str(), Some(&*message));
    assert_eq!(answer.body["details"], json!({"name": "a", "kind": "Pod"}));

    let answer = bed.delete(&format!("{PODS}/a"), &json!({"preconditions": {"uid": uid, "resourceVersion": "1"}}));
    assert_eq!(answer.code, 409);
    assert!(
        answer.body["message"].as_str().is_some_and(|it| it.contains("the ResourceVersion in the precondition (1)"))
    );

    let answer = bed.delete("/api/v1/namespaces/pando-a", &options);
    assert_eq!(answer.code, 409);
    let message = answer.body["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("Precondition failed: UID in precondition: other, UID in object meta: "), "{message}");

    assert_eq!(bed.delete(&format!("{PODS}/a"), &json!({"preconditions": {"uid": uid}})).code, 200);
    assert_eq!(bed.get(&format!("{PODS}/a")).code, 404);
}

/// Source: 1.34, and `pkg/registry/core/pod/strategy.go` `CheckGracefulDelete`.
#[test]
fn a_pod_stays_for_its_grace_only_where_something_may_run() {
    struct Row {
        what: &'static str,
        placed: bool,
        phase: &'static str,
        own: i64,
        asked: Value,
        left: Option<i64>,
    }
    let rows = [
        Row { what: "not scheduled", placed: false, phase: "Pending", own: 30, asked: json!(null), left: None },
        Row { what: "running", placed: true, phase: "Running", own: 7, asked: json!(null), left: Some(7) },
        Row { what: "running, asked", placed: true, phase: "Running", own: 7, asked: json!(3), left: Some(3) },
        Row { what: "running, longer", placed: true, phase: "Running", own: 7, asked: json!(60), left: Some(60) },
        Row { what: "scheduled, pending", placed: true, phase: "Pending", own: 7, asked: json!(null), left: Some(7) },
        Row { what: "failed", placed: true, phase: "Failed", own: 7, asked: json!(null), left: None },
        Row { what: "succeeded", placed: true, phase: "Succeeded", own: 7, asked: json!(9), left: None },
        Row { what: "by force", placed: true, phase: "Running", own: 7, asked: json!(0), left: None },
        Row { what: "own grace 0 is force", placed: true, phase: "Running", own: 0, asked: json!(null), left: None },
    ];
    for row in rows {
        let bed = Bed::new();
        bed.make("pods", &with(pod("a"), &json!({"spec": {"terminationGracePeriodSeconds": row.own}})));
        if row.placed {
            bed.place("a");
            let key = pando_cluster::ObjectKey::namespaced(pando_cluster::Kind::Pod, NAMESPACE, "a");
            bed.cluster.with(|store| store.update(&key, |pod| pod["status"]["phase"] = row.phase.into()));
        }
        let answer = bed.delete(&format!("{PODS}/a"), &json!({"gracePeriodSeconds": row.asked}));
        assert_eq!(answer.code, 200, "{}", row.what);
        let after = bed.get(&format!("{PODS}/a"));
        let meta = &after.body["metadata"];
        match row.left {
            None => assert_eq!(after.code, 404, "{}", row.what),
            Some(left) => {
                assert_eq!(meta["deletionGracePeriodSeconds"], left, "{}", row.what);
                assert_eq!(meta["deletionTimestamp"], format!("2026-01-01T00:{:02}:{:02}Z", left / 60, left % 60));
                assert_eq!(meta["generation"], 2, "{}", row.what);
            }
        }
    }
}

/// Source: 1.34 (5 → 2 changed the date of death, 60 was ignored).
#[test]
fn a_second_deletion_may_shorten_the_grace_and_never_lengthens_it() {
    let bed = Bed::new();
    bed.make("pods", &pod("a"));
    bed.place("a");
    let path = format!("{PODS}/a");
    for (asked, left) in [(json!(5), 5), (json!(60), 5), (json!(null), 5), (json!(2), 2), (json!(3), 2)] {
        let answer = bed.delete(&path, &json!({"gracePeriodSeconds": asked}));
        assert_eq!(answer.code, 200);
        let meta = bed.get(&path).body["metadata"].clone();
        assert_eq!(
            (&meta["deletionGracePeriodSeconds"], &meta["deletionTimestamp"]),
            (&json!(left), &json!(format!("2026-01-01T00:00:0{left}Z"))),
            "asked for {asked}"
        );
    }
    assert_eq!(bed.delete(&path, &json!({"gracePeriodSeconds": 0})).code, 200);
    assert_eq!(bed.get(&path).code, 404);
}

/// Source: <https://kubernetes.io/docs/concepts/overview/working-with-objects/finalizers/>
#[test]
fn finalizers_hold_an_object_until_the_last_is_taken_off() {
    let bed = Bed::new();
    bed.make(
        "secrets",
        &with(secret("s", &json!({})), &json!({"metadata": {"finalizers": ["example.com/a", "example.com/b"]}})),
    );
    let path = "/api/v1/namespaces/pando-a/secrets/s";
    assert_eq!(bed.delete(path, &json!({})).code, 200);
    let held = bed.get(path).body;
    assert_ne!(held["metadata"]["deletionTimestamp"], Value::Null);

    let answer = bed.patch(path, &json!({"metadata": {"finalizers": ["example.com/a", "example.com/c"]}}));
    assert_eq!(answer.code, 422, "an object that is going takes no new ones");
    let message = answer.body["message"].as_str().unwrap_or_default();
    assert!(message.ends_with(r#"found new finalizers []string{"example.com/c"}"#), "{message}");

    assert_eq!(bed.patch(path, &json!({"metadata": {"finalizers": ["example.com/b"]}})).code, 200);
    assert_eq!(bed.get(path).code, 200);
    assert_eq!(bed.patch(path, &json!({"metadata": {"finalizers": null}})).code, 200);
    assert_eq!(bed.get(path).code, 404);
}

#[test]
fn generated_names_keep_their_prefix_and_differ() {
    let bed = Bed::new();
    let mut body = pod("");
    body["metadata"] = json!({"generateName": "web-"});
    let names: Vec<_> =
        (0..20).map(|_| bed.make("pods", &body)["metadata"]["name"].as_str().expect("a name").to_owned()).collect();
    assert!(names.iter().all(|name| name.starts_with("web-") && name.len() == 9), "{names:?}");
    let distinct: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), 20);
}

/// Source: 1.34, facts on Services: what may become of what, in place.
#[test]
fn a_services_type_changes_only_where_kubernetes_lets_it() {
    let port = json!([{"port": 80}]);
    let headless = json!({"clusterIP": "None", "ports": port, "selector": {"a": "b"}});
    let rows = [
        (
            &headless,
            json!({"type": "NodePort"}),
            422,
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
        ),
        (
            &headless,
            json!({"type": "NodePort", "clusterIP": ""}),
            422,
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
        ),
        (&headless, json!({"clusterIP": "10.96.7.7"}), 422, "may not change once set"),
        (&headless, json!({"clusterIP": ""}), 200, ""),
        (&headless, json!({"type": "ExternalName", "externalName": "example.com"}), 200, ""),
        (&json!({"ports": port}), json!({"clusterIP": "None"}), 422, "may not change once set"),
        (
            &json!({"type": "NodePort", "ports": port}),
            json!({"clusterIP": "None", "type": "ClusterIP"}),
            422,
            "may not change once set",
        ),
        (&json!({"type": "NodePort", "ports": port}), json!({"type": "ClusterIP"}), 200, ""),
    ];
    for (spec, change, code, words) in rows {
        let bed = Bed::new();
        bed.make("services", &service("web", spec));
        let path = "/api/v1/namespaces/pando-a/services/web";
        let answer = bed.patch(path, &json!({"spec": change}));
        assert_eq!(answer.code, code, "{spec} then {change}: {answer:?}");
        let message = answer.body["message"].as_str().unwrap_or_default();
        assert!(message.contains(words), "{spec} then {change}: {message}");
        let after = bed.get(path).body["spec"].clone();
        match (change["type"].as_str(), code) {
            (Some("ExternalName"), 200) => {
                assert_eq!(after["clusterIP"], Value::Null);
                // And back, in place.
                let back = bed.patch(path, &json!({"spec": {"type": null, "externalName": null, "clusterIP": "None"}}));
                assert_eq!((back.code, &back.body["spec"]["clusterIPs"]), (200, &json!(["None"])), "{back:?}");
            }
            (Some("ClusterIP"), 200) => assert_eq!(after["ports"][0]["nodePort"], Value::Null),
            (None, 200) => assert_eq!(after["clusterIP"], "None", "an empty address silently stays"),
            _ => {}
        }
    }
}

/// Source: `pkg/apis/core/v1/defaults.go`, `pkg/registry/core/service/storage/alloc.go`.
#[test]
fn services_get_addresses_and_node_ports() {
    let bed = Bed::new();
    let plain = bed.make("services", &service("a", &json!({"ports": [{"port": 80}]})));
    let spec = &plain["spec"];
    assert_eq!(spec["clusterIP"], "10.96.0.2", "the first address is the API server's");
    assert_eq!(spec["clusterIPs"], json!([spec["clusterIP"]]));
    assert_eq!((&spec["type"], &spec["sessionAffinity"]), (&json!("ClusterIP"), &json!("None")));
    assert_eq!((&spec["ipFamilies"], &spec["ipFamilyPolicy"]), (&json!(["IPv4"]), &json!("SingleStack")));
    assert_eq!(spec["ports"], json!([{"port": 80, "protocol": "TCP", "targetPort": 80}]));
    let on_nodes = bed.make("services", &service("b", &json!({"type": "NodePort", "ports": [{"port": 80}]})));
    assert_eq!(on_nodes["spec"]["clusterIP"], "10.96.0.3");
    assert_eq!(on_nodes["spec"]["ports"][0]["nodePort"], 30_000);
    // A node port is kept over a patch that does not name it.
    let path = "/api/v1/namespaces/pando-a/services/b";
    let patched = bed.patch(path, &json!({"spec": {"ports": [{"port": 80, "targetPort": 8080}]}}));
    assert_eq!(patched.body["spec"]["ports"][0]["nodePort"], 30_000, "{patched:?}");
    let taken = bed.post(
        "/api/v1/namespaces/pando-a/services",
        &service(
            "c",
            &json!({
                "type": "NodePort", "ports": [{"port": 80, "nodePort": 30_000}],
            }),
        ),
    );
    assert_eq!(taken.code, 422);
    assert!(taken.body["message"].as_str().is_some_and(|it| it.contains("provided port is already allocated")));
}

/// A patch that says what is there already says nothing: neither an object's own JSON nor what was posted.
#[test]
fn an_object_patched_with_itself_stays_as_it_is() {
    let rbac = "rbac.authorization.k8s.io";
    let objects = [
        (
            "pods",
            with(
                pod("a"),
                &json!({"spec": {"hostname": "", "hostNetwork": false, "schedulingGates": [{"name": "a/b"}],
            "containers": [{"name": "app", "image": "app:1", "env": [{"name": "A", "value": ""}],
                "resources": {"limits": {"cpu": "0.1"}}, "readinessProbe": {"tcpSocket": {"port": 1}, "initialDelaySeconds": 0}}]}}),
            ),
        ),
        (
            "services",
            service("a", &json!({"clusterIP": "None", "publishNotReadyAddresses": false, "ports": [{"port": 1}]})),
        ),
        ("services", service("a", &json!({"ports": [{"port": 1, "targetPort": "web"}]}))),
        ("services", service("a", &json!({"type": "NodePort", "ports": [{"port": 1}]}))),
        ("services", service("a", &json!({"type": "ExternalName", "externalName": "a.example"}))),
        ("secrets", with(secret("a", &json!({})), &json!({"stringData": {"k": "v"}}))),
        (
            "serviceaccounts",
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "labels": {}}}),
        ),
        (
            "resourcequotas",
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "a"},
            "spec": {"hard": {"limits.memory": "2048Mi"}}}),
        ),
        (
            "persistentvolumeclaims",
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}}}),
        ),
        (
            "networkpolicies",
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a"},
            "spec": {"podSelector": {}, "ingress": [{"from": [], "ports": [{"port": 1}]}], "egress": []}}),
        ),
        (
            "rolebindings",
            json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": {"name": "a"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "u"}]}),
        ),
    ];
    for (plural, posted) in objects {
        let bed = Bed::new();
        bed.make(plural, &posted);
        bed.sim.settle();
        let path = format!("{}/a", path_of(&posted, plural));
        let stored = bed.get(&path).body;
        for again in [&stored, &posted] {
            let answer = bed.patch(&path, again);
            assert_eq!((answer.code, &answer.body), (200, &stored), "{again}");
        }
    }
}
