//! The way from one process to the cluster, with hands on it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::channel::oneshot;
use futures::{StreamExt, stream};
use pando_cluster::{
    ByteStream, Cluster, ClusterError, DeleteOptions, Env, EventStream, Failure, Kind, ListRequest, LogRequest,
    MergePatch, Object, ObjectKey, Page, Subject, WatchRequest,
};

/// Passes every call on, counts them, and does to watches what it is told to.
#[derive(Debug)]
pub(crate) struct Wire {
    cluster: Arc<dyn Cluster>,
    env: Env,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<String>,
    lists: BTreeMap<Kind, usize>,
    is_cut: bool,
    is_silent: bool,
    late: Duration,
    /// What ends each open watch.
    open: Vec<oneshot::Sender<()>>,
}

impl Wire {
    /// A way on which nothing goes wrong so far.
    pub(crate) fn new(cluster: Arc<dyn Cluster>, env: Env) -> Arc<Self> {
        Arc::new(Self { cluster, env, state: Arc::default() })
    }

    /// Ends every watch with an error, and refuses new ones until [`Self::mend`].
    pub(crate) fn cut(&self) {
        let open = {
            let mut state = self.state();
            state.is_cut = true;
            std::mem::take(&mut state.open)
        };
        for watch in open {
            // One that has ended by itself needs no end.
            let _ = watch.send(());
        }
    }

    /// Lets no watch say anything more, until [`Self::mend`]; what is not said is lost.
    pub(crate) fn silence(&self) {
        self.state().is_silent = true;
    }

    /// Lets watches be as they are.
    pub(crate) fn mend(&self) {
        let mut state = self.state();
        state.is_cut = false;
        state.is_silent = false;
    }

    /// Lets every watch say each thing so much later.
    pub(crate) fn delay(&self, late: Duration) {
        self.state().late = late;
    }

    /// Every call so far, in words.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// How many lists of a kind there were.
    pub(crate) fn lists(&self, kind: Kind) -> usize {
        self.state().lists.get(&kind).copied().unwrap_or(0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, verb: &str, of: &dyn std::fmt::Display) {
        self.state().calls.push(format!("{verb} {of}"));
    }
}

#[async_trait]
impl Cluster for Wire {
    async fn get(&self, key: &ObjectKey) -> Result<Option<Object>, ClusterError> {
        self.note("get", key);
        self.cluster.get(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ClusterError> {
        self.note("list", &request.kind);
        *self.state().lists.entry(request.kind).or_default() += 1;
        self.cluster.list(request).await
    }

    async fn create(&self, object: &Object) -> Result<Object, ClusterError> {
        self.note("create", &object.key());
        self.cluster.create(object).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &MergePatch) -> Result<Object, ClusterError> {
        self.note("patch", key);
        self.cluster.patch(key, patch).await
    }

    async fn delete(&self, key: &ObjectKey, options: &DeleteOptions) -> Result<(), ClusterError> {
        self.note("delete", key);
        self.cluster.delete(key, options).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<EventStream, ClusterError> {
        self.note("watch", &request.kind);
        let plural = request.kind.plural();
        let broken = move || {
            let failure = Failure::Unavailable("the connection was cut".to_owned());
            ClusterError::new("watch", Subject::Many(plural, None), failure)
        };
        if self.state().is_cut {
            return Err(broken());
        }
        let events = self.cluster.watch(request).await?;
        let (sender, cut) = oneshot::channel();
        self.state().open.push(sender);
        let (state, env) = (Arc::clone(&self.state), self.env.clone());
        let heard = events.filter_map(move |event| {
            let (is_silent, late) = {
                let state = state.lock().unwrap_or_else(PoisonError::into_inner);
                (state.is_silent, state.late)
            };
            let env = env.clone();
            async move {
                if !late.is_zero() {
                    env.sleep(late).await;
                }
                (!is_silent).then_some(event)
            }
        });
        // The sender goes with this way: by then nobody listens.
        let mut ended = Box::pin(heard).take_until(cut);
        let mut is_over = false;
        let stream = stream::poll_fn(move |context| {
            if is_over {
                return std::task::Poll::Ready(None);
            }
            let next = ended.poll_next_unpin(context);
            if let std::task::Poll::Ready(None) = next {
                is_over = true;
                return std::task::Poll::Ready(ended.is_stopped().then(|| Err(broken())));
            }
            next
        });
        Ok(stream.boxed())
    }

    async fn logs(&self, request: &LogRequest) -> Result<ByteStream, ClusterError> {
        self.note("log", &request.pod);
        self.cluster.logs(request).await
    }
}
