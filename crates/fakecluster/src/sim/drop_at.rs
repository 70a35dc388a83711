//! A future that is dropped in the middle.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use pando_cluster::env::BoxFuture;

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

/// A future that somebody else can drop, wherever it is; the answer is `None` when it was.
///
/// ```
/// use pando_fakecluster::sim::{Sim, droppable};
///
/// let sim = Sim::new(1);
/// let (waits, dropper) = droppable(std::future::pending::<()>());
/// sim.env().spawn_detached("dropper", async move { dropper.drop_now(); });
/// assert_eq!(sim.block_on(waits), None);
/// ```
pub fn droppable<T>(future: impl Future<Output = T> + Send + 'static) -> (Droppable<T>, Dropper<T>) {
    let held = Arc::new(Mutex::new(Held { future: Some(Box::pin(future)), waker: None }));
    (Droppable(Arc::clone(&held)), Dropper(held))
}

/// See [`droppable`].
pub struct Droppable<T>(Arc<Mutex<Held<T>>>);

/// Drops the future of a [`Droppable`].
pub struct Dropper<T>(Arc<Mutex<Held<T>>>);

struct Held<T> {
    future: Option<BoxFuture<'static, T>>,
    waker: Option<Waker>,
}

impl<T> Dropper<T> {
    /// Drops the future here and now, unless it has come to its end; answers whether it did. Not from within the future itself.
    pub fn drop_now(&self) -> bool {
        let (future, waker) = {
            let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (held.future.take(), held.waker.take())
        };
        let dropped = future.is_some();
        drop(future);
        if let Some(waker) = waker {
            waker.wake();
        }
        dropped
    }
}

impl<T> Future for Droppable<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(future) = held.future.as_mut() else { return Poll::Ready(None) };
        match future.as_mut().poll(context) {
            Poll::Ready(output) => {
                held.future = None;
                Poll::Ready(Some(output))
            }
            Poll::Pending => {
                held.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for Droppable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Droppable").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Dropper<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dropper").finish_non_exhaustive()
    }
}
