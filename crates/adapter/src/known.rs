//! What the adapter knows of the cluster as a whole: its addresses, and which of its nodes answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use pando_cluster::env::Instant;
use pando_cluster::{Cluster, ClusterError, Env, Failure, Kind, ListRequest, ObjectKey, Scope, budget};
use pando_network::{ClusterAddresses, api_server_addresses, node_addresses};

/// Facts about nodes and the API server, read when they are too old.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    read: futures::lock::Mutex<Option<(Instant, Arc<ClusterFacts>)>>,
}

/// What was read of the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterFacts {
    /// Addresses that no app may reach.
    pub(crate) addresses: ClusterAddresses,
    /// Nodes that do not answer. `Ready` false is not lost: such a node still tells what it does.
    pub(crate) lost_nodes: BTreeSet<String>,
    /// Nodes that exist.
    pub(crate) nodes: BTreeSet<String>,
}

impl ClusterFacts {
    /// What these say; `None` without an address of the API server: a policy written then would leave it open, and a gate
    /// would have nothing to dial.
    pub(crate) fn of(nodes: &[Node], api_server: Option<&EndpointSlice>) -> Option<Self> {
        let api_server = api_server.map(api_server_addresses).filter(|addresses| !addresses.is_empty())?;
        let lost = |node: &&Node| {
            let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
        };
        let named = |node: &Node| node.metadata.name.clone();
        Some(Self {
            addresses: ClusterAddresses { nodes: node_addresses(nodes), api_server },
            lost_nodes: nodes.iter().filter(lost).filter_map(named).collect(),
            nodes: nodes.iter().filter_map(named).collect(),
        })
    }

    /// Whether the node cannot be reached or is gone.
    pub(crate) fn is_lost(&self, node: &str) -> bool {
        !node.is_empty() && (self.lost_nodes.contains(node) || !self.nodes.contains(node))
    }
}

impl Facts {
    /// The facts, at most `budget::CLUSTER_FACTS` old.
    pub(crate) async fn get(&self, cluster: &Arc<dyn Cluster>, env: &Env) -> Result<Arc<ClusterFacts>, ClusterError> {
        let mut read = self.read.lock().await;
        match &*read {
            Some((at, facts)) if env.now().since(*at) < budget::CLUSTER_FACTS => Ok(facts.clone()),
            _ => Ok(read.insert((env.now(), Arc::new(read_facts(cluster).await?))).1.clone()),
        }
    }

    /// The facts as they are now.
    pub(crate) async fn fresh(&self, cluster: &Arc<dyn Cluster>, env: &Env) -> Result<Arc<ClusterFacts>, ClusterError> {
        let facts = Arc::new(read_facts(cluster).await?);
        *self.read.lock().await = Some((env.now(), facts.clone()));
        Ok(facts)
    }
}

async fn read_facts(cluster: &Arc<dyn Cluster>) -> Result<ClusterFacts, ClusterError> {
    let request = ListRequest::of(Kind::Node, Scope::All);
    let (nodes, slice) = futures::future::try_join(
        cluster.list_all::<Node>(&request),
        cluster.read::<EndpointSlice>(Some("default"), "kubernetes"),
    )
    .await?;
    ClusterFacts::of(&nodes.0, slice.as_ref()).ok_or_else(|| {
        let key = ObjectKey::namespaced(Kind::EndpointSlice, "default", "kubernetes");
        ClusterError::new("read", key, Failure::Unavailable("it names no address of the API server".to_owned()))
    })
}
