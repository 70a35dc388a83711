//! The world outside Kubernetes that code may depend on: time, chance and tasks.
//!
//! Nothing in the adapter or the domain crates reads a clock, draws a random number or starts a task by
//! itself: it asks its [`Env`]. In production the environment is tokio's; in tests it is a seeded executor
//! on virtual time, or tokio's paused clock. That is what makes every test repeatable, so a lint
//! (`clippy.toml`) forbids the ways around it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{AbortHandle, Abortable, Either, select};
use jiff::Timestamp;

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A point on the clock that only ever moves forward, as the time since that clock's own start.
///
/// It says nothing about the date: two processes' instants cannot be compared. Dates come from [`Wall`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// The instant that lies `since_start` after the clock's start.
    pub const fn from_start(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// How far this lies after the clock's start.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// How far this lies after `earlier`; zero when it does not.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The instant `by` later; saturates at the end of time.
    pub const fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

/// A clock that moves forward only, for deadlines and waits.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The present instant.
    fn now(&self) -> Instant;

    /// Resolves once the clock has reached `until`; at once when it has already.
    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()>;
}

/// The date, which may jump in either direction; for stamps that people and Kubernetes read.
pub trait Wall: fmt::Debug + Send + Sync {
    /// The present date.
    fn now(&self) -> Timestamp;
}

/// A source of random numbers; predictable in tests, from the operating system in production.
pub trait Random: fmt::Debug + Send + Sync {
    /// Fills `bytes`, fit for keys in production.
    fn fill(&self, bytes: &mut [u8]);
}

/// A place where tasks run beside the caller.
pub trait Spawn: fmt::Debug + Send + Sync {
    /// Starts `task`; `name` appears in traces. The task ends with the executor at the latest.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);
}

/// Time, date, chance and tasks, handed down to whatever needs one of them.
#[derive(Clone, Debug)]
pub struct Env {
    /// Deadlines and waits.
    pub clock: Arc<dyn Clock>,
    /// Dates.
    pub wall: Arc<dyn Wall>,
    /// Random numbers.
    pub random: Arc<dyn Random>,
    /// Tasks.
    pub tasks: Arc<dyn Spawn>,
}

/// The time given to a wait ran out first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing within {limit:?}")]
pub struct Elapsed {
    /// The time that was given.
    pub limit: Duration,
}

impl Env {
    /// The present instant.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Waits for `time`.
    pub async fn sleep(&self, time: Duration) {
        self.clock.sleep_until(self.now().plus(time)).await;
    }

    /// Runs `future` for at most `limit`, then drops it.
    ///
    /// A future that is ready at the last moment wins over the deadline.
    ///
    /// # Errors
    ///
    /// [`Elapsed`] when `limit` passed first.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Result<F::Output, Elapsed> {
        let deadline = self.clock.sleep_until(self.now().plus(limit));
        let future = std::pin::pin!(future);
        match select(future, deadline).await {
            Either::Left((output, _)) => Ok(output),
            Either::Right(((), _)) => Err(Elapsed { limit }),
        }
    }

    /// Starts a task that is aborted when the returned guard is dropped.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) -> Task {
        let (handle, registration) = AbortHandle::new_pair();
        let task = Abortable::new(task, registration);
        self.tasks.spawn(
            name,
            Box::pin(async move {
                // An abort is how such a task is meant to end.
                let _ = task.await;
            }),
        );
        Task { handle }
    }

    /// Starts a task that nobody owns: it runs to its own end.
    pub fn spawn_detached(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(name, Box::pin(task));
    }

    /// A random number.
    pub fn random_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.random.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A random duration between zero and `limit`, both included.
    pub fn jitter(&self, limit: Duration) -> Duration {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(match nanos.checked_add(1) {
            Some(choices) => self.random_u64() % choices,
            None => self.random_u64(),
        })
    }
}

/// Owns a task: dropping this aborts it at its next await.
#[derive(Debug)]
#[must_use = "dropping it ends the task"]
pub struct Task {
    handle: AbortHandle,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

/// Gives every other ready task a turn.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            std::task::Poll::Ready(())
        } else {
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        }
    })
    .await;
}
