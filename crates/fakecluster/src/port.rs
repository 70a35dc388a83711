//! The fake as the [`Cluster`] port: without HTTP, but through JSON and `Status` all the same.
//!
//! So both ways to the fake classify every answer alike.

use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use pando_cluster::{
    ByteStream, Cluster, ClusterError, DeleteOptions, EventStream, Failure, Kind, ListRequest, LogRequest, MergePatch,
    Object, ObjectKey, Page, ResourceVersion, Scope, Selector, Subject, WatchEvent, WatchRequest,
};
use serde_json::{Value, json};

use crate::api::{ListQuery, Request, Response, WatchQuery, Which};
use crate::cluster::FakeCluster;
use crate::watch::{self, Frame};

#[async_trait]
impl Cluster for FakeCluster {
    async fn get(&self, key: &ObjectKey) -> Result<Option<Object>, ClusterError> {
        let response = self.call(&Request::Get(key.clone())).await;
        match answer("get", key.clone(), response) {
            Ok(body) => object("get", key, body).map(Some),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ClusterError> {
        let query = ListQuery {
            which: which(request.kind, &request.scope, &request.labels, &request.fields),
            limit: request.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
            after: request.after.clone(),
            version: String::new(),
            version_match: String::new(),
        };
        let subject = many(request.kind, &request.scope);
        let body = answer("list", subject.clone(), self.call(&Request::List(query)).await)?;
        page(request.kind, subject, body)
    }

    async fn create(&self, new: &Object) -> Result<Object, ClusterError> {
        let key = new.key();
        let body = new.to_json().map_err(|error| malformed("create", key.clone(), &error))?;
        let request = Request::Create { kind: key.kind, namespace: key.namespace.clone(), body };
        let body = answer("create", key.clone(), self.call(&request).await)?;
        object("create", &key, body)
    }

    async fn patch(&self, key: &ObjectKey, patch: &MergePatch) -> Result<Object, ClusterError> {
        let request = Request::Patch { key: key.clone(), body: patch.as_json().clone() };
        let body = answer("patch", key.clone(), self.call(&request).await)?;
        object("patch", key, body)
    }

    async fn delete(&self, key: &ObjectKey, options: &DeleteOptions) -> Result<(), ClusterError> {
        let request = Request::Delete { key: key.clone(), options: delete_options(options) };
        answer("delete", key.clone(), self.call(&request).await).map(drop)
    }

    async fn watch(&self, request: &WatchRequest) -> Result<EventStream, ClusterError> {
        let query = WatchQuery {
            which: which(request.kind, &request.scope, &request.labels, &request.fields),
            version: request.from.as_str().to_owned(),
            version_match: String::new(),
            // The wire carries whole seconds, and none means the server's own time.
            timeout: Duration::from_secs(request.timeout.as_secs().max(1)),
            bookmarks: true,
            initial: false,
        };
        let (kind, subject) = (request.kind, many(request.kind, &request.scope));
        answer("watch", subject.clone(), self.call(&Request::Watch(query.clone())).await)?;
        let frames =
            watch::open(self, &query).map_err(|refusal| refused("watch", subject.clone(), refusal.into_status()))?;
        Ok(frames.map(move |frame| event(kind, &subject, frame)).boxed())
    }

    async fn logs(&self, request: &LogRequest) -> Result<ByteStream, ClusterError> {
        let key = ObjectKey::namespaced(Kind::Pod, &*request.namespace, &*request.pod);
        let response = self.call(&Request::Log(request.clone())).await;
        let empty = response.code == 204;
        answer("read the log of", key, response)?;
        if empty {
            return Ok(futures::stream::empty().boxed());
        }
        Ok(self.log_bytes(request))
    }
}

fn which(kind: Kind, scope: &Scope, labels: &Selector, fields: &Selector) -> Which {
    let namespace = match scope {
        Scope::All => None,
        Scope::Namespace(namespace) => Some(namespace.clone()),
    };
    Which { kind, namespace, labels: labels.to_string(), fields: fields.to_string() }
}

fn many(kind: Kind, scope: &Scope) -> Subject {
    match scope {
        Scope::All => Subject::Many(kind.plural(), None),
        Scope::Namespace(namespace) => Subject::Many(kind.plural(), Some(namespace.clone())),
    }
}

/// The options as they are sent.
fn delete_options(options: &DeleteOptions) -> Value {
    let mut body = json!({
        "kind": "DeleteOptions", "apiVersion": "v1",
        "preconditions": {"uid": options.uid.as_str()},
        "propagationPolicy": options.propagation.as_str(),
    });
    if let Some(version) = &options.version {
        body["preconditions"]["resourceVersion"] = version.as_str().into();
    }
    if let Some(seconds) = options.grace_seconds {
        body["gracePeriodSeconds"] = seconds.into();
    }
    body
}

/// The body of a success, or what the failure means.
fn answer(verb: &'static str, subject: impl Into<Subject>, response: Response) -> Result<Value, ClusterError> {
    if response.code < 400 { Ok(response.body) } else { Err(refused(verb, subject, response.body)) }
}

fn refused(verb: &'static str, subject: impl Into<Subject>, status: Value) -> ClusterError {
    let subject = subject.into();
    match serde_json::from_value::<Status>(status) {
        Ok(status) => ClusterError::from_status(verb, subject, &status, None),
        Err(error) => malformed(verb, subject, &error),
    }
}

fn malformed(verb: &'static str, subject: impl Into<Subject>, error: &serde_json::Error) -> ClusterError {
    ClusterError::new(verb, subject, Failure::Malformed(error.to_string()))
}

fn object(verb: &'static str, key: &ObjectKey, body: Value) -> Result<Object, ClusterError> {
    Object::from_json(key.kind, body).map_err(|error| malformed(verb, key.clone(), &error))
}

fn page(kind: Kind, subject: Subject, mut body: Value) -> Result<Page, ClusterError> {
    let Value::Array(items) = body["items"].take() else {
        return Err(ClusterError::new("list", subject, Failure::Malformed("a list without items".to_owned())));
    };
    let items = items.into_iter().map(|item| Object::from_json(kind, item)).collect::<Result<_, _>>();
    let meta = &body["metadata"];
    Ok(Page {
        items: items.map_err(|error| malformed("list", subject, &error))?,
        version: ResourceVersion::new(meta["resourceVersion"].as_str().unwrap_or_default()),
        next: meta["continue"].as_str().map(str::to_owned),
    })
}

fn event(kind: Kind, subject: &Subject, frame: Frame) -> Result<WatchEvent, ClusterError> {
    let Frame { word, object } = frame;
    match word {
        "BOOKMARK" => {
            let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            return Ok(WatchEvent::Bookmark(ResourceVersion::new(version)));
        }
        "ERROR" => return Err(refused("watch", subject.clone(), object)),
        _ => {}
    }
    let object = Object::from_json(kind, object).map_err(|error| malformed("watch", subject.clone(), &error))?;
    Ok(match word {
        "ADDED" => WatchEvent::Added(object),
        "MODIFIED" => WatchEvent::Modified(object),
        _ => WatchEvent::Deleted(object),
    })
}
