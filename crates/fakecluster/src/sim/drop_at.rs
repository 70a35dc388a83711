//! A future that is dropped in the middle.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Runs `future` and drops it when it is pending for the `n`-th time: the fault of a cancelled call.
///
/// `n` counts from one; with zero the future is dropped before it ever runs. The answer is `None` for a
/// dropped future, and `Some` when it was ready before its `n`-th await: raising `n` until then visits every
/// point where the future can be dropped.
///
/// ```
/// use pando_cluster::env::yield_now;
/// use pando_fakecluster::sim::{Sim, drop_at};
///
/// let sim = Sim::new(1);
/// let twice = || async { yield_now().await; yield_now().await; "done" };
/// let ends: Vec<_> = (0..4).map(|n| sim.block_on(drop_at(twice(), n))).collect();
/// assert_eq!(ends, [None, None, None, Some("done")]);
/// ```
pub fn drop_at<F: Future>(future: F, n: u64) -> impl Future<Output = Option<F::Output>> {
    DropAt { future: (n > 0).then(|| Box::pin(future)), left: n }
}

struct DropAt<F> {
    future: Option<Pin<Box<F>>>,
    left: u64,
}

impl<F: Future> Future for DropAt<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = self.future.as_mut() else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        self.left -= 1;
        if self.left > 0 {
            return Poll::Pending;
        }
        // Here and now, not when the caller lets go of this wrapper.
        self.future = None;
        Poll::Ready(None)
    }
}
