//! The objects of the cluster, each at a version, and the history that watches replay.
//!
//! What etcd is to an API server: every write takes the next revision of one counter, and the newest changes
//! are kept. There are no rules here; those are in [`api`](crate::api). Controllers write through
//! [`Store::update`], [`Store::insert`] and [`Store::remove`], as trusted components do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use data_encoding::HEXLOWER;
use jiff::Timestamp;
use pando_cluster::env::Instant;
use pando_cluster::{Env, Kind, Object, ObjectKey, Resource, Scoped};
use serde_json::{Value, json};

/// The first revision: versions of different lengths occur early, so that nobody compares them as text unseen.
const FIRST_REVISION: u64 = 980;

/// One write, as watches see it.
#[derive(Clone, Debug)]
pub struct Change {
    /// The revision of the write.
    pub revision: u64,
    /// The object written.
    pub key: ObjectKey,
    /// The object before; `None` when it was created.
    pub before: Option<Arc<Value>>,
    /// The object after, or as it was last when the write removed it.
    pub after: Arc<Value>,
    /// Whether the write removed the object.
    pub removed: bool,
    /// When it happened.
    pub at: Instant,
}

/// All objects, the revision counter and the kept history.
#[derive(Debug)]
pub struct Store {
    env: Env,
    objects: BTreeMap<ObjectKey, Arc<Value>>,
    written: BTreeMap<ObjectKey, Instant>,
    revision: u64,
    /// Changes with contiguous revisions, the newest last.
    history: VecDeque<Change>,
    window: usize,
}

impl Store {
    /// An empty store that keeps the newest `window` changes.
    pub(crate) fn new(env: Env, window: usize) -> Self {
        Self {
            env,
            objects: BTreeMap::new(),
            written: BTreeMap::new(),
            revision: FIRST_REVISION,
            history: VecDeque::new(),
            window,
        }
    }

    /// The revision of the newest write.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The oldest revision from which a watch or a page can still go on.
    pub fn oldest(&self) -> u64 {
        self.revision - self.history.len() as u64
    }

    /// The object at `key`.
    pub fn get(&self, key: &ObjectKey) -> Option<&Value> {
        self.objects.get(key).map(Arc::as_ref)
    }

    /// The object of a known type; `None` also when it cannot be read as that type.
    pub fn typed<T: Resource>(&self, namespace: Option<&str>, name: &str) -> Option<T> {
        let key = ObjectKey { kind: T::OBJECT_KIND, namespace: namespace.map(str::to_owned), name: name.to_owned() };
        self.get(&key).and_then(decode)
    }

    /// Every object of `kind`, ordered by namespace and name.
    pub fn all(&self, kind: Kind) -> impl Iterator<Item = (&ObjectKey, &Value)> {
        let first = ObjectKey { kind, namespace: None, name: String::new() };
        self.objects.range(first..).take_while(move |(key, _)| key.kind == kind).map(|(key, object)| (key, &**object))
    }

    /// Every object of `kind` in `namespace`, ordered by name.
    pub fn within<'a>(&'a self, kind: Kind, namespace: &'a str) -> impl Iterator<Item = (&'a ObjectKey, &'a Value)> {
        let first = ObjectKey::namespaced(kind, namespace, "");
        self.objects
            .range(first..)
            .take_while(move |(key, _)| key.kind == kind && key.namespace.as_deref() == Some(namespace))
            .map(|(key, object)| (key, &**object))
    }

    /// Every object of a known type, ordered by namespace and name.
    pub fn all_typed<T: Resource>(&self) -> impl Iterator<Item = T> {
        self.all(T::OBJECT_KIND).filter_map(|(_, object)| decode(object))
    }

    /// Every object of a known type in `namespace`, ordered by name.
    pub fn typed_within<'a, T: Resource>(&'a self, namespace: &'a str) -> impl Iterator<Item = T> {
        self.within(T::OBJECT_KIND, namespace).filter_map(|(_, object)| decode(object))
    }

    /// Changes an object as a trusted component does: without admission.
    ///
    /// The object gets a new version only if `change` changed something. No object, no effect.
    pub fn update(&mut self, key: &ObjectKey, change: impl FnOnce(&mut Value)) {
        let Some(before) = self.objects.get(key).cloned() else { return };
        let mut after = Value::clone(&before);
        change(&mut after);
        self.put(key, after);
    }

    /// Stores `object` under `kind` and its own name as a trusted component does; gives it uid, version and birth.
    ///
    /// Answers whether it did: not when the name is taken.
    pub fn insert(&mut self, kind: Kind, mut object: Value) -> bool {
        let key = key_of(kind, &object);
        if self.objects.contains_key(&key) {
            return false;
        }
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.name().into();
        self.stamp_new(&mut object);
        self.put(&key, object);
        true
    }

    /// Removes an object for good; watches see it as deleted.
    pub fn remove(&mut self, key: &ObjectKey) {
        let Some(before) = self.objects.remove(key) else { return };
        self.written.remove(key);
        self.revision += 1;
        let mut after = Value::clone(&before);
        after["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.record(Change {
            revision: self.revision,
            key: key.clone(),
            before: Some(before),
            after: Arc::new(after),
            removed: true,
            at: self.env.now(),
        });
    }

    /// Forgets the history: watches and pages from before now are refused as expired (410).
    pub fn compact(&mut self) {
        self.history.clear();
    }

    /// The kept changes after `revision`, oldest first; `None` when some of them are no longer kept.
    pub fn changes_after(&self, revision: u64) -> Option<impl Iterator<Item = &Change>> {
        let skip = revision.checked_sub(self.oldest())?;
        Some(self.history.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX)))
    }

    /// The objects of `kind` as they were at `revision`; `None` when that is no longer kept.
    ///
    /// A revision in the future answers the present.
    pub fn at(&self, kind: Kind, revision: u64) -> Option<BTreeMap<ObjectKey, Arc<Value>>> {
        let first = ObjectKey { kind, namespace: None, name: String::new() };
        let mut objects: BTreeMap<_, _> = self
            .objects
            .range(first..)
            .take_while(|(key, _)| key.kind == kind)
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect();
        let newer: Vec<_> = self.changes_after(revision)?.filter(|change| change.key.kind == kind).collect();
        for change in newer.into_iter().rev() {
            match &change.before {
                Some(before) => objects.insert(change.key.clone(), before.clone()),
                None => objects.remove(&change.key),
            };
        }
        Some(objects)
    }

    /// When the object at `key` was last written.
    pub(crate) fn written(&self, key: &ObjectKey) -> Option<Instant> {
        self.written.get(key).copied()
    }

    /// The present date as Kubernetes writes it: whole seconds, RFC 3339, UTC.
    pub fn now_text(&self) -> String {
        text_of(self.env.wall.now())
    }

    /// The object at `key`, shared.
    pub(crate) fn shared(&self, key: &ObjectKey) -> Option<Arc<Value>> {
        self.objects.get(key).cloned()
    }

    /// Makes `after` the object at `key`; answers whether that was a change.
    pub(crate) fn put(&mut self, key: &ObjectKey, mut after: Value) -> bool {
        let before = self.objects.get(key).cloned();
        if let Some(before) = &before {
            after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            if **before == after {
                return false;
            }
        }
        self.revision += 1;
        after["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let after = Arc::new(after);
        self.objects.insert(key.clone(), after.clone());
        let at = self.env.now();
        self.written.insert(key.clone(), at);
        self.record(Change { revision: self.revision, key: key.clone(), before, after, removed: false, at });
        true
    }

    /// Gives a new object what only the API server gives: identity and birth.
    pub(crate) fn stamp_new(&mut self, object: &mut Value) {
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        object["metadata"]["uid"] = new_uid(&self.env).into();
        object["metadata"]["creationTimestamp"] = self.now_text().into();
    }

    fn record(&mut self, change: Change) {
        self.history.push_back(change);
        while self.history.len() > self.window {
            self.history.pop_front();
        }
    }
}

/// A date as Kubernetes writes it: whole seconds, RFC 3339, UTC.
pub(crate) fn text_of(date: Timestamp) -> String {
    Timestamp::from_second(date.as_second()).unwrap_or(date).to_string()
}

/// Where `object` is, from its metadata.
pub(crate) fn key_of(kind: Kind, object: &Value) -> ObjectKey {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let namespace = match kind.scoped() {
        Scoped::Cluster => None,
        Scoped::Namespace => Some(text("namespace")),
    };
    ObjectKey { kind, namespace, name: text("name") }
}

fn decode<T: Resource>(object: &Value) -> Option<T> {
    Object::from_json(T::OBJECT_KIND, object.clone()).ok().and_then(T::from_object)
}

/// A random UUID (version 4).
fn new_uid(env: &Env) -> String {
    let mut bytes = [0; 16];
    env.random.fill(&mut bytes);
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex = HEXLOWER.encode(&bytes);
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
