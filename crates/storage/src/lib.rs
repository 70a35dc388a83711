//! Volumes of apps: what a claim is, what its handle looks like, and what keeps its data when objects go.
//!
//! One volume of a plan is one `PersistentVolumeClaim`, named after the volume's id, so that every later plan finds it again. It is
//! made before the first pod that mounts it and outlives all of them. The volume that a claim is bound to is set to `Retain`,
//! so that no deletion of a claim or a namespace, by whomever, takes the data with it (S-41).
//!
//! <https://kubernetes.io/docs/concepts/storage/persistent-volumes/>

mod claim;
mod handle;
mod retain;

pub use claim::{Storage, Volume, beside, claim};
pub use handle::{BadHandle, Handle};
pub use retain::{RETAIN, belongs_to, bound_volume, is_retained};
