//! What the programs inside containers do.
//!
//! The fake runs no code. A test says by [`Programs`] what each container's program would do, and the kubelet
//! and the network play it out on virtual time.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use pando_cluster::env::Instant;

use crate::netpol::PodName;

/// What a container's program does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Runs until it is asked to end, and then exits 143 at once.
    Run,
    /// Exits by itself.
    Exit {
        /// After so long; zero is at once.
        after: Duration,
        /// With that code.
        code: i32,
    },
    /// Runs and does not hear SIGTERM, as a shell does that is process 1.
    IgnoreTerm,
    /// Runs, and takes its time when asked to end.
    TrapTerm {
        /// How long it takes from SIGTERM on.
        exit_after: Duration,
        /// The code it then exits with.
        code: i32,
    },
    /// Accepts connections until it is asked to end, and then exits 143 at once.
    Listen {
        /// The TCP ports it listens on.
        ports: Vec<u16>,
    },
    /// Opens connections from its first instant on; every outcome is recorded.
    Dial {
        /// Where to.
        targets: Vec<Target>,
        /// The pause between two rounds; zero counts as a millisecond.
        every: Duration,
        /// How long it goes on; zero is one round.
        during: Duration,
        /// What it does afterwards.
        then: Box<Self>,
    },
    /// Waits until it can reach nobody any more: what an isolation gate does. Its termination message is
    /// `closed after N ms`, or `after N s:` with what was open to the last.
    DialUntilClosed {
        /// Where to.
        targets: Vec<Target>,
        /// Exits 0 after so many rounds in a row in which no target was open.
        in_a_row: u32,
        /// Exits 1 when that has not happened by then.
        limit: Duration,
    },
    /// Dials every target, round after round, and writes what came of each: `ROUND INDEX OUTCOME`, and `ROUND .` after the last one.
    /// The outcome is `open`, `refused`, `dropped`, `noroute`, or `noname` where a name has no address.
    Survey {
        /// Where to.
        targets: Vec<Target>,
        /// How long a client waits for an answer that does not come.
        patience: Duration,
        /// The pause after a round; zero counts as a millisecond.
        pause: Duration,
    },
    /// Writes lines to its log, one a millisecond.
    Print {
        /// The lines, without their ends.
        lines: Vec<String>,
        /// What it does afterwards.
        then: Box<Self>,
    },
    /// Writes bytes to its log as they are, all at once.
    Write {
        /// What it writes, each by a call of its own. None holds a zero byte.
        pieces: Vec<Vec<u8>>,
        /// What it does afterwards.
        then: Box<Self>,
    },
    /// Writes numbered lines to its log, [`Self::BATCH`] at a time.
    Count {
        /// The last number; the first is 1.
        to: u64,
        /// How long each line is beside its number.
        width: usize,
        /// The pause after each batch.
        pause: Duration,
        /// What it does afterwards.
        then: Box<Self>,
    },
    /// Takes more memory than its limit allows and is killed for it.
    EatMemory,
    /// Cannot be started at all, e.g. for want of the command.
    StartError {
        /// The container runtime's words.
        message: String,
    },
}

impl Behaviour {
    /// How many lines a counting program writes without a pause.
    pub const BATCH: u64 = 1000;
}

/// Where a program dials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// To whom.
    pub host: Host,
    /// The TCP port.
    pub port: u16,
}

impl Target {
    /// An address and a port.
    pub fn address(ip: impl Into<IpAddr>, port: u16) -> Self {
        Self { host: Host::Address(ip.into()), port }
    }

    /// A name in the cluster's DNS and a port.
    pub fn name(name: impl Into<String>, port: u16) -> Self {
        Self { host: Host::Name(name.into()), port }
    }

    /// A pod, by whatever address it has at the time, and a port.
    pub fn pod(namespace: impl Into<String>, name: impl Into<String>, port: u16) -> Self {
        Self { host: Host::Pod(PodName::new(namespace, name)), port }
    }
}

/// The host part of a [`Target`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address.
    Address(IpAddr),
    /// A DNS name, e.g. `web.pando-blog.svc.cluster.local`.
    Name(String),
    /// A pod's own address.
    Pod(PodName),
}

/// One connection that a program tried to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// When.
    pub at: Instant,
    /// From which pod.
    pub from: PodName,
    /// The pod's identity.
    pub uid: String,
    /// From which container.
    pub container: String,
    /// Where to.
    pub target: Target,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of opening a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Somebody answered.
    Open,
    /// Nobody listens there.
    Refused,
    /// The packets were dropped on the way: the client sees a time-out.
    Dropped,
    /// There is no such name, or nobody has that address.
    NoRoute,
}

/// Says what containers do.
pub trait Programs: fmt::Debug + Send + Sync {
    /// What `container` of `pod` does; asked once each time it starts. The pod is as the kubelet saw it last.
    fn behaviour(&self, pod: &Pod, container: &Container) -> Behaviour;
}

/// Every container listens on the TCP ports it declares; one that declares none just runs.
///
/// Init containers exit 0 at once, or no pod would ever start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Daemons;

impl Programs for Daemons {
    fn behaviour(&self, pod: &Pod, container: &Container) -> Behaviour {
        let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        if init.into_iter().any(|init| init.name == container.name) {
            return Behaviour::Exit { after: Duration::ZERO, code: 0 };
        }
        let declared = container.ports.iter().flatten();
        let tcp = declared.filter(|port| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"));
        let ports: Vec<_> = tcp.filter_map(|port| u16::try_from(port.container_port).ok()).collect();
        if ports.is_empty() { Behaviour::Run } else { Behaviour::Listen { ports } }
    }
}
