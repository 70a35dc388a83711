//! A plan that is right by construction; [`crate::check`] makes it from the plan as written.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use pando_api::{Protocol, RegistryAuth, ResourcePlan, Secret, WorkloadSettings};
use pando_cluster::names::AppNamespace;
use pando_storage::Volume;

use crate::image::Image;

/// A plan that can be carried out.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) app: AppNamespace,
    pub(crate) labels: BTreeMap<String, String>,
    /// In the plan's order. What one depends on may come later in it, but never in a circle.
    pub(crate) workloads: Vec<Workload>,
    pub(crate) volumes: Vec<Volume>,
}

impl Plan {
    /// The limits of every workload.
    pub(crate) fn resources(&self) -> Vec<Resources> {
        self.workloads.iter().map(|workload| workload.resources).collect()
    }

    /// The workload of that name.
    pub(crate) fn workload(&self, name: &str) -> Option<&Workload> {
        self.workloads.iter().find(|workload| workload.name == name)
    }
}

/// A workload that can be started.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) image: Image,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) command: Vec<String>,
    pub(crate) working_dir: Option<String>,
    pub(crate) env: BTreeMap<String, Secret>,
    pub(crate) credential: Option<Credential>,
    /// Sorted by path, no path twice.
    pub(crate) mounts: Vec<Mount>,
    /// Sorted by path, no path twice, none also a mount's.
    pub(crate) files: Vec<File>,
    /// Sorted, without duplicates.
    pub(crate) ports: Vec<Port>,
    /// Names of workloads of the plan.
    pub(crate) depends_on: Vec<String>,
    pub(crate) health: Option<Health>,
    pub(crate) resources: Resources,
    pub(crate) settings: WorkloadSettings,
}

impl Workload {
    /// What no text may show: the environment's values, and what the image is pulled with.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let auth = self.credential.as_ref().map(|credential| &credential.auth);
        self.env.values().chain(auth.into_iter().flat_map(|auth| [&auth.password, &auth.identity_token]))
    }
}

/// How the image is pulled.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Credential {
    /// The registry's key in a pull Secret (S-28).
    pub(crate) registry: String,
    pub(crate) auth: RegistryAuth,
}

/// A volume's place in a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The claim that is mounted.
    pub(crate) claim: String,
    /// Absolute and normal.
    pub(crate) path: String,
    pub(crate) read_only: bool,
}

/// A carried file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    /// Absolute and normal.
    pub(crate) path: String,
    pub(crate) content: String,
    pub(crate) mode: i32,
}

/// A port to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Port {
    pub(crate) number: u16,
    pub(crate) protocol: Protocol,
}

/// A health check, with the one probe it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) probe: Probe,
    pub(crate) interval_seconds: i32,
    pub(crate) timeout_seconds: i32,
    pub(crate) retries: i32,
}

/// How health is probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    Command(Vec<String>),
    Http { path: String, port: u16 },
    Tcp { port: u16 },
}

/// Limits; none is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) cpu_millis: Option<NonZeroU64>,
    pub(crate) memory_bytes: Option<NonZeroU64>,
    pub(crate) ephemeral_bytes: Option<NonZeroU64>,
}

impl From<ResourcePlan> for Resources {
    fn from(plan: ResourcePlan) -> Self {
        Self {
            cpu_millis: NonZeroU64::new(plan.cpu_millis),
            memory_bytes: NonZeroU64::new(plan.memory_bytes),
            ephemeral_bytes: NonZeroU64::new(plan.ephemeral_bytes),
        }
    }
}
