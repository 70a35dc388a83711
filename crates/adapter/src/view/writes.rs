//! Which of this process's own writes the view was not told of yet.
//!
//! A version says by being equal that a write was told, and nothing by its digits. So a write is waited for until its very
//! version was told, or its object's end, or a list that began after the write.

use std::collections::BTreeMap;

use pando_cluster::env::Instant;
use pando_cluster::{Kind, ObjectKey, ResourceVersion, Uid, budget};

use super::mirror::Mirror;

/// Something that we wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// The object is at this version since.
    Stored { uid: Option<Uid>, version: ResourceVersion },
    /// The object of this identity was told to go.
    Deleted { uid: Uid },
    /// The answer was lost. Whether anything was written only a later list can tell.
    Doubtful,
}

/// The writes that are waited for, by namespace.
#[derive(Debug, Default)]
pub(super) struct Writes {
    awaited: BTreeMap<String, Vec<Awaited>>,
}

#[derive(Debug)]
struct Awaited {
    key: ObjectKey,
    write: Write,
    at: Instant,
    /// How many lists of the kind had begun by then.
    lists: u64,
}

impl Writes {
    /// From now on `write` is waited for, unless it was told already.
    pub(super) fn await_one(&mut self, key: ObjectKey, write: Write, mirror: &Mirror, now: Instant) {
        let Some(namespace) = namespace_of(&key).map(str::to_owned) else { return };
        self.awaited.entry(namespace.clone()).or_default().push(Awaited {
            lists: mirror.lists_begun(),
            key: key.clone(),
            write,
            at: now,
        });
        self.settle(&namespace, key.kind, mirror);
    }

    /// Waits no more for what `mirror` was told by now.
    pub(super) fn settle(&mut self, namespace: &str, kind: Kind, mirror: &Mirror) {
        if let Some(awaited) = self.awaited.get_mut(namespace) {
            settle(awaited, kind, mirror);
            if awaited.is_empty() {
                self.awaited.remove(namespace);
            }
        }
    }

    /// The same in every namespace.
    pub(super) fn settle_all(&mut self, kind: Kind, mirror: &Mirror) {
        self.awaited.retain(|_, awaited| {
            settle(awaited, kind, mirror);
            !awaited.is_empty()
        });
    }

    /// Whether every write in the namespace was told. No write is waited for longer than a watch may be silent: within that
    /// time a view may be old in any case.
    pub(super) fn are_told(&self, namespace: &str, now: Instant) -> bool {
        let awaited = self.awaited.get(namespace).into_iter().flatten();
        awaited.into_iter().all(|awaited| now.since(awaited.at) > budget::WATCH_SILENCE)
    }

    /// Whether anything in the namespace is waited for.
    pub(super) fn any(&self, namespace: &str) -> bool {
        self.awaited.contains_key(namespace)
    }
}

fn settle(awaited: &mut Vec<Awaited>, kind: Kind, mirror: &Mirror) {
    // A deletion is over when its object is gone, which it also is before its creation was told.
    let mut made: Vec<ObjectKey> = Vec::new();
    awaited.retain(|awaited| {
        if awaited.key.kind != kind {
            return true;
        }
        let told = mirror.lists_told() > awaited.lists
            || match &awaited.write {
                Write::Stored { uid, version } => {
                    mirror.has_told(&awaited.key, version) || uid.as_ref().is_some_and(|uid| mirror.has_told_gone(uid))
                }
                Write::Deleted { uid } => {
                    mirror.has_told_gone(uid) || (!made.contains(&awaited.key) && !mirror.stands(&awaited.key, uid))
                }
                Write::Doubtful => false,
            };
        if !told {
            made.push(awaited.key.clone());
        }
        !told
    });
}

/// The namespace that an object is in, or is.
pub(super) fn namespace_of(key: &ObjectKey) -> Option<&str> {
    match key.kind {
        Kind::Namespace => Some(&key.name),
        _ => key.namespace.as_deref(),
    }
}
