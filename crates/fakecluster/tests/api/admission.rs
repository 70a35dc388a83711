//! Access rules, pod security and quotas.

use std::time::Duration;

use k8s_openapi::api::rbac::v1::PolicyRule;
use pando_fakecluster::{Access, FakeConfig};
use serde_json::{Value, json};

use crate::bed::{Bed, path_of, pod, quota, secret, service, with};

const PODS: &str = "/api/v1/namespaces/pando-a/pods";
const PANDO: &str = "system:serviceaccount:pando:pando";

fn without_nodes() -> FakeConfig {
    FakeConfig { nodes: vec![], ..FakeConfig::default() }
}

fn rule(group: &str, resource: &str, verbs: &[&str], names: &[&str]) -> PolicyRule {
    let texts = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(texts(&[group])),
        resources: Some(texts(&[resource])),
        verbs: texts(verbs),
        resource_names: (!names.is_empty()).then(|| texts(names)),
        ..PolicyRule::default()
    }
}

/// Pando's account as the manifests make it, in small.
fn access() -> Access {
    let rbac = "rbac.authorization.k8s.io";
    Access {
        roles: [
            (
                "pando".to_owned(),
                vec![
                    rule("", "namespaces", &["get", "list", "watch", "create"], &[]),
                    rule(rbac, "rolebindings", &["get", "create"], &[]),
                    rule(rbac, "clusterroles", &["bind"], &["pando-app-manager"]),
                ],
            ),
            (
                "pando-app-manager".to_owned(),
                vec![rule("", "secrets", &["get", "create"], &[]), rule("", "pods", &["get"], &[])],
            ),
            ("cluster-admin".to_owned(), vec![rule("*", "*", &["*"], &[])]),
        ]
        .into(),
        cluster_bindings: vec![(PANDO.to_owned(), "pando".to_owned())],
        namespace_bindings: vec![],
    }
}

fn binding(role: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": "pando", "name": "pando"}],
    })
}

/// Source: `apiserver/pkg/endpoints/handlers/responsewriters/errors.go`; 1.34.
#[test]
fn a_missing_right_is_told_in_kubernetes_sentence() {
    let bed = Bed::of(FakeConfig { access: Some(access()), ..without_nodes() });
    let pando = bed.cluster.as_account(PANDO);
    let user = format!("User {PANDO:?}");
    let rows = [
        (
            "GET",
            "/api/v1/nodes",
            json!(null),
            format!("nodes is forbidden: {user} cannot list resource \"nodes\" in API group \"\" at the cluster scope"),
        ),
        (
            "GET",
            "/api/v1/nodes?watch=1",
            json!(null),
            format!(
                "nodes is forbidden: {user} cannot watch resource \"nodes\" in API group \"\" at the cluster scope"
            ),
        ),
        (
            "GET",
            "/api/v1/namespaces/pando-a/pods/web",
            json!(null),
            format!(
                "pods \"web\" is forbidden: {user} cannot get resource \"pods\" in API group \"\" in the namespace \"pando-a\""
            ),
        ),
        (
            "GET",
            "/api/v1/namespaces/pando-a/pods/web/log?container=app",
            json!(null),
            format!(
                "pods \"web\" is forbidden: {user} cannot get resource \"pods/log\" in API group \"\" in the namespace \"pando-a\""
            ),
        ),
        (
            "POST",
            PODS,
            pod("web"),
            format!(
                "pods is forbidden: {user} cannot create resource \"pods\" in API group \"\" in the namespace \"pando-a\""
            ),
        ),
        (
            "DELETE",
            "/apis/networking.k8s.io/v1/namespaces/pando-a/networkpolicies/x",
            json!({}),
            format!(
                "networkpolicies.networking.k8s.io \"x\" is forbidden: {user} cannot delete resource \"networkpolicies\" in API group \"networking.k8s.io\" in the namespace \"pando-a\""
            ),
        ),
        (
            "DELETE",
            "/api/v1/namespaces/pando-a",
            json!({}),
            format!(
                "namespaces \"pando-a\" is forbidden: {user} cannot delete resource \"namespaces\" in API group \"\" in the namespace \"pando-a\""
            ),
        ),
    ];
    for (method, path, body, message) in rows {
        let answer = bed.ask_of(&pando, method, path, &body);
        assert_eq!((answer.code, answer.body["message"].as_str()), (403, Some(&*message)), "{method} {path}");
        assert_eq!(answer.body["reason"], "Forbidden");
    }
    assert_eq!(bed.ask_of(&pando, "GET", "/api/v1/namespaces/pando-a", &json!(null)).code, 200);
    assert_eq!(bed.get("/api/v1/nodes").code, 200, "an administrator may");
    let stranger = bed.cluster.as_account("system:serviceaccount:other:pando");
    assert_eq!(bed.ask_of(&stranger, "GET", "/api/v1/namespaces", &json!(null)).code, 403);
}

/// Source: `apiserver/pkg/endpoints/request/requestinfo.go`: a list of one name is about that name.
#[test]
fn a_right_to_one_name_covers_a_watch_for_that_name() {
    let mut access = access();
    let slices = rule("discovery.k8s.io", "endpointslices", &["get", "list", "watch"], &["kubernetes"]);
    access.roles.insert("api-server".to_owned(), vec![slices]);
    access.namespace_bindings.push(("default".to_owned(), PANDO.to_owned(), "api-server".to_owned()));
    let bed = Bed::of(FakeConfig { access: Some(access), ..without_nodes() });
    let pando = bed.cluster.as_account(PANDO);
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    for (query, code) in [
        ("/kubernetes", 200),
        ("?fieldSelector=metadata.name%3Dkubernetes", 200),
        ("?fieldSelector=metadata.name%3Dkubernetes&watch=1&timeoutSeconds=1", 200),
        ("", 403),
        ("?fieldSelector=metadata.name%3Dother", 403),
        ("/other", 403),
    ] {
        assert_eq!(bed.ask_of(&pando, "GET", &format!("{path}{query}"), &json!(null)).code, code, "{query}");
    }
}

/// Source: 1.34: the binding takes effect after a median of 10 ms, at most 374 ms.
#[test]
fn a_role_binding_takes_effect_after_its_lag_and_in_its_namespace() {
    let lag = Duration::from_millis(374);
    let bed = Bed::of(FakeConfig { access: Some(access()), rbac_lag: lag, ..without_nodes() });
    bed.make_namespace("other", &json!({}));
    let pando = bed.cluster.as_account(PANDO);
    let ours = binding("pando-app-manager");
    assert_eq!(bed.ask_of(&pando, "POST", &path_of(&ours, "rolebindings"), &ours).code, 201);
    let secrets = "/api/v1/namespaces/pando-a/secrets";
    let make = |name: &str| bed.ask_of(&pando, "POST", secrets, &secret(name, &json!({}))).code;
    assert_eq!(make("a"), 403, "a moment later");
    bed.sim.advance(lag.saturating_sub(Duration::from_millis(1)));
    assert_eq!(make("a"), 403);
    bed.sim.advance(Duration::from_millis(1));
    assert_eq!(make("a"), 201);
    let elsewhere = bed.ask_of(&pando, "POST", "/api/v1/namespaces/other/secrets", &secret("a", &json!({})));
    assert_eq!(elsewhere.code, 403);
    assert_eq!(bed.ask_of(&pando, "GET", "/api/v1/secrets", &json!(null)).code, 403, "nor across namespaces");
}

/// Source: 1.34 ("attempting to grant RBAC permissions not currently held").
#[test]
fn nobody_gives_away_a_role_they_neither_hold_nor_may_bind() {
    let bed = Bed::of(FakeConfig { access: Some(access()), ..without_nodes() });
    let pando = bed.cluster.as_account(PANDO);
    let admin = binding("cluster-admin");
    let answer = bed.ask_of(&pando, "POST", &path_of(&admin, "rolebindings"), &admin);
    assert_eq!(answer.code, 403);
    let message = answer.body["message"].as_str().unwrap_or_default();
    assert!(message.contains("attempting to grant RBAC permissions not currently held"), "{message}");
    // What they hold themselves they may pass on.
    let same = binding("pando");
    assert_eq!(bed.ask_of(&pando, "POST", &path_of(&same, "rolebindings"), &same).code, 201);
}

/// Source: <https://kubernetes.io/docs/concepts/security/pod-security-standards/#baseline>, 1.34 for the first,
/// and `k8s.io/pod-security-admission/policy` for the words.
#[test]
fn the_baseline_is_judged_as_kubernetes_judges_it() {
    let app = |change: Value| json!({"containers": [with(json!({"name": "app", "image": "app:1"}), &change)]});
    let gate = |change: Value| json!({"initContainers": [with(json!({"name": "gate", "image": "g:1"}), &change)]});
    let rows = [
        (json!({"hostNetwork": true}), Some("host namespaces (hostNetwork=true)")),
        (json!({"hostPID": true, "hostIPC": true}), Some("host namespaces (hostPID=true, hostIPC=true)")),
        (json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), Some("hostPath volumes (volume \"v\")")),
        (
            app(json!({"ports": [{"containerPort": 1, "hostPort": 80}]})),
            Some("hostPort (container \"app\" uses hostPort 80)"),
        ),
        (
            gate(json!({"ports": [{"containerPort": 1, "hostPort": 80}]})),
            Some("hostPort (container \"gate\" uses hostPort 80)"),
        ),
        (
            app(json!({"securityContext": {"privileged": true}})),
            Some("privileged (container \"app\" must not set securityContext.privileged=true)"),
        ),
        (
            app(json!({"securityContext": {"capabilities": {"add": ["SYS_ADMIN", "CHOWN"]}}})),
            Some(
                "non-default capabilities (container \"app\" must not include \"SYS_ADMIN\" in securityContext.capabilities.add)",
            ),
        ),
        (
            json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
            Some("seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")"),
        ),
        (
            json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
            Some("forbidden sysctls (kernel.msgmax)"),
        ),
        (
            app(json!({"securityContext": {"procMount": "Unmasked"}})),
            Some("procMount (container \"app\" must not set securityContext.procMount to \"Unmasked\")"),
        ),
        (
            with(json!({"hostNetwork": true}), &app(json!({"securityContext": {"privileged": true}}))),
            Some(
                "host namespaces (hostNetwork=true), privileged (container \"app\" must not set securityContext.privileged=true)",
            ),
        ),
        (
            app(
                json!({"securityContext": {"allowPrivilegeEscalation": false, "seccompProfile": {"type": "RuntimeDefault"},
                "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["NET_RAW"]}}}),
            ),
            None,
        ),
    ];
    for (spec, finding) in rows {
        let bed = Bed::new();
        bed.make_namespace("fenced", &json!({"pod-security.kubernetes.io/enforce": "baseline"}));
        let body = with(pod("a"), &json!({"spec": spec}));
        assert_eq!(bed.post(PODS, &body).code, 201, "elsewhere nobody minds: {spec}");
        let answer = bed.post("/api/v1/namespaces/fenced/pods", &body);
        match finding {
            None => assert_eq!(answer.code, 201, "{spec}: {}", answer.body),
            Some(finding) => {
                let message = format!("pods \"a\" is forbidden: violates PodSecurity \"baseline:latest\": {finding}");
                assert_eq!((answer.code, answer.body["message"].as_str()), (403, Some(&*message)), "{spec}");
            }
        }
    }
}

fn sized(name: &str, cpu: &str) -> Value {
    with(
        pod(name),
        &json!({"spec": {"containers": [
        {"name": "app", "image": "app:1", "resources": {"limits": {"cpu": cpu, "memory": "16Mi"}}}]}}),
    )
}

fn message(answer: &crate::bed::Answer) -> String {
    answer.body["message"].as_str().unwrap_or_default().to_owned()
}

/// Source: 1.34.
#[test]
fn a_quota_refuses_what_does_not_fit_and_what_does_not_say() {
    let bed = Bed::new();
    bed.make(
        "resourcequotas",
        &quota(
            "q",
            &json!({
                "limits.cpu": "2", "limits.memory": "1Gi", "requests.cpu": "2", "requests.memory": "1Gi",
            }),
        ),
    );
    bed.sim.settle();
    let gated = with(sized("a", "100m"), &json!({"spec": {"initContainers": [{"name": "gate", "image": "g:1"}]}}));
    let answer = bed.post(PODS, &gated);
    assert_eq!(
        (answer.code, &*message(&answer)),
        (
            403,
            r#"pods "a" is forbidden: failed quota: q: must specify limits.cpu for: gate; limits.memory for: gate; requests.cpu for: gate; requests.memory for: gate"#
        )
    );
    let asking = json!({"spec": {"initContainers": [
        {"name": "gate", "image": "g:1", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}]}});
    let answer = bed.post(PODS, &with(sized("a", "100m"), &asking));
    assert_eq!(
        message(&answer),
        r#"pods "a" is forbidden: failed quota: q: must specify limits.cpu for: gate; limits.memory for: gate"#
    );
    assert_eq!(bed.post(PODS, &sized("a", "1500m")).code, 201);
    let answer = bed.post(PODS, &sized("b", "600m"));
    assert_eq!(
        (answer.code, &*message(&answer)),
        (
            403,
            r#"pods "b" is forbidden: exceeded quota: q, requested: limits.cpu=600m,requests.cpu=600m, used: limits.cpu=1500m,requests.cpu=1500m, limited: limits.cpu=2,requests.cpu=2"#
        )
    );
    assert_eq!(bed.post(PODS, &sized("b", "500m")).code, 201, "what just fits");
    let used = bed.get("/api/v1/namespaces/pando-a/resourcequotas/q").body["status"]["used"].clone();
    assert_eq!(
        used,
        json!({"limits.cpu": "2", "limits.memory": "32Mi", "requests.cpu": "2", "requests.memory": "32Mi"})
    );
}

/// Source: 1.34 (gate 10m and app 100m use 100m; gate 300m and app 100m use 300m).
#[test]
fn init_containers_count_as_the_larger_of_both() {
    for (gate, used) in [("10m", "100m"), ("300m", "300m")] {
        let bed = Bed::new();
        bed.make("resourcequotas", &quota("q", &json!({"limits.cpu": "2"})));
        bed.sim.settle();
        let gated = with(
            sized("a", "100m"),
            &json!({"spec": {"initContainers": [
            {"name": "gate", "image": "g:1", "resources": {"limits": {"cpu": gate}}}]}}),
        );
        bed.make("pods", &gated);
        let status = bed.get("/api/v1/namespaces/pando-a/resourcequotas/q").body["status"].clone();
        assert_eq!(status["used"]["limits.cpu"], used);
    }
}

/// Source: 1.34: widened and created at once, 5 of 8 pods were refused with the old limit.
#[test]
fn a_widened_quota_rules_only_once_its_status_says_so() {
    let lag = Duration::from_millis(40);
    let bed = Bed::of(FakeConfig { quota_lag: lag, ..without_nodes() });
    let path = "/api/v1/namespaces/pando-a/resourcequotas/q";
    bed.make("resourcequotas", &quota("q", &json!({"limits.cpu": "2"})));
    assert_eq!(bed.post(PODS, &sized("first", "9")).code, 201, "a quota without status rules nothing yet");
    bed.delete(&format!("{PODS}/first"), &json!({}));
    bed.sim.advance(lag * 2);
    assert_eq!(bed.get(path).body["status"]["hard"]["limits.cpu"], "2");

    assert_eq!(bed.patch(path, &json!({"spec": {"hard": {"limits.cpu": "4"}}})).code, 200);
    let answer = bed.post(PODS, &sized("a", "3"));
    assert_eq!(answer.code, 403);
    assert!(message(&answer).ends_with("limited: limits.cpu=2"), "{}", message(&answer));
    bed.sim.advance(lag);
    assert_eq!(bed.get(path).body["status"]["hard"], bed.get(path).body["spec"]["hard"]);
    assert_eq!(bed.post(PODS, &sized("a", "3")).code, 201);
    // Narrowing below what is used is accepted.
    assert_eq!(bed.patch(path, &json!({"spec": {"hard": {"limits.cpu": "1"}}})).code, 200);
}

/// Source: 1.34: terminating pods count until they are gone, ended ones do not.
#[test]
fn dying_pods_count_and_ended_ones_do_not() {
    let bed = Bed::new();
    bed.make("resourcequotas", &quota("q", &json!({"pods": "1"})));
    bed.sim.settle();
    bed.make("pods", &pod("a"));
    bed.place("a");
    assert_eq!(bed.delete(&format!("{PODS}/a"), &json!({})).code, 200);
    bed.sim.settle();
    assert_eq!(bed.post(PODS, &pod("b")).code, 403, "dying");
    let key = pando_cluster::ObjectKey::namespaced(pando_cluster::Kind::Pod, "pando-a", "a");
    bed.cluster.with(|store| store.update(&key, |pod| pod["status"]["phase"] = "Failed".into()));
    bed.sim.settle();
    assert_eq!(bed.post(PODS, &pod("b")).code, 201, "ended");
}

/// Source: 1.34: what `services.nodeports=0` refuses, and what passes it.
#[test]
fn a_quota_of_no_node_ports_lets_inner_services_pass() {
    let port = json!([{"port": 80}]);
    let bed = Bed::new();
    bed.make("resourcequotas", &quota("q", &json!({"services.nodeports": "0", "services.loadbalancers": "0"})));
    bed.sim.settle();
    let path = "/api/v1/namespaces/pando-a/services";
    for (name, spec, code) in [
        ("headless", json!({"clusterIP": "None", "ports": port}), 201),
        ("inner", json!({"ports": port}), 201),
        ("alias", json!({"type": "ExternalName", "externalName": "a.example"}), 201),
        ("outer", json!({"externalIPs": ["192.0.2.1"], "ports": port}), 201),
        ("nodes", json!({"type": "NodePort", "ports": port}), 403),
        ("balanced", json!({"type": "LoadBalancer", "ports": port}), 403),
        ("bare", json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": port}), 403),
    ] {
        let answer = bed.post(path, &service(name, &spec));
        assert_eq!(answer.code, code, "{name}: {}", answer.body);
        if code == 403 {
            assert!(message(&answer).contains("exceeded quota: q, requested: services."), "{}", message(&answer));
        }
    }
    let changed = bed.patch(&format!("{path}/inner"), &json!({"spec": {"type": "NodePort"}}));
    assert_eq!(changed.code, 403, "an update as well: {}", changed.body);
}

/// Source: `registry/generic/registry/store.go` `Create` and the order of admission plugins.
#[test]
fn the_first_stage_that_refuses_answers() {
    let bed = Bed::of(FakeConfig { access: Some(access()), ..without_nodes() });
    bed.make_namespace("fenced", &json!({"pod-security.kubernetes.io/enforce": "baseline"}));
    let tight = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}});
    assert_eq!(bed.post("/api/v1/namespaces/fenced/resourcequotas", &tight).code, 201);
    bed.sim.settle();
    let path = "/api/v1/namespaces/fenced/pods";
    assert_eq!(bed.post(path, &pod("taken")).code, 201);
    // Each row breaks the rule of its stage and every later one.
    let broken = with(pod("taken"), &json!({"spec": {"hostNetwork": true}}));
    let invalid = with(broken.clone(), &json!({"spec": {"restartPolicy": "Sometimes"}}));
    let homeless = with(invalid.clone(), &json!({"spec": {"serviceAccountName": "gone"}}));
    let pando = bed.cluster.as_account(PANDO);
    for (answer, words) in [
        (bed.ask_of(&pando, "POST", path, &homeless), "cannot create resource \"pods\""),
        (bed.post("/api/v1/namespaces/no/pods", &homeless), "namespaces \"no\" not found"),
        (bed.post(path, &homeless), "error looking up service account"),
        (bed.post(path, &invalid), "spec.restartPolicy"),
        (bed.post(path, &broken), "violates PodSecurity"),
        (bed.post(path, &pod("taken")), "exceeded quota"),
    ] {
        assert!(message(&answer).contains(words), "expected {words}: {}", message(&answer));
    }
}
