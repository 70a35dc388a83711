//! A cluster at which one call goes wrong.

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use pando_cluster::env::{BoxFuture, Instant};
use pando_cluster::{
    ByteStream, Cluster, ClusterError, DeleteOptions, Env, EventStream, Failure, Kind, ListRequest, LogRequest,
    MergePatch, Object, ObjectKey, Page, Scope, Subject, WatchRequest,
};

use super::fault::{Asked, Fault, Verb};

/// Decorates any cluster: counts the calls of one caller, and does one fault to one of them.
///
/// Before the call and after it: a write may land and its answer be lost, or land when its caller has gone on.
/// What is late is carried out by a task on `wire`, which must outlive the caller.
pub struct Faulty {
    inner: Arc<dyn Cluster>,
    wire: Env,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    armed: bool,
    asked: Vec<Asked>,
    /// What watches told since.
    heard: u64,
    fault: Option<(usize, Fault)>,
    outage_until: Option<Instant>,
    on_death: Option<Box<dyn FnOnce() + Send>>,
    dead: bool,
    /// A call that was told to wait, and until when.
    told_to_wait: Option<(String, Instant)>,
    impatient: Vec<String>,
}

impl Faulty {
    /// A cluster that does nothing wrong until [`Faulty::arm`].
    pub fn new(inner: Arc<dyn Cluster>, wire: Env) -> Self {
        Self { inner, wire, state: Arc::default() }
    }

    /// From now on calls are counted from zero, and the fault's call goes wrong. `on_death` is done, once, when a fault says that
    /// the caller's process dies: it must end all that the process runs.
    pub fn arm(&self, fault: Option<(usize, Fault)>, on_death: impl FnOnce() + Send + 'static) {
        *self.state() = State { armed: true, fault, on_death: Some(Box::new(on_death)), ..State::default() };
    }

    /// Ends the counting and the faults; what is still on its way arrives. Answers the calls since [`Faulty::arm`].
    pub fn disarm(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.state()).asked
    }

    /// How many calls there were since [`Faulty::arm`], and how many things watches told.
    pub fn counts(&self) -> (usize, u64) {
        let state = self.state();
        (state.asked.len(), state.heard)
    }

    /// The calls that were made again before the time that the API server had asked for was over.
    pub fn impatient(&self) -> Vec<String> {
        self.state().impatient.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call; answers what is to go wrong with it.
    fn next(&self, asked: Asked, exactly: &dyn Fn() -> String) -> Option<Fault> {
        let now = self.wire.now();
        let mut state = self.state();
        if !state.armed {
            return None;
        }
        let number = state.asked.len();
        state.asked.push(asked);
        let fault = state.fault.filter(|(at, _)| *at == number).map(|(_, fault)| fault);
        match fault {
            Some(Fault::Outage) => state.outage_until = Some(now.plus(Fault::OUTAGE)),
            Some(Fault::Overloaded) => {
                state.told_to_wait = Some((format!("{asked} {}", exactly()), now.plus(Fault::PATIENCE)));
            }
            _ => {}
        }
        if fault.is_none()
            && let Some((told, until)) = &state.told_to_wait
            && now < *until
            && format!("{asked} {}", exactly()) == *told
        {
            let told = told.clone();
            state.impatient.push(told);
        }
        state.outage_until.filter(|until| now < *until).map(|_| Fault::Outage).or(fault)
    }

    fn die(&self) {
        let on_death = {
            let mut state = self.state();
            state.dead = true;
            state.on_death.take()
        };
        if let Some(on_death) = on_death {
            on_death();
        }
    }

    /// Carries out the call in the way of its fault.
    async fn pass<T: Send + 'static>(
        &self,
        asked: Asked,
        subject: Subject,
        exactly: &(dyn Fn() -> String + Send + Sync),
        call: BoxFuture<'static, Result<T, ClusterError>>,
    ) -> Result<T, ClusterError> {
        // Whatever else of a dead process is polled once more, on its way to its end, asks for nothing.
        if self.state().dead {
            return pending().await;
        }
        let Some(fault) = self.next(asked, exactly) else { return call.await };
        let error = |failure| Err(ClusterError::new("reach", subject.clone(), failure));
        if let Some(failure) = fault.refusal(asked) {
            return error(failure);
        }
        match fault {
            Fault::AnswerLost => {
                drop(call.await);
                error(Failure::Timeout { may_have_happened: true })
            }
            Fault::SlowThere => {
                self.wire.sleep(Fault::SLOW).await;
                call.await
            }
            Fault::SlowBack => {
                let answer = call.await;
                self.wire.sleep(Fault::SLOW).await;
                answer
            }
            Fault::LateSoon => self.late(call, Fault::SOON).await,
            Fault::LateLong => self.late(call, Fault::LONG).await,
            Fault::Hangs => pending().await,
            Fault::DiesInFlight => {
                self.die();
                self.late(call, Fault::IN_FLIGHT).await
            }
            Fault::DiesLongBefore => {
                self.die();
                self.late(call, Fault::LONG).await
            }
            // These befall the stream, once it is open.
            Fault::WatchCut | Fault::WatchSilent | Fault::WatchExpired => call.await,
            Fault::Unavailable
            | Fault::Overloaded
            | Fault::QuotaConflict
            | Fault::Forbidden
            | Fault::Unauthorized
            | Fault::Invalid
            | Fault::Conflict
            | Fault::AlreadyExists
            | Fault::Expired
            | Fault::Outage => unreachable!("{fault} is a refusal, and was answered"),
        }
    }

    /// Nothing is answered; the call is carried out after `delay`, whoever is still there by then.
    async fn late<T: Send + 'static>(
        &self,
        call: BoxFuture<'static, Result<T, ClusterError>>,
        delay: std::time::Duration,
    ) -> Result<T, ClusterError> {
        let wire = self.wire.clone();
        self.wire.spawn_detached("late call", async move {
            wire.sleep(delay).await;
            drop(call.await);
        });
        pending().await
    }

    /// What will go wrong with the next call.
    fn peek(&self) -> Option<Fault> {
        let state = self.state();
        state.fault.filter(|(at, _)| state.armed && *at == state.asked.len()).map(|(_, fault)| fault)
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("inner", &self.inner).field("fault", &self.state().fault).finish_non_exhaustive()
    }
}

fn many(kind: Kind, scope: &Scope) -> Subject {
    let namespace = match scope {
        Scope::All => None,
        Scope::Namespace(namespace) => Some(namespace.clone()),
    };
    Subject::Many(kind.plural(), namespace)
}

#[async_trait]
impl Cluster for Faulty {
    async fn get(&self, key: &ObjectKey) -> Result<Option<Object>, ClusterError> {
        let (inner, at) = (Arc::clone(&self.inner), key.clone());
        let asked = Asked { verb: Verb::Get, kind: key.kind };
        self.pass(asked, key.clone().into(), &|| key.to_string(), Box::pin(async move { inner.get(&at).await })).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ClusterError> {
        let (inner, wanted) = (Arc::clone(&self.inner), request.clone());
        let asked = Asked { verb: Verb::List, kind: request.kind };
        let subject = many(request.kind, &request.scope);
        self.pass(asked, subject, &|| format!("{request:?}"), Box::pin(async move { inner.list(&wanted).await })).await
    }

    async fn create(&self, object: &Object) -> Result<Object, ClusterError> {
        let (inner, new) = (Arc::clone(&self.inner), object.clone());
        let asked = Asked { verb: Verb::Create, kind: object.kind() };
        self.pass(
            asked,
            object.key().into(),
            &|| object.key().to_string(),
            Box::pin(async move { inner.create(&new).await }),
        )
        .await
    }

    async fn patch(&self, key: &ObjectKey, patch: &MergePatch) -> Result<Object, ClusterError> {
        let (inner, at, change) = (Arc::clone(&self.inner), key.clone(), patch.clone());
        let asked = Asked { verb: Verb::Patch, kind: key.kind };
        self.pass(
            asked,
            key.clone().into(),
            &|| key.to_string(),
            Box::pin(async move { inner.patch(&at, &change).await }),
        )
        .await
    }

    async fn delete(&self, key: &ObjectKey, options: &DeleteOptions) -> Result<(), ClusterError> {
        let (inner, at, how) = (Arc::clone(&self.inner), key.clone(), options.clone());
        let verb = if options.version.is_some() { Verb::DeleteAtVersion } else { Verb::Delete };
        let asked = Asked { verb, kind: key.kind };
        self.pass(
            asked,
            key.clone().into(),
            &|| key.to_string(),
            Box::pin(async move { inner.delete(&at, &how).await }),
        )
        .await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<EventStream, ClusterError> {
        let fault = self.peek();
        let (inner, wanted) = (Arc::clone(&self.inner), request.clone());
        let asked = Asked { verb: Verb::Watch, kind: request.kind };
        let subject = many(request.kind, &request.scope);
        let opened = Box::pin(async move { inner.watch(&wanted).await });
        let opened = self.pass(asked, subject.clone(), &|| format!("{request:?}"), opened).await?;
        let state = Arc::clone(&self.state);
        let opened = opened.inspect(move |_| state.lock().unwrap_or_else(PoisonError::into_inner).heard += 1).boxed();
        Ok(match fault {
            Some(Fault::WatchCut) => stream::empty().boxed(),
            Some(Fault::WatchSilent) => stream::pending().boxed(),
            Some(Fault::WatchExpired) => {
                let failure = Failure::Expired("injected".to_owned());
                stream::iter([Err(ClusterError::new("watch", subject, failure))]).boxed()
            }
            _ => opened,
        })
    }

    async fn logs(&self, request: &LogRequest) -> Result<ByteStream, ClusterError> {
        let (inner, wanted) = (Arc::clone(&self.inner), request.clone());
        let key = ObjectKey::namespaced(Kind::Pod, &*request.namespace, &*request.pod);
        let asked = Asked { verb: Verb::Logs, kind: Kind::Pod };
        self.pass(asked, key.into(), &|| format!("{request:?}"), Box::pin(async move { inner.logs(&wanted).await }))
            .await
    }
}
