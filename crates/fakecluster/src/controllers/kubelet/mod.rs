//! The kubelet of one node: it runs the pods that are bound to it and reports what became of them.
//!
//! Level-triggered, as the real one: whenever a pod, its programs or the clock moved, [`PodWork::step`] looks at
//! what is asked and what really runs and takes the next steps; then the pod's status is written. A kubelet that
//! was cut off goes on from there when it is back.

mod container;
mod credentials;
mod mounts;
mod probes;
mod pull;
mod status;
mod stop;
mod work;

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{Either, select};
use k8s_openapi::api::core::v1::Pod;
use pando_cluster::env::{Instant, yield_now};
use pando_cluster::{Kind, ObjectKey};

pub(super) use self::work::Node;
use self::work::PodWork;
use super::machines::State;
use super::objects::text;
use crate::FakeCluster;

/// Runs the pods of `node`, for ever.
pub(super) async fn run(fake: FakeCluster, node: Node) {
    let mut kubelet =
        Kubelet { fake, node, pods: BTreeMap::new(), due: BTreeSet::new(), seen: 0, heard: 0, was_lost: false };
    kubelet.look_at_everything();
    loop {
        kubelet.gather();
        match kubelet.pick() {
            // One pod a turn, so that everybody else may act between two of them.
            Some(uid) => {
                kubelet.sync(&uid);
                yield_now().await;
            }
            None => kubelet.wait().await,
        }
    }
}

struct Kubelet {
    fake: FakeCluster,
    node: Node,
    pods: BTreeMap<String, PodWork>,
    /// The pods to look at.
    due: BTreeSet<String>,
    /// The store's revision up to which its changes were gathered.
    seen: u64,
    /// The machines' news that were gathered.
    heard: u64,
    was_lost: bool,
}

impl Kubelet {
    fn is_lost(&self) -> bool {
        self.fake.machines().with(|state| state.lost_nodes.contains(&self.node.name))
    }

    /// Notes which pods have to be looked at.
    fn gather(&mut self) {
        self.heard = self.fake.machines().news.count();
        if self.is_lost() {
            self.was_lost = true;
            self.due.clear();
            // What it misses now it looks up when it is back.
            self.seen = self.fake.with(|store| store.revision());
            return;
        }
        if std::mem::take(&mut self.was_lost) {
            self.look_at_everything();
        }
        self.read_changes();
        let pods = &self.pods;
        let touched =
            |state: &mut State| state.touched.extract_if(.., |uid| pods.contains_key(uid)).collect::<Vec<_>>();
        self.due.extend(self.fake.machines().with(touched));
        let now = self.fake.env().now();
        let ripe = self.pods.iter().filter(|(_, work)| work.next.is_some_and(|next| next <= now));
        self.due.extend(ripe.map(|(uid, _)| uid.clone()));
    }

    fn read_changes(&mut self) {
        let seen = self.seen;
        let changed = self.fake.with(|store| {
            let mut keys = BTreeSet::new();
            let mut secrets = false;
            for change in store.changes_after(seen)? {
                secrets |= matches!(change.key.kind, Kind::Secret | Kind::ConfigMap);
                if change.key.kind == Kind::Pod && text(&change.after, "/spec/nodeName") == self.node.name {
                    keys.insert((change.key.clone(), text(&change.after, "/metadata/uid").to_owned()));
                }
            }
            Some((keys, secrets, store.revision()))
        });
        let Some((pods, secrets, revision)) = changed else {
            return self.look_at_everything();
        };
        self.seen = revision;
        for (key, uid) in pods {
            self.meet(key, uid);
        }
        if secrets {
            let waiting = self.pods.iter().filter(|(_, work)| work.waits_for_secret());
            self.due.extend(waiting.map(|(uid, _)| uid.clone()));
        }
    }

    fn look_at_everything(&mut self) {
        let (pods, revision) = self.fake.with(|store| {
            let mine = store.all(Kind::Pod).filter(|(_, pod)| text(pod, "/spec/nodeName") == self.node.name);
            let pods: Vec<_> = mine.map(|(key, pod)| (key.clone(), text(pod, "/metadata/uid").to_owned())).collect();
            (pods, store.revision())
        });
        self.seen = revision;
        for (key, uid) in pods {
            self.meet(key, uid);
        }
        self.due.extend(self.pods.keys().cloned());
    }

    /// Takes a pod on, unless it is known already.
    fn meet(&mut self, key: ObjectKey, uid: String) {
        if !self.pods.contains_key(&uid)
            && let Some(pod) = self.read(&key, &uid)
        {
            self.pods.insert(uid.clone(), PodWork::new(&self.fake, key, uid.clone(), pod));
        }
        self.due.insert(uid);
    }

    fn read(&self, key: &ObjectKey, uid: &str) -> Option<Pod> {
        let pod = self.fake.with(|store| store.typed::<Pod>(key.namespace.as_deref(), &key.name));
        pod.filter(|pod| pod.metadata.uid.as_deref() == Some(uid))
    }

    /// The pod to look at next: any of those due.
    fn pick(&mut self) -> Option<String> {
        let choices = self.due.len();
        let index = match choices {
            0 => return None,
            1 => 0,
            _ => usize::try_from(self.fake.env().random_u64() % choices as u64).unwrap_or(0),
        };
        let uid = self.due.iter().nth(index).cloned()?;
        self.due.remove(&uid);
        Some(uid)
    }

    /// One look at one pod.
    fn sync(&mut self, uid: &str) {
        let Some(mut work) = self.pods.remove(uid) else { return };
        let Some(pod) = self.read(&work.key, uid) else {
            if work.orphaned(&self.fake) {
                self.pods.insert(uid.to_owned(), work);
            } else {
                self.fake.machines().with(|state| state.forget(uid));
            }
            return;
        };
        work.step(&self.fake, &self.node, pod);
        let (key, over) = (work.key.clone(), work.is_removal_due(&self.fake));
        let removed = over && !work.is_held();
        self.fake.with(|store| {
            let now = store.now_text();
            store.update(&key, |pod| {
                status::write(&work, &self.node, &now, pod);
                if over {
                    // Whoever takes away the last finalizer ends the object.
                    pod["metadata"]["deletionGracePeriodSeconds"] = 0.into();
                }
            });
            if removed {
                store.remove(&key);
            }
        });
        if removed {
            self.fake.machines().with(|state| state.forget(uid));
        } else {
            self.pods.insert(uid.to_owned(), work);
        }
    }

    async fn wait(&self) {
        let next = self.pods.values().filter_map(|work| work.next).min().filter(|_| !self.was_lost);
        let changed = std::pin::pin!(self.fake.changed(self.seen));
        let news = std::pin::pin!(self.fake.machines().news.past(self.heard));
        let either = select(changed, news);
        match next {
            Some(next) => drop(select(either, self.fake.env().clock.sleep_until(next)).await),
            None => match either.await {
                Either::Left(_) | Either::Right(_) => {}
            },
        }
    }
}

/// The earlier of two instants, where there are any.
fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}
