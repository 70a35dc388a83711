//! A cluster without nodes on a seeded executor, and ways to ask it things.

use axum::Router;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use pando_cluster::{Kind, ObjectKey};
use pando_fakecluster::sim::Sim;
use pando_fakecluster::{FakeCluster, FakeConfig};
use serde_json::{Value, json};
use tower::ServiceExt;

pub(crate) const NAMESPACE: &str = "pando-a";

pub(crate) struct Bed {
    pub(crate) sim: Sim,
    pub(crate) cluster: FakeCluster,
}

/// What the API answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Value,
    pub(crate) retry_after: Option<String>,
}

impl Bed {
    /// No nodes: pods stay as the API server stores them.
    pub(crate) fn new() -> Self {
        Self::of(FakeConfig { nodes: vec![], ..FakeConfig::default() })
    }

    /// A cluster with the namespace `pando-a` and its account.
    pub(crate) fn of(config: FakeConfig) -> Self {
        let sim = Sim::new(1);
        let cluster = FakeCluster::new(sim.env(), config);
        let bed = Self { sim, cluster };
        bed.make_namespace(NAMESPACE, &json!({}));
        bed.sim.settle();
        bed
    }

    pub(crate) fn make_namespace(&self, name: &str, labels: &Value) {
        let answer = self.post(
            "/api/v1/namespaces",
            &json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels},
            }),
        );
        assert_eq!(answer.code, 201, "{answer:?}");
        for account in ["default", "pando-app"] {
            // The controller may have been first with `default`.
            self.cluster.with(|store| {
                store.insert(Kind::ServiceAccount, json!({"metadata": {"namespace": name, "name": account}}))
            });
        }
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.ask_of(&self.cluster, method, path, body)
    }

    pub(crate) fn ask_of(&self, cluster: &FakeCluster, method: &str, path: &str, body: &Value) -> Answer {
        let format = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", format);
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.send(pando_fakecluster::face::router(cluster), request.body(body).expect("a request"))
    }

    pub(crate) fn send(&self, router: Router, request: Request<Body>) -> Answer {
        self.sim.block_on(async {
            let response = router.oneshot(request).await.expect("the service never fails");
            let code = response.status().as_u16();
            let retry_after = response.headers().get("retry-after").and_then(|it| it.to_str().ok()).map(str::to_owned);
            let bytes = response.into_body().collect().await.expect("the body never fails").to_bytes();
            Answer { code, body: read(&bytes), retry_after }
        })
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, body)
    }

    /// Posts into `pando-a` and expects success.
    pub(crate) fn make(&self, plural: &str, body: &Value) -> Value {
        let answer = self.post(&path_of(body, plural), body);
        assert_eq!(answer.code, 201, "{answer:?}");
        answer.body
    }

    pub(crate) fn patch(&self, path: &str, body: &Value) -> Answer {
        self.ask("PATCH", path, body)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &Value::Null)
    }

    pub(crate) fn delete(&self, path: &str, options: &Value) -> Answer {
        self.ask("DELETE", path, options)
    }

    /// Puts a pod on a node, as the scheduler does, and lets it run.
    pub(crate) fn place(&self, pod: &str) {
        self.cluster.with(|store| {
            store.update(&ObjectKey::namespaced(Kind::Pod, NAMESPACE, pod), |pod| {
                pod["spec"]["nodeName"] = "elsewhere".into();
                pod["status"]["phase"] = "Running".into();
            });
        });
    }
}

/// The body as JSON: nothing, one document, or the list of a stream's lines.
fn read(bytes: &[u8]) -> Value {
    let documents = serde_json::Deserializer::from_slice(bytes).into_iter();
    let mut documents: Vec<Value> = documents.collect::<Result<_, _>>().expect("JSON");
    match documents.len() {
        0 => Value::Null,
        1 if !bytes.ends_with(b"\n") => documents.remove(0),
        _ => documents.into(),
    }
}

/// Where objects of this kind are posted in `pando-a`.
pub(crate) fn path_of(body: &Value, plural: &str) -> String {
    match body["apiVersion"].as_str().expect("a version") {
        "v1" => format!("/api/v1/namespaces/{NAMESPACE}/{plural}"),
        version => format!("/apis/{version}/namespaces/{NAMESPACE}/{plural}"),
    }
}

pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"serviceAccountName": "pando-app", "automountServiceAccountToken": false,
            "containers": [{"name": "app", "image": "app:1"}]},
    })
}

pub(crate) fn service(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

pub(crate) fn secret(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data})
}

pub(crate) fn quota(name: &str, hard: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": hard}})
}

/// `base` with `change` merged in.
pub(crate) fn with(mut base: Value, change: &Value) -> Value {
    json_patch::merge(&mut base, change);
    base
}
