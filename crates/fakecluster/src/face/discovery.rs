//! What the API server tells of itself: its version and what it serves.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::response::Response;
use pando_cluster::{Kind, Scoped};
use serde_json::{Value, json};

/// The answer for a path that is about the server and not about objects.
pub(super) fn answer(path: &str) -> Option<Response> {
    let steps: Vec<_> = path.split('/').skip(1).collect();
    let body = match steps.as_slice() {
        ["healthz" | "livez" | "readyz"] => return Some(super::stream("text/plain", Body::from("ok"))),
        ["version"] => version(),
        ["api"] => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        ["apis"] => {
            let groups: Vec<_> = groups().into_iter().map(|(group, version)| described(group, version)).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        ["api", "v1"] => resources("", "v1"),
        ["apis", group, version] if groups().get(group) == Some(version) => resources(group, version),
        _ => return None,
    };
    Some(super::stream("application/json", Body::from(body.to_string())))
}

/// The version that the fake is like.
fn version() -> Value {
    json!({
        "major": "1", "minor": "34", "gitVersion": "v1.34.0", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "2025-08-27T10:09:04Z", "goVersion": "go1.24.6", "compiler": "gc", "platform": "linux/amd64",
    })
}

/// The groups besides the core one, each with its version.
fn groups() -> BTreeMap<&'static str, &'static str> {
    let named = Kind::ALL.iter().filter(|kind| !kind.group().is_empty());
    named.map(|kind| (kind.group(), kind.version())).collect()
}

fn described(group: &str, version: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn resources(group: &str, version: &str) -> Value {
    let here = Kind::ALL.iter().filter(|kind| kind.group() == group && kind.version() == version);
    let mut resources: Vec<_> = here
        .map(|kind| {
            json!({
                "name": kind.plural(), "singularName": kind.name().to_lowercase(), "kind": kind.name(),
                "namespaced": kind.scoped() == Scoped::Namespace,
                "verbs": ["create", "delete", "get", "list", "patch", "watch"],
            })
        })
        .collect();
    if group.is_empty() {
        resources
            .push(json!({"name": "pods/log", "singularName": "", "kind": "Pod", "namespaced": true, "verbs": ["get"]}));
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
}
