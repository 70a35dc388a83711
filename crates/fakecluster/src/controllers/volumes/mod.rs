//! Volumes and claims: who has which, and what becomes of a volume whose claim has gone.
//!
//! [`binder`] is the control plane's part, [`provisioner`] the part of whoever makes the volumes.
//! <https://kubernetes.io/docs/concepts/storage/persistent-volumes/#lifecycle-of-a-volume-and-claim>

mod binder;
pub(super) mod fit;
mod provisioner;

pub(super) use binder::{NO_PROVISIONER, reserve, run as bind, waits_for_first_consumer as waits};
pub(super) use provisioner::run as provision;

/// The node that the scheduler has chosen for a claim's volume.
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Who is to make the volume of a claim, in the present spelling and in the old one.
const PROVISIONER: &[&str] =
    &["volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-provisioner"];

/// Who made a volume.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// The claim has its volume for good.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// The other one of a claim and a volume was chosen by the control plane and not by whoever made this one.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
