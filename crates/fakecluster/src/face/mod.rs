//! The fake behind the HTTP API of Kubernetes, for real clients in the same process.
//!
//! [`router`] is a service to call, or to serve on a socket where one is wanted. It serves every kind
//! alike: get, list, watch, create, merge patch and delete, and the logs of pods. Not served: PUT,
//! delete-collection, other patches, dry runs, tables; each is refused as an API server refuses what it lacks.

mod discovery;
mod query;

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use futures::StreamExt;
use http::{HeaderValue, Method, StatusCode, header};
use pando_cluster::{Kind, ObjectKey, Scoped};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use self::query::Query;
use crate::api::refusal::Refusal;
use crate::api::{self, ListQuery, WatchQuery, Which};
use crate::cluster::FakeCluster;
use crate::watch;

/// <https://github.com/kubernetes/kubernetes/blob/v1.34.0/staging/src/k8s.io/apiserver/pkg/server/config.go>
const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// How long a watch lasts whose client does not say; Kubernetes picks a time from half an hour up.
const WATCH_LASTS: Duration = Duration::from_mins(30);

/// The API of `cluster`, each request made as the handle's user.
pub fn router(cluster: &FakeCluster) -> Router {
    Router::new().fallback(serve).with_state(cluster.clone())
}

async fn serve(State(cluster): State<FakeCluster>, request: Request) -> Response {
    respond(&cluster, request).await.unwrap_or_else(of_refusal)
}

/// What a path names.
enum Place {
    Collection { kind: Kind, namespace: Option<String> },
    Object(ObjectKey),
    Log(ObjectKey),
}

async fn respond(cluster: &FakeCluster, request: Request) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().trim_end_matches('/');
    if let Some(answer) = discovery::answer(path) {
        return if parts.method == Method::GET { Ok(answer) } else { Err(Refusal::method_not_allowed()) };
    }
    let place = place(path).ok_or_else(Refusal::no_such_path)?;
    let query = Query::of(parts.uri.query().unwrap_or_default());
    if query.text("dryRun").is_some() {
        return Err(Refusal::bad_request("dry runs are not modelled by this cluster"));
    }
    match (parts.method, place) {
        (Method::GET, Place::Collection { kind, namespace }) => read_many(cluster, kind, namespace, &query).await,
        (Method::POST, Place::Collection { kind, namespace }) => {
            refuse_format(&parts.headers, "application/json")?;
            let body = read_json(body).await?;
            Ok(of_answer(cluster.call(&api::Request::Create { kind, namespace, body }).await))
        }
        (Method::GET, Place::Object(key)) => Ok(of_answer(cluster.call(&api::Request::Get(key)).await)),
        (Method::PATCH, Place::Object(key)) => {
            refuse_format(&parts.headers, "application/merge-patch+json")?;
            let body = read_json(body).await?;
            Ok(of_answer(cluster.call(&api::Request::Patch { key, body }).await))
        }
        (Method::DELETE, Place::Object(key)) => {
            let options = query.delete_options(read_json(body).await?);
            Ok(of_answer(cluster.call(&api::Request::Delete { key, options }).await))
        }
        (Method::GET, Place::Log(key)) => read_log(cluster, &key, &query).await,
        _ => Err(Refusal::method_not_allowed()),
    }
}

/// Reads `/api/v1/…` and `/apis/<group>/<version>/…`.
fn place(path: &str) -> Option<Place> {
    let steps: Vec<String> = path
        .split('/')
        .skip(1)
        .map(|step| percent_decode_str(step).decode_utf8().map(Into::into))
        .collect::<Result<_, _>>()
        .ok()?;
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let (group, version, rest) = match steps.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let kind = |plural: &str| Kind::from_plural(group, plural).filter(|kind| kind.version() == version);
    let scoped = |plural: &str| kind(plural).filter(|kind| kind.scoped() == Scoped::Namespace);
    Some(match *rest {
        [plural] => Place::Collection { kind: kind(plural)?, namespace: None },
        ["namespaces", namespace, plural] => {
            Place::Collection { kind: scoped(plural)?, namespace: Some(namespace.to_owned()) }
        }
        ["namespaces", namespace, plural, name] => {
            Place::Object(ObjectKey::namespaced(scoped(plural)?, namespace, name))
        }
        ["namespaces", namespace, "pods", name, "log"] if group.is_empty() => {
            Place::Log(ObjectKey::namespaced(Kind::Pod, namespace, name))
        }
        [plural, name] => {
            let kind = kind(plural).filter(|kind| kind.scoped() == Scoped::Cluster)?;
            Place::Object(ObjectKey::cluster(kind, name))
        }
        _ => return None,
    })
}

/// A list, or a watch where the query asks for one.
async fn read_many(
    cluster: &FakeCluster,
    kind: Kind,
    namespace: Option<String>,
    query: &Query,
) -> Result<Response, Refusal> {
    let which = Which {
        kind,
        namespace,
        labels: query.text("labelSelector").unwrap_or_default().to_owned(),
        fields: query.text("fieldSelector").unwrap_or_default().to_owned(),
    };
    let version = query.text("resourceVersion").unwrap_or_default().to_owned();
    let version_match = query.text("resourceVersionMatch").unwrap_or_default().to_owned();
    if !query.flag("watch") {
        let limit = query.number("limit")?.and_then(|limit| usize::try_from(limit).ok());
        let after = query.text("continue").map(str::to_owned);
        let list = ListQuery { which, limit, after, version, version_match };
        return Ok(of_answer(cluster.call(&api::Request::List(list)).await));
    }
    let seconds = query.number("timeoutSeconds")?.and_then(|seconds| u64::try_from(seconds).ok());
    let watch = WatchQuery {
        which,
        version,
        version_match,
        timeout: seconds.filter(|seconds| *seconds > 0).map_or(WATCH_LASTS, Duration::from_secs),
        bookmarks: query.flag("allowWatchBookmarks"),
        initial: query.flag("sendInitialEvents"),
    };
    let answer = cluster.call(&api::Request::Watch(watch.clone())).await;
    if answer.code != 200 {
        return Ok(of_answer(answer));
    }
    let lines = watch::open(cluster, &watch)?.map(|frame| {
        // Kubernetes writes the type first, and clients that read on the fly rely on it.
        let line = format!("{{\"type\":{:?},\"object\":{}}}\n", frame.word, frame.object);
        Ok::<_, Infallible>(Bytes::from(line))
    });
    Ok(stream("application/json", Body::from_stream(lines)))
}

async fn read_log(cluster: &FakeCluster, key: &ObjectKey, query: &Query) -> Result<Response, Refusal> {
    let request = query.log_request(cluster, key)?;
    let answer = cluster.call(&api::Request::Log(request.clone())).await;
    if answer.code != 200 {
        return Ok(of_answer(answer));
    }
    let bytes = cluster.log_bytes(&request);
    Ok(stream("text/plain", Body::from_stream(bytes)))
}

/// Refuses a body that says it is in another format than `accepted`.
fn refuse_format(headers: &http::HeaderMap, accepted: &str) -> Result<(), Refusal> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok()).unwrap_or_default();
    let given = given.split(';').next().unwrap_or_default().trim();
    // A POST without a type is read as JSON.
    if given == accepted || (given.is_empty() && accepted == "application/json") {
        Ok(())
    } else {
        Err(Refusal::unsupported_media_type(accepted))
    }
}

/// The body as JSON; nothing is an empty object.
async fn read_json(body: Body) -> Result<Value, Refusal> {
    let too_large = || Refusal::too_large(format!("Request entity too large: limit is {BODY_LIMIT}"));
    let bytes = to_bytes(body, BODY_LIMIT).await.map_err(|_| too_large())?;
    if bytes.is_empty() {
        return Ok(json!({}));
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| Refusal::bad_request(format!("couldn't get version/kind; json parse error: {error}")))
}

fn of_refusal(refusal: Refusal) -> Response {
    of_answer(api::Response { code: refusal.code, body: refusal.into_status() })
}

fn of_answer(answer: api::Response) -> Response {
    let wait = answer.body["details"]["retryAfterSeconds"].as_u64();
    let body = if answer.body.is_null() { Body::empty() } else { Body::from(answer.body.to_string()) };
    let mut response = stream("application/json", body);
    *response.status_mut() = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Some(seconds) = wait {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn stream(format: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(format));
    response
}
