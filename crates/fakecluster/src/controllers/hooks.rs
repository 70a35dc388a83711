//! What tests can see of the machines and do to them, past the API.

use pando_cluster::env::Instant;
use pando_cluster::{Kind, ObjectKey};

use super::machines::{Exit, ProcessId};
use super::objects::text;
use super::programs::killed;
use crate::FakeCluster;
use crate::behaviour::Dial;
use crate::config::Image;
use crate::netpol::PodName;

/// A program that really runs, whatever the API says of its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The pod it was started for.
    pub pod: PodName,
    /// The pod's identity.
    pub uid: String,
    /// Its container.
    pub container: String,
    /// Its node.
    pub node: String,
    /// The claims it may write to.
    pub claims: Vec<String>,
    /// Since when it runs.
    pub since: Instant,
}

impl FakeCluster {
    /// Every program that really runs, ordered by its pod's uid.
    ///
    /// The ground truth: a pod whose object is gone may still be here, and one that the API calls `Running`
    /// may not be any more.
    pub fn running(&self) -> Vec<Running> {
        self.machines().with(|state| {
            let alive = state.processes.iter().filter(|(_, process)| process.exit.is_none());
            let running = alive.map(|(id, process)| Running {
                pod: process.pod.clone(),
                uid: id.uid.clone(),
                container: id.container.clone(),
                node: process.node.clone(),
                claims: process.claims.clone(),
                since: process.since,
            });
            running.collect()
        })
    }

    /// Every connection that programs tried to open so far, in order.
    pub fn dials(&self) -> Vec<Dial> {
        self.machines().with(|state| state.dials.clone())
    }

    /// Cuts a node off: its kubelet hears and says nothing more, while its programs go on.
    pub fn lose_node(&self, node: &str) {
        self.machines().with(|state| state.lost_nodes.insert(node.to_owned()));
        self.machines().news.raise();
    }

    /// Cuts a node off, and ends every program on it: its power is gone.
    pub fn crash_node(&self, node: &str) {
        let exit = killed(self);
        self.machines().with(|state| {
            let here = state.processes.iter().filter(|(_, process)| process.node == node);
            let here: Vec<_> = here.map(|(id, _)| id.clone()).collect();
            for id in &here {
                state.end(id, exit.clone());
            }
        });
        self.lose_node(node);
    }

    /// Connects a node again that [`FakeCluster::lose_node`] or [`FakeCluster::crash_node`] cut off.
    pub fn return_node(&self, node: &str) {
        self.machines().with(|state| state.lost_nodes.remove(node));
        self.machines().news.raise();
    }

    /// From now on, pulling an image has this outcome: a registry that heals, or fails.
    pub fn set_image(&self, name: &str, image: Image) {
        self.machines().with(|state| state.images.insert(name.to_owned(), image));
    }

    /// Ends a container's program with SIGKILL, as from inside the node. Answers whether it ran.
    pub fn kill(&self, pod: &PodName, container: &str) -> bool {
        self.end_program(pod, container, killed(self))
    }

    /// Ends a container's program for its use of memory; the node notices that this was the cause.
    pub fn kill_for_memory(&self, pod: &PodName, container: &str) -> bool {
        let exit = Exit { out_of_memory: true, ..killed(self) };
        self.end_program(pod, container, exit)
    }

    fn end_program(&self, pod: &PodName, container: &str, exit: Exit) -> bool {
        let key = ObjectKey::namespaced(Kind::Pod, &*pod.namespace, &*pod.name);
        let uid = self.with(|store| store.get(&key).map(|pod| text(pod, "/metadata/uid").to_owned()));
        let Some(uid) = uid else { return false };
        let id = ProcessId { uid, container: container.to_owned() };
        self.machines().touch(&id.uid, |state| {
            let runs = state.processes.get(&id).is_some_and(|process| process.exit.is_none());
            state.end(&id, exit);
            runs
        })
    }
}
