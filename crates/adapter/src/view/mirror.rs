//! What is known of the objects of one kind, and how well it is known.

use std::collections::{BTreeMap, VecDeque};

use pando_cluster::env::Instant;
use pando_cluster::{Kind, ObjectKey, Resource, ResourceVersion, Told, Uid, budget};

use super::kept::{Heard, Kept};

/// How many of the newest things told are remembered: a write may be told before its own answer arrives.
const REMEMBERED: usize = 4096;

/// The objects of one kind, as a watch tells of them.
#[derive(Debug)]
pub(super) struct Mirror {
    objects: BTreeMap<ObjectKey, Kept>,
    /// When the watch last showed that it lives; none while it is broken, while it lists, and before the first list.
    alive: Option<Instant>,
    lists_begun: u64,
    /// The number of the list that was told last.
    lists_told: u64,
    signs: VecDeque<Sign>,
    trouble: Option<String>,
}

/// Something that was told.
#[derive(Debug, PartialEq, Eq)]
enum Sign {
    Version(ResourceVersion),
    Gone(Uid),
}

/// What came of something told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing that anybody could see.
    None,
    /// This object.
    One(ObjectKey),
    /// Whatever there is.
    All,
}

impl Mirror {
    /// Nothing is known so far.
    pub(super) const fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            alive: None,
            lists_begun: 0,
            lists_told: 0,
            signs: VecDeque::new(),
            trouble: None,
        }
    }

    /// Takes in what is told. `is_wanted` says which objects are kept.
    pub(super) fn take(&mut self, told: Told<Heard>, now: Instant, is_wanted: impl Fn(&ObjectKey) -> bool) -> Change {
        match told {
            Told::Listing => {
                self.lists_begun += 1;
                self.alive = None;
                Change::None
            }
            Told::Broken(error) => {
                let remedy = error.remedy().map(|remedy| format!("; {remedy}")).unwrap_or_default();
                self.trouble = Some(format!("{error}{remedy}"));
                self.alive = None;
                Change::None
            }
            Told::Fresh => {
                self.lives(now);
                Change::None
            }
            Told::All(objects) => {
                self.lives(now);
                self.lists_told = self.lists_begun;
                let wanted = objects.into_iter().filter(|heard| is_wanted(&heard.key));
                self.objects = wanted.map(|heard| (heard.key, heard.kept)).collect();
                Change::All
            }
            Told::Is(heard) => {
                self.lives(now);
                self.note(heard.kept.version.clone().map(Sign::Version));
                if !is_wanted(&heard.key) {
                    return Change::None;
                }
                self.objects.insert(heard.key.clone(), heard.kept);
                Change::One(heard.key)
            }
            Told::Gone(heard) => {
                self.lives(now);
                self.note(heard.kept.uid.clone().map(Sign::Gone));
                self.objects.remove(&heard.key);
                Change::One(heard.key)
            }
        }
    }

    fn lives(&mut self, now: Instant) {
        self.alive = Some(now);
        self.trouble = None;
    }

    fn note(&mut self, sign: Option<Sign>) {
        self.signs.extend(sign);
        if self.signs.len() > REMEMBERED {
            self.signs.pop_front();
        }
    }

    /// Whether it was told of everything once, and lately that the connection lives.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        self.alive.is_some_and(|alive| now.since(alive) <= budget::WATCH_SILENCE)
    }

    /// Why it is not fresh, as far as is known.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// How many lists have begun.
    pub(super) const fn lists_begun(&self) -> u64 {
        self.lists_begun
    }

    /// The number of the list that was told last; 0 before the first.
    pub(super) const fn lists_told(&self) -> u64 {
        self.lists_told
    }

    /// Whether the object was told of at this version, lately or by the newest list.
    pub(super) fn has_told(&self, key: &ObjectKey, version: &ResourceVersion) -> bool {
        let is_kept = self.objects.get(key).is_some_and(|kept| kept.version.as_ref() == Some(version));
        is_kept || self.signs.iter().rev().any(|sign| matches!(sign, Sign::Version(told) if told == version))
    }

    /// Whether it was told lately that the object of this identity is gone.
    pub(super) fn has_told_gone(&self, uid: &Uid) -> bool {
        self.signs.iter().rev().any(|sign| matches!(sign, Sign::Gone(told) if told == uid))
    }

    /// Whether the object of this identity is there and nobody told it to go.
    pub(super) fn stands(&self, key: &ObjectKey, uid: &Uid) -> bool {
        self.objects.get(key).is_some_and(|kept| kept.uid.as_ref() == Some(uid) && !kept.is_going)
    }

    /// Whether the object of this identity is there.
    pub(super) fn holds(&self, key: &ObjectKey, uid: &Uid) -> bool {
        self.objects.get(key).is_some_and(|kept| kept.uid.as_ref() == Some(uid))
    }

    /// The object at `key`, as it is kept.
    pub(super) fn at(&self, key: &ObjectKey) -> Option<&Kept> {
        self.objects.get(key)
    }

    /// The objects of a namespace, by name; `None` when one of them cannot be read back.
    pub(super) fn within<T: Resource>(&self, namespace: &str) -> Option<Vec<T>> {
        let first = ObjectKey::namespaced(T::OBJECT_KIND, namespace, "");
        let here = self.objects.range(first..).take_while(|(key, _)| key.namespace.as_deref() == Some(namespace));
        here.map(|(_, kept)| kept.read()).collect()
    }

    /// Every object, by namespace and name; `None` when one of them cannot be read back.
    pub(super) fn all<T: Resource>(&self) -> Option<Vec<T>> {
        self.objects.values().map(Kept::read).collect()
    }
}

/// Which objects of a kind are kept. A policy may be told before its namespace is: what an app's namespace may be called
/// decides, not whether there is one.
pub(super) fn is_wanted(key: &ObjectKey) -> bool {
    !matches!(key.kind, Kind::NetworkPolicy | Kind::PersistentVolume)
        || key.namespace.as_deref().is_some_and(may_be_an_apps)
}

/// Whether an app's namespace may be called so.
pub(super) fn may_be_an_apps(namespace: &str) -> bool {
    namespace.starts_with(pando_cluster::names::PREFIX)
}
