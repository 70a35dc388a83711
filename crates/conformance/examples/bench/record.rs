//! Calls and their times, and what follows from them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use pando_cluster::env::Instant;
use pando_cluster::{
    ByteStream, Cluster, ClusterError, DeleteOptions, Env, EventStream, Kind, ListRequest, LogRequest, MergePatch,
    Object, ObjectKey, Page, WatchRequest,
};

/// One call that was answered; of a stream, its opening.
#[derive(Clone, Copy, Debug)]
struct Span {
    verb: &'static str,
    kind: Kind,
    start: Instant,
    end: Instant,
}

/// A cluster that remembers what it was asked, and when.
#[derive(Debug)]
pub(crate) struct Recorder {
    cluster: Arc<dyn Cluster>,
    env: Env,
    spans: Mutex<Vec<Span>>,
}

impl Recorder {
    pub(crate) fn new(cluster: Arc<dyn Cluster>, env: Env) -> Self {
        Self { cluster, env, spans: Mutex::default() }
    }

    /// What was asked since `began`, and what follows from it for a call that came to its end now.
    pub(crate) fn figures(&self, began: Instant) -> Figures {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let since: Vec<Span> = spans.iter().filter(|span| span.start >= began).copied().collect();
        Figures::of(&since, began, self.env.now())
    }

    /// Whether a watch was opened for every kind that was listed.
    pub(crate) fn watches_what_it_lists(&self) -> bool {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let kinds = |verb| spans.iter().filter(|span| span.verb == verb).map(|span| span.kind).collect::<BTreeSet<_>>();
        kinds("list").is_subset(&kinds("watch"))
    }

    async fn note<T>(&self, verb: &'static str, kind: Kind, call: impl Future<Output = T>) -> T {
        let start = self.env.now();
        let answer = call.await;
        let end = self.env.now();
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).push(Span { verb, kind, start, end });
        answer
    }
}

#[async_trait]
impl Cluster for Recorder {
    async fn get(&self, key: &ObjectKey) -> Result<Option<Object>, ClusterError> {
        self.note("get", key.kind, self.cluster.get(key)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ClusterError> {
        self.note("list", request.kind, self.cluster.list(request)).await
    }

    async fn create(&self, object: &Object) -> Result<Object, ClusterError> {
        self.note("create", object.kind(), self.cluster.create(object)).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &MergePatch) -> Result<Object, ClusterError> {
        self.note("patch", key.kind, self.cluster.patch(key, patch)).await
    }

    async fn delete(&self, key: &ObjectKey, options: &DeleteOptions) -> Result<(), ClusterError> {
        self.note("delete", key.kind, self.cluster.delete(key, options)).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<EventStream, ClusterError> {
        self.note("watch", request.kind, self.cluster.watch(request)).await
    }

    async fn logs(&self, request: &LogRequest) -> Result<ByteStream, ClusterError> {
        self.note("log", Kind::Pod, self.cluster.logs(request)).await
    }
}

/// What a call of the adapter took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Calls to the API server.
    pub(crate) calls: usize,
    /// The most of them of which each began after the one before it was answered.
    pub(crate) trips: usize,
    /// From the call to its answer.
    pub(crate) total: Duration,
    /// While at least one call was in flight: the API server and the way to it.
    pub(crate) api: Duration,
    /// From the opening of a pod's gate to the end, while no call was in flight: scheduler, kubelet and isolation gate.
    pub(crate) kubelet: Duration,
    /// From the first write of a pod to the opening of its gate, while none was: images that are pulled and pods that end.
    pub(crate) waits: Duration,
    /// While none was before any pod was written: ourselves.
    pub(crate) ours: Duration,
}

impl Figures {
    fn of(spans: &[Span], began: Instant, ended: Instant) -> Self {
        let of_pods = || spans.iter().filter(|span| span.kind == Kind::Pod);
        let is_write = |span: &&Span| matches!(span.verb, "create" | "patch" | "delete");
        let touched = of_pods().filter(is_write).map(|span| span.start).min().unwrap_or(ended);
        let opened = of_pods().filter(|span| span.verb == "patch").map(|span| span.end).max().unwrap_or(ended);
        let opened = opened.max(touched);
        let idle = |from: Instant, until: Instant| until.since(from).saturating_sub(in_flight(spans, from, until));
        Self {
            calls: spans.len(),
            trips: trips(spans),
            total: ended.since(began),
            api: in_flight(spans, began, ended),
            kubelet: idle(opened, ended),
            waits: idle(touched, opened),
            ours: idle(began, touched),
        }
    }
}

/// How long at least one call was in flight between two moments.
fn in_flight(spans: &[Span], from: Instant, until: Instant) -> Duration {
    let mut within: Vec<_> = spans.iter().map(|span| (span.start.max(from), span.end.min(until))).collect();
    within.sort();
    let mut busy = Duration::ZERO;
    let mut covered = from;
    for (start, end) in within {
        let start = start.max(covered);
        if end > start {
            busy += end.since(start);
            covered = end;
        }
    }
    busy
}

/// The length of the longest chain of calls, each begun when the one before it had been answered.
fn trips(spans: &[Span]) -> usize {
    let mut spans = spans.to_vec();
    spans.sort_by_key(|span| span.start);
    let mut chains: Vec<usize> = Vec::new();
    for (index, span) in spans.iter().enumerate() {
        let before = spans[..index].iter().zip(&chains).filter(|(earlier, _)| earlier.end <= span.start);
        chains.push(1 + before.map(|(_, chain)| *chain).max().unwrap_or_default());
    }
    chains.into_iter().max().unwrap_or_default()
}
