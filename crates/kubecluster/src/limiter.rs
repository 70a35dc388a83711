//! The limit on how fast calls are made, so that no fault above can flood an API server that others use too.
//!
//! A token bucket of our own: `governor` waits on its own timers, so it would neither stand on [`Env`]'s clock nor
//! serve waiters in the order in which they came.

use std::num::NonZeroU32;
use std::time::Duration;

use pando_cluster::Env;
use pando_cluster::env::Instant;
use tokio::sync::Mutex;

/// How many calls may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Calls a second over a longer time.
    pub qps: NonZeroU32,
    /// Calls at once after a quiet time.
    pub burst: NonZeroU32,
}

impl Default for Rate {
    /// 200 a second, 400 at once.
    fn default() -> Self {
        const { Self { qps: NonZeroU32::new(200).unwrap(), burst: NonZeroU32::new(400).unwrap() } }
    }
}

/// Lets calls through one by one, first come first served.
#[derive(Debug)]
pub(crate) struct Limiter {
    env: Env,
    /// Held by the one waiter that is next; the lock itself is the queue, and it is fair. A waiter that is
    /// dropped leaves the queue and takes nothing with it.
    bucket: Mutex<Bucket>,
}

impl Limiter {
    pub(crate) fn new(rate: Rate, env: Env) -> Self {
        let bucket = Mutex::new(Bucket::full(rate, env.now()));
        Self { env, bucket }
    }

    /// Waits until one more call may be made.
    pub(crate) async fn acquire(&self) {
        let mut bucket = self.bucket.lock().await;
        let ready = bucket.ready_at();
        if ready > self.env.now() {
            self.env.clock.sleep_until(ready).await;
        }
        bucket.take(self.env.now());
    }
}

/// A token bucket, told by the one instant at which it would be full again.
#[derive(Debug)]
struct Bucket {
    full_at: Instant,
    /// How long one token takes to come back.
    interval: Duration,
    /// How long an empty bucket takes to be full.
    depth: Duration,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / rate.qps.get();
        Self { full_at: now, interval, depth: interval.saturating_mul(rate.burst.get()) }
    }

    /// From when on a token is there.
    fn ready_at(&self) -> Instant {
        let full_after_taking = self.full_at.plus(self.interval).since_start();
        Instant::from_start(full_after_taking.saturating_sub(self.depth))
    }

    fn take(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now).plus(self.interval);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex as StdMutex};

    use futures::future::join_all;

    use super::*;
    use crate::tokio_env::paused_env;

    fn rate(qps: u32, burst: u32) -> Rate {
        Rate { qps: NonZeroU32::new(qps).expect("not zero"), burst: NonZeroU32::new(burst).expect("not zero") }
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_the_rest_at_the_rate_in_order() {
        let env = paused_env(1);
        let limiter = Limiter::new(rate(10, 3), env.clone());
        let start = env.now();
        let passed = StdMutex::new(Vec::new());
        join_all((0..6).map(|caller| {
            let (limiter, env, passed) = (&limiter, &env, &passed);
            async move {
                limiter.acquire().await;
                passed.lock().expect("no panic").push((caller, env.now().since(start).as_millis()));
            }
        }))
        .await;
        let passed = passed.into_inner().expect("no panic");
        assert_eq!(passed, [(0, 0), (1, 0), (2, 0), (3, 100), (4, 200), (5, 300)]);
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_time_fills_the_bucket_up_to_its_burst_and_no_further() {
        let env = paused_env(1);
        let limiter = Limiter::new(rate(10, 2), env.clone());
        env.sleep(Duration::from_hours(1)).await;
        let start = env.now();
        for _ in 0..4 {
            limiter.acquire().await;
        }
        assert_eq!(env.now().since(start), Duration::from_millis(200));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_gives_up_costs_the_next_one_nothing() {
        let env = paused_env(1);
        let limiter = Arc::new(Limiter::new(rate(1, 1), env.clone()));
        limiter.acquire().await;
        let start = env.now();
        for _ in 0..3 {
            assert!(env.timeout(Duration::from_millis(100), limiter.acquire()).await.is_err());
        }
        limiter.acquire().await;
        assert_eq!(env.now().since(start), Duration::from_secs(1));
    }
}
