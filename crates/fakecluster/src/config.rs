//! What kind of cluster the fake is: its machines, its lags, its rights.
//!
//! [`FakeConfig::default`] is a healthy cluster of two nodes in which everything happens at once; a test
//! changes what its case is about.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::behaviour::{Daemons, Programs};
use crate::netpol::Plugin;

/// A cluster to simulate.
#[derive(Clone, Debug)]
pub struct FakeConfig {
    /// The machines.
    pub nodes: Vec<FakeNode>,
    /// Where pods get their addresses.
    pub pod_cidr: IpNet,
    /// Where Services get their addresses; the first one is the API server's.
    pub service_cidr: IpNet,
    /// Where the API server itself listens, port 6443: the endpoints of Service `default/kubernetes`.
    pub api_server_addresses: Vec<String>,
    /// How long a call through the API takes, half of it before the store is touched and half after.
    pub latency: Duration,
    /// How many of the newest changes a watch can go back; older ones are answered with 410.
    pub history: usize,
    /// After how long without events a watch gets a bookmark.
    pub bookmark_interval: Duration,
    /// How long after its creation a role binding takes effect.
    pub rbac_lag: Duration,
    /// How long the quota controller takes to bring a quota's status up to date; until then the old one rules.
    pub quota_lag: Duration,
    /// Who may do what; `None` lets everybody do everything.
    pub access: Option<Access>,
    /// The names of the RuntimeClass objects there are; a pod that names another one is refused.
    pub runtime_classes: BTreeSet<String>,
    /// The `PriorityClass` objects there are, with their values; a pod that names another one is refused.
    pub priority_classes: BTreeMap<String, i32>,
    /// The storage classes there are from the start; the one that is the default is given to claims that name none.
    pub storage_classes: Vec<FakeStorageClass>,
    /// Who makes volumes for the classes that name them; classes that name somebody else wait for ever.
    pub provisioners: BTreeMap<String, FakeProvisioner>,
    /// What comes of pulling an image, by the name a container gives it.
    pub images: BTreeMap<String, Image>,
    /// What comes of pulling an image that [`Self::images`] does not name.
    pub other_images: Image,
    /// What the containers' programs do.
    pub programs: Arc<dyn Programs>,
    /// How long the nodes and the control plane take for their work.
    pub delays: Delays,
    /// Whether network policies are enforced at all; many network plugins accept them and do nothing.
    pub policy_enforced: bool,
    /// How long a fresh pod's connections pass unjudged after its sandbox started.
    pub policy_lag: Duration,
    /// How the network plugin decides where Kubernetes leaves it to the plugin.
    pub plugin: Plugin,
}

/// A way to make volumes, as whoever set up the cluster made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeStorageClass {
    /// Its name.
    pub name: String,
    /// Whether claims that name no class get this one.
    pub is_default: bool,
    /// Who makes the volumes, e.g. `rancher.io/local-path`.
    pub provisioner: String,
    /// Whether a claim waits for its first pod, and its volume goes where that pod goes.
    pub waits_for_first_consumer: bool,
    /// What becomes of the class's volumes when their claims go: `Delete` or `Retain`.
    pub reclaim_policy: String,
    /// Whether claims that are bound may grow.
    pub expandable: bool,
}

impl FakeStorageClass {
    /// The class of a cluster made by kind: storage on the node that the first pod is placed on.
    pub fn standard() -> Self {
        Self {
            name: "standard".to_owned(),
            is_default: true,
            provisioner: "rancher.io/local-path".to_owned(),
            waits_for_first_consumer: true,
            reclaim_policy: "Delete".to_owned(),
            expandable: false,
        }
    }
}

/// Somebody who makes volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeProvisioner {
    /// Whether its volumes are on one node each, and on no other; else they are within reach of every node, but a
    /// volume for one node at a time is attached to one only.
    pub is_local: bool,
    /// Whether it can make volumes larger.
    pub resizes: bool,
    /// Why no volume can be had, in its own words.
    pub fails: Option<String>,
}

impl FakeProvisioner {
    /// Directories on nodes, as kind's.
    pub fn local() -> Self {
        Self { is_local: true, resizes: false, fails: None }
    }

    /// Storage on the network, as that of cloud providers.
    pub fn network() -> Self {
        Self { is_local: false, resizes: true, fails: None }
    }
}

/// What comes of pulling an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// It arrives; later containers on that node find it there.
    Pulled {
        /// How long the first pull on a node takes.
        after: Duration,
    },
    /// The registry has no such image, or does not answer; the kubelet tries again for ever.
    Fails {
        /// The container runtime's words.
        message: String,
    },
    /// The name is no image name.
    InvalidName,
    /// It is given to who knows the password, and to nobody else.
    Private {
        /// Who that is.
        login: Login,
        /// How long the first pull on a node takes.
        after: Duration,
    },
}

/// A name and a password at a registry.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The name.
    pub username: String,
    /// The password; no `Debug` form shows it.
    pub password: String,
}

impl Login {
    /// Both.
    pub fn new(username: &str, password: &str) -> Self {
        Self { username: username.to_owned(), password: password.to_owned() }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Image {
    /// What a registry answers for a tag it does not have.
    pub fn missing(name: &str) -> Self {
        let message = format!(
            "rpc error: code = NotFound desc = failed to pull and unpack image {name:?}: failed to resolve reference {name:?}: {name}: not found"
        );
        Self::Fails { message }
    }

    /// An image for another kind of machine only.
    pub fn other_platform(name: &str) -> Self {
        let message = format!(
            "rpc error: code = NotFound desc = failed to pull and unpack image {name:?}: no match for platform in manifest: not found"
        );
        Self::Fails { message }
    }

    /// What a registry answers that has given its images too often.
    pub fn rate_limited(name: &str) -> Self {
        Self::Fails { message: refusal(name, "429 Too Many Requests") }
    }

    /// What a registry answers that does not let this one have the image.
    pub fn denied(name: &str) -> Self {
        Self::Fails { message: refusal(name, "403 Forbidden") }
    }

    /// The container runtime's words for a registry that wants to know who asks.
    pub(crate) fn unauthorized(name: &str) -> String {
        refusal(name, "401 Unauthorized")
    }
}

/// The words of containerd 1.6 on a registry's refusal.
fn refusal(name: &str, status: &str) -> String {
    let host = name.split_once('/').map(|(host, _)| host).filter(|host| host.contains(['.', ':']));
    let host = host.unwrap_or("registry-1.docker.io");
    let tag = name.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.contains('/')).unwrap_or("latest");
    format!(
        "failed to pull and unpack image {name:?}: failed to resolve reference {name:?}: pulling from host {host} failed with status code [manifests {tag}]: {status}"
    )
}

/// How long the nodes and the control plane take for their work. All of it is virtual time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delays {
    /// From a pod's arrival on its node to its sandbox.
    pub sandbox: Duration,
    /// From an image that is there to a container that runs.
    pub container: Duration,
    /// From a container that shows as ended to a pod that shows as ended (0.5 to 2.6 s on Kubernetes 1.34).
    pub phase: Duration,
    /// From the end of a deleted pod's last container to the end of its object (about 0.9 s on Kubernetes 1.34).
    pub removal: Duration,
    /// How long the containers of a pod outlive its object when that was deleted by force (2 s on Kubernetes 1.34).
    pub orphan: Duration,
    /// From a namespace to its `default` account and its `kube-root-ca.crt`.
    pub service_account: Duration,
    /// From a change to the Services' endpoints.
    pub endpoints: Duration,
    /// From a deleted namespace to the deletion of what is in it.
    pub namespace: Duration,
    /// From a change of claims and volumes to what the control plane makes of it.
    pub binding: Duration,
    /// From the choice of a claim's node to its volume (3.2 s on kind).
    pub provisioning: Duration,
    /// From a claim's end to its volume's, where the volume is to be deleted (2 to 3 s on kind).
    pub reclaiming: Duration,
    /// From a claim that asks for more to the claim that has it.
    pub expansion: Duration,
    /// From a change of a policy to its enforcement.
    pub policy_sync: Duration,
    /// How long a node may be silent before it is thought lost (40 s on Kubernetes 1.34).
    pub node_monitor: Duration,
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            sandbox: Duration::ZERO,
            container: Duration::ZERO,
            phase: Duration::from_millis(500),
            removal: Duration::ZERO,
            orphan: Duration::from_secs(2),
            service_account: Duration::ZERO,
            endpoints: Duration::ZERO,
            namespace: Duration::ZERO,
            binding: Duration::ZERO,
            provisioning: Duration::ZERO,
            reclaiming: Duration::ZERO,
            expansion: Duration::ZERO,
            policy_sync: Duration::ZERO,
            node_monitor: Duration::from_secs(40),
        }
    }
}

/// A machine of the cluster.
#[derive(Clone, Debug)]
pub struct FakeNode {
    /// Its name.
    pub name: String,
    /// Its own addresses, v4 first.
    pub addresses: Vec<String>,
    /// What pods may ask of it, as Kubernetes spells it: `cpu`, `memory`, `pods`, `ephemeral-storage`.
    pub allocatable: BTreeMap<String, String>,
    /// Its labels beside the well-known ones, which follow from its name.
    pub labels: BTreeMap<String, String>,
    /// Whether its kubelet reports that it is ready.
    pub ready: bool,
}

/// Who may do what, as cluster roles and their bindings say it.
///
/// Bindings inside a namespace come from the RoleBinding objects in the store too.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The cluster roles by name.
    pub roles: BTreeMap<String, Vec<PolicyRule>>,
    /// Users and the cluster role each holds in the whole cluster.
    pub cluster_bindings: Vec<(String, String)>,
    /// Namespaces, users and the cluster role each holds there from the start.
    pub namespace_bindings: Vec<(String, String, String)>,
}

impl FakeNode {
    /// A ready node of 4 CPUs and 16 GiB with the address `172.18.0.<number>`.
    pub fn sized(name: &str, number: u8) -> Self {
        let allocatable = [("cpu", "4"), ("memory", "16Gi"), ("pods", "110"), ("ephemeral-storage", "100Gi")];
        Self {
            name: name.to_owned(),
            addresses: vec![format!("172.18.0.{number}")],
            allocatable: allocatable.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into(),
            labels: BTreeMap::new(),
            ready: true,
        }
    }
}

impl Default for FakeConfig {
    fn default() -> Self {
        Self {
            nodes: vec![FakeNode::sized("node-1", 2), FakeNode::sized("node-2", 3)],
            pod_cidr: cidr([10, 244, 0, 0], 16),
            service_cidr: cidr([10, 96, 0, 0], 16),
            api_server_addresses: vec!["172.18.0.2".to_owned()],
            latency: Duration::ZERO,
            history: 10_000,
            bookmark_interval: Duration::from_mins(1),
            rbac_lag: Duration::ZERO,
            quota_lag: Duration::ZERO,
            access: None,
            runtime_classes: BTreeSet::new(),
            priority_classes: [
                ("system-cluster-critical".to_owned(), 2_000_000_000),
                ("system-node-critical".to_owned(), 2_000_001_000),
            ]
            .into(),
            storage_classes: vec![FakeStorageClass::standard()],
            provisioners: [("rancher.io/local-path".to_owned(), FakeProvisioner::local())].into(),
            images: BTreeMap::new(),
            other_images: Image::Pulled { after: Duration::ZERO },
            programs: Arc::new(Daemons),
            delays: Delays::default(),
            policy_enforced: true,
            policy_lag: Duration::ZERO,
            plugin: Plugin::default(),
        }
    }
}

fn cidr(address: [u8; 4], length: u8) -> IpNet {
    IpNet::new_assert(address.into(), length)
}
