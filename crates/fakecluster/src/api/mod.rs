//! The API server: what it accepts, refuses and answers, code for code and word for word.
//!
//! `handle` serves one request on the store, synchronously; both the port and the HTTP face go through it,
//! so that they cannot differ. A write passes the stages of Kubernetes 1.34 in their order: access rules, the
//! namespace's life cycle, what admission changes, defaulting and validation, then what admission only judges
//! (pod security, quota), and last the store.

pub(crate) mod access;
mod admission;
mod delete;
pub(crate) mod kinds;
pub mod ledger;
mod names;
mod omit;
mod pod_security;
pub(crate) mod quantity;
pub(crate) mod quota;
pub(crate) mod read;
pub(crate) mod refusal;
pub(crate) mod seed;
pub mod selector;
mod write;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pando_cluster::{Env, Kind, LogRequest, ObjectKey};
use serde_json::Value;

use crate::config::FakeConfig;
use crate::store::Store;
use refusal::Refusal;

/// Who makes a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// Somebody who may do everything.
    Admin,
    /// Somebody by name, e.g. `system:serviceaccount:pando:pando`; the access rules say what they may do.
    Named(Arc<str>),
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admin => f.write_str("kubernetes-admin"),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Get(ObjectKey),
    List(ListQuery),
    Watch(WatchQuery),
    Create { kind: Kind, namespace: Option<String>, body: Value },
    Patch { key: ObjectKey, body: Value },
    Delete { key: ObjectKey, options: Value },
    Log(LogRequest),
}

/// Which objects, as a query string says it.
#[derive(Clone, Debug)]
pub(crate) struct Which {
    pub(crate) kind: Kind,
    pub(crate) namespace: Option<String>,
    pub(crate) labels: String,
    pub(crate) fields: String,
}

impl Which {
    /// The name where exactly one is asked for; empty otherwise. Access rules may then speak of it.
    fn only_name(&self) -> &str {
        let name = self.fields.strip_prefix("metadata.name=").unwrap_or_default();
        if name.contains(',') { "" } else { name.trim_start_matches('=') }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ListQuery {
    pub(crate) which: Which,
    pub(crate) limit: Option<usize>,
    pub(crate) after: Option<String>,
    pub(crate) version: String,
    pub(crate) version_match: String,
}

#[derive(Clone, Debug)]
pub(crate) struct WatchQuery {
    pub(crate) which: Which,
    pub(crate) version: String,
    pub(crate) version_match: String,
    pub(crate) timeout: Duration,
    pub(crate) bookmarks: bool,
    /// Whether to begin with what is there, and to tell by a bookmark when that was all.
    pub(crate) initial: bool,
}

/// What is answered.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) code: u16,
    /// An object, a list or a `Status`; nothing for a stream that may begin.
    pub(crate) body: Value,
}

impl Request {
    /// The verb as access rules and the ledger name it.
    pub(crate) const fn verb(&self) -> &'static str {
        match self {
            Self::Get(_) | Self::Log(_) => "get",
            Self::List(_) => "list",
            Self::Watch(_) => "watch",
            Self::Create { .. } => "create",
            Self::Patch { .. } => "patch",
            Self::Delete { .. } => "delete",
        }
    }

    /// The kind it is about.
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Get(key) | Self::Patch { key, .. } | Self::Delete { key, .. } => key.kind,
            Self::List(query) => query.which.kind,
            Self::Watch(query) => query.which.kind,
            Self::Create { kind, .. } => *kind,
            Self::Log(_) => Kind::Pod,
        }
    }

    /// The part of the object that it is about; `None` for the object itself.
    pub(crate) const fn subresource(&self) -> Option<&'static str> {
        match self {
            Self::Log(_) => Some("log"),
            _ => None,
        }
    }

    /// The namespace it is about; `None` for the cluster as a whole.
    pub(crate) fn namespace(&self) -> Option<&str> {
        match self {
            Self::Get(key) | Self::Patch { key, .. } | Self::Delete { key, .. } => match key.kind {
                // Access to a namespace can be given inside it, too.
                Kind::Namespace => Some(&key.name),
                _ => key.namespace.as_deref(),
            },
            Self::List(query) => query.which.namespace.as_deref(),
            Self::Watch(query) => query.which.namespace.as_deref(),
            Self::Create { namespace, .. } => namespace.as_deref(),
            Self::Log(request) => Some(&request.namespace),
        }
    }

    /// The name of the one object it is about, as the path or the field selector has it; empty for none or many.
    pub(crate) fn path_name(&self) -> &str {
        match self {
            Self::Get(key) | Self::Patch { key, .. } | Self::Delete { key, .. } => &key.name,
            Self::Log(request) => &request.pod,
            Self::List(query) => query.which.only_name(),
            Self::Watch(query) => query.which.only_name(),
            Self::Create { .. } => "",
        }
    }
}

/// What a request is served with.
pub(crate) struct Server<'a> {
    pub(crate) store: &'a mut Store,
    pub(crate) config: &'a FakeConfig,
    pub(crate) env: &'a Env,
}

/// Serves one request.
pub(crate) fn handle(server: &mut Server<'_>, user: &User, request: &Request) -> Response {
    match serve(server, user, request) {
        Ok((code, body)) => Response { code, body },
        Err(refusal) => Response { code: refusal.code, body: refusal.into_status() },
    }
}

fn serve(server: &mut Server<'_>, user: &User, request: &Request) -> Result<(u16, Value), Refusal> {
    access::authorise(server, user, request)?;
    Ok(match request {
        Request::Get(key) => (200, read::get(server, key)?),
        Request::List(query) => (200, read::list(server, query)?),
        Request::Watch(query) => {
            read::check_watch(query)?;
            (200, Value::Null)
        }
        Request::Create { kind, namespace, body } => {
            (201, write::create(server, user, *kind, namespace.as_deref(), body)?)
        }
        Request::Patch { key, body } => (200, write::patch(server, key, body)?),
        Request::Delete { key, options } => (200, delete::delete(server, key, options)?),
        Request::Log(request) => read::check_log(server, request)?,
    })
}
