//! A counter that tasks can wait on.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Counts changes and wakes whoever waits for one, in the order in which they began to wait.
#[derive(Default)]
pub(crate) struct Signal(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    count: u64,
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Signal").field(&self.count()).finish()
    }
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many changes there were.
    pub(crate) fn count(&self) -> u64 {
        self.lock().count
    }

    /// Counts one more.
    pub(crate) fn raise(&self) {
        let woken = {
            let mut waiting = self.lock();
            waiting.count += 1;
            std::mem::take(&mut waiting.wakers)
        };
        woken.into_values().for_each(Waker::wake);
    }

    /// Resolves once there were more than `seen`.
    pub(crate) async fn past(&self, seen: u64) {
        let mut place = Place { signal: self, number: None };
        std::future::poll_fn(|context| {
            let mut waiting = self.lock();
            if waiting.count > seen {
                return Poll::Ready(());
            }
            let number = *place.number.get_or_insert_with(|| {
                waiting.next += 1;
                waiting.next
            });
            waiting.wakers.insert(number, context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// A place among those who wait, given back on drop.
struct Place<'a> {
    signal: &'a Signal,
    number: Option<u64>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.signal.lock().wakers.remove(&number);
        }
    }
}
