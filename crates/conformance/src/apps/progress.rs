//! What a call tells while it works.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use pando_api::{CallContext, Progress, ProgressSink};

struct Sender(UnboundedSender<Progress>);

impl ProgressSink for Sender {
    fn tell(&self, progress: Progress) {
        // Whoever no longer listens has heard what it waited for.
        let _ = self.0.unbounded_send(progress);
    }
}

/// The same caller, and what its call tells.
pub(crate) fn listen(context: CallContext) -> (CallContext, Steps) {
    let (sender, told) = unbounded();
    (CallContext { progress: Some(Arc::new(Sender(sender))), ..context }, Steps(told))
}

/// The steps of a call, as they are told.
pub(crate) struct Steps(UnboundedReceiver<Progress>);

impl Steps {
    /// Waits until the call is at `step`.
    pub(crate) async fn until(&mut self, step: &str) -> Progress {
        while let Some(progress) = self.0.next().await {
            if progress.step == step {
                return progress;
            }
        }
        panic!("the call is over and was never at the step {step:?}");
    }

    /// What was told and not yet heard.
    pub(crate) fn rest(&mut self) -> Vec<Progress> {
        std::iter::from_fn(|| self.0.try_recv().ok()).collect()
    }
}
