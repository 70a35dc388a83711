//! A cluster whose logs come badly.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use pando_cluster::{
    ByteStream, Cluster, ClusterError, DeleteOptions, EventStream, Failure, Kind, ListRequest, LogRequest, MergePatch,
    Object, ObjectKey, Page, WatchRequest,
};

/// What becomes of one answer (F-24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tear {
    /// It comes whole.
    Not,
    /// The connection breaks after so many bytes.
    Cut(usize),
    /// It ends after so many bytes as if that were all, as when an API server loses its node.
    Close(usize),
    /// Nothing more comes after so many bytes.
    Silence(usize),
    /// The node says this and nothing else, with status 200.
    Words(&'static str),
}

/// Says what becomes of an answer, by its number from 0 on.
type Tearing = dyn Fn(usize, &LogRequest) -> Tear + Send + Sync;

/// Decorates any cluster: its logs come in small pieces, and as it is told for each answer.
pub(crate) struct Torn {
    inner: Arc<dyn Cluster>,
    piece: usize,
    answers: AtomicUsize,
    tear: Box<Tearing>,
}

impl Torn {
    /// Logs of `inner` in pieces of at most `piece` bytes; `tear` is asked for each answer.
    pub(crate) fn new(
        inner: Arc<dyn Cluster>,
        piece: usize,
        tear: impl Fn(usize, &LogRequest) -> Tear + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { inner, piece, answers: AtomicUsize::new(0), tear: Box::new(tear) })
    }

    /// How many answers were asked for.
    pub(crate) fn answers(&self) -> usize {
        self.answers.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Torn").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// The first `length` bytes of an answer, in pieces.
fn beginning(bytes: ByteStream, piece: usize, length: usize) -> ByteStream {
    let pieces = bytes.flat_map(move |next| {
        let pieces: Vec<_> = match next {
            Ok(mut bytes) => std::iter::from_fn(|| {
                let next = bytes.split_to(bytes.len().min(piece));
                (!next.is_empty()).then_some(Ok(next))
            })
            .collect(),
            Err(error) => vec![Err(error)],
        };
        stream::iter(pieces)
    });
    let begun = pieces.scan(length, |left, next| {
        let next = match next {
            Ok(_) if *left == 0 => None,
            Ok(mut bytes) => {
                let now: Bytes = bytes.split_to(bytes.len().min(*left));
                *left -= now.len();
                Some(Ok(now))
            }
            Err(error) => Some(Err(error)),
        };
        futures::future::ready(next)
    });
    begun.boxed()
}

#[async_trait]
impl Cluster for Torn {
    async fn get(&self, key: &ObjectKey) -> Result<Option<Object>, ClusterError> {
        self.inner.get(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ClusterError> {
        self.inner.list(request).await
    }

    async fn create(&self, object: &Object) -> Result<Object, ClusterError> {
        self.inner.create(object).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &MergePatch) -> Result<Object, ClusterError> {
        self.inner.patch(key, patch).await
    }

    async fn delete(&self, key: &ObjectKey, options: &DeleteOptions) -> Result<(), ClusterError> {
        self.inner.delete(key, options).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<EventStream, ClusterError> {
        self.inner.watch(request).await
    }

    async fn logs(&self, request: &LogRequest) -> Result<ByteStream, ClusterError> {
        let tear = (self.tear)(self.answers.fetch_add(1, Ordering::Relaxed), request);
        if let Tear::Words(words) = tear {
            return Ok(stream::iter([Ok(Bytes::from_static(words.as_bytes()))]).boxed());
        }
        let bytes = self.inner.logs(request).await?;
        let key = ObjectKey::namespaced(Kind::Pod, &*request.namespace, &*request.pod);
        Ok(match tear {
            Tear::Not | Tear::Words(_) => beginning(bytes, self.piece, usize::MAX),
            Tear::Close(length) => beginning(bytes, self.piece, length),
            Tear::Silence(length) => beginning(bytes, self.piece, length).chain(stream::pending()).boxed(),
            Tear::Cut(length) => {
                let broken = move || {
                    let failure = Failure::Unavailable("the connection broke".to_owned());
                    Err(ClusterError::new("read the log of", key, failure))
                };
                beginning(bytes, self.piece, length).chain(stream::once(async { broken() })).boxed()
            }
        })
    }
}
