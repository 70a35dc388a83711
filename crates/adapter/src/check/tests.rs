//! What is refused, and what is said about it.

use serde_json::{Value, json};

use pando_api::{BundlePlan, Code, Protocol};

use super::places::FILES_LIMIT;
use super::workload::{ENV_LIMIT, WORDS_LIMIT};
use super::*;
use crate::plan::Port;

fn plan(change: impl FnOnce(&mut Value)) -> BundlePlan {
    let mut plan = json!({"bundle_id": "app_01HQ8ABC", "workloads": [
        {"name": "web", "image": "nginx:1.22", "ports": [{"number": 80}], "env": {"A": "b"}, "health": {"port": 80}}]});
    change(&mut plan);
    serde_json::from_value(plan).expect("a plan as JSON")
}

#[test]
fn a_right_plan_passes() {
    let plan = check(&plan(|_| {}), &["pando"]).expect("nothing is wrong with it");
    assert_eq!((plan.app.name().as_str(), plan.workloads[0].name.as_str()), ("pando-app-01hq8abc", "web"));
    assert_eq!(plan.workloads[0].ports, [Port { number: 80, protocol: Protocol::Tcp }]);
}

/// A change to a right plan, the field that is refused for it, and words of the remedy.
type Row = (fn(&mut Value), &'static str, &'static str);

fn are_refused(rows: &[Row]) {
    for (change, field, words) in rows {
        let error = check(&plan(*change), &["pando"]).expect_err(field);
        let problem = error.details["problems"][0].clone();
        assert_eq!((error.code, problem["field"].as_str()), (Code::ValidInvalid, Some(*field)), "{error}");
        assert!(problem["remedy"].as_str().is_some_and(|remedy| remedy.contains(words)), "{problem}");
    }
}

#[test]
fn wrong_plans_are_refused_with_field_and_remedy() {
    are_refused(&[
        (|plan| plan["network"] = json!({"private": false}), "network.private", "true"),
        (
            |plan| plan["labels"] = json!({"pando.dev/bundle": "x"}),
            r#"labels["pando.dev/bundle"]"#,
            "outside pando.dev",
        ),
        (
            |plan| plan["labels"] = json!({"app.kubernetes.io/managed-by": "x"}),
            r#"labels["app.kubernetes.io/managed-by"]"#,
            "outside",
        ),
        (|plan| plan["labels"] = json!({"a b": "x"}), r#"labels["a b"]"#, "pando.app"),
    ]);
}

#[test]
fn wrong_workloads_are_refused_with_field_and_remedy() {
    are_refused(&[
        (|plan| plan["workloads"][0]["name"] = json!("My_DB"), "workloads[0].name", "my-db"),
        (|plan| plan["workloads"][0]["name"] = json!("pando-egress"), "workloads[0].name", "pando-egress-app"),
        (|plan| plan["workloads"][0]["name"] = json!("localhost"), "workloads[0].name", "localhost-app"),
        (|plan| plan["workloads"][0]["image"] = json!(""), "workloads[0].image", "nginx"),
        (|plan| plan["workloads"][0]["image"] = json!("Nginx:1"), "workloads[0].image", "lower case"),
        (
            |plan| plan["workloads"][0]["command"] = json!(["x".repeat(WORDS_LIMIT + 1)]),
            "workloads[0].command",
            "carry large texts",
        ),
        (|plan| plan["workloads"][0]["health"]["command"] = json!(["a\0"]), "workloads[0].health.command[0]", "NUL"),
        (
            |plan| plan["workloads"][0]["resources"] = json!({"memory_bytes": 1}),
            "workloads[0].resources.memory_bytes",
            "6291456",
        ),
        (
            |plan| plan["workloads"][0]["pull_auth"] = json!({"username": "u"}),
            "workloads[0].pull_auth",
            "identity token",
        ),
        (
            |plan| plan["workloads"][0]["pull_auth"] = json!({"username": "u:p", "password": "p"}),
            "workloads[0].pull_auth.username",
            "password",
        ),
        (
            |plan| plan["workloads"][0]["pull_auth"] = json!({"registry": "a b", "username": "u", "password": "p"}),
            "workloads[0].pull_auth.registry",
            "host",
        ),
        (
            |plan| plan["workloads"].as_array_mut().expect("a list").push(json!({"name": "web", "image": "x"})),
            "workloads[1].name",
            "its own name",
        ),
        (
            |plan| {
                plan["workloads"][0]["depends_on"] = json!(["db"]);
                let db = json!({"name": "db", "image": "x", "depends_on": ["web"]});
                plan["workloads"].as_array_mut().expect("a list").push(db);
            },
            "workloads[1].depends_on",
            "without the other",
        ),
        (|plan| plan["workloads"][0]["command"] = json!(["a\0"]), "workloads[0].command[0]", "NUL"),
        (|plan| plan["workloads"][0]["working_dir"] = json!("srv"), "workloads[0].working_dir", "begin it with /"),
        (|plan| plan["workloads"][0]["env"] = json!({"1A": ""}), r#"workloads[0].env["1A"]"#, "rename"),
        (|plan| plan["workloads"][0]["env"] = json!({"..A": ""}), r#"workloads[0].env["..A"]"#, "rename"),
        (|plan| plan["workloads"][0]["env"] = json!({"A B": ""}), r#"workloads[0].env["A B"]"#, "rename"),
        (|plan| plan["workloads"][0]["env"] = json!({"A": "a\0b"}), r#"workloads[0].env["A"]"#, "NUL"),
        (|plan| plan["workloads"][0]["env"] = json!({"A": "x".repeat(ENV_LIMIT)}), "workloads[0].env", "files"),
        (|plan| plan["workloads"][0]["ports"] = json!([{"number": 0}]), "workloads[0].ports[0].number", "65535"),
        (|plan| plan["workloads"][0]["ports"] = json!([{"number": 65536}]), "workloads[0].ports[0].number", "65535"),
        (
            |plan| plan["workloads"][0]["ports"] = json!([{"number": 80}, {"number": 80}]),
            "workloads[0].ports[1].number",
            "one of them",
        ),
        (|plan| plan["workloads"][0]["health"] = json!({}), "workloads[0].health", "a port"),
        (|plan| plan["workloads"][0]["health"] = json!({"path": "/"}), "workloads[0].health.port", "serves the path"),
        (|plan| plan["workloads"][0]["health"] = json!({"path": "x", "port": 80}), "workloads[0].health.path", "/"),
        (
            |plan| plan["workloads"][0]["health"] = json!({"port": 80, "retries": 0}),
            "workloads[0].health.retries",
            "86400",
        ),
        (
            |plan| plan["workloads"][0]["settings"] = json!({"stop_grace_seconds": 0}),
            "workloads[0].settings.stop_grace_seconds",
            "3600",
        ),
        (
            |plan| plan["workloads"][0]["settings"] = json!({"run_as_user": 4_294_967_295_u32}),
            "workloads[0].settings.run_as_user",
            "2147483647",
        ),
        (
            |plan| plan["workloads"][0]["settings"] = json!({"shm_bytes": 0}),
            "workloads[0].settings.shm_bytes",
            "leave it out",
        ),
        (
            |plan| plan["workloads"][0]["resources"] = json!({"cpu_millis": u64::MAX}),
            "workloads[0].resources.cpu_millis",
            "2^63",
        ),
        (|plan| plan["workloads"][0]["depends_on"] = json!(["db"]), "workloads[0].depends_on[0]", "one of the bundle"),
        (|plan| plan["workloads"][0]["depends_on"] = json!(["web"]), "workloads[0].depends_on[0]", "remove"),
        (
            |plan| plan["workloads"][0]["mounts"] = json!([{"volume_id": "v", "path": "/v"}]),
            "workloads[0].mounts[0].volume_id",
            "add the volume",
        ),
    ]);
}

#[test]
fn wrong_places_are_refused_with_field_and_remedy() {
    are_refused(&[
        (|plan| plan["volumes"] = json!([{"volume_id": "", "name": "v"}]), "volumes[0].volume_id", "id"),
        (
            |plan| plan["volumes"] = json!([{"volume_id": "v", "name": "v"}, {"volume_id": "v", "name": "w"}]),
            "volumes[1].volume_id",
            "remove",
        ),
        (
            |plan| plan["volumes"] = json!([{"volume_id": "v", "name": "v", "size_bytes": u64::MAX}]),
            "volumes[0].size_bytes",
            "2^63",
        ),
        (|plan| mount(plan, &["v"]), "workloads[0].mounts[0].path", "begin it with /"),
        (|plan| mount(plan, &["/"]), "workloads[0].mounts[0].path", "below it"),
        (|plan| mount(plan, &["/a:b"]), "workloads[0].mounts[0].path", "without :"),
        (|plan| mount(plan, &["/a/../b"]), "workloads[0].mounts[0].path", "without .."),
        (|plan| mount(plan, &["/a", "/a/"]), "workloads[0].mounts[1].path", "one volume"),
        (
            |plan| {
                mount(plan, &["/dev/shm"]);
                plan["workloads"][0]["settings"] = json!({"shm_bytes": 1024});
            },
            "workloads[0].mounts[0].path",
            "shm_bytes",
        ),
        (
            |plan| {
                mount(plan, &["/a"]);
                plan["workloads"][0]["files"] = json!([{"path": "/a", "content": ""}]);
            },
            "workloads[0].files[0].path",
            "one thing",
        ),
        (
            |plan| {
                plan["workloads"][0]["files"] = json!([{"path": "/a", "content": ""}, {"path": "//a", "content": ""}]);
            },
            "workloads[0].files[1].path",
            "one thing",
        ),
        (
            |plan| plan["workloads"][0]["files"] = json!([{"path": "/a", "content": "", "mode": 0o1000}]),
            "workloads[0].files[0].mode",
            "420",
        ),
        (
            |plan| plan["workloads"][0]["files"] = json!([{"path": "/a", "content": "x".repeat(FILES_LIMIT)}]),
            "workloads[0].files",
            "image or a volume",
        ),
    ]);
}

/// Gives the plan a volume, mounted at these paths.
fn mount(plan: &mut Value, paths: &[&str]) {
    plan["volumes"] = json!([{"volume_id": "v", "name": "data"}]);
    let mounts: Vec<Value> = paths.iter().map(|path| json!({"volume_id": "v", "path": path})).collect();
    plan["workloads"][0]["mounts"] = mounts.into();
}

#[test]
fn what_this_runtime_cannot_do_is_refused_as_such() {
    let restricted = plan(|plan| plan["network"] = json!({"private": true, "egress": {"block_private": true}}));
    let error = check(&restricted, &["pando"]).expect_err("there is no egress gateway");
    let field = error.details["problems"][0]["field"].as_str();
    assert_eq!((error.code, field), (Code::PlanCapabilityUnsupported, Some("network.egress")));
}

#[test]
fn an_app_without_workloads_is_one() {
    let plan =
        check(&plan(|plan| plan["workloads"] = json!([])), &["pando"]).expect("everything of it has left the plan");
    assert!(plan.workloads.is_empty());
}

#[test]
fn a_refusal_never_shows_a_value_of_the_environment() {
    let error = check(&plan(|plan| plan["workloads"][0]["env"] = json!({"A": "hunter2\0"})), &[]).expect_err("a NUL");
    assert!(!format!("{error:?} {error}").contains("hunter2"));
    let error = check(&plan(|plan| plan["workloads"][0]["pull_auth"] = json!({"password": "hunter2"})), &[])
        .expect_err("no username");
    assert!(!format!("{error:?} {error}").contains("hunter2"));
}
