//! What goes with every call: who asks, by which id, and where progress is told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Goes with every call that a runtime makes on core's behalf.
#[derive(Clone, Default)]
pub struct CallContext {
    /// Core's id of the request; appears in log lines and on what the call changed.
    pub request_id: String,
    /// Who asked, for the log. Core has authorised them already.
    pub actor: String,
    /// The most time the call may take, from its start; none leaves it to the runtime's own waits.
    pub deadline: Option<Duration>,
    /// Where progress is told.
    pub progress: Option<Arc<dyn ProgressSink>>,
}

impl CallContext {
    /// A context with a request id and nothing else.
    pub fn new(request_id: impl Into<String>) -> Self {
        Self { request_id: request_id.into(), ..Self::default() }
    }

    /// Tells progress, if anybody listens.
    pub fn tell(&self, progress: Progress) {
        if let Some(sink) = &self.progress {
            sink.tell(progress);
        }
    }
}

impl fmt::Debug for CallContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallContext")
            .field("request_id", &self.request_id)
            .field("actor", &self.actor)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// What a call is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The workload concerned; empty for the bundle as a whole.
    pub workload: String,
    /// The step, e.g. `starting`.
    pub step: String,
    /// What it waits for, for people; empty when it does not wait.
    pub waiting_for: String,
    /// Since when.
    pub since: Timestamp,
}

/// Receives progress. Must not block; may drop what comes too fast.
pub trait ProgressSink: Send + Sync {
    /// Takes one report.
    fn tell(&self, progress: Progress);
}
