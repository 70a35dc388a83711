//! The port: what this workspace asks of a Kubernetes cluster.
//!
//! An implementation moves objects and typed failures and knows nothing of apps. It makes **one attempt** a
//! call: deadlines, retries and list-watch-relist live above, in [`Resilient`](crate::Resilient) and
//! [`list_watch`](crate::list_watch), so that the cluster in memory exercises them too.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::error::ClusterError;
use crate::object::{Kind, Object, ObjectKey, Resource, ResourceVersion, Scoped, Uid};

/// What is asked of a cluster. Implementations pass every case of the conformance suite.
///
/// # Errors
///
/// Every method fails with a [`ClusterError`] that says what happened in Kubernetes' terms. A failed read
/// never looks like absence: absence is `Ok(None)` or an empty list.
#[async_trait]
pub trait Cluster: fmt::Debug + Send + Sync {
    /// The object at `key`, read from the latest state; `None` when there is none.
    async fn get(&self, key: &ObjectKey) -> Result<Option<Object>, ClusterError>;

    /// One page of the objects that `request` asks for, ordered by namespace and name.
    async fn list(&self, request: &ListRequest) -> Result<Page, ClusterError>;

    /// Creates `object` under its own name and answers it as it was stored.
    ///
    /// [`Failure::AlreadyExists`](crate::Failure::AlreadyExists) when the name is taken, also by an object
    /// that is still being deleted.
    async fn create(&self, object: &Object) -> Result<Object, ClusterError>;

    /// Changes the object at `key` by a JSON merge patch (RFC 7386) and answers it as it was stored.
    ///
    /// [`Failure::Conflict`](crate::Failure::Conflict) when the object is no longer at the patch's version,
    /// [`Failure::NotFound`](crate::Failure::NotFound) when it is gone. A patch that changes nothing leaves
    /// the object's version as it was.
    async fn patch(&self, key: &ObjectKey, patch: &MergePatch) -> Result<Object, ClusterError>;

    /// Asks for the object at `key` to be deleted; it may stay for its grace period or its finalizers.
    ///
    /// [`Failure::Conflict`](crate::Failure::Conflict) when another object has the name by now or the version
    /// moved on, [`Failure::NotFound`](crate::Failure::NotFound) when there is none.
    async fn delete(&self, key: &ObjectKey, options: &DeleteOptions) -> Result<(), ClusterError>;

    /// What happens to the objects that `request` asks for, from its version on.
    ///
    /// The stream ends when the server closes it. [`Failure::Expired`](crate::Failure::Expired), from the
    /// call or as an item of the stream, means that the version is too old: list again. After an error item
    /// the stream is over.
    async fn watch(&self, request: &WatchRequest) -> Result<EventStream, ClusterError>;

    /// The output of a container, in pieces of any size.
    ///
    /// The end of the stream says nothing about the container: its state is asked by [`Cluster::get`].
    async fn logs(&self, request: &LogRequest) -> Result<ByteStream, ClusterError>;
}

/// What a watch yields.
pub type EventStream = BoxStream<'static, Result<WatchEvent, ClusterError>>;

/// Bytes as they arrive.
pub type ByteStream = BoxStream<'static, Result<Bytes, ClusterError>>;

/// Where to look for objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In the whole cluster.
    All,
    /// In one namespace.
    Namespace(String),
}

/// Which labels an object must have.
///
/// <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors>
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<String>);

impl Selector {
    /// Every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Objects that also have `key` with `value`.
    #[must_use]
    pub fn equals(mut self, key: &str, value: &str) -> Self {
        self.0.push(format!("{key}={value}"));
        self
    }

    /// Objects that also have `key`, whatever its value.
    #[must_use]
    pub fn exists(mut self, key: &str) -> Self {
        self.0.push(key.to_owned());
        self
    }

    /// Whether nothing is asked for.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// Asks for one page of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRequest {
    /// The kind of the objects.
    pub kind: Kind,
    /// Where to look.
    pub scope: Scope,
    /// The labels they must have.
    pub labels: Selector,
    /// The fields they must have, e.g. `metadata.name=web-1`; each kind supports its own few.
    pub fields: Selector,
    /// At most so many; `None` leaves it to the server, which then answers all of them.
    pub limit: Option<u32>,
    /// The token of the page before, to go on from there.
    pub after: Option<String>,
}

impl ListRequest {
    /// How many objects a page has unless a caller asks otherwise.
    pub const PAGE: u32 = 500;

    /// Every object of `kind` in `scope`, a page of [`Self::PAGE`] at a time.
    pub fn of(kind: Kind, scope: Scope) -> Self {
        Self {
            kind,
            scope,
            labels: Selector::everything(),
            fields: Selector::everything(),
            limit: Some(Self::PAGE),
            after: None,
        }
    }

    /// The same, restricted to objects with these labels.
    #[must_use]
    pub fn labelled(self, labels: Selector) -> Self {
        Self { labels, ..self }
    }

    /// The same, restricted to objects with these fields.
    #[must_use]
    pub fn with_fields(self, fields: Selector) -> Self {
        Self { fields, ..self }
    }
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct Page {
    /// The objects, ordered by namespace and name.
    pub items: Vec<Object>,
    /// The version of the list: a watch from here misses nothing. Equal on all pages of one list.
    pub version: ResourceVersion,
    /// The token of the next page; `None` on the last one.
    pub next: Option<String>,
}

/// Asks to be told what happens to objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// The kind of the objects.
    pub kind: Kind,
    /// Where to look.
    pub scope: Scope,
    /// The labels they must have; an object that loses them is told as deleted.
    pub labels: Selector,
    /// The fields they must have.
    pub fields: Selector,
    /// The version after which to begin.
    pub from: ResourceVersion,
    /// After how long the server closes the stream.
    pub timeout: Duration,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// The object appeared, or came to have the labels and fields asked for.
    Added(Object),
    /// The object changed.
    Modified(Object),
    /// The object went, or no longer has the labels and fields asked for. This is its last state.
    Deleted(Object),
    /// Nothing happened up to this version: a watch may go on from here.
    Bookmark(ResourceVersion),
}

/// A change to an object, as a JSON merge patch that can only land on the version it was made for.
#[derive(Clone, PartialEq)]
pub struct MergePatch(Value);

impl MergePatch {
    /// The change `body` (an object; `null` removes a member) to the object that is at `version`.
    ///
    /// A body that is not an object is sent as one without members besides the version.
    pub fn at(version: &ResourceVersion, body: Value) -> Self {
        let mut body = if body.is_object() { body } else { json!({}) };
        if !body["metadata"].is_object() {
            body["metadata"] = json!({});
        }
        body["metadata"]["resourceVersion"] = version.as_str().into();
        Self(body)
    }

    /// The patch as it is sent, `metadata.resourceVersion` included.
    pub fn as_json(&self) -> &Value {
        &self.0
    }
}

impl fmt::Debug for MergePatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A patch may carry a Secret's data: its members' names are all that is ever printed.
        let members: Vec<_> = self.0.as_object().into_iter().flatten().map(|(member, _)| member).collect();
        f.debug_tuple("MergePatch").field(&members).finish()
    }
}

/// What happens to the objects that a deleted one owns.
///
/// <https://kubernetes.io/docs/concepts/architecture/garbage-collection/#cascading-deletion>
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted afterwards.
    Background,
    /// They are deleted first.
    Foreground,
    /// They stay.
    Orphan,
}

impl Propagation {
    /// The word Kubernetes uses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }
}

/// How to delete an object, and which one: never by name alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteOptions {
    /// The object must still be this one.
    pub uid: Uid,
    /// The object must still be at this version.
    pub version: Option<ResourceVersion>,
    /// Whole seconds a pod's containers have to end; `None` leaves it to the pod.
    pub grace_seconds: Option<u32>,
    /// What happens to the objects it owns.
    pub propagation: Propagation,
}

impl DeleteOptions {
    /// Deletes exactly the object with this identity, in the background, with its own grace.
    pub fn of(uid: Uid) -> Self {
        Self { uid, version: None, grace_seconds: None, propagation: Propagation::Background }
    }
}

/// Asks for the output of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRequest {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
    /// Whether to go on while the container runs.
    pub follow: bool,
    /// Only lines from then on; Kubernetes cuts it to whole seconds, so earlier lines of that second come too.
    pub since: Option<Timestamp>,
    /// Only so many of the last lines.
    pub tail_lines: Option<u64>,
    /// At most so many bytes.
    pub limit_bytes: Option<u64>,
    /// Whether each line begins with its time (RFC 3339, nanoseconds).
    pub timestamps: bool,
}

impl dyn Cluster + '_ {
    /// The object `name` of a known type; `namespace` is `None` for kinds that have none.
    ///
    /// # Errors
    ///
    /// As [`Cluster::get`].
    pub async fn read<T: Resource>(&self, namespace: Option<&str>, name: &str) -> Result<Option<T>, ClusterError> {
        let key = ObjectKey { kind: T::OBJECT_KIND, namespace: namespace.map(str::to_owned), name: name.to_owned() };
        debug_assert_eq!(namespace.is_some(), T::OBJECT_KIND.scoped() == Scoped::Namespace, "{key}");
        Ok(self.get(&key).await?.and_then(T::from_object))
    }

    /// Creates a typed object; the answer is the object as stored.
    ///
    /// # Errors
    ///
    /// As [`Cluster::create`]; [`Failure::Malformed`](crate::Failure::Malformed) when the answer is of another kind.
    pub async fn make<T: Resource>(&self, object: &T) -> Result<T, ClusterError> {
        let object = object.clone().into_object();
        let stored = self.create(&object).await?;
        T::from_object(stored).ok_or_else(|| ClusterError::malformed("create", object.key()))
    }

    /// Patches a typed object; the answer is the object as stored.
    ///
    /// # Errors
    ///
    /// As [`Cluster::patch`]; [`Failure::Malformed`](crate::Failure::Malformed) when the answer is of another kind.
    pub async fn change<T: Resource>(&self, key: &ObjectKey, patch: &MergePatch) -> Result<T, ClusterError> {
        let stored = self.patch(key, patch).await?;
        T::from_object(stored).ok_or_else(|| ClusterError::malformed("patch", key.clone()))
    }

    /// Every object that `request` asks for, all pages together, with the version of the list.
    ///
    /// A page token that expires half-way starts the list anew, once; objects that changed between pages are
    /// then seen in one state only.
    ///
    /// # Errors
    ///
    /// As [`Cluster::list`].
    pub async fn list_all<T: Resource>(
        &self,
        request: &ListRequest,
    ) -> Result<(Vec<T>, ResourceVersion), ClusterError> {
        let mut request = request.clone();
        request.kind = T::OBJECT_KIND;
        let mut restarted = false;
        let mut items = Vec::new();
        loop {
            match self.list(&request).await {
                Ok(page) => {
                    items.extend(page.items.into_iter().filter_map(T::from_object));
                    match page.next {
                        Some(next) => request.after = Some(next),
                        None => return Ok((items, page.version)),
                    }
                }
                Err(error) if error.is_expired() && request.after.is_some() && !restarted => {
                    restarted = true;
                    items.clear();
                    request.after = None;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_always_carries_the_version_it_was_made_for() {
        let version = ResourceVersion::new("7");
        for body in [
            json!({}),
            json!(3),
            json!({"metadata": {"labels": {"a": null}}}),
            json!({"metadata": {"resourceVersion": "1"}}),
        ] {
            assert_eq!(MergePatch::at(&version, body.clone()).as_json()["metadata"]["resourceVersion"], "7", "{body}");
        }
    }

    #[test]
    fn a_patch_prints_no_values() {
        let patch = MergePatch::at(&ResourceVersion::new("7"), json!({"data": {"PASSWORD": "aHVudGVyMg=="}}));
        assert!(!format!("{patch:?}").contains("aHVudGVyMg"));
    }

    #[test]
    fn selectors_read_as_kubernetes_reads_them() {
        let selector = Selector::everything().equals("a/b", "c").exists("d");
        assert_eq!(selector.to_string(), "a/b=c,d");
        assert!(Selector::everything().is_everything() && !selector.is_everything());
    }
}
