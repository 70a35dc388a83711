//! The port to a Kubernetes cluster and what rests on it alone.
//!
//! [`Cluster`] is the port; `kubecluster` implements it on a real cluster, `fakecluster` in memory. Above it
//! live, once for both: the typed layer, deadlines and retries, list-watch-relist, names and ownership, and
//! the converge engine. [`Env`] is how everything gets time, chance and tasks.
//!
//! Nothing here knows what a bundle's plan is; nothing here names `kube`.

pub mod budget;
pub mod converge;
pub mod env;
mod error;
mod list_watch;
pub mod names;
mod object;
mod port;
mod redact;
pub mod resilient;

pub use env::Env;
pub use error::{Cause, ClusterError, Failure, Subject};
pub use list_watch::{Told, list_watch, list_watch_as, watch_on};
pub use object::{Kind, Object, ObjectKey, Resource, ResourceVersion, Scoped, Uid};
pub use port::{
    ByteStream, Cluster, DeleteOptions, EventStream, ListRequest, LogRequest, MergePatch, Page, Propagation, Scope,
    Selector, WatchEvent, WatchRequest,
};
pub use resilient::Resilient;
