//! The port to a cluster on a real Kubernetes API, by kube-rs.
//!
//! [`KubeCluster`] implements [`pando_cluster::Cluster`]: one attempt a call, every failure told in Kubernetes'
//! terms. What it adds to kube's client is what a long-running platform needs from one: a limit on the rate of
//! all calls, credentials that rotate, connections that notice a dead peer, lists and watches that one odd
//! object does not stop, and silence about Secrets in errors and logs.
//!
//! Left to others: deadlines, retries and list-watch-relist are above the port, in `pando_cluster`.
//!
//! This is the only crate that names `kube`. It is also where tokio becomes the environment of everything:
//! [`tokio_env()`] in production, [`paused_env`] in tests that run this client against an API server in the same
//! process.

mod answer;
mod call;
mod cluster;
mod connect;
mod limiter;
mod session;
mod tokio_env;
mod transport;
mod warnings;
mod watch;

#[cfg(test)]
mod tests;

pub use cluster::KubeCluster;
pub use connect::{ConnectError, ConnectOptions};
pub use limiter::Rate;
pub use tokio_env::{paused_env, tokio_env};
