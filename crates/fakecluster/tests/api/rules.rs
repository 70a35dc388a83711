//! Which objects are refused as invalid, with the field.

use serde_json::{Value, json};

use crate::bed::{Bed, path_of, pod, quota, secret, service, with};

/// One object and the fields that are wrong about it; none when it is accepted.
type Row<'a> = (&'a str, Value, &'a [&'a str]);

/// Posts each row and compares the fields that the answer names.
fn check(plural: &str, rows: &[Row<'_>]) {
    for (what, body, expected) in rows {
        let bed = Bed::new();
        let answer = bed.post(&path_of(body, plural), body);
        let causes = answer.body["details"]["causes"].as_array().cloned().unwrap_or_default();
        let fields: Vec<_> = causes.iter().filter_map(|cause| cause["field"].as_str()).collect();
        assert_eq!(fields, *expected, "{what}: {} {}", answer.code, answer.body["message"]);
        assert_eq!(answer.code, if expected.is_empty() { 201 } else { 422 }, "{what}: {}", answer.body);
    }
}

fn container(change: &Value) -> Value {
    with(pod("a"), &json!({"spec": {"containers": [with(json!({"name": "app", "image": "app:1"}), change)]}}))
}

fn spec(change: &Value) -> Value {
    with(pod("a"), &json!({"spec": change}))
}

/// Source: `pkg/apis/core/validation/validation.go`; the combinations of the second half tried on 1.34.
#[test]
fn pods_are_checked_field_by_field() {
    let long = "a".repeat(64);
    let rows: Vec<Row<'_>> = vec![
        ("a plain pod", pod("a"), &[]),
        ("no containers", spec(&json!({"containers": []})), &["spec.containers"]),
        ("a name in capitals", with(pod("a"), &json!({"metadata": {"name": "Web"}})), &["metadata.name"]),
        ("a bad label", with(pod("a"), &json!({"metadata": {"labels": {"a b": "c"}}})), &["metadata.labels"]),
        ("a bad label value", with(pod("a"), &json!({"metadata": {"labels": {"a": "-"}}})), &["metadata.labels"]),
        ("an unknown restart policy", spec(&json!({"restartPolicy": "Sometimes"})), &["spec.restartPolicy"]),
        ("a negative grace, which becomes a second", spec(&json!({"terminationGracePeriodSeconds": -1})), &[]),
        ("no time at all", spec(&json!({"activeDeadlineSeconds": 0})), &["spec.activeDeadlineSeconds"]),
        ("a hostname over 63", spec(&json!({"hostname": long})), &["spec.hostname"]),
        ("a hostname in capitals", spec(&json!({"hostname": "Web"})), &["spec.hostname"]),
        ("a dotted hostname", spec(&json!({"hostname": "a.b"})), &["spec.hostname"]),
        (
            "a gate beside a node",
            spec(&json!({"nodeName": "n", "schedulingGates": [{"name": "a/b"}]})),
            &["spec.nodeName"],
        ),
    ];
    check("pods", &rows);
}

/// Source: the same, `validateContainers`.
#[test]
fn containers_are_checked_field_by_field() {
    let rows: Vec<Row<'_>> = vec![
        ("no image", container(&json!({"image": null})), &["spec.containers[0].image"]),
        ("a container's name with a dot", container(&json!({"name": "a.b"})), &["spec.containers[0].name"]),
        (
            "two containers of a name",
            spec(&json!({"containers": [
            {"name": "a", "image": "i"}, {"name": "a", "image": "i"}]})),
            &["spec.containers[1].name"],
        ),
        (
            "port 0",
            container(&json!({"ports": [{"containerPort": 0}]})),
            &["spec.containers[0].ports[0].containerPort"],
        ),
        (
            "port 70000",
            container(&json!({"ports": [{"containerPort": 70000}]})),
            &["spec.containers[0].ports[0].containerPort"],
        ),
        (
            "a port's name over 15",
            container(&json!({"ports": [{"containerPort": 1, "name": "abcdefghijklmnop"}]})),
            &["spec.containers[0].ports[0].name"],
        ),
        (
            "a mount without volume",
            container(&json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]})),
            &["spec.containers[0].volumeMounts[0].name"],
        ),
        (
            "an unknown resource",
            container(&json!({"resources": {"limits": {"gpu": "1"}}})),
            &[
                "spec.containers[0].resources.limits[gpu]",
                "spec.containers[0].resources.limits[gpu]",
                "spec.containers[0].resources.requests[gpu]",
                "spec.containers[0].resources.requests[gpu]",
            ],
        ),
        (
            "more asked than allowed",
            container(&json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}})),
            &["spec.containers[0].resources.requests"],
        ),
        (
            "privileged without escalation",
            container(&json!({"securityContext":
            {"privileged": true, "allowPrivilegeEscalation": false}})),
            &["spec.containers[0].securityContext"],
        ),
        (
            "a subPath that leads out",
            with(
                container(&json!({"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "../x"}]})),
                &json!({"spec": {"volumes": [{"name": "v"}]}}),
            ),
            &["spec.containers[0].volumeMounts.subPath"],
        ),
        (
            "equal mount paths",
            with(
                container(&json!({"volumeMounts": [
            {"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/v"}]})),
                &json!({"spec": {"volumes": [{"name": "v"}]}}),
            ),
            &["spec.containers[0].volumeMounts[1].mountPath"],
        ),
        (
            "a mount path twice but for its slash",
            with(
                container(&json!({"volumeMounts": [
            {"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/v/"}]})),
                &json!({"spec": {"volumes": [{"name": "v"}]}}),
            ),
            &[],
        ),
        ("equal ports", container(&json!({"ports": [{"containerPort": 1}, {"containerPort": 1}]})), &[]),
        ("a variable with a blank", container(&json!({"env": [{"name": "A B", "value": "c"}]})), &[]),
        (
            "a variable with =",
            container(&json!({"env": [{"name": "A=B", "value": "c"}]})),
            &["spec.containers[0].env[0].name"],
        ),
    ];
    check("pods", &rows);
}

/// Source: the same, `validateProbe`, `validateInitContainers`.
#[test]
fn probes_are_checked_by_what_they_ask_and_where_they_are() {
    let probe = json!({"tcpSocket": {"port": 80}});
    let rows: Vec<Row<'_>> = vec![
        (
            "two handlers of a probe",
            container(&json!({"readinessProbe": {"tcpSocket": {"port": 1}, "exec": {"command": ["a"]}}})),
            &["spec.containers[0].readinessProbe.tcpSocket"],
        ),
        (
            "a probe on an init container",
            spec(&json!({"initContainers": [
            {"name": "i", "image": "i", "readinessProbe": probe}]})),
            &["spec.initContainers[0].readinessProbe"],
        ),
        (
            "a probe on a sidecar",
            spec(&json!({"initContainers": [
            {"name": "i", "image": "i", "restartPolicy": "Always", "readinessProbe": probe}]})),
            &[],
        ),
        (
            "a startup probe that must succeed twice",
            container(&json!({"startupProbe": {"tcpSocket": {"port": 1}, "successThreshold": 2}})),
            &["spec.containers[0].startupProbe.successThreshold"],
        ),
    ];
    check("pods", &rows);
}

/// Source: `ValidatePodUpdate` in `pkg/apis/core/validation/validation.go`.
#[test]
fn of_a_pod_little_may_change() {
    let rows = [
        ("the gate goes", json!({"schedulingGates": null}), None),
        (
            "another gate",
            json!({"schedulingGates": [{"name": "a/b"}, {"name": "c/d"}]}),
            Some("spec.schedulingGates[1].name"),
        ),
        ("the image", json!({"containers": [{"name": "app", "image": "app:2"}]}), None),
        ("the command", json!({"containers": [{"name": "app", "image": "app:1", "command": ["x"]}]}), Some("spec")),
        (
            "one more container",
            json!({"containers": [{"name": "app", "image": "app:1"}, {"name": "b", "image": "b"}]}),
            Some("spec.containers"),
        ),
        ("a deadline", json!({"activeDeadlineSeconds": 9}), None),
        ("the node", json!({"nodeName": "n"}), Some("spec")),
        ("the account", json!({"serviceAccountName": "default"}), Some("spec")),
        ("fewer nodes, while gated", json!({"nodeSelector": {"a": "b"}}), None),
    ];
    for (what, change, field) in rows {
        let bed = Bed::new();
        bed.make("pods", &spec(&json!({"schedulingGates": [{"name": "a/b"}]})));
        let answer = bed.patch("/api/v1/namespaces/pando-a/pods/a", &json!({"spec": change}));
        assert_eq!(answer.code, if field.is_some() { 422 } else { 200 }, "{what}: {}", answer.body);
        if let Some(field) = field {
            let causes = answer.body["details"]["causes"].as_array().expect("causes");
            assert!(causes.iter().any(|cause| cause["field"] == field), "{what}: {causes:?}");
        } else {
            assert_eq!(answer.body["metadata"]["generation"], 2, "{what}");
        }
    }
}

/// Source: `ValidateService`; 1.34 for the headless ones.
#[test]
fn services_are_checked_field_by_field() {
    let ports = |ports: Value| service("a", &json!({"clusterIP": "None", "ports": ports}));
    let rows: Vec<Row<'_>> = vec![
        ("headless", ports(json!([{"port": 80}])), &[]),
        ("headless without ports", service("a", &json!({"clusterIP": "None"})), &[]),
        ("no ports", service("a", &json!({})), &["spec.ports"]),
        ("a name that begins with a digit", service("1a", &json!({"ports": [{"port": 1}]})), &["metadata.name"]),
        (
            "two ports without names",
            ports(json!([{"port": 1}, {"port": 2}])),
            &["spec.ports[0].name", "spec.ports[1].name"],
        ),
        (
            "two ports of a name",
            ports(json!([{"name": "a", "port": 1}, {"name": "a", "port": 2}])),
            &["spec.ports[1].name"],
        ),
        ("one port twice", ports(json!([{"name": "a", "port": 1}, {"name": "b", "port": 1}])), &["spec.ports[1]"]),
        (
            "one number, two protocols",
            ports(json!([{"name": "a", "port": 1}, {"name": "b", "port": 1, "protocol": "UDP"}])),
            &[],
        ),
        ("port 0", ports(json!([{"port": 0, "targetPort": 1}])), &["spec.ports[0].port"]),
        ("an unknown protocol", ports(json!([{"port": 1, "protocol": "ICMP"}])), &["spec.ports[0].protocol"]),
        (
            "a node port of an inner Service",
            ports(json!([{"port": 1, "nodePort": 30001}])),
            &["spec.ports[0].nodePort"],
        ),
        (
            "headless on nodes",
            service("a", &json!({"type": "NodePort", "clusterIP": "None", "ports": [{"port": 1}]})),
            &["spec.clusterIPs[0]"],
        ),
        ("an alias without a name", service("a", &json!({"type": "ExternalName"})), &["spec.externalName"]),
        ("an alias", service("a", &json!({"type": "ExternalName", "externalName": "b.example"})), &[]),
        (
            "an alias with an address",
            service("a", &json!({"type": "ExternalName", "externalName": "b", "clusterIP": "10.96.1.1"})),
            &["spec.clusterIPs"],
        ),
        (
            "a node port out of range",
            service("a", &json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 80}]})),
            &["spec.ports[0].nodePort"],
        ),
        ("an unknown type", service("a", &json!({"type": "Magic", "ports": [{"port": 1}]})), &["spec.type"]),
    ];
    check("services", &rows);
}

/// Source: the cases on admission of the NetworkPolicy collection, which cite the published validation.
#[test]
fn bad_network_policies_are_refused_at_their_field() {
    let cases: Value = serde_json::from_str(include_str!("../data/refused-policies.json")).expect("cases");
    let cases = cases.as_array().expect("a list");
    assert!(cases.len() >= 16);
    let bed = Bed::new();
    for case in cases {
        let mut policy = case["policy"].clone();
        policy["metadata"]["namespace"] = "pando-a".into();
        let answer = bed.post("/apis/networking.k8s.io/v1/namespaces/pando-a/networkpolicies", &policy);
        assert_eq!(answer.code, 422, "{case}");
        let named = answer.body["details"]["causes"].as_array().expect("causes");
        assert!(named.iter().any(|cause| cause["field"] == case["field"]), "{case}: {named:?}");
        assert!(
            answer.body["message"]
                .as_str()
                .is_some_and(|it| it.starts_with("NetworkPolicy.networking.k8s.io \"bad\" is invalid: "))
        );
    }
}

/// Source: `pkg/apis/networking/v1/defaults.go`.
#[test]
fn network_policies_get_their_types_and_protocols() {
    let bed = Bed::new();
    let policy = |name: &str, spec: Value| json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec});
    for (name, spec, types) in [
        ("a", json!({"podSelector": {}}), json!(["Ingress"])),
        ("b", json!({"podSelector": {}, "egress": []}), json!(["Ingress"])),
        ("c", json!({"podSelector": {}, "egress": [{"ports": [{"port": 53}]}]}), json!(["Ingress", "Egress"])),
        ("d", json!({"podSelector": {}, "policyTypes": ["Egress"]}), json!(["Egress"])),
    ] {
        let stored = bed.make("networkpolicies", &policy(name, spec));
        assert_eq!(stored["spec"]["policyTypes"], types, "{name}");
        if name == "c" {
            assert_eq!(stored["spec"]["egress"][0]["ports"][0]["protocol"], "TCP");
        }
    }
}

/// Source: `ValidateSecret`; 1.34 for keys.
#[test]
fn secrets_are_checked_by_type_key_and_size() {
    let typed = |kind: &str, data: Value| with(secret("a", &data), &json!({"type": kind}));
    let big = "A".repeat(1_400_000);
    let rows: Vec<Row<'_>> = vec![
        ("opaque", secret("a", &json!({"k.-_1": "YQ=="})), &[]),
        ("a key with a blank", secret("a", &json!({"a b": "YQ=="})), &["data[a b]"]),
        ("a key of two dots", secret("a", &json!({"..": "YQ=="})), &["data[..]"]),
        ("over a mebibyte", secret("a", &json!({"a": big})), &["data"]),
        (
            "a pull secret without entry",
            typed("kubernetes.io/dockerconfigjson", json!({})),
            &["data[.dockerconfigjson]"],
        ),
        (
            "a pull secret that is not JSON",
            typed("kubernetes.io/dockerconfigjson", json!({".dockerconfigjson": "YQ=="})),
            &["data[.dockerconfigjson]"],
        ),
        ("a pull secret", typed("kubernetes.io/dockerconfigjson", json!({".dockerconfigjson": "e30="})), &[]),
        ("a certificate without key", typed("kubernetes.io/tls", json!({"tls.crt": ""})), &["data[tls.key]"]),
    ];
    check("secrets", &rows);

    let bed = Bed::new();
    assert_eq!(bed.make("secrets", &secret("a", &json!({})))["type"], "Opaque");
    let path = "/api/v1/namespaces/pando-a/secrets/a";
    assert_eq!(bed.patch(path, &json!({"type": "other"})).code, 422);
    // What cannot be read is invalid as a patch, and the answer shows the whole Secret.
    let leak = bed.patch(path, &json!({"data": {"a": "not base64!", "b": "aHVudGVyMg=="}}));
    assert_eq!((leak.code, &leak.body["details"]["causes"][0]["field"]), (422, &json!("patch")));
    assert!(leak.body["message"].as_str().is_some_and(|it| it.contains("aHVudGVyMg==")), "{}", leak.body);
    assert_eq!(bed.patch(path, &json!({"immutable": true})).code, 200);
    assert_eq!(bed.patch(path, &json!({"data": {"a": "YQ=="}})).code, 422);
    assert_eq!(bed.patch(path, &json!({"immutable": false})).code, 422);
    assert_eq!(bed.patch(path, &json!({"metadata": {"labels": {"a": "b"}}})).code, 200);
}

/// Source: `pkg/apis/rbac/validation/validation.go`, `ValidateResourceQuota`, `ValidatePersistentVolumeClaim`.
#[test]
fn the_smaller_kinds_are_checked_too() {
    let binding = |role: Value, subjects: Value| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "a"},
            "roleRef": role, "subjects": subjects})
    };
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"});
    check(
        "rolebindings",
        &[
            (
                "a binding",
                binding(role.clone(), json!([{"kind": "ServiceAccount", "name": "a", "namespace": "b"}])),
                &[],
            ),
            ("no role", binding(json!({"kind": "ClusterRole", "name": ""}), json!([])), &["roleRef.name"]),
            (
                "an account of the binding's own namespace",
                binding(role.clone(), json!([{"kind": "ServiceAccount", "name": "a"}])),
                &[],
            ),
            (
                "an unknown subject",
                binding(role.clone(), json!([{"kind": "Robot", "name": "a"}])),
                &["subjects[0].kind"],
            ),
        ],
    );
    check(
        "resourcequotas",
        &[
            ("a quota", quota("a", &json!({"services.nodeports": "0", "limits.cpu": "200m"})), &[]),
            ("a negative one", quota("a", &json!({"limits.cpu": "-1"})), &["spec.hard[limits.cpu]"]),
            ("half a pod", quota("a", &json!({"pods": "500m"})), &["spec.hard[pods]"]),
            ("of something unknown", quota("a", &json!({"wishes": "3"})), &["spec.hard[wishes]", "spec.hard[wishes]"]),
        ],
    );
    let claim = |spec: Value| json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"}, "spec": spec});
    let size = json!({"requests": {"storage": "1024Mi"}});
    check(
        "persistentvolumeclaims",
        &[
            ("a claim", claim(json!({"accessModes": ["ReadWriteOnce"], "resources": size})), &[]),
            ("no size", claim(json!({"accessModes": ["ReadWriteOnce"]})), &["spec.resources[storage]"]),
            ("no mode", claim(json!({"resources": size})), &["spec.accessModes"]),
        ],
    );

    let bed = Bed::new();
    bed.make("rolebindings", &binding(role, json!([])));
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/pando-a/rolebindings/a";
    let answer = bed.patch(path, &json!({"roleRef": {"name": "other"}}));
    assert_eq!(answer.code, 422);
    assert!(answer.body["message"].as_str().is_some_and(|it| it.ends_with("cannot change roleRef")), "{}", answer.body);
}

/// Source: `pkg/registry/core/namespace/strategy.go`; D17 of the NetworkPolicy grounds.
#[test]
fn a_namespace_always_carries_its_name_as_a_label() {
    let bed = Bed::new();
    let path = "/api/v1/namespaces/pando-a";
    let stored = bed.get(path).body;
    assert_eq!(stored["metadata"]["labels"]["kubernetes.io/metadata.name"], "pando-a");
    assert_eq!((&stored["spec"]["finalizers"], &stored["status"]["phase"]), (&json!(["kubernetes"]), &json!("Active")));
    for patch in
        [json!({"metadata": {"labels": null}}), json!({"metadata": {"labels": {"kubernetes.io/metadata.name": "x"}}})]
    {
        let answer = bed.patch(path, &patch);
        assert_eq!(answer.body["metadata"]["labels"]["kubernetes.io/metadata.name"], "pando-a", "{patch}");
    }
}

/// Source: 1.34: what cannot be read is a bad request, not an invalid object.
#[test]
fn what_cannot_be_read_is_a_bad_request() {
    let bed = Bed::new();
    for (what, body) in [
        ("an amount that is none", container(&json!({"resources": {"limits": {"cpu": "much"}}}))),
        ("a number for a name", with(pod("a"), &json!({"metadata": {"name": 3}}))),
        ("another kind", json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}})),
        ("a list", json!([])),
        ("a number for a spec", json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": 5})),
    ] {
        let answer = bed.post("/api/v1/namespaces/pando-a/pods", &body);
        assert_eq!((answer.code, &answer.body["reason"]), (400, &json!("BadRequest")), "{what}: {}", answer.body);
    }
}
