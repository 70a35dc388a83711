//! A call on a task of its own, so that it can undo what it began when whoever called stops waiting for it (S-80).

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, select};
use pando_api::Error;
use pando_cluster::Env;
use pando_cluster::env::BoxFuture;

/// Why a call was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// Nobody waits for it any more.
    Dropped,
    /// Its time has passed.
    Overdue,
}

/// Tells when a call is to be given up.
#[derive(Debug)]
pub(crate) struct Leash {
    caller: oneshot::Receiver<()>,
    env: Env,
    limit: Option<Duration>,
}

impl Leash {
    /// Runs `work` until it is done or given up.
    pub(crate) async fn hold<T>(&mut self, work: impl Future<Output = T>) -> Result<T, GivenUp> {
        let env = self.env.clone();
        let time = self.limit;
        let overdue = Box::pin(async move {
            match time {
                Some(time) => env.sleep(time).await,
                None => std::future::pending().await,
            }
        });
        // Asked first, so that a call whose caller went while it waited for its turn begins nothing.
        match select(select(&mut self.caller, overdue), Box::pin(work)).await {
            Either::Right((done, _)) => Ok(done),
            // The caller's end never sends: it is only ever dropped.
            Either::Left((Either::Left(_), _)) => Err(GivenUp::Dropped),
            Either::Left((Either::Right(_), _)) => Err(GivenUp::Overdue),
        }
    }
}

/// Runs `task` on a task of its own and waits for its answer. Dropping the returned future pulls the task's leash; the task itself
/// runs on to its end, and its answer goes to `unheard`. `limit` is the most time it may take before that.
pub(crate) async fn run<T, F>(
    env: &Env,
    name: &'static str,
    limit: Option<Duration>,
    task: F,
    unheard: impl FnOnce(T) + Send + 'static,
) -> Option<T>
where
    T: Send + 'static,
    F: FnOnce(Leash) -> BoxFuture<'static, T>,
{
    let (_holding, caller) = oneshot::channel();
    let (answering, answer) = oneshot::channel();
    let work = task(Leash { caller, env: env.clone(), limit });
    env.spawn_detached(name, async move {
        if let Err(answer) = answering.send(work.await) {
            unheard(answer);
        }
    });
    // Without an answer the executor is ending, and everything with it.
    answer.await.ok()
}

/// Calls that nobody waits for any more, while they undo what they began.
#[derive(Debug, Default)]
pub(crate) struct GivenUpCalls(Mutex<Vec<oneshot::Receiver<Error>>>);

impl GivenUpCalls {
    /// Takes note of a call that begins. Whatever it answers unheard is to be sent.
    pub(crate) fn note(&self) -> oneshot::Sender<Error> {
        let (sender, receiver) = oneshot::channel();
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.retain_mut(|call| matches!(call.try_recv(), Ok(None)));
        calls.push(receiver);
        sender
    }

    /// Waits for the ends of the calls that are in progress, and answers what was not heard.
    pub(crate) async fn ends(&self) -> Vec<Error> {
        let calls = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        futures::future::join_all(calls).await.into_iter().filter_map(Result::ok).collect()
    }
}
