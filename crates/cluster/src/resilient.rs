//! Deadlines and retries, once for every cluster.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::budget;
use crate::env::{Env, Instant};
use crate::error::{ClusterError, Failure, Subject};
use crate::object::{Object, ObjectKey};
use crate::port::{
    ByteStream, Cluster, DeleteOptions, EventStream, ListRequest, LogRequest, MergePatch, Page, Scope, WatchRequest,
};

/// A cluster whose every call has a deadline and is tried again while that can help (S-9).
///
/// A write that may have happened is repeated only because it cannot happen twice: creates use fixed names,
/// patches carry a version, deletes a uid. So a create whose answer was lost may end as
/// [`Failure::AlreadyExists`], and such a patch as [`Failure::Conflict`]: the caller reads and compares.
#[derive(Clone, Debug)]
pub struct Resilient {
    inner: Arc<dyn Cluster>,
    env: Env,
}

impl Resilient {
    /// Guards every call to `inner`.
    pub fn new(inner: Arc<dyn Cluster>, env: Env) -> Self {
        Self { inner, env }
    }

    async fn call<T, F>(
        &self,
        call: Call,
        subject: impl Fn() -> Subject,
        attempt: impl Fn() -> F,
    ) -> Result<T, ClusterError>
    where
        F: Future<Output = Result<T, ClusterError>>,
    {
        let mut retry = Retry::new(&self.env);
        loop {
            let answer = match self.env.timeout(call.deadline, attempt()).await {
                Ok(answer) => answer,
                Err(elapsed) => {
                    let failure = Failure::Timeout { may_have_happened: call.writes };
                    Err(ClusterError::new(call.verb, subject(), failure).caused_by(elapsed))
                }
            };
            match answer {
                Err(error) if is_transient(&error.failure) && retry.wait_before_another(&error).await => {
                    tracing::debug!(%error, "call is tried again");
                }
                answer => return answer,
            }
        }
    }
}

/// What a kind of call is held to.
#[derive(Clone, Copy)]
struct Call {
    verb: &'static str,
    deadline: Duration,
    writes: bool,
}

impl Call {
    const GET: Self = Self { verb: "get", deadline: budget::READ, writes: false };
    const LIST: Self = Self { verb: "list", deadline: budget::PAGE, writes: false };
    const CREATE: Self = Self { verb: "create", deadline: budget::WRITE, writes: true };
    const PATCH: Self = Self { verb: "patch", deadline: budget::WRITE, writes: true };
    const DELETE: Self = Self { verb: "delete", deadline: budget::WRITE, writes: true };
    const LOGS: Self = Self { verb: "read the log of", deadline: budget::STREAM, writes: false };
}

/// Whether the same call may well succeed a moment later.
pub const fn is_transient(failure: &Failure) -> bool {
    match failure {
        Failure::QuotaConflict(_) | Failure::Overloaded { .. } | Failure::Timeout { .. } | Failure::Unavailable(_) => {
            true
        }
        Failure::NotFound
        | Failure::AlreadyExists { .. }
        | Failure::Conflict(_)
        | Failure::NamespaceTerminating
        | Failure::ServiceAccountMissing(_)
        | Failure::QuotaExceeded(_)
        | Failure::Forbidden { .. }
        | Failure::Refused(_)
        | Failure::Invalid { .. }
        | Failure::Expired(_)
        | Failure::Unauthorized
        | Failure::Malformed(_) => false,
    }
}

/// The budget of one call's repetitions: tries, time, and a jittered wait that doubles.
#[derive(Debug)]
pub struct Retry<'a> {
    env: &'a Env,
    first: Instant,
    tries: u32,
}

impl<'a> Retry<'a> {
    /// The first try begins now.
    pub fn new(env: &'a Env) -> Self {
        Self { env, first: env.now(), tries: 1 }
    }

    /// Waits until the call may be tried again after `error`; `false` when the budget is spent.
    pub async fn wait_before_another(&mut self, error: &ClusterError) -> bool {
        if self.tries >= budget::TRIES {
            return false;
        }
        let wait = self.env.jitter(backoff(budget::FIRST_BACKOFF, budget::LONGEST_BACKOFF, self.tries - 1));
        self.tries += 1;
        let wait = match error.failure {
            Failure::Overloaded { retry_after: Some(asked) } if asked > budget::LONGEST_RETRY_AFTER => return false,
            Failure::Overloaded { retry_after: Some(asked) } => wait.max(asked),
            _ => wait,
        };
        // One that hung through its whole deadline used that time up: it is made once more all the same.
        if self.tries > 2 && self.env.now().plus(wait).since(self.first) > budget::TRYING {
            return false;
        }
        self.env.sleep(wait).await;
        true
    }
}

/// `first`, doubled `times` times, at most `longest`.
pub fn backoff(first: Duration, longest: Duration, times: u32) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(times)).min(longest)
}

fn many(kind: crate::Kind, scope: &Scope) -> Subject {
    match scope {
        Scope::All => Subject::Many(kind.plural(), None),
        Scope::Namespace(namespace) => Subject::Many(kind.plural(), Some(namespace.clone())),
    }
}

#[async_trait]
impl Cluster for Resilient {
    async fn get(&self, key: &ObjectKey) -> Result<Option<Object>, ClusterError> {
        self.call(Call::GET, || key.clone().into(), || self.inner.get(key)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ClusterError> {
        self.call(Call::LIST, || many(request.kind, &request.scope), || self.inner.list(request)).await
    }

    async fn create(&self, object: &Object) -> Result<Object, ClusterError> {
        self.call(Call::CREATE, || object.key().into(), || self.inner.create(object)).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &MergePatch) -> Result<Object, ClusterError> {
        self.call(Call::PATCH, || key.clone().into(), || self.inner.patch(key, patch)).await
    }

    async fn delete(&self, key: &ObjectKey, options: &DeleteOptions) -> Result<(), ClusterError> {
        self.call(Call::DELETE, || key.clone().into(), || self.inner.delete(key, options)).await
    }

    /// One try only: [`list_watch`](crate::list_watch) has a back-off of its own.
    async fn watch(&self, request: &WatchRequest) -> Result<EventStream, ClusterError> {
        match self.env.timeout(budget::STREAM, self.inner.watch(request)).await {
            Ok(answer) => answer,
            Err(elapsed) => {
                let failure = Failure::Timeout { may_have_happened: false };
                Err(ClusterError::new("watch", many(request.kind, &request.scope), failure).caused_by(elapsed))
            }
        }
    }

    async fn logs(&self, request: &LogRequest) -> Result<ByteStream, ClusterError> {
        let key = || ObjectKey::namespaced(crate::Kind::Pod, &request.namespace, &request.pod).into();
        self.call(Call::LOGS, key, || self.inner.logs(request)).await
    }
}
