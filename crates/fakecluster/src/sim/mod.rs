//! A single-threaded executor on virtual time: one seed decides everything.
//!
//! [`Sim`] gives an [`Env`] whose tasks run here. Whenever several tasks could go on, the seed picks the one
//! that does; when none can, time jumps to the next timer. So a run takes no real time, visits interleavings
//! that a thread pool would show once a year, and can be repeated exactly: two runs of one seed have equal
//! [`Sim::trace_hash`]es, or something outside the [`Env`] had a say.
//!
//! ```
//! use std::time::Duration;
//! use pando_fakecluster::sim::Sim;
//!
//! let sim = Sim::new(7);
//! let env = sim.env();
//! let waited = sim.block_on(async {
//!     let begun = env.now();
//!     env.sleep(Duration::from_secs(3600)).await;
//!     env.now().since(begun)
//! });
//! assert_eq!(waited, Duration::from_secs(3600));
//! ```

mod core;
mod drop_at;
mod rng;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use jiff::SignedDuration;
use pando_cluster::Env;
use pando_cluster::env::Instant;

pub use self::drop_at::{Droppable, Dropper, drop_at, droppable};

use self::core::{Core, Handle, MAIN, Next};

/// An executor of its own: virtual time, seeded choices, repeatable runs.
///
/// Dropping it drops every task that has not ended.
pub struct Sim {
    core: Arc<Core>,
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").field("seed", &self.seed()).field("now", &self.core.now()).finish_non_exhaustive()
    }
}

impl Sim {
    /// How much virtual time one [`Sim::block_on`] may take unless [`Sim::set_limit`] says otherwise: a day.
    pub const LIMIT: Duration = Duration::from_hours(24);

    /// An executor whose every choice follows from `seed`. Its wall clock begins at 2026-01-01T00:00:00Z.
    pub fn new(seed: u64) -> Self {
        Self { core: Core::new(seed) }
    }

    /// The seed that decides everything.
    pub fn seed(&self) -> u64 {
        self.core.seed()
    }

    /// The environment that runs here. All clones share one clock, one wall, one stream of random numbers.
    pub fn env(&self) -> Env {
        Handle::new(&self.core, 0).into_env()
    }

    /// An environment for one process among several: it has its own random numbers, its own skew of the wall
    /// clock, and its tasks can be ended all at once, as by a crash.
    pub fn process(&self) -> Process {
        Process { handle: Handle::new(&self.core, self.core.add_process()) }
    }

    /// The present virtual instant.
    pub fn now(&self) -> Instant {
        Instant::from_start(self.core.now())
    }

    /// From now on one [`Sim::block_on`] may take at most `limit` of virtual time.
    pub fn set_limit(&self, limit: Duration) {
        self.core.set_limit(limit);
    }

    /// Moves the wall clock of [`Sim::env`] by `by`, forward or back; timers do not notice.
    pub fn skew_wall(&self, by: SignedDuration) {
        self.core.skew_wall(0, by);
    }

    /// Adds `what` to the trace hash: an answer, a log line, whatever must be equal in two runs of one seed.
    pub fn note(&self, what: &str) {
        self.core.note(what);
    }

    /// The hash of every choice and note so far. Equal in two runs of one seed and one program.
    pub fn trace_hash(&self) -> u64 {
        self.core.trace_hash()
    }

    /// How many times a task was polled so far.
    pub fn steps(&self) -> u64 {
        self.core.steps()
    }

    /// Runs `future` and, beside it, every spawned task, until `future` is ready.
    ///
    /// # Panics
    ///
    /// With the seed and the names of the unfinished tasks: when nothing can ever wake anything again
    /// (a deadlock), when the virtual time limit is passed, or when a million steps pass in one instant (a
    /// busy loop). And when called from within itself.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _named = NameSeed(self.seed());
        let mut future = pin!(future);
        let _main = self.core.enter();
        let waker = self.core.waker(MAIN);
        let mut context = Context::from_waker(&waker);
        loop {
            match self.core.next(true) {
                Next::Main => {
                    if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                        return output;
                    }
                }
                Next::Task(task) => self.core.poll(task),
                Next::Idle => unreachable!("with timers, idle is a deadlock, and that panics"),
            }
        }
    }

    /// Lets every task go on until none is ready; time does not move.
    ///
    /// # Panics
    ///
    /// When a million steps do not get there, and when called from within [`Sim::block_on`].
    pub fn settle(&self) {
        let _named = NameSeed(self.seed());
        assert!(!self.core.is_running(), "settle inside block_on: await env.sleep(…) instead");
        loop {
            match self.core.next(false) {
                Next::Task(task) => self.core.poll(task),
                Next::Main => {}
                Next::Idle => return,
            }
        }
    }

    /// Runs the tasks for `time`.
    pub fn advance(&self, time: Duration) {
        let env = self.env();
        self.block_on(env.sleep(time));
        self.settle();
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.core.close();
    }
}

/// One process of several on a [`Sim`]; see [`Sim::process`].
#[derive(Clone, Debug)]
pub struct Process {
    handle: Handle,
}

impl Process {
    /// The process's environment.
    pub fn env(&self) -> Env {
        self.handle.clone().into_env()
    }

    /// Moves the process's wall clock by `by`, forward or back, against everybody else's.
    pub fn skew_wall(&self, by: SignedDuration) {
        self.handle.skew_wall(by);
    }

    /// Ends the process: its tasks are dropped where they are, and it starts no more.
    ///
    /// A future that a test runs itself, by [`Sim::block_on`], is not a task; dropping it is up to the test.
    pub fn kill(&self) {
        self.handle.kill();
    }

    /// From now on does `after` after each poll of one of the process's tasks, given how many polls there were from here on.
    ///
    /// It is called between two polls, so it may do to the process whatever can happen to one there: kill it, or drop a
    /// future that one of its tasks awaits. One seed polls in one order: what is done at poll n is done at the same point
    /// of every run that was the same until then.
    ///
    /// ```
    /// use pando_cluster::env::yield_now;
    /// use pando_fakecluster::sim::Sim;
    ///
    /// let sim = Sim::new(1);
    /// let process = sim.process();
    /// let killed = process.clone();
    /// process.after_poll(move |polls| if polls == 2 { killed.kill() });
    /// let (sender, answer) = futures::channel::oneshot::channel();
    /// process.env().spawn_detached("work", async move {
    ///     for _ in 0..5 {
    ///         yield_now().await;
    ///     }
    ///     let _ = sender.send("done");
    /// });
    /// assert!(sim.block_on(answer).is_err(), "the process was killed at its second await");
    /// ```
    pub fn after_poll(&self, after: impl FnMut(u64) + Send + 'static) {
        self.handle.after_poll(Box::new(after));
    }
}

/// Names the seed beside whatever panic passes through.
struct NameSeed(u64);

impl Drop for NameSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the simulation that panicked had seed {}", self.0);
        }
    }
}
