//! The port, spoken to an API server over HTTP.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::header::AUTHORIZATION;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected, Limited};
use kube::client::Body;
use pando_cluster::{
    ByteStream, Cluster, ClusterError, DeleteOptions, Env, EventStream, Failure, ListRequest, LogRequest, MergePatch,
    Object, ObjectKey, Page, WatchRequest,
};
use tokio::sync::Semaphore;
use tower::{BoxError, Service};

use crate::answer;
use crate::call::{self, Call};
use crate::connect::{ConnectError, ConnectOptions, FromOptions};
use crate::limiter::{Limiter, Rate};
use crate::session::{Connect, Means, Session, Sessions};
use crate::transport::Streams;
use crate::warnings::Warnings;
use crate::watch;

/// A Kubernetes cluster, reached over its API.
///
/// Every call is one attempt within the [`Rate`], except that an answer of 401 makes the credentials be loaded
/// again and the call be made once more. It has no deadline of its own; dropping a call's future ends it.
///
/// ```no_run
/// use pando_cluster::{Cluster, Kind, ListRequest, Scope};
/// use pando_kubecluster::{ConnectOptions, KubeCluster, tokio_env};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let cluster = KubeCluster::connect(&ConnectOptions::default(), tokio_env()).await?;
/// let nodes = cluster.list(&ListRequest::of(Kind::Node, Scope::All)).await?;
/// # Ok(())
/// # }
/// ```
pub struct KubeCluster {
    server: String,
    context: String,
    env: Env,
    sessions: Sessions,
    limiter: Limiter,
    /// Each call holds a connection while it lasts. Streams are not counted: their number is their openers' matter.
    at_once: Semaphore,
    warnings: Warnings,
    skipped: Skipped,
}

/// How many objects were left out because they could not be read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Skipped(Arc<AtomicU64>);

impl Skipped {
    pub(crate) fn add(&self, objects: u64) {
        self.0.fetch_add(objects, Ordering::Relaxed);
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl KubeCluster {
    /// So many calls are under way at once at most, and as many connections are open for them.
    pub const AT_ONCE: usize = 64;

    /// Prepares the way to the cluster that `options` mean. The API server is not asked yet.
    ///
    /// # Errors
    ///
    /// When the files, the credentials or the keys do not give a connection.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn connect(options: &ConnectOptions, env: Env) -> Result<Self, ConnectError> {
        let connect = FromOptions { options: options.clone(), env: env.clone() };
        let connected = connect.open().await?;
        let cluster = Self::new(connected.means, Box::new(connect), options.rate, env);
        Ok(Self { server: connected.server, context: connected.context, ..cluster })
    }

    /// A cluster whose API is `service`, in the same process; with [`Rate::default`] and no credentials.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn from_service<S, B>(service: S, env: Env) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let client = kube::Client::new(service, "default");
        Self::new(Means { client, token: None }, Box::new(NothingToRenew), Rate::default(), env)
    }

    /// The same with another limit on how many calls are made.
    #[must_use]
    pub fn with_rate(self, rate: Rate) -> Self {
        Self { limiter: Limiter::new(rate, self.env.clone()), ..self }
    }

    /// How many objects lists and watches left out because they could not be read; each was logged.
    pub fn left_out(&self) -> u64 {
        self.skipped.total()
    }

    pub(crate) fn new(means: Means, connect: Box<dyn Connect>, rate: Rate, env: Env) -> Self {
        Self {
            server: "in-process".to_owned(),
            context: "in-process".to_owned(),
            sessions: Sessions::new(means, connect, env.clone()),
            limiter: Limiter::new(rate, env.clone()),
            env,
            at_once: Semaphore::new(Self::AT_ONCE),
            warnings: Warnings::default(),
            skipped: Skipped::default(),
        }
    }

    /// Makes a call and reads its answer whole.
    async fn ask(&self, call: &Call) -> Result<Bytes, ClusterError> {
        // The semaphore is never closed, so this is always a place.
        let _place = self.at_once.acquire().await.ok();
        let answer = self.send(call).await?;
        let body = answer.into_body().collect().await;
        Ok(body.map_err(|error| answer::broken_off(&call.about, error))?.to_bytes())
    }

    /// Makes a call whose answer is a stream, and waits for its head.
    async fn open(&self, mut call: Call) -> Result<Response<Body>, ClusterError> {
        call.request.extensions_mut().insert(Streams);
        self.send(&call).await
    }

    /// Makes a call; the answer is a success, and its body is still to be read.
    async fn send(&self, call: &Call) -> Result<Response<Body>, ClusterError> {
        let session = self.sessions.current();
        let mut answer = self.attempt(&session, call).await?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            match self.sessions.after(&session).await {
                Ok(Some(renewed)) => answer = self.attempt(&renewed, call).await?,
                Ok(None) => {}
                Err(error) => return Err(call.about.fails(Failure::Unauthorized).caused_by(error)),
            }
        }
        self.warnings.log(answer.headers(), &call.about);
        if answer.status().is_success() { Ok(answer) } else { Err(refusal(call, answer).await) }
    }

    async fn attempt(&self, session: &Session, call: &Call) -> Result<Response<Body>, ClusterError> {
        self.limiter.acquire().await;
        let mut request = call.request.clone();
        if let Some(token) = &session.means.token {
            request.headers_mut().insert(AUTHORIZATION, token.authorization(self.env.now()));
        }
        let request = request.map(Body::from);
        let answer = session.means.client.send(request).await.map_err(|error| answer::no_answer(&call.about, error))?;
        let (method, uri) = (call.request.method(), call.request.uri());
        tracing::debug!(%method, %uri, status = answer.status().as_u16(), "call to the API server");
        Ok(answer)
    }
}

/// Reads why a call was refused.
async fn refusal(call: &Call, answer: Response<Body>) -> ClusterError {
    const LONGEST: usize = 1 << 20;
    let (head, body) = answer.into_parts();
    // A refusal whose reasons cannot be read is one without reasons: its code still counts.
    let body = Limited::new(body, LONGEST).collect().await.map_or_else(|_| Bytes::new(), Collected::to_bytes);
    answer::refusal(&call.about, head.status, &head.headers, &body)
}

/// A cluster in the same process has no credentials.
#[derive(Debug)]
struct NothingToRenew;

#[async_trait]
impl Connect for NothingToRenew {
    async fn connect(&self) -> Result<Option<Means>, ConnectError> {
        Ok(None)
    }
}

#[async_trait]
impl Cluster for KubeCluster {
    async fn get(&self, key: &ObjectKey) -> Result<Option<Object>, ClusterError> {
        let call = call::get(key)?;
        match self.ask(&call).await {
            Ok(body) => answer::object(&call.about, key, &body).map(Some),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ClusterError> {
        let call = call::list(request)?;
        let body = self.ask(&call).await?;
        let (page, skipped) = answer::page(&call.about, request.kind, &body)?;
        self.skipped.add(skipped);
        Ok(page)
    }

    async fn create(&self, object: &Object) -> Result<Object, ClusterError> {
        let call = call::create(object)?;
        let body = self.ask(&call).await?;
        answer::object(&call.about, &object.key(), &body)
    }

    async fn patch(&self, key: &ObjectKey, patch: &MergePatch) -> Result<Object, ClusterError> {
        let call = call::patch(key, patch)?;
        let body = self.ask(&call).await?;
        answer::object(&call.about, key, &body)
    }

    async fn delete(&self, key: &ObjectKey, options: &DeleteOptions) -> Result<(), ClusterError> {
        let call = call::delete(key, options)?;
        // The object or a Status, and neither says that the object is gone: only a read does.
        self.ask(&call).await.map(drop)
    }

    async fn watch(&self, request: &WatchRequest) -> Result<EventStream, ClusterError> {
        let call = call::watch(request)?;
        let about = call.about.clone();
        let body = self.open(call).await?.into_body().into_data_stream();
        Ok(watch::events(about, request.kind, body, self.skipped.clone()).boxed())
    }

    async fn logs(&self, request: &LogRequest) -> Result<ByteStream, ClusterError> {
        let call = call::logs(request)?;
        let about = call.about.clone();
        // The answer about a pod that has no node yet is 204, a success without a body: an empty log.
        let bytes = self.open(call).await?.into_body().into_data_stream();
        Ok(bytes.map_err(move |error| answer::broken_off(&about, error)).boxed())
    }
}

impl fmt::Debug for KubeCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeCluster")
            .field("server", &self.server)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}
