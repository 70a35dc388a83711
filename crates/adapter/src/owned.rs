//! A call on a task of its own, so that it can undo what it began when whoever called stops waiting for it (S-80).

use std::future::Future;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, select};
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
/// runs on to its end. `limit` is the most time it may take before that.
pub(crate) async fn run<T, F>(env: &Env, name: &'static str, limit: Option<Duration>, task: F) -> Option<T>
where
    T: Send + 'static,
    F: FnOnce(Leash) -> BoxFuture<'static, T>,
{
    let (_holding, caller) = oneshot::channel();
    let (answering, answer) = oneshot::channel();
    let work = task(Leash { caller, env: env.clone(), limit });
    env.spawn_detached(name, async move {
        // A caller that is gone wants no answer.
        let _ = answering.send(work.await);
    });
    // Without an answer the executor is ending, and everything with it.
    answer.await.ok()
}
