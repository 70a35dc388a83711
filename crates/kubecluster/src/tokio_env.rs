//! Tokio as the environment of time, chance and tasks.
//!
//! This is the one place outside tests where a clock is read, a random number drawn or a task started by
//! tokio's and the operating system's own means; everything else gets them through [`Env`].
#![expect(clippy::disallowed_methods, reason = "this module is what the other code uses in their place")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::{SignedDuration, Timestamp};
use pando_cluster::Env;
use pando_cluster::env::{BoxFuture, Clock, Instant, Random, Spawn, Wall};
use tokio::runtime::Handle;

/// The environment of production: tokio's clock and tasks, the system's date, the operating system's randomness.
///
/// # Panics
///
/// Outside a tokio runtime. Tasks run on the runtime this was called in.
pub fn tokio_env() -> Env {
    let clock = TokioClock::started_now();
    Env {
        clock: Arc::new(clock),
        wall: Arc::new(SystemWall),
        random: Arc::new(SystemRandom),
        tasks: Arc::new(TokioTasks(Handle::current())),
    }
}

/// An environment for tests on a paused tokio clock, the same in every run: the date begins at 2024-01-01 and
/// moves with the clock, and all chance comes from `seed`.
///
/// # Panics
///
/// Outside a tokio runtime. Tasks run on the runtime this was called in.
pub fn paused_env(seed: u64) -> Env {
    let clock = TokioClock::started_now();
    Env {
        clock: Arc::new(clock),
        wall: Arc::new(ClockWall(clock)),
        random: Arc::new(Seeded(AtomicU64::new(seed))),
        tasks: Arc::new(TokioTasks(Handle::current())),
    }
}

#[derive(Clone, Copy, Debug)]
struct TokioClock {
    start: tokio::time::Instant,
}

impl TokioClock {
    fn started_now() -> Self {
        Self { start: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        Instant::from_start(self.start.elapsed())
    }

    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
        match self.start.checked_add(until.since_start()) {
            Some(until) => Box::pin(tokio::time::sleep_until(until)),
            // Beyond what tokio can count, which no process lives to see.
            None => Box::pin(std::future::pending()),
        }
    }
}

#[derive(Debug)]
struct SystemWall;

impl Wall for SystemWall {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

#[derive(Debug)]
struct ClockWall(TokioClock);

/// 2024-01-01T00:00:00Z.
const EPOCH: Timestamp = Timestamp::constant(1_704_067_200, 0);

impl Wall for ClockWall {
    fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.0.now().since_start()).unwrap_or(SignedDuration::MAX);
        EPOCH.saturating_add(passed).unwrap_or(Timestamp::MAX)
    }
}

#[derive(Debug)]
struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) {
        // A system without randomness cannot make a key or a name that is safe to use: there is no way on.
        getrandom::fill(bytes).expect("the operating system has a source of randomness");
    }
}

/// `SplitMix64`: a counter, and a mixing that makes neighbouring counts unlike each other.
#[derive(Debug)]
struct Seeded(AtomicU64);

impl Random for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        for chunk in bytes.chunks_mut(8) {
            let mut mixed = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
            chunk.copy_from_slice(&mixed.to_le_bytes()[..chunk.len()]);
        }
    }
}

#[derive(Debug)]
struct TokioTasks(Handle);

impl Spawn for TokioTasks {
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        tracing::trace!(task = name, "task started");
        self.0.spawn(task);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_date_moves_with_a_paused_clock() {
        let env = paused_env(1);
        let (clock, wall) = (env.now(), env.wall.now());
        assert_eq!(wall.to_string(), "2024-01-01T00:00:00Z");
        env.sleep(Duration::from_hours(1)).await;
        assert_eq!(env.now().since(clock), Duration::from_hours(1));
        assert_eq!(env.wall.now().to_string(), "2024-01-01T01:00:00Z");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_beyond_the_end_of_time_does_not_end() {
        let env = paused_env(1);
        let forever = env.clock.sleep_until(Instant::from_start(Duration::MAX));
        assert!(env.timeout(Duration::from_hours(24), forever).await.is_err());
    }

    #[tokio::test]
    async fn a_seed_fixes_all_chance() {
        let draw = |seed| {
            let env = paused_env(seed);
            (env.random_u64(), env.random_u64(), env.jitter(Duration::from_secs(1)))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        // The generator's published first output for seed 0.
        assert_eq!(draw(0).0, 0xe220_a839_7b1d_cdaf);
    }

    #[tokio::test]
    async fn production_draws_differ_and_tasks_run() {
        let env = tokio_env();
        assert_ne!(env.random_u64(), env.random_u64());
        let (done, wait) = futures::channel::oneshot::channel();
        env.spawn_detached("test", async {
            let _ = done.send(());
        });
        assert_eq!(wait.await, Ok(()));
    }
}
