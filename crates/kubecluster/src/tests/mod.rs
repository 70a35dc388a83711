//! The whole client against API servers of a few lines: in process on a paused clock, and over loopback where
//! files, sockets and programs are the subject.

mod connections;
mod credentials;
mod logging;
mod port;

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use pando_cluster::{Kind, ObjectKey, ResourceVersion, Scope, Selector, WatchRequest};
use serde_json::{Value, json};

use crate::{KubeCluster, paused_env};

/// A cluster whose API server is `answer`.
fn cluster<F, R>(answer: F) -> KubeCluster
where
    F: Fn(Seen) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response> + Send + 'static,
{
    KubeCluster::from_service(server(answer), paused_env(1))
}

/// An API server that gives every request to `answer`.
fn server<F, R>(answer: F) -> Router
where
    F: Fn(Seen) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response> + Send + 'static,
{
    Router::new().fallback(move |request: Request| {
        let answer = answer.clone();
        async move { answer(Seen::read(request).await).await }
    })
}

/// A request as it arrived.
#[derive(Clone, Debug)]
struct Seen {
    method: String,
    uri: String,
    headers: http::HeaderMap,
    body: Bytes,
}

impl Seen {
    async fn read(request: Request) -> Self {
        let (head, body) = request.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.expect("a body");
        Self { method: head.method.to_string(), uri: head.uri.to_string(), headers: head.headers, body }
    }

    /// The last segment of the path: mostly the object's name.
    fn name(&self) -> &str {
        self.uri.split('?').next().and_then(|path| path.rsplit('/').next()).unwrap_or_default()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

/// What was seen, in order.
type Record = Arc<Mutex<Vec<Seen>>>;

fn recorded(record: &Record) -> Vec<Seen> {
    record.lock().expect("no panic").clone()
}

fn answer(code: u16, body: impl Into<Body>) -> Response {
    let code = StatusCode::from_u16(code).expect("a code");
    (code, [(CONTENT_TYPE, "application/json")], body.into()).into_response()
}

fn status(code: u16, reason: &str, message: &str) -> Response {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message});
    answer(code, body.to_string())
}

fn pod_json(name: &str) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"namespace": "a", "name": name, "uid": "u-1", "resourceVersion": "7"}})
}

fn pod_key(name: &str) -> ObjectKey {
    ObjectKey::namespaced(Kind::Pod, "a", name)
}

fn watch_of_pods() -> WatchRequest {
    WatchRequest {
        kind: Kind::Pod,
        scope: Scope::All,
        labels: Selector::everything(),
        fields: Selector::everything(),
        from: ResourceVersion::new("1"),
        timeout: std::time::Duration::from_mins(5),
    }
}
