//! Calls that change one bundle take turns within a process (S-42). Across processes the record's compare-and-swap decides.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::lock::{Mutex as Queue, OwnedMutexGuard};

/// The turn on a bundle; it ends when this is dropped.
pub(crate) type Turn = OwnedMutexGuard<()>;

/// Who is at work on which bundle.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    queues: Mutex<BTreeMap<String, Arc<Queue<()>>>>,
}

impl Turns {
    /// Waits for the turn on the bundle of this namespace; however long that takes.
    pub(crate) async fn take(&self, namespace: &str) -> Turn {
        let queue = {
            let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            // A queue that nobody stands in is forgotten.
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
            queues.entry(namespace.to_owned()).or_default().clone()
        };
        queue.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn one_bundle_one_turn_and_others_are_not_kept() {
        let turns = Turns::default();
        let first = turns.take("a").now_or_never().expect("nobody stands there");
        assert!(turns.take("a").now_or_never().is_none() && turns.take("b").now_or_never().is_some());
        drop(first);
        assert!(turns.take("a").now_or_never().is_some());
        assert_eq!(turns.queues.lock().expect("no panic").len(), 1, "the queue of b is forgotten");
    }
}
