//! What was asked through the API, call by call, for tests that count and order.

use pando_cluster::env::Instant;
use pando_cluster::{Kind, ObjectKey};

use super::{Request, User};

/// One call through the API: by the port or by the HTTP face. Controllers' own writes are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// `get`, `list`, `watch`, `create`, `patch` or `delete`.
    pub verb: &'static str,
    /// The kind it was about.
    pub kind: Kind,
    /// The object it was about; `None` for lists and watches.
    pub key: Option<ObjectKey>,
    /// The part of the object, e.g. `log`; `None` for the object itself.
    pub subresource: Option<&'static str>,
    /// Who called.
    pub user: User,
    /// When it was called.
    pub start: Instant,
    /// When it was answered (a stream: opened); `None` while it runs, and for ever when the caller gave up.
    pub end: Option<Instant>,
    /// The HTTP code; `None` until the store was touched.
    pub code: Option<u16>,
}

impl Call {
    /// Whether it asked for a change.
    pub fn is_write(&self) -> bool {
        matches!(self.verb, "create" | "patch" | "delete")
    }

    /// Whether it was carried out.
    pub fn succeeded(&self) -> bool {
        self.code.is_some_and(|code| code < 400)
    }
}

/// The calls so far, in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Vec<Call>);

impl Ledger {
    /// Notes a call that begins now; answers its number.
    pub(crate) fn begin(&mut self, user: &User, request: &Request, now: Instant) -> usize {
        let key = match request {
            Request::Get(key) | Request::Patch { key, .. } | Request::Delete { key, .. } => Some(key.clone()),
            Request::Create { kind, namespace, body } => Some(ObjectKey {
                kind: *kind,
                namespace: namespace.clone(),
                name: body["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            }),
            Request::Log(request) => Some(ObjectKey::namespaced(Kind::Pod, &*request.namespace, &*request.pod)),
            Request::List(_) | Request::Watch(_) => None,
        };
        self.0.push(Call {
            verb: request.verb(),
            kind: request.kind(),
            key,
            subresource: request.subresource(),
            user: user.clone(),
            start: now,
            end: None,
            code: None,
        });
        self.0.len() - 1
    }

    /// Notes that call `number` touched the store, with what result.
    pub(crate) fn touched(&mut self, number: usize, code: u16) {
        if let Some(call) = self.0.get_mut(number) {
            call.code = Some(code);
        }
    }

    /// Notes that call `number` was answered.
    pub(crate) fn answered(&mut self, number: usize, now: Instant) {
        if let Some(call) = self.0.get_mut(number) {
            call.end = Some(now);
        }
    }

    pub(crate) fn calls(&self) -> &[Call] {
        &self.0
    }
}
