//! How a start comes to its end.

use k8s_openapi::api::core::v1::Pod;
use pando_api::{Error, Gate, GateProof, Outcome, ReasonKind};
use pando_network::gate::Passing;

use super::{Starter, Tried};
use crate::call::{Begun, name};
use crate::follow::Follower;
use crate::record::pod_revision;
use crate::sight;
use crate::wait::{self, End};

impl Starter<'_> {
    /// Follows the pod until its app runs or has ended; takes it away when that cannot be.
    pub(super) async fn follow(&self, mut follower: Follower, pod: &Pod, outcome: &Outcome) -> Result<Tried, Error> {
        let breaks = follower.breaks();
        // A gate that had ended before this call looked was watched by nobody here.
        let watched = sight::gate_passing(pod).is_none();
        let end = wait::follow(self.call, self.workload(), &mut follower, pod).await;
        let begun = pod_revision(pod).map(|revision| Begun::Start(self.workload().to_owned(), revision));
        let finish = || begun.iter().for_each(|begun| self.call.finish(begun));
        match end {
            End::Running(now) => {
                finish();
                let gate = self.gate(&now, watched && follower.breaks() == breaks);
                self.forget_ended(&follower, &now).await;
                Ok(self.settled(outcome.clone(), Some(gate), *now))
            }
            End::Ended { pod: now, exit_code, reason } => {
                finish();
                let gate = self.gate(&now, watched && follower.breaks() == breaks);
                self.forget_ended(&follower, &now).await;
                self.call.retire(&now).await;
                let log = wait::log_tail(self.call, &now).await;
                Ok(self.settled(Outcome::Ended { exit_code, reason, log }, Some(gate), *now))
            }
            End::Taken => {
                finish();
                Ok(pod_revision(pod).map_or(Tried::Overtaken, Tried::Taken))
            }
            End::Failed { pod: now, kind, error } => {
                let error = self.with_log(*error, &now, kind).await;
                if !self.remove(&now, &mut follower).await {
                    return Err(error.detail("left_behind", name(&now.metadata)));
                }
                finish();
                Err(error)
            }
        }
    }

    /// Ended pods of older revisions were kept for their logs until the new one ran.
    async fn forget_ended(&self, follower: &Follower, now: &Pod) {
        for pod in follower.pods().filter(|pod| pod.metadata.uid != now.metadata.uid && sight::has_ended(pod)) {
            if let Err(error) = self.call.delete(pod).await {
                tracing::warn!(app = %self.call.app, pod = name(&pod.metadata), error = &error as &dyn std::error::Error, "ended pod not removed");
            }
        }
    }

    /// What the gate's passing proves: only when the API server, which it dialled, was reachable all the while.
    fn gate(&self, pod: &Pod, connected: bool) -> Gate {
        match sight::gate_passing(pod) {
            Some(Passing::Closed { after }) => Gate {
                millis: u64::try_from(after.as_millis()).ok(),
                proof: if connected { GateProof::Proved } else { GateProof::Unproved },
            },
            None if self.call.settings.isolation_gate.is_none() => Gate { millis: None, proof: GateProof::Off },
            Some(Passing::NotClosed { .. }) | None => Gate { millis: None, proof: GateProof::Unproved },
        }
    }

    /// Adds the end of the app's log, without any value of its environment, where there can be one.
    async fn with_log(&self, error: Error, pod: &Pod, kind: ReasonKind) -> Error {
        if !sight::has_ended(pod) || matches!(kind, ReasonKind::Gate | ReasonKind::StartError | ReasonKind::Vanished) {
            return error;
        }
        match wait::log_tail(self.call, pod).await {
            Some(log) => error.detail("log", log),
            None => error,
        }
    }
}
