//! All that the view knows, and every decision about it: without an await, and without a clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::channel::mpsc::UnboundedReceiver;
use futures::channel::oneshot;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use pando_cluster::env::Instant;
use pando_cluster::{Kind, ObjectKey, Resource, Told};

use super::feed::Feeds;
use super::hygiene::Repair;
use super::kept::Heard;
use super::mirror::{Change, Mirror, is_wanted, may_be_an_apps};
use super::writes::{Write, Writes, namespace_of};
use super::{AppView, KINDS};
use crate::known::ClusterFacts;

/// What the view knows.
#[derive(Debug)]
pub(super) struct State {
    mirrors: BTreeMap<Kind, Mirror>,
    writes: Writes,
    feeds: Feeds,
    facts: Option<Arc<ClusterFacts>>,
    /// Repairs that failed: tried again when their watch next shows that it lives.
    unmended: BTreeMap<ObjectKey, Repair>,
    /// Objects whose repair failed once and was logged.
    logged: BTreeSet<ObjectKey>,
    waiting: Vec<oneshot::Sender<()>>,
}

/// Why the view does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stale {
    /// The watch of this kind is broken, silent, or has told nothing yet.
    Watch(Kind),
    /// Something that this process wrote was not told yet.
    Writes,
    /// What is kept cannot be read back.
    Unreadable(Kind),
}

/// What is to be done after something was told.
#[derive(Debug, Default, PartialEq)]
pub(super) struct News {
    pub(super) repairs: Vec<Repair>,
    /// The watch broke, for this reason.
    pub(super) broke: Option<String>,
    /// The watch was broken and lives again.
    pub(super) is_back: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            mirrors: KINDS.iter().map(|kind| (*kind, Mirror::new())).collect(),
            writes: Writes::default(),
            feeds: Feeds::default(),
            facts: None,
            unmended: BTreeMap::new(),
            logged: BTreeSet::new(),
            waiting: Vec::new(),
        }
    }
}

impl State {
    /// Takes in what the watch of a kind tells.
    pub(super) fn take(&mut self, kind: Kind, told: Told<Heard>, now: Instant) -> News {
        let Some(mirror) = self.mirrors.get_mut(&kind) else { return News::default() };
        if kind == Kind::Pod {
            self.feeds.pass_on(&told, mirror.lists_begun());
        }
        let mut news = News::default();
        match &told {
            Told::All(all) => news.repairs.extend(all.iter().filter_map(|heard| heard.repair.clone())),
            Told::Is(heard) => news.repairs.extend(heard.repair.clone()),
            // All watches live by the same connection to the same server: what failed may work now.
            Told::Fresh => news.repairs.extend(std::mem::take(&mut self.unmended).into_values()),
            Told::Gone(heard) => {
                self.unmended.remove(&heard.key);
                self.logged.remove(&heard.key);
            }
            Told::Listing | Told::Broken(_) => {}
        }
        let is_of_facts = matches!(kind, Kind::Node | Kind::EndpointSlice);
        if is_of_facts && says_something_new(mirror, &told) {
            self.facts = None;
        }
        let was_broken = mirror.trouble().is_some();
        let change = mirror.take(told, now, is_wanted);
        match (was_broken, mirror.trouble()) {
            (false, Some(trouble)) => news.broke = Some(trouble.to_owned()),
            (true, None) => news.is_back = true,
            (false, None) | (true, Some(_)) => {}
        }
        match change {
            Change::None => {}
            Change::All => self.writes.settle_all(kind, mirror),
            Change::One(key) => {
                if let Some(namespace) = namespace_of(&key) {
                    self.writes.settle(namespace, kind, mirror);
                }
            }
        }
        news
    }

    /// Something that was written is to be seen here before the view speaks for its namespace again.
    pub(super) fn await_write(&mut self, key: ObjectKey, write: Write, now: Instant) {
        let is_of_an_app = namespace_of(&key).is_some_and(may_be_an_apps);
        if let Some(mirror) = self.mirrors.get(&key.kind).filter(|_| is_of_an_app) {
            self.writes.await_one(key, write, mirror, now);
        }
    }

    /// There was no object at `key` when this process looked: the one that is kept is to go first.
    pub(super) fn await_absence(&mut self, key: &ObjectKey, now: Instant) {
        let kept = self.mirrors.get(&key.kind).and_then(|mirror| mirror.at(key));
        if let Some(uid) = kept.and_then(|kept| kept.uid.clone()) {
            self.await_write(key.clone(), Write::Gone { uid }, now);
        }
    }

    /// Whether the view may speak for a namespace.
    pub(super) fn is_current(&self, namespace: &str, now: Instant) -> Result<(), Stale> {
        self.is_fresh(&KINDS, now)?;
        if self.writes.are_told(namespace, now) { Ok(()) } else { Err(Stale::Writes) }
    }

    /// What there is in a namespace, if that is known for sure.
    pub(super) fn app(&self, namespace: &str, now: Instant) -> Result<AppView, Stale> {
        self.is_current(namespace, now)?;
        let place = ObjectKey::cluster(Kind::Namespace, namespace);
        let namespace_object = match self.mirror(Kind::Namespace).at(&place) {
            Some(kept) => Some(kept.read::<Namespace>().ok_or(Stale::Unreadable(Kind::Namespace))?),
            None => None,
        };
        Ok(AppView {
            namespace: namespace_object,
            records: self.within::<Service>(namespace)?,
            pods: self.within::<Pod>(namespace)?,
            claims: self.within::<PersistentVolumeClaim>(namespace)?,
            policies: self.within::<NetworkPolicy>(namespace)?,
            volumes: self.within::<PersistentVolume>(namespace)?,
        })
    }

    /// Whether there is surely no namespace of that name.
    pub(super) fn is_absent(&self, namespace: &str, now: Instant) -> bool {
        let mirror = self.mirror(Kind::Namespace);
        let place = ObjectKey::cluster(Kind::Namespace, namespace);
        mirror.is_fresh(now) && self.writes.are_told(namespace, now) && mirror.at(&place).is_none()
    }

    /// Every node.
    pub(super) fn nodes(&self, now: Instant) -> Result<Vec<Node>, Stale> {
        self.is_fresh(&[Kind::Node], now)?;
        self.mirror(Kind::Node).all().ok_or(Stale::Unreadable(Kind::Node))
    }

    /// What calls need to know of the cluster. Made anew only after a node or the API server's addresses changed.
    pub(super) fn facts(&mut self, now: Instant) -> Result<Arc<ClusterFacts>, Stale> {
        self.is_fresh(&[Kind::Node, Kind::EndpointSlice], now)?;
        if let Some(facts) = &self.facts {
            return Ok(facts.clone());
        }
        let nodes = self.nodes(now)?;
        let slice = self.mirror(Kind::EndpointSlice).all::<EndpointSlice>();
        let slice = slice.ok_or(Stale::Unreadable(Kind::EndpointSlice))?.into_iter().next();
        // Without addresses of the API server nothing may be decided: a direct read says so as an error.
        let facts = ClusterFacts::of(&nodes, slice.as_ref()).ok_or(Stale::Unreadable(Kind::EndpointSlice))?;
        Ok(self.facts.insert(Arc::new(facts)).clone())
    }

    /// What happens to the namespace's pods from now on; `None` when the watch cannot be relied on.
    pub(super) fn follow(&mut self, namespace: &str, now: Instant) -> Option<UnboundedReceiver<Told>> {
        let mirror = self.mirrors.get(&Kind::Pod).filter(|mirror| mirror.is_fresh(now))?;
        let lists = mirror.lists_begun();
        Some(self.feeds.subscribe(namespace, lists))
    }

    /// What has come of a repair. Answers whether its failure is to be logged.
    pub(super) fn tried(&mut self, repair: Repair, failed: bool) -> bool {
        if !failed {
            self.logged.remove(&repair.key);
            return false;
        }
        let is_first = self.logged.insert(repair.key.clone());
        self.unmended.insert(repair.key.clone(), repair);
        is_first
    }

    /// Resolves when anything was told, or is about to be.
    pub(super) fn change(&mut self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.retain(|waiting| !waiting.is_canceled());
        self.waiting.push(sender);
        receiver
    }

    /// Those who wait for a change.
    pub(super) fn take_waiting(&mut self) -> Vec<oneshot::Sender<()>> {
        std::mem::take(&mut self.waiting)
    }

    /// The kinds that were never listed, each with what is in the way.
    pub(super) fn unlisted(&self) -> Vec<(Kind, Option<String>)> {
        let unlisted = self.mirrors.iter().filter(|(_, mirror)| mirror.lists_told() == 0);
        unlisted.map(|(kind, mirror)| (*kind, mirror.trouble().map(str::to_owned))).collect()
    }

    fn is_fresh(&self, kinds: &[Kind], now: Instant) -> Result<(), Stale> {
        match kinds.iter().find(|kind| !self.mirror(**kind).is_fresh(now)) {
            Some(kind) => Err(Stale::Watch(*kind)),
            None => Ok(()),
        }
    }

    fn within<T: Resource>(&self, namespace: &str) -> Result<Vec<T>, Stale> {
        self.mirror(T::OBJECT_KIND).within(namespace).ok_or(Stale::Unreadable(T::OBJECT_KIND))
    }

    fn mirror(&self, kind: Kind) -> &Mirror {
        static NOTHING: Mirror = Mirror::new();
        self.mirrors.get(&kind).unwrap_or(&NOTHING)
    }
}

/// Whether what is told is more than another version of what is kept.
fn says_something_new(mirror: &Mirror, told: &Told<Heard>) -> bool {
    match told {
        Told::All(_) | Told::Gone(_) => true,
        Told::Is(heard) => mirror.at(&heard.key).is_none_or(|kept| !kept.says_the_same(&heard.kept)),
        Told::Listing | Told::Fresh | Told::Broken(_) => false,
    }
}
