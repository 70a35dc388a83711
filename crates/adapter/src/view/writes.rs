//! What this process knows to have been written and the view was not told of yet: its own writes, and what it read by
//! another way.
//!
//! A version says by being equal that a write was told, and nothing by its digits. So a write is waited for until its very
//! version was told, or its object's end, or a list that began after the write.

use std::collections::BTreeMap;

use pando_cluster::env::Instant;
use pando_cluster::{Kind, ObjectKey, ResourceVersion, Uid, budget};

use super::mirror::Mirror;

/// Something that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// The object is at this version since.
    Stored { uid: Option<Uid>, version: ResourceVersion },
    /// The object of this identity was told to go.
    Deleted { uid: Uid },
    /// The object of this identity is gone.
    Gone { uid: Uid },
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
        let lists = mirror.lists_begun();
        let new = Awaited { key, write, at: now, lists };
        let before = self.awaited.get(&namespace).into_iter().flatten();
        let mut of_the_same = before.filter(|it| it.key == new.key && !it.is_over(now)).peekable();
        let is_first = of_the_same.peek().is_none();
        // What is read again and again is waited for once.
        let is_known = of_the_same.any(|it| it.write == new.write && it.lists == new.lists);
        if is_known || new.is_told(is_first, mirror) {
            return;
        }
        let awaited = self.awaited.entry(namespace).or_default();
        // A watch that is broken for long tells of nothing, and much is read meanwhile.
        awaited.retain(|it| !it.is_over(now));
        awaited.push(new);
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

    /// Whether every write in the namespace was told.
    pub(super) fn are_told(&self, namespace: &str, now: Instant) -> bool {
        self.awaited.get(namespace).into_iter().flatten().all(|awaited| awaited.is_over(now))
    }
}

impl Awaited {
    /// Whether the view was told of it. What `is_first` of its object to be waited for may be taken for gone: before the
    /// creation of an object was told, its absence says nothing.
    fn is_told(&self, is_first: bool, mirror: &Mirror) -> bool {
        mirror.lists_told() > self.lists
            || match &self.write {
                Write::Stored { uid, version } => {
                    mirror.has_told(&self.key, version) || uid.as_ref().is_some_and(|uid| mirror.has_told_gone(uid))
                }
                Write::Deleted { uid } => mirror.has_told_gone(uid) || (is_first && !mirror.stands(&self.key, uid)),
                Write::Gone { uid } => mirror.has_told_gone(uid) || (is_first && !mirror.holds(&self.key, uid)),
                Write::Doubtful => false,
            }
    }

    /// No write is waited for longer than a watch may be silent: within that time a view may be old in any case.
    fn is_over(&self, now: Instant) -> bool {
        now.since(self.at) > budget::WATCH_SILENCE
    }
}

fn settle(awaited: &mut Vec<Awaited>, kind: Kind, mirror: &Mirror) {
    let mut waiting: Vec<ObjectKey> = Vec::new();
    awaited.retain(|it| {
        let is_told = it.key.kind == kind && it.is_told(!waiting.contains(&it.key), mirror);
        if !is_told {
            waiting.push(it.key.clone());
        }
        !is_told
    });
}

/// The namespace that an object is in, or is.
pub(super) fn namespace_of(key: &ObjectKey) -> Option<&str> {
    match key.kind {
        Kind::Namespace => Some(&key.name),
        _ => key.namespace.as_deref(),
    }
}
