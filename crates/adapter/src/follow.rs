//! Following a namespace's pods while a call waits for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_cluster::env::{Elapsed, Task};
use pando_cluster::names::{MANAGER, label};
use pando_cluster::{
    Cluster, ClusterError, Env, Kind, ListRequest, ObjectKey, Resource, Scope, Selector, Told, list_watch,
};

use crate::call::name;
use crate::objects::workload_of_pod;
use crate::view::Feed;

/// Knows the pods of one namespace, or of one workload in it: from a list and a watch of its own, or from a list of the
/// caller's and what the view is told.
///
/// Pods are known by their identity, never by name alone: what is told may be older than the list that it began with, and
/// then of another pod of that name. Such an older state may replace a newer one for a moment; that is harmless, since a
/// watch tells in order and ends with the newest, and since nothing is ever concluded from a pod's *absence* but by
/// evidence that is newer than the pod: that its very end was told, that a later list does not hold it, or a read of it.
///
/// What waits on a follower ends by its own deadline, since a watch may stay broken.
#[derive(Debug)]
pub(crate) struct Follower {
    told: UnboundedReceiver<Told>,
    cluster: Arc<dyn Cluster>,
    workload: Option<String>,
    /// By name and identity.
    pods: BTreeMap<Identity, Pod>,
    /// Those of them that were read, and not told of so far.
    read: BTreeSet<Identity>,
    /// Those that were told of once and are gone.
    gone: BTreeSet<Identity>,
    /// A list that began too early is under way: it is passed over.
    is_list_old: bool,
    lists: u32,
    breaks: u32,
    trouble: Option<ClusterError>,
    /// The follower's own watch, where it has one.
    _task: Option<Task>,
}

type Identity = (String, Option<String>);

impl Follower {
    /// Begins to follow by a watch of its own; `workload` narrows it to that workload's pods.
    pub(crate) fn start(cluster: &Arc<dyn Cluster>, env: &Env, namespace: &str, workload: Option<&str>) -> Self {
        // What is told here may be ended: a stranger's pod that names our workload is none of ours. One of ours whose
        // workload's label was taken off is ours all the same, so labels ask for no more than that.
        let ours = Selector::everything().equals(label::MANAGED_BY, MANAGER);
        let request = ListRequest::of(Kind::Pod, Scope::Namespace(namespace.to_owned())).labelled(ours);
        let (sender, told) = unbounded();
        let (watched, clock) = (cluster.clone(), env.clone());
        let task = env.spawn("pod follower", async move {
            list_watch(&*watched, &clock, &request, move |told| {
                // The receiver is gone only when this task is about to be.
                let _ = sender.unbounded_send(told);
            })
            .await;
        });
        Self::of(told, cluster.clone(), workload, Some(task))
    }

    /// Goes on from `listed`, the namespace's pods as the caller listed them, by what the view is told.
    ///
    /// `feed` must have been asked for **before** the pods were listed: so whatever is not in the list happens later and is
    /// told. The view's own picture at that moment is not used, since it may be older than the list; neither is a list of the
    /// view that began before this, of which only that is certain. Every change since such a list is told as well, so passing
    /// it over loses nothing.
    #[cfg_attr(not(test), expect(dead_code, reason = "waiting calls come to be fed by it"))]
    pub(crate) fn fed(feed: Feed, workload: Option<&str>, listed: Vec<Pod>) -> Self {
        let mut follower = Self::of(feed.told, feed.cluster, workload, None);
        follower.list(listed);
        while let Some(Some(told)) = follower.told.next().now_or_never() {
            follower.is_list_old = match &told {
                Told::Listing => true,
                Told::All(_) | Told::Broken(_) => false,
                Told::Is(_) | Told::Gone(_) | Told::Fresh => follower.is_list_old,
            };
            if !matches!(told, Told::Listing | Told::All(_)) {
                follower.take(told);
            }
        }
        follower
    }

    fn of(
        told: UnboundedReceiver<Told>,
        cluster: Arc<dyn Cluster>,
        workload: Option<&str>,
        task: Option<Task>,
    ) -> Self {
        Self {
            told,
            cluster,
            workload: workload.map(str::to_owned),
            pods: BTreeMap::new(),
            read: BTreeSet::new(),
            gone: BTreeSet::new(),
            is_list_old: false,
            lists: 0,
            breaks: 0,
            trouble: None,
            _task: task,
        }
    }

    /// The pods as last told.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    /// The pod with that identity; `None` when it is gone, or was never told of.
    pub(crate) fn same(&self, meta: &ObjectMeta) -> Option<&Pod> {
        self.pods.get(&identity(meta))
    }

    /// How often the pods were listed so far.
    pub(crate) const fn lists(&self) -> u32 {
        self.lists
    }

    /// How often the connection was broken so far.
    pub(crate) const fn breaks(&self) -> u32 {
        self.breaks
    }

    /// Takes in the next thing told.
    pub(crate) async fn next(&mut self) {
        match self.told.next().await {
            Some(told) => self.take(told),
            // A watch never ends by itself. A view that is dropped has no more to tell: the waits' deadlines follow.
            None => std::future::pending().await,
        }
    }

    fn take(&mut self, told: Told) {
        match told {
            Told::Listing => self.is_list_old = false,
            Told::All(_) if self.is_list_old => self.is_list_old = false,
            Told::All(objects) => self.list(objects.into_iter().filter_map(Pod::from_object).collect()),
            Told::Is(object) => {
                if let Some(pod) = Pod::from_object(object).filter(|pod| self.is_followed(pod)) {
                    let identity = identity(&pod.metadata);
                    self.read.remove(&identity);
                    self.pods.insert(identity, pod);
                }
            }
            Told::Gone(object) => self.lose(identity(object.meta())),
            Told::Fresh => {}
            Told::Broken(error) => {
                self.breaks += 1;
                self.trouble = Some(error);
            }
        }
    }

    fn list(&mut self, pods: Vec<Pod>) {
        let followed = pods.into_iter().filter(|pod| self.is_followed(pod));
        let pods: BTreeMap<_, _> = followed.map(|pod| (identity(&pod.metadata), pod)).collect();
        let before = std::mem::replace(&mut self.pods, pods);
        for identity in before.into_keys() {
            // One that was read may be younger than the list.
            if !self.read.remove(&identity) && !self.pods.contains_key(&identity) {
                self.gone.insert(identity);
            }
        }
        self.lists += 1;
    }

    fn lose(&mut self, identity: Identity) {
        self.read.remove(&identity);
        self.pods.remove(&identity);
        self.gone.insert(identity);
    }

    fn is_followed(&self, pod: &Pod) -> bool {
        let workload = workload_of_pod(pod);
        workload.is_some() && self.workload.as_deref().is_none_or(|followed| workload == Some(followed))
    }

    /// Waits until the pods were listed once.
    ///
    /// # Errors
    ///
    /// Why they could not be, once `limit` has passed.
    pub(crate) async fn listed(&mut self, env: &Env, limit: Duration) -> Result<(), Option<ClusterError>> {
        let listed = env
            .timeout(limit, async {
                while self.lists == 0 {
                    self.next().await;
                }
            })
            .await;
        listed.map_err(|_: Elapsed| self.trouble.take())
    }

    /// Waits until the pod of that identity is gone. One that was never told of is no proof of that: it may be younger than
    /// what was told, so it is read.
    ///
    /// # Errors
    ///
    /// When `limit` passed first.
    pub(crate) async fn until_gone(&mut self, env: &Env, limit: Duration, meta: &ObjectMeta) -> Result<(), Elapsed> {
        let identity = identity(meta);
        env.timeout(limit, async {
            while !self.gone.contains(&identity) {
                if self.lists > 0 && !self.pods.contains_key(&identity) && self.is_read_gone(meta).await {
                    return;
                }
                self.next().await;
            }
        })
        .await
    }

    /// Whether a read says that the pod is gone; if it is there, it is known from now on.
    async fn is_read_gone(&mut self, meta: &ObjectMeta) -> bool {
        let key = ObjectKey::namespaced(Kind::Pod, meta.namespace.clone().unwrap_or_default(), name(meta));
        match self.cluster.get(&key).await {
            Ok(read) => match read.and_then(Pod::from_object).filter(|read| read.metadata.uid == meta.uid) {
                Some(pod) => {
                    let identity = identity(&pod.metadata);
                    self.read.insert(identity.clone());
                    self.pods.insert(identity, pod);
                    false
                }
                None => true,
            },
            // The next thing told asks again.
            Err(_) => false,
        }
    }
}

fn identity(meta: &ObjectMeta) -> Identity {
    (name(meta), meta.uid.clone())
}
