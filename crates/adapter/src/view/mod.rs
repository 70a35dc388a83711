//! The view: one watch-fed, pruned copy of what the adapter must see across the cluster.
//!
//! [`State`] holds it and decides, without an await; this module is the shell around it: a watch of each kind feeds it, and
//! what it finds to be put right ([`hygiene`]) is done here.
//!
//! **How fresh it is.** The view speaks for a namespace only while every watch lives (it has listed once, is not broken and
//! told something within `budget::WATCH_SILENCE`) and has told of everything that this process wrote there or saw by another
//! way ([`Viewed`]). Otherwise it answers nothing, and the caller asks the cluster. Versions are compared for equality alone.
//!
//! After a break the watch goes on from where it was, which spares the server a list of everything; it is relied on again with
//! the next thing told, a bookmark within a minute at the latest.

mod feed;
mod hygiene;
mod kept;
mod mirror;
mod prune;
mod state;
#[cfg(test)]
mod tests;
mod viewed;
mod writes;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use pando_api::{Code, Error};
use pando_cluster::env::Task;
use pando_cluster::names::{MANAGER, is_ours, label};
use pando_cluster::{
    Cluster, ClusterError, Env, Kind, ListRequest, Object, ObjectKey, ResourceVersion, Scope, Selector, Told, Uid,
    list_watch_as,
};

use self::hygiene::Repair;
use self::kept::Heard;
use self::state::{Stale, State};
pub(crate) use self::viewed::Viewed;
use self::writes::Write;
use crate::known::ClusterFacts;

/// The kinds that are watched.
const KINDS: [Kind; 8] = [
    Kind::Namespace,
    Kind::Node,
    Kind::Pod,
    Kind::Service,
    Kind::PersistentVolumeClaim,
    Kind::NetworkPolicy,
    Kind::EndpointSlice,
    Kind::PersistentVolume,
];

/// How many repairs are under way at once: many pods end together when a node goes.
const HANDS: usize = 8;

/// What is watched of a kind.
///
/// Namespaces without a label, so that one of a wanted name that is not ours is told from none. Pods and Services by who made
/// them alone, so that one that lost its workload's label is still seen.
fn request(kind: Kind) -> ListRequest {
    let everywhere = ListRequest::of(kind, Scope::All);
    match kind {
        Kind::Pod | Kind::Service | Kind::PersistentVolumeClaim => {
            everywhere.labelled(Selector::everything().equals(label::MANAGED_BY, MANAGER))
        }
        Kind::EndpointSlice => ListRequest::of(kind, Scope::Namespace("default".to_owned()))
            .with_fields(Selector::everything().equals("metadata.name", "kubernetes")),
        _ => everywhere,
    }
}

/// Whether the view is told of this object; [`request`] says the same to the API server.
fn is_watched(object: &Object) -> bool {
    match object.kind() {
        Kind::Pod | Kind::Service | Kind::PersistentVolumeClaim => is_ours(object.meta()),
        kind => KINDS.contains(&kind),
    }
}

/// What there is of an app, as the view knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AppView {
    /// Its namespace; `None` when there is none of that name. It may be somebody else's.
    pub(crate) namespace: Option<Namespace>,
    /// Services of ours.
    pub(crate) records: Vec<Service>,
    /// Pods of ours.
    pub(crate) pods: Vec<Pod>,
    /// Claims of ours.
    pub(crate) claims: Vec<PersistentVolumeClaim>,
    /// Network policies, of whomever.
    pub(crate) policies: Vec<NetworkPolicy>,
    /// Volumes that are bound to claims in its namespace, or were.
    pub(crate) volumes: Vec<PersistentVolume>,
}

/// What happens to the pods of a namespace from a moment on.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) told: UnboundedReceiver<Told>,
    pub(crate) cluster: Arc<dyn Cluster>,
}

/// The view. It is kept up to date until it is dropped.
#[derive(Debug)]
pub(crate) struct View {
    shared: Arc<Shared>,
    _tasks: Vec<Task>,
}

/// Tells the view what this process is told by another way.
struct Ears(Arc<Shared>);

impl Ears {
    fn saw(&self, object: &Object) {
        self.0.saw(object);
    }

    fn saw_gone(&self, object: &Object) {
        if let (true, Some(uid)) = (is_watched(object), Uid::of(object.meta())) {
            self.0.await_write(object.key(), Write::Gone { uid });
        }
    }
}

#[derive(Debug)]
struct Shared {
    cluster: Arc<dyn Cluster>,
    env: Env,
    state: Mutex<State>,
}

impl View {
    /// Begins to watch.
    pub(crate) fn start(cluster: &Arc<dyn Cluster>, env: &Env) -> Self {
        let shared = Arc::new(Shared { cluster: cluster.clone(), env: env.clone(), state: Mutex::default() });
        let (to_mend, repairs) = unbounded();
        let mut tasks: Vec<_> =
            KINDS.into_iter().map(|kind| env.spawn("view", Arc::clone(&shared).watch(kind, to_mend.clone()))).collect();
        tasks.push(env.spawn("hygiene", Arc::clone(&shared).mend(repairs)));
        Self { shared, _tasks: tasks }
    }

    /// Waits until everything was listed once.
    ///
    /// # Errors
    ///
    /// [`Code::AdapterUnavailable`] when that is not so within `limit`: it names the kinds, and why.
    pub(crate) async fn listed(&self, limit: Duration) -> Result<(), Error> {
        let listing = async {
            while let Some(change) = self.shared.until_listed() {
                // Nobody takes the sender away while the view is there.
                let _ = change.await;
            }
        };
        if self.shared.env.timeout(limit, listing).await.is_ok() {
            return Ok(());
        }
        let unlisted = self.shared.state().unlisted();
        let kinds: Vec<_> = unlisted
            .into_iter()
            .map(|(kind, trouble)| format!("{} ({})", kind.plural(), trouble.as_deref().unwrap_or("no answer yet")))
            .collect();
        let message =
            format!("the cluster cannot be watched: {} not listed in {} s", kinds.join(", "), limit.as_secs());
        Err(Error::new(Code::AdapterUnavailable, message)
            .remedy("check that Pando's account holds the ClusterRole of this version (deploy/kubernetes)"))
    }

    /// Whether there is surely no namespace of that name. `false` proves nothing.
    pub(crate) fn is_absent(&self, namespace: &str) -> bool {
        self.shared.state().is_absent(namespace, self.shared.env.now())
    }

    /// What there is of an app now; `None` when that is not known for sure.
    pub(crate) fn app(&self, namespace: &str) -> Option<AppView> {
        let app = self.shared.state().app(namespace, self.shared.env.now());
        app.inspect_err(|stale| say_why(namespace, *stale)).ok()
    }

    /// The same, once what this process wrote was told, for which it waits up to `limit`. A watch that is broken or silent is
    /// not waited for.
    pub(crate) async fn current(&self, namespace: &str, limit: Duration) -> Option<AppView> {
        let caught_up = async {
            while let Some(change) = self.shared.until_told(namespace) {
                let _ = change.await;
            }
        };
        // Whether it caught up in time is told by what it answers.
        let _ = self.shared.env.timeout(limit, caught_up).await;
        self.app(namespace)
    }

    /// What calls need to know of the cluster; `None` when that is not known for sure.
    pub(crate) fn facts(&self) -> Option<Arc<ClusterFacts>> {
        self.shared.state().facts(self.shared.env.now()).ok()
    }

    /// What happens to the namespace's pods from now on; `None` when the watch cannot be relied on.
    pub(crate) fn follow(&self, namespace: &str) -> Option<Feed> {
        let told = self.shared.state().follow(namespace, self.shared.env.now())?;
        Some(Feed { told, cluster: self.shared.cluster.clone() })
    }

    /// This process made or changed the object, which is stored like this since.
    pub(crate) fn wrote(&self, stored: &Object) {
        self.shared.saw(stored);
    }

    /// This process told the object of this identity to go.
    pub(crate) fn deleted(&self, key: &ObjectKey, uid: &Uid) {
        self.shared.await_write(key.clone(), Write::Deleted { uid: uid.clone() });
    }

    /// This process read the object by another way.
    pub(crate) fn saw(&self, object: &Object) {
        self.shared.saw(object);
    }

    /// This process looked for the object by another way, and found none.
    pub(crate) fn saw_nothing(&self, key: &ObjectKey) {
        self.shared.state().await_absence(key, self.shared.env.now());
    }

    /// Hears what a watch of somebody else tells, for as long as that goes on.
    fn ears(&self) -> Ears {
        Ears(self.shared.clone())
    }

    /// This process may have written the object: no answer came.
    pub(crate) fn may_have_written(&self, key: &ObjectKey) {
        self.shared.await_write(key.clone(), Write::Doubtful);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn saw(&self, object: &Object) {
        if let (true, Some(version)) = (is_watched(object), ResourceVersion::of(object.meta())) {
            self.await_write(object.key(), Write::Stored { uid: Uid::of(object.meta()), version });
        }
    }

    fn await_write(&self, key: ObjectKey, write: Write) {
        self.state().await_write(key, write, self.env.now());
    }

    /// Something to wait for while not everything was listed.
    fn until_listed(&self) -> Option<futures::channel::oneshot::Receiver<()>> {
        let mut state = self.state();
        (!state.unlisted().is_empty()).then(|| state.change())
    }

    /// Something to wait for while only own writes are missing.
    fn until_told(&self, namespace: &str) -> Option<futures::channel::oneshot::Receiver<()>> {
        let mut state = self.state();
        (state.is_current(namespace, self.env.now()) == Err(Stale::Writes)).then(|| state.change())
    }

    /// Feeds the state with a kind for ever.
    async fn watch(self: Arc<Self>, kind: Kind, to_mend: UnboundedSender<Repair>) {
        let take = |told| {
            let news = self.state().take(kind, told, self.env.now());
            if let Some(error) = news.broke {
                tracing::warn!(kind = kind.plural(), error, "watch broken: read directly until it is back");
            }
            if news.is_back {
                tracing::info!(kind = kind.plural(), "watch is back");
            }
            for repair in news.repairs {
                // The receiver goes only together with this task.
                let _ = to_mend.unbounded_send(repair);
            }
            for waiting in self.state().take_waiting() {
                // One that waits no more is no loss.
                let _ = waiting.send(());
            }
        };
        list_watch_as(&*self.cluster, &self.env, &request(kind), Heard::of, take).await;
    }

    /// Carries out repairs for ever.
    async fn mend(self: Arc<Self>, repairs: UnboundedReceiver<Repair>) {
        let shared = &self;
        repairs.for_each_concurrent(HANDS, |repair| shared.repair(repair)).await;
    }

    async fn repair(&self, repair: Repair) {
        let failure = match self.cluster.patch(&repair.key, &repair.patch()).await {
            Ok(_) => {
                tracing::info!(object = %repair.key, why = repair.why, "repaired");
                None
            }
            // Another state of it was told by now, or is about to be: that decides anew.
            Err(error) if error.is_conflict() || error.is_not_found() => None,
            Err(error) => Some(error),
        };
        self.tried(repair, failure);
    }

    fn tried(&self, repair: Repair, failure: Option<ClusterError>) {
        let (key, why) = (repair.key.clone(), repair.why);
        let is_first = self.state().tried(repair, failure.is_some());
        if let (Some(error), true) = (failure, is_first) {
            tracing::warn!(object = %key, why, error = &error as &dyn std::error::Error, "not repaired: tried again");
        }
    }
}

fn say_why(namespace: &str, stale: Stale) {
    let (why, kind) = match stale {
        Stale::Watch(kind) => ("its watch is broken or silent", Some(kind)),
        Stale::Writes => ("an own write was not told yet", None),
        Stale::Unreadable(kind) => ("what is kept cannot be read", Some(kind)),
    };
    tracing::debug!(namespace, why, kind = kind.map(Kind::name), "read directly, not from the view");
}
