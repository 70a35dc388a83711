//! What really runs: sandboxes, processes, addresses and logs on every node.
//!
//! This is the ground truth beneath the objects in the store. A kubelet reports it, sometimes late, and a pod
//! whose object is gone may live on here. Nothing in this file reads or writes the store.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use futures::channel::oneshot;
use jiff::Timestamp;
use pando_cluster::env::{Instant, Task};

use super::disks::Disks;
use super::logs::Log;
use crate::behaviour::Dial;
use crate::config::Image;
use crate::netpol::{PodName, Policies};
use crate::signal::Signal;

/// Names a container of a pod, for good: by the pod's uid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessId {
    pub(super) uid: String,
    pub(super) container: String,
}

/// Everything that really runs, under one lock.
#[derive(Debug, Default)]
pub(crate) struct Machines {
    state: Mutex<State>,
    /// Raised whenever something happens that a kubelet should look at.
    pub(super) news: Signal,
    /// Raised whenever a log grows or ends.
    pub(super) output: Signal,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    pub(super) processes: BTreeMap<ProcessId, Process>,
    pub(super) logs: BTreeMap<ProcessId, Log>,
    pub(super) dials: Vec<Dial>,
    pub(super) lost_nodes: BTreeSet<String>,
    /// What tests said about images since the cluster came up.
    pub(super) images: BTreeMap<String, Image>,
    /// The images on each node.
    pub(super) pulled: BTreeSet<(String, String)>,
    /// The policies as the network plugin handled them last.
    pub(super) policies: Arc<Policies>,
    /// The pods with news since the kubelets looked.
    pub(super) touched: BTreeSet<String>,
    /// The pods that have to go because their node is short of something, by uid, with the kubelet's words.
    pub(super) evictions: BTreeMap<String, String>,
    /// What volumes hold.
    pub(super) disks: Disks,
    addresses: BTreeSet<IpAddr>,
}

/// The network namespace of a pod.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    pub(super) pod: PodName,
    pub(super) node: String,
    /// `None` on the host's network.
    pub(super) ip: Option<IpAddr>,
    pub(super) since: Instant,
}

/// A container that was started.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pod: PodName,
    pub(super) node: String,
    /// The claims it may write to.
    pub(super) claims: Vec<String>,
    /// The files that it found at its mounts when it started.
    pub(super) files: Vec<MountedFile>,
    pub(super) since: Instant,
    /// The TCP ports it accepts connections on.
    pub(super) ports: Vec<u16>,
    /// Present until it was asked to end.
    pub(super) term: Option<oneshot::Sender<()>>,
    /// What plays its program; dropping it ends that.
    pub(super) task: Option<Task>,
    pub(super) exit: Option<Exit>,
}

/// A file that a container finds at a mount, out of a ConfigMap or a Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct MountedFile {
    /// Where it is in the container.
    pub path: String,
    /// Its mode, e.g. `0o644`.
    pub mode: i32,
    /// What is in it.
    pub contents: Vec<u8>,
}

impl fmt::Debug for MountedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may come from a Secret.
        let Self { path, mode, contents } = self;
        f.debug_struct("MountedFile").field("path", path).field("mode", mode).field("bytes", &contents.len()).finish()
    }
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) code: i32,
    /// Killed for its use of memory, as far as the node noticed.
    pub(super) out_of_memory: bool,
    /// What it left in its termination log; empty for nothing.
    pub(super) message: String,
    pub(super) at: Timestamp,
    /// The same instant as tests measure it.
    pub(super) when: Instant,
}

impl Machines {
    /// Reads or changes the truth; must not be called from inside itself.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the truth about one pod, which its kubelet is then to look at.
    pub(super) fn touch<R>(&self, uid: &str, f: impl FnOnce(&mut State) -> R) -> R {
        let result = self.with(|state| {
            state.touched.insert(uid.to_owned());
            f(state)
        });
        self.news.raise();
        self.output.raise();
        result
    }

    /// Writes to a container's log.
    pub(super) fn write(&self, id: &ProcessId, at: Timestamp, bytes: &[u8]) {
        self.with(|state| state.logs.entry(id.clone()).or_default().write(at, bytes));
        self.output.raise();
    }
}

impl State {
    /// The first free address of `range`, and from now on it is not free.
    ///
    /// The lowest one, so that an address that was given back is soon another pod's: what clusters do late,
    /// and what goes wrong then, happens here at once.
    pub(super) fn take_address(&mut self, range: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
        let free = range.into_iter().find(|ip| !self.addresses.contains(ip))?;
        self.addresses.insert(free);
        Some(free)
    }

    /// Ends a pod's sandbox and gives its address back.
    pub(super) fn end_sandbox(&mut self, uid: &str) {
        if let Some(ip) = self.sandboxes.remove(uid).and_then(|sandbox| sandbox.ip) {
            self.addresses.remove(&ip);
        }
    }

    /// The pod's processes that have not ended.
    pub(super) fn alive(&self, uid: &str) -> impl Iterator<Item = &ProcessId> {
        self.of_pod(uid).filter(|(_, process)| process.exit.is_none()).map(|(id, _)| id)
    }

    fn of_pod(&self, uid: &str) -> impl Iterator<Item = (&ProcessId, &Process)> {
        let first = ProcessId { uid: uid.to_owned(), container: String::new() };
        let uid = first.uid.clone();
        self.processes.range(first..).take_while(move |(id, _)| id.uid == uid)
    }

    /// SIGTERM: the program decides what comes of it.
    pub(super) fn term(&mut self, id: &ProcessId) {
        if let Some(term) = self.processes.get_mut(id).and_then(|process| process.term.take()) {
            // A program that has just ended no longer listens.
            let _ = term.send(());
        }
    }

    /// The end of a process, by itself or by SIGKILL; only the first one counts.
    pub(super) fn end(&mut self, id: &ProcessId, exit: Exit) {
        if let Some(process) = self.processes.get_mut(id)
            && process.exit.is_none()
        {
            self.disks.close(id, exit.when);
            let at = exit.at;
            process.exit = Some(exit);
            process.ports.clear();
            process.term = None;
            process.task = None;
            self.logs.entry(id.clone()).or_default().end(at);
            self.touched.insert(id.uid.clone());
        }
    }

    /// Forgets everything about a pod whose last process has ended.
    pub(super) fn forget(&mut self, uid: &str) {
        self.end_sandbox(uid);
        self.processes.retain(|id, _| id.uid != uid);
        self.logs.retain(|id, _| id.uid != uid);
        self.touched.remove(uid);
    }

    /// Who accepts connections at `ip` on `port`.
    pub(super) fn listens(&self, ip: IpAddr, port: u16) -> bool {
        let at = |(_, sandbox): &(&String, &Sandbox)| sandbox.ip == Some(ip);
        self.sandboxes.iter().filter(at).any(|(uid, _)| self.listens_in(uid, port))
    }

    /// Whether a process of the pod accepts connections on `port`.
    pub(super) fn listens_in(&self, uid: &str, port: u16) -> bool {
        self.of_pod(uid).any(|(_, process)| process.ports.contains(&port))
    }
}
