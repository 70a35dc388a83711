//! What a runtime reports. Where the truth has three values, so do these: yes, no, not known.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What [`apply`](crate::RuntimeAdapter::apply) did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApplyResult {
    /// The runtime's own name of the bundle's place; opaque to core.
    pub handle: String,
    /// What became of each workload, in plan order.
    pub workloads: Vec<WorkloadResult>,
    /// Every object that was written, in order; names only, never values.
    pub written: Vec<Written>,
}

/// What became of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadResult {
    /// The workload.
    pub workload: String,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How it got past its isolation gate; absent when nothing was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Gate>,
    /// Workloads that it starts after and that did not become healthy in time; it was started all the same (S-37).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unready_dependencies: Vec<String>,
}

/// What became of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It was not there and runs now.
    Created,
    /// It ran to another plan, was ended and runs now.
    Replaced,
    /// It ran as planned already.
    Unchanged,
    /// It had ended or been stopped, and runs now.
    StartedAgain,
    /// It ran as planned already, started by the adapter before this one, and is this one's from now on (S-81).
    Adopted,
    /// It started and had ended by the time this was told.
    Ended {
        /// Its exit code; absent when the runtime does not know it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// Why, when it was not simply an exit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Reason>,
        /// The end of its log, up to 16 KiB, without any value of its environment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        log: Option<String>,
    },
    /// It could not be started; only in an error's details.
    Failed {
        /// Why.
        reason: String,
    },
    /// It was not tried, since another one it needs failed; only in an error's details.
    Skipped {
        /// Why.
        reason: String,
    },
}

/// How a workload got past its isolation gate (S-78).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// Milliseconds that the gate held the workload back; absent when not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub millis: Option<u64>,
    /// What its passing proves.
    pub proof: GateProof,
}

/// What the passing of an isolation gate proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateProof {
    /// The workload's network was closed before its first instruction.
    Proved,
    /// The gate passed, but the destination it tried may have been down.
    Unproved,
    /// The gate is switched off.
    Off,
    /// It was started without one, by the adapter before this one.
    Ungated,
}

/// One object that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The object's kind, in the runtime's words.
    pub kind: String,
    /// The object's name.
    pub name: String,
    /// What was done.
    pub change: Change,
    /// The fields that differed, for a change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
}

/// What was done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It was made.
    Created,
    /// It was changed.
    Changed,
    /// It was removed.
    Deleted,
}

/// A bundle as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ObservedBundle {
    /// Whether there is anything of it.
    pub exists: bool,
    /// Its workloads, by name.
    pub workloads: Vec<ObservedWorkload>,
    /// Its volumes, by id.
    pub volumes: Vec<ObservedVolume>,
    /// What differs from what was made, each a sentence; core decides what to do about it.
    pub drift: Vec<String>,
}

/// A workload as it is.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, which core knows by this name")]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ObservedWorkload {
    /// The workload's name.
    pub name: String,
    /// Whether it was made and not taken away; a stopped one is present.
    pub present: bool,
    /// Whether its process runs on a machine that is not lost, and is not being ended.
    pub running: bool,
    /// Whether it was started and is on its way: it neither runs yet nor has ended. Of one that is present and neither runs nor
    /// starts nor has a `reason` or an `exit_code`, nothing is left: it was stopped.
    #[serde(default)]
    pub starting: bool,
    /// The digest of the image as the machine knows it; empty when not known.
    pub image_digest: String,
    /// When its process started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// The code it ended with; absent while it runs and when not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// How often the runtime restarted it by itself; always 0 here, since nothing does.
    pub restart_count: u32,
    /// Whether its health check passes; absent without a check, when not running, and before the first verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy: Option<bool>,
    /// Whether the runtime is about to restart it by itself; always false here.
    pub restarting: bool,
    /// Why it is not as it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// Why a workload is as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The kind of cause, for programs.
    pub kind: ReasonKind,
    /// The cause, for people.
    pub sentence: String,
}

/// Kinds of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasonKind {
    /// The machine ran short of something and ended it.
    Evicted,
    /// Its machine cannot be reached.
    NodeLost,
    /// Its machine was shut down.
    NodeShutdown,
    /// Its machine refused it after it had been placed there.
    Placement,
    /// It used more memory than it may.
    OutOfMemory,
    /// It was killed, by whom is not known.
    Killed,
    /// Its image cannot be had.
    Image,
    /// It is configured in a way the machine cannot run.
    Config,
    /// A volume or file of it cannot be attached.
    Mount,
    /// No machine has room for it.
    Scheduling,
    /// Its isolation could not be shown in time.
    Gate,
    /// Its program could not be started.
    StartError,
    /// It is gone and left no word.
    Vanished,
    /// Something else.
    Unknown,
}

/// A volume as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedVolume {
    /// The volume's id.
    pub volume_id: String,
    /// Whether it is there and not being removed.
    pub present: bool,
    /// The runtime's own name of it; opaque to core.
    pub handle: String,
}

/// Where a port of a workload is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upstream {
    /// Scheme, host and port; no path.
    pub url: String,
}

/// How to take a bundle away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DestroyOptions {
    /// Whether its volumes stay.
    pub keep_volumes: bool,
}

impl Default for DestroyOptions {
    fn default() -> Self {
        Self { keep_volumes: true }
    }
}
