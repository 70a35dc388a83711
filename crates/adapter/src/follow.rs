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
    Cluster, ClusterError, Env, Kind, ListRequest, ObjectKey, Resource, ResourceVersion, Scope, Selector, Told,
    list_watch, watch_on,
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
    followed: Followed,
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

/// Which pods of ours are followed.
#[derive(Clone, Debug)]
pub(crate) enum Followed {
    /// All of them, whatever they are for.
    All,
    /// Those that run workloads.
    Workloads,
    /// Those that run this workload.
    Workload(String),
    /// The one of this name, whatever it is for.
    Pod(String),
}

impl Follower {
    /// Begins to follow by a list and a watch of its own.
    pub(crate) fn start(cluster: &Arc<dyn Cluster>, env: &Env, namespace: &str, which: Followed) -> Self {
        Self::watching(cluster, env, namespace, which, None)
    }

    /// Goes on from a pod that was just made, the only one there is, by a watch of its own from that version on.
    pub(crate) fn after(cluster: &Arc<dyn Cluster>, env: &Env, made: &Pod, which: Followed) -> Self {
        let namespace = made.metadata.namespace.clone().unwrap_or_default();
        let from = ResourceVersion::of(&made.metadata);
        let mut follower = Self::watching(cluster, env, &namespace, which, from);
        follower.list(vec![made.clone()]);
        follower
    }

    fn watching(
        cluster: &Arc<dyn Cluster>,
        env: &Env,
        namespace: &str,
        which: Followed,
        from: Option<ResourceVersion>,
    ) -> Self {
        // What is told here may be ended: a stranger's pod that names our workload is none of ours. One of ours whose
        // workload's label was taken off is ours all the same, so labels ask for no more than that.
        let ours = Selector::everything().equals(label::MANAGED_BY, MANAGER);
        let request = ListRequest::of(Kind::Pod, Scope::Namespace(namespace.to_owned())).labelled(ours);
        let (sender, told) = unbounded();
        let (watched, clock) = (cluster.clone(), env.clone());
        let task = env.spawn("pod follower", async move {
            let tell = move |told| {
                // The receiver is gone only when this task is about to be.
                let _ = sender.unbounded_send(told);
            };
            match from {
                Some(from) => watch_on(&*watched, &clock, &request, from, tell).await,
                None => list_watch(&*watched, &clock, &request, tell).await,
            }
        });
        Self::of(told, cluster.clone(), which, Some(task))
    }

    /// Goes on from `listed`, the namespace's pods as the caller listed them, by what the view is told.
    ///
    /// `feed` must have been asked for **before** the pods were listed: so whatever is not in the list happens later and is
    /// told. The view's own picture at that moment is not used, since it may be older than the list; neither is a list of the
    /// view that began before this, of which only that is certain. Every change since such a list is told as well, so passing
    /// it over loses nothing.
    pub(crate) fn fed(feed: Feed, which: Followed, listed: Vec<Pod>) -> Self {
        let mut follower = Self::of(feed.told, feed.cluster, which, None);
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

    fn of(told: UnboundedReceiver<Told>, cluster: Arc<dyn Cluster>, which: Followed, task: Option<Task>) -> Self {
        Self {
            told,
            cluster,
            followed: which,
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
                    // One that had lost its labels for a while was told as gone.
                    self.gone.remove(&identity);
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
        self.gone.retain(|identity| !self.pods.contains_key(identity));
        self.lists += 1;
    }

    fn lose(&mut self, identity: Identity) {
        self.read.remove(&identity);
        self.pods.remove(&identity);
        self.gone.insert(identity);
    }

    fn is_followed(&self, pod: &Pod) -> bool {
        match &self.followed {
            Followed::All => true,
            Followed::Workloads => workload_of_pod(pod).is_some(),
            Followed::Workload(workload) => workload_of_pod(pod) == Some(workload),
            Followed::Pod(wanted) => name(&pod.metadata) == *wanted,
        }
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
            loop {
                // One that lost the label it is followed by is told as gone, and is not.
                if self.gone.remove(&identity) && self.is_read_gone(meta).await {
                    return;
                }
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

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use futures::channel::mpsc::UnboundedSender;
    use pando_cluster::env::{BoxFuture, Clock, Instant, Random, Spawn, Wall};
    use pando_cluster::{
        ByteStream, DeleteOptions, EventStream, Failure, LogRequest, MergePatch, Object, Page, Subject, WatchRequest,
    };
    use serde_json::json;

    use super::*;

    /// A cluster that can be asked for one pod.
    #[derive(Debug)]
    struct Holds(Option<Pod>);

    #[async_trait]
    impl Cluster for Holds {
        async fn get(&self, _: &ObjectKey) -> Result<Option<Object>, ClusterError> {
            Ok(self.0.clone().map(Object::from))
        }
        async fn list(&self, _: &ListRequest) -> Result<Page, ClusterError> {
            panic!("a fed follower lists nothing")
        }
        async fn create(&self, _: &Object) -> Result<Object, ClusterError> {
            panic!("a follower writes nothing")
        }
        async fn patch(&self, _: &ObjectKey, _: &MergePatch) -> Result<Object, ClusterError> {
            panic!("a follower writes nothing")
        }
        async fn delete(&self, _: &ObjectKey, _: &DeleteOptions) -> Result<(), ClusterError> {
            panic!("a follower writes nothing")
        }
        async fn watch(&self, _: &WatchRequest) -> Result<EventStream, ClusterError> {
            panic!("a fed follower watches nothing")
        }
        async fn logs(&self, _: &LogRequest) -> Result<ByteStream, ClusterError> {
            panic!("a follower reads no log")
        }
    }

    /// An environment in which no time passes.
    #[derive(Debug)]
    struct Still;

    impl Clock for Still {
        fn now(&self) -> Instant {
            Instant::default()
        }
        fn sleep_until(&self, _: Instant) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    impl Wall for Still {
        fn now(&self) -> jiff::Timestamp {
            jiff::Timestamp::UNIX_EPOCH
        }
    }

    impl Random for Still {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(0);
        }
    }

    impl Spawn for Still {
        fn spawn(&self, _: &'static str, _: BoxFuture<'static, ()>) {
            panic!("a fed follower needs no task")
        }
    }

    fn env() -> Env {
        Env { clock: Arc::new(Still), wall: Arc::new(Still), random: Arc::new(Still), tasks: Arc::new(Still) }
    }

    fn pod(name: &str, uid: &str, version: &str) -> Pod {
        let workload = name.split('-').next();
        serde_json::from_value(
            json!({"metadata": {"name": name, "namespace": "pando-a", "uid": uid, "resourceVersion": version,
            "labels": {"app.kubernetes.io/managed-by": "pando", "pando.dev/workload": workload}}}),
        )
        .expect("a pod")
    }

    fn is(name: &str, uid: &str, version: &str) -> Told {
        Told::Is(pod(name, uid, version).into())
    }

    fn gone(name: &str, uid: &str) -> Told {
        Told::Gone(pod(name, uid, "9").into())
    }

    fn all(pods: &[(&str, &str)]) -> Told {
        Told::All(pods.iter().map(|(name, uid)| pod(name, uid, "8").into()).collect())
    }

    fn broken() -> Told {
        let subject = Subject::Many("pods", None);
        Told::Broken(ClusterError::new("watch", subject, Failure::Unavailable("cut".to_owned())))
    }

    /// A follower of `web` that began with `listed`, after `before` had been told; and its feed's other end.
    fn fed(before: Vec<Told>, listed: &[(&str, &str)], read: Option<Pod>) -> (Follower, UnboundedSender<Told>) {
        let (sender, told) = unbounded();
        for told in before {
            sender.unbounded_send(told).expect("the follower is there");
        }
        let listed = listed.iter().map(|(name, uid)| pod(name, uid, "5")).collect();
        (
            Follower::fed(Feed { told, cluster: Arc::new(Holds(read)) }, Followed::Workload("web".to_owned()), listed),
            sender,
        )
    }

    fn names(follower: &Follower) -> Vec<(&str, &str)> {
        let known = follower.pods.keys();
        known.map(|(name, uid)| (name.as_str(), uid.as_deref().unwrap_or_default())).collect()
    }

    /// Whether the wait for that pod's end is over, with all that was told.
    fn is_over(follower: &mut Follower, name: &str, uid: &str) -> bool {
        let meta = pod(name, uid, "5").metadata;
        follower.until_gone(&env(), Duration::from_secs(1), &meta).now_or_never().is_some_and(|waited| waited.is_ok())
    }

    #[test]
    fn it_begins_with_the_callers_list_and_goes_on_by_what_is_told() {
        let (mut follower, view) = fed(vec![], &[("web-1", "a"), ("db-1", "d")], None);
        assert_eq!((names(&follower), follower.lists(), follower.breaks()), (vec![("web-1", "a")], 1, 0));
        for told in [is("web-2", "b", "6"), is("db-2", "e", "6"), gone("web-1", "a"), broken(), Told::Fresh] {
            view.unbounded_send(told).expect("the follower is there");
        }
        while follower.next().now_or_never().is_some() {}
        assert_eq!((names(&follower), follower.lists(), follower.breaks()), (vec![("web-2", "b")], 1, 1));
    }

    #[test]
    fn a_pod_whose_label_was_taken_off_is_followed_by_its_name() {
        let mut unlabelled = pod("web-1", "a", "6");
        unlabelled.metadata.labels.as_mut().expect("labels").remove(label::WORKLOAD);
        let (mut follower, _view) = fed(vec![], &[("web-1", "a")], None);
        follower.take(Told::Is(unlabelled.clone().into()));
        assert_eq!(follower.same(&unlabelled.metadata), Some(&unlabelled));
    }

    /// What was told before the list was made may be older than it, and about another pod of the name.
    #[test]
    fn what_is_older_than_the_list_takes_nothing_from_it() {
        for (what, before) in [
            ("an end of another pod", vec![gone("web-1", "old")]),
            ("a list that began before", vec![Told::Listing, all(&[])]),
            ("two of them", vec![Told::Listing, broken(), Told::Listing, all(&[("web-9", "z")])]),
        ] {
            let (mut follower, _view) = fed(before, &[("web-1", "a")], Some(pod("web-1", "a", "5")));
            assert_eq!((names(&follower), follower.lists()), (vec![("web-1", "a")], 1), "{what}");
            assert!(!is_over(&mut follower, "web-1", "a"), "{what}");
        }
        let (follower, _view) = fed(vec![is("web-1", "old", "2")], &[("web-1", "a")], None);
        assert_eq!(names(&follower), [("web-1", "a"), ("web-1", "old")], "an older one that is still to end");
    }

    #[test]
    fn a_list_that_was_under_way_is_passed_over_and_a_later_one_counts() {
        let (mut follower, _view) = fed(vec![Told::Listing], &[("web-1", "a")], None);
        follower.take(all(&[]));
        assert_eq!((names(&follower), follower.lists()), (vec![("web-1", "a")], 1), "it began before the caller's");
        follower.take(Told::Listing);
        follower.take(all(&[("web-2", "b")]));
        assert_eq!((names(&follower), follower.lists()), (vec![("web-2", "b")], 2));
        assert!(is_over(&mut follower, "web-1", "a"), "a later list does not hold it");
        let (mut follower, _view) = fed(vec![Told::Listing], &[("web-1", "a")], None);
        for told in [broken(), Told::Listing, all(&[])] {
            follower.take(told);
        }
        assert_eq!((names(&follower), follower.lists()), (vec![], 2), "the one that was under way came to nothing");
    }

    #[test]
    fn a_pod_is_gone_when_that_was_told_and_not_before() {
        let (mut follower, view) = fed(vec![], &[("web-1", "a")], Some(pod("web-1", "a", "5")));
        assert!(!is_over(&mut follower, "web-1", "a"));
        view.unbounded_send(gone("web-1", "old")).expect("the follower is there");
        assert!(!is_over(&mut follower, "web-1", "a"), "that was another pod of its name");
        view.unbounded_send(gone("web-1", "a")).expect("the follower is there");
        assert!(!is_over(&mut follower, "web-1", "a"), "only a label was taken off it: a read still finds it");
        let (mut follower, view) = fed(vec![], &[("web-1", "a")], None);
        view.unbounded_send(gone("web-1", "a")).expect("the follower is there");
        assert!(is_over(&mut follower, "web-1", "a"));
        assert!(is_over(&mut follower, "web-1", "a"), "and stays so");
    }

    #[test]
    fn a_pod_that_comes_back_under_its_identity_is_not_gone() {
        for back in [is("web-1", "a", "7"), all(&[("web-1", "a")])] {
            let (mut follower, _view) = fed(vec![], &[("web-1", "a")], Some(pod("web-1", "a", "7")));
            follower.take(gone("web-1", "a"));
            follower.take(back);
            assert!(!is_over(&mut follower, "web-1", "a"), "its labels were taken off and put back");
        }
    }

    /// A pod that the caller made after its list: that nothing was told of it yet is no sign of its end.
    #[test]
    fn a_pod_that_was_never_told_of_is_read() {
        let (mut follower, _view) = fed(vec![], &[], Some(pod("web-2", "b", "7")));
        assert!(!is_over(&mut follower, "web-2", "b"), "it is there");
        assert_eq!(names(&follower), [("web-2", "b")], "and known from now on");
        follower.take(Told::Listing);
        follower.take(all(&[]));
        assert!(!is_over(&mut follower, "web-2", "b"), "a list may be older than the read");
        for read in [None, Some(pod("web-2", "another", "7"))] {
            let (mut follower, _view) = fed(vec![], &[], read.clone());
            assert!(is_over(&mut follower, "web-2", "b"), "it went before it was told of: {read:?}");
        }
    }
}
