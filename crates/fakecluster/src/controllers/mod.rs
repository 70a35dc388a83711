//! Everything that acts in the cluster by itself: the control plane's controllers and the nodes.
//!
//! Each controller is a task of its own that reacts to changes in the store and takes one step a turn, so that
//! the executor can put anything between two steps of one. None of them polls.

mod claims;
mod disks;
mod endpoints;
mod hooks;
mod kubelet;
mod logs;
mod machines;
mod namespaces;
mod network;
mod nodes;
mod objects;
mod orphans;
mod programs;
mod scheduler;
mod volumes;

pub use disks::{Disk, Writer};
pub use hooks::Running;
pub(crate) use logs::logs;
pub(crate) use machines::Machines;
pub use machines::MountedFile;
pub(crate) use network::ViewCache;

use crate::FakeCluster;

/// What the controllers keep beside the store.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) machines: Machines,
    pub(crate) views: ViewCache,
}

/// Starts every controller on the cluster's environment; they end with its executor.
pub(crate) fn start(fake: &FakeCluster) {
    let env = fake.env();
    env.spawn_detached("furniture", namespaces::furnish(fake.clone()));
    env.spawn_detached("namespaces", namespaces::end(fake.clone()));
    env.spawn_detached("scheduler", scheduler::run(fake.clone()));
    env.spawn_detached("claims", claims::run(fake.clone()));
    env.spawn_detached("volumes", volumes::bind(fake.clone()));
    env.spawn_detached("provisioner", volumes::provision(fake.clone()));
    env.spawn_detached("endpoints", endpoints::run(fake.clone()));
    env.spawn_detached("node lifecycle", nodes::lifecycle(fake.clone()));
    env.spawn_detached("orphans", orphans::run(fake.clone()));
    env.spawn_detached("kubelets", nodes::kubelets(fake.clone()));
    env.spawn_detached("network agent", network::agent(fake.clone()));
}
