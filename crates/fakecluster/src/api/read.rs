//! Reads: single objects, lists in pages, and whether a watch or a log may begin.

use std::sync::Arc;

use data_encoding::BASE64URL_NOPAD;
use k8s_openapi::api::core::v1::Pod;
use pando_cluster::{Kind, LogRequest, ObjectKey};
use serde_json::{Value, json};

use super::refusal::{FieldError, Refusal};
use super::selector::{FieldSelector, LabelSelector};
use super::{ListQuery, Server, WatchQuery, Which};

/// A question for objects, with its selectors read.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    kind: Kind,
    namespace: Option<String>,
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Filter {
    pub(crate) fn of(which: &Which) -> Result<Self, Refusal> {
        let bad = |error: super::selector::BadSelector| Refusal::bad_request(error.to_string());
        Ok(Self {
            kind: which.kind,
            namespace: which.namespace.clone(),
            labels: LabelSelector::parse(&which.labels)
                .map_err(|error| Refusal::bad_request(format!("unable to parse requirement: {error}")))?,
            fields: FieldSelector::parse(which.kind, &which.fields).map_err(bad)?,
        })
    }

    /// Whether the question is about the place where `key` is.
    pub(crate) fn covers(&self, key: &ObjectKey) -> bool {
        self.kind == key.kind && (self.namespace.is_none() || self.namespace == key.namespace)
    }

    /// Whether `object`, which is at a place that the question covers, has the labels and fields asked for.
    pub(crate) fn selects(&self, object: &Value) -> bool {
        self.labels.matches(&object["metadata"]["labels"]) && self.fields.matches(object)
    }
}

pub(super) fn get(server: &Server<'_>, key: &ObjectKey) -> Result<Value, Refusal> {
    server.store.get(key).cloned().ok_or_else(|| Refusal::not_found(key))
}

pub(super) fn list(server: &Server<'_>, query: &ListQuery) -> Result<Value, Refusal> {
    let filter = Filter::of(&query.which)?;
    let kind = query.which.kind;
    let (revision, start) = where_to_begin(server, query)?;
    let objects = server.store.at(kind, revision).ok_or_else(|| match &query.after {
        Some(_) => expired_page(start.as_ref()),
        None => Refusal::expired("The resourceVersion for the provided list is too old."),
    })?;
    let mut found = objects
        .into_iter()
        .filter(|(key, object)| filter.covers(key) && filter.selects(object))
        .filter(|(key, _)| start.as_ref().is_none_or(|start| key > start));
    // A list from any version is served from a cache that knows no pages.
    let limit = query.limit.filter(|limit| *limit > 0 && query.version != "0").unwrap_or(usize::MAX);
    let page: Vec<_> = found.by_ref().take(limit).collect();
    let rest = found.count();
    let mut meta = json!({"resourceVersion": revision.to_string()});
    if rest > 0
        && let Some((last, _)) = page.last()
    {
        meta["continue"] = token(revision, last).into();
        if query.which.labels.is_empty() && query.which.fields.is_empty() {
            meta["remainingItemCount"] = rest.into();
        }
    }
    let items: Vec<_> = page.into_iter().map(|(_, object)| as_item(object)).collect();
    Ok(json!({
        "kind": format!("{}List", kind.name()), "apiVersion": kind.api_version(), "metadata": meta, "items": items,
    }))
}

/// The revision a list is of, and the object that the page before ended with.
fn where_to_begin(server: &Server<'_>, query: &ListQuery) -> Result<(u64, Option<ObjectKey>), Refusal> {
    let newest = server.store.revision();
    if let Some(token) = query.after.as_deref().filter(|token| !token.is_empty()) {
        let (revision, after) = read_token(query.which.kind, token).ok_or_else(|| {
            Refusal::bad_request(
                "invalid continue token: continue key is not valid: illegal base64 data at input byte 0",
            )
        })?;
        // A token without version goes on in the present, at the price of consistency.
        return Ok((if revision == 0 { newest } else { revision }, Some(after)));
    }
    let asked = version(&query.version)?;
    match (asked, query.version_match.as_str()) {
        (Some(asked), _) if asked > newest => Err(Refusal::too_new(asked, newest)),
        (Some(asked), "Exact") => Ok((asked, None)),
        (None | Some(_), _) => Ok((newest, None)),
    }
}

/// A version as a query string gives it; `None` when it gives none.
pub(crate) fn version(text: &str) -> Result<Option<u64>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let bad = || {
        let why = format!(
            "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        );
        Refusal::bad_request(why)
    };
    text.parse().map(Some).map_err(|_| bad())
}

/// The items of a list carry no kind: the list does.
fn as_item(object: Arc<Value>) -> Value {
    let mut object = Arc::unwrap_or_clone(object);
    if let Some(members) = object.as_object_mut() {
        members.remove("kind");
        members.remove("apiVersion");
    }
    object
}

fn token(revision: u64, last: &ObjectKey) -> String {
    let start = [last.namespace.as_deref().unwrap_or_default(), last.name.as_str()];
    BASE64URL_NOPAD.encode(json!({"v": "meta.k8s.io/v1", "rv": revision, "start": start}).to_string().as_bytes())
}

fn read_token(kind: Kind, token: &str) -> Option<(u64, ObjectKey)> {
    let json: Value = serde_json::from_slice(&BASE64URL_NOPAD.decode(token.as_bytes()).ok()?).ok()?;
    let (namespace, name) = (json["start"][0].as_str()?, json["start"][1].as_str()?);
    let namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
    Some((json["rv"].as_u64()?, ObjectKey { kind, namespace, name: name.to_owned() }))
}

fn expired_page(start: Option<&ObjectKey>) -> Refusal {
    let message = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
    Refusal::expired(message).resumed_by(start.map(|start| token(0, start)))
}

/// Whether a watch may begin; what is wrong with its version is told in the stream.
pub(super) fn check_watch(query: &WatchQuery) -> Result<(), Refusal> {
    Filter::of(&query.which)?;
    version(&query.version)?;
    if query.initial && query.version_match != "NotOlderThan" {
        let error = FieldError::forbidden(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
        return Err(Refusal::invalid_options("ListOptions", &error));
    }
    Ok(())
}

/// Whether a log can be read, and how the answer begins; the bytes come from the kubelet.
pub(super) fn check_log(server: &Server<'_>, request: &LogRequest) -> Result<(u16, Value), Refusal> {
    let key = ObjectKey::namespaced(Kind::Pod, &*request.namespace, &*request.pod);
    let pod: Pod =
        server.store.typed(Some(&request.namespace), &request.pod).ok_or_else(|| Refusal::not_found(&key))?;
    let spec = pod.spec.unwrap_or_default();
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    if !containers.any(|container| container.name == request.container) {
        let (container, pod) = (&request.container, &request.pod);
        return Err(Refusal::bad_request(format!("container {container} is not valid for pod {pod}")));
    }
    if spec.node_name.as_deref().unwrap_or_default().is_empty() {
        return Ok((204, Value::Null));
    }
    let status = pod.status.unwrap_or_default();
    let mut statuses =
        status.init_container_statuses.into_iter().flatten().chain(status.container_statuses.into_iter().flatten());
    let state = statuses.find(|it| it.name == request.container).and_then(|it| it.state).unwrap_or_default();
    let (container, pod) = (&request.container, &request.pod);
    if state.running.is_some() || state.terminated.is_some() {
        return Ok((200, Value::Null));
    }
    let why = state.waiting.and_then(|waiting| waiting.reason).unwrap_or_else(|| "ContainerCreating".to_owned());
    let why = if matches!(why.as_str(), "ErrImagePull" | "ImagePullBackOff") {
        "trying and failing to pull image"
    } else {
        &why
    };
    Err(Refusal::bad_request(format!("container {container:?} in pod {pod:?} is waiting to start: {why}")))
}
