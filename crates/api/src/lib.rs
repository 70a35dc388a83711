//! What Pando core and a runtime say to each other: plans in, facts out, errors, and the trait between them.
//!
//! These are core's words. Nothing here names Kubernetes, so that core can hold any runtime by
//! [`RuntimeAdapter`] and learn no word of its machinery.
//!
//! In JSON, names are in `snake_case`, durations are whole seconds, times are RFC 3339 in UTC, absent optional
//! fields are left out and unknown fields are refused.

mod context;
mod error;
mod facts;
mod form;
mod health;
mod logs;
mod plan;
mod preview;
mod secret;

use std::fmt;

use async_trait::async_trait;

pub use context::{CallContext, Progress, ProgressSink};
pub use error::{Code, Error, Problem};
pub use facts::{
    ApplyResult, Change, DestroyOptions, Gate, GateProof, ObservedBundle, ObservedVolume, ObservedWorkload, Outcome,
    Reason, ReasonKind, Upstream, WorkloadResult, Written,
};
pub use form::{AdapterInfo, FieldKind, FormField, ShownWhen};
pub use health::{Check, CheckState, Diagnosis, Health, Isolation};
pub use logs::{LogEvent, LogGap, LogLine, LogOptions, LogStream};
pub use plan::{
    BundlePlan, BundleRef, EgressLayer, EgressMode, EgressPlan, EgressSource, FilePlan, HealthPlan, MountPlan,
    NetworkPlan, PortPlan, Protocol, RegistryAuth, ResourcePlan, VolumePlan, WorkloadPlan, WorkloadRef,
    WorkloadSettings,
};
pub use preview::{Fate, FieldChange, Foreseen, ObjectPreview, Preview, WorkloadPreview};
pub use secret::Secret;

/// A runtime that runs bundles: does what core decided, and reports facts. It never decides policy.
///
/// Every method may be called again after any failure. A call's future may be dropped at any point: what an
/// [`apply`](RuntimeAdapter::apply) had begun then is taken back, and nothing is left that could start later on its own (S-80).
#[async_trait]
pub trait RuntimeAdapter: fmt::Debug + Send + Sync {
    /// Which runtime this is, e.g. `kubernetes`.
    fn kind(&self) -> &'static str;

    /// The category of adapters it belongs to: `runtime`.
    fn category(&self) -> &'static str {
        "runtime"
    }

    /// What it is, and every key of its configuration for a form (S-5). No call.
    fn info(&self) -> AdapterInfo;

    /// Whether apps can be trusted to this runtime: it answers, and keeps them from each other. That is found out by trying, which
    /// takes seconds, and is answered for a while by what was found out before.
    ///
    /// # Errors
    ///
    /// [`Code::AdapterUnavailable`] when it does not, or when that could not be found out: the message says which, and the remedy
    /// what a person can do.
    async fn health_check(&self, context: &CallContext) -> Result<Health, Error>;

    /// Makes the bundle so, and waits until each workload's container runs, has ended, or cannot start.
    ///
    /// A plan that is satisfied already changes nothing (S-34).
    ///
    /// # Errors
    ///
    /// [`Code::ValidInvalid`], [`Code::PlanCapabilityUnsupported`], and [`Code::AdapterUnavailable`] where apps are not known to be kept from
    /// each other, before any write to the bundle; the others after undoing what could start later on its own (S-39).
    async fn apply(&self, plan: &BundlePlan, context: &CallContext) -> Result<ApplyResult, Error>;

    /// What is there now. A bundle that does not exist is an empty one, not an error (S-43).
    ///
    /// # Errors
    ///
    /// [`Code::AdapterUnavailable`] when it could not be read: a failed read never looks like absence (S-8).
    async fn observe(&self, bundle: &BundleRef, context: &CallContext) -> Result<ObservedBundle, Error>;

    /// Ends every running workload and waits until it is gone; all else stays (S-47). Stopping twice is a success.
    ///
    /// # Errors
    ///
    /// [`Code::AdapterFailed`] with the place of a workload that does not go.
    async fn stop(&self, bundle: &BundleRef, context: &CallContext) -> Result<(), Error>;

    /// Takes the bundle away; with [`DestroyOptions::keep_volumes`] its data stays (S-48). Repeatable.
    ///
    /// # Errors
    ///
    /// [`Code::AdapterFailed`] when something could not be removed.
    async fn destroy(&self, bundle: &BundleRef, options: &DestroyOptions, context: &CallContext) -> Result<(), Error>;

    /// What a workload wrote, from its newest start that ran, ended ones included (S-56).
    ///
    /// A followed log goes on with the workload's next start, and ends when the workload has ended or was stopped. The context's
    /// deadline is for the opening; dropping the stream ends the reading.
    ///
    /// # Errors
    ///
    /// [`Code::NotFound`] when there is no such workload, and in the stream when a log is no longer there;
    /// [`Code::AdapterUnavailable`] when it cannot be read.
    async fn logs(
        &self,
        workload: &WorkloadRef,
        options: &LogOptions,
        context: &CallContext,
    ) -> Result<LogStream, Error>;

    /// Where the proxy reaches a port of a workload. No call and no lookup: it runs on every proxied request (S-60).
    ///
    /// # Errors
    ///
    /// [`Code::ValidInvalid`] for a bad name or port.
    fn upstream(&self, workload: &WorkloadRef, port: u16) -> Result<Upstream, Error>;
}
