//! What tests can see of the machines and do to them, past the API.

use std::collections::BTreeMap;

use pando_cluster::env::Instant;
use pando_cluster::{Kind, ObjectKey};

use super::disks::Disk;
use super::machines::{Exit, MountedFile, ProcessId};
use super::nodes;
use super::objects::{Condition, set_condition, text};
use super::programs::killed;
use crate::FakeCluster;
use crate::api::seed;
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

    /// The files that a container's program found at its mounts when it started; none for one that never did.
    pub fn mounted_files(&self, pod: &PodName, container: &str) -> Vec<MountedFile> {
        let Some(uid) = self.uid_of(pod) else { return Vec::new() };
        let id = ProcessId { uid, container: container.to_owned() };
        self.machines().with(|state| state.processes.get(&id).map(|process| process.files.clone()).unwrap_or_default())
    }

    /// What is really on the volumes, by the name of each; those that were destroyed are remembered.
    pub fn disks(&self) -> BTreeMap<String, Disk> {
        self.machines().with(|state| state.disks.all())
    }

    /// Every connection that programs tried to open so far, in order.
    pub fn dials(&self) -> Vec<Dial> {
        self.machines().with(|state| state.dials.clone())
    }

    /// Begins a new file for the log of a container that runs, as a kubelet does with long ones; `false` when it does not run.
    pub fn rotate_log(&self, pod: &PodName, container: &str) -> bool {
        let now = self.env().wall.now();
        let rotated = self.machines().with(|state| {
            let runs = |(id, process): &(&ProcessId, &super::machines::Process)| {
                process.exit.is_none() && process.pod == *pod && id.container == container
            };
            let id = state.processes.iter().find(runs).map(|(id, _)| id.clone());
            id.and_then(|id| state.logs.get_mut(&id)).map(|log| log.rotate(now)).is_some()
        });
        self.machines().output.raise();
        rotated
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

    /// Takes a node away for good, as a cloud does: its power is gone, and so is its object.
    pub fn remove_node(&self, node: &str) {
        self.crash_node(node);
        self.with(|store| store.remove(&ObjectKey::cluster(Kind::Node, node)));
    }

    /// Connects a node again that was cut off or taken away; it tells the API server of itself where it must.
    pub fn return_node(&self, node: &str) {
        let config = self.config();
        let known = config.nodes.iter().enumerate().find(|(_, machine)| machine.name == node);
        if let Some((index, machine)) = known {
            self.with(|store| store.insert(Kind::Node, seed::node(machine, index, config, &store.now_text())));
        }
        self.machines().with(|state| state.lost_nodes.remove(node));
        self.machines().news.raise();
    }

    /// Has the kubelet end a pod because its node is short of something, or it has written more than its limit.
    ///
    /// The message is the kubelet's, e.g. `Pod ephemeral local storage usage exceeds the total limit of containers
    /// 1Mi. `. Answers whether the pod was there.
    pub fn evict(&self, pod: &PodName, message: &str) -> bool {
        let Some(uid) = self.uid_of(pod) else { return false };
        self.machines().touch(&uid, |state| state.evictions.insert(uid.clone(), message.to_owned()));
        true
    }

    /// Says of a node whether its disk is full: new pods keep away from it, those on it stay until they are evicted.
    pub fn set_disk_pressure(&self, node: &str, full: bool) {
        let (status, reason, message) = if full {
            ("True", "KubeletHasDiskPressure", "kubelet has disk pressure")
        } else {
            ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
        };
        let condition = Condition { kind: "DiskPressure", status, reason, message };
        self.with(|store| {
            let now = store.now_text();
            store.update(&ObjectKey::cluster(Kind::Node, node), |node| {
                set_condition(node, &now, &condition);
                nodes::taint(node, "node.kubernetes.io/disk-pressure", &["NoSchedule"], full);
            });
        });
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

    fn uid_of(&self, pod: &PodName) -> Option<String> {
        let key = ObjectKey::namespaced(Kind::Pod, &*pod.namespace, &*pod.name);
        self.with(|store| store.get(&key).map(|pod| text(pod, "/metadata/uid").to_owned()))
    }

    fn end_program(&self, pod: &PodName, container: &str, exit: Exit) -> bool {
        let Some(uid) = self.uid_of(pod) else { return false };
        let id = ProcessId { uid, container: container.to_owned() };
        self.machines().touch(&id.uid, |state| {
            let runs = state.processes.get(&id).is_some_and(|process| process.exit.is_none());
            state.end(&id, exit);
            runs
        })
    }
}
