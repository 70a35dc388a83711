//! What the adapter knows of the cluster between calls: its addresses, and which namespaces are ours.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use pando_cluster::env::{Instant, Task};
use pando_cluster::names::{MANAGER, label};
use pando_cluster::{
    Cluster, ClusterError, Env, Failure, Kind, ListRequest, ObjectKey, Scope, Selector, Told, budget, list_watch,
};
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
    let nodes = nodes.0;
    let api_server = slice.as_ref().map(api_server_addresses).unwrap_or_default();
    if api_server.is_empty() {
        // A policy written now would leave the API server open, and a gate would have nothing to dial.
        let key = ObjectKey::namespaced(Kind::EndpointSlice, "default", "kubernetes");
        return Err(ClusterError::new(
            "read",
            key,
            Failure::Unavailable("it names no address of the API server".to_owned()),
        ));
    }
    let lost = |node: &&Node| {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
    };
    let named = |node: &Node| node.metadata.name.clone();
    Ok(ClusterFacts {
        addresses: ClusterAddresses { nodes: node_addresses(&nodes), api_server },
        lost_nodes: nodes.iter().filter(lost).filter_map(named).collect(),
        nodes: nodes.iter().filter_map(named).collect(),
    })
}

/// The managed namespaces, from a watch of its own. Knows them by name only: what is in one is read when it matters.
#[derive(Debug)]
pub(crate) struct Namespaces {
    state: Arc<Mutex<Mirror>>,
    _task: Task,
}

#[derive(Debug, Default)]
struct Mirror {
    names: BTreeSet<String>,
    /// When the watch last showed that it lives; none while it is broken, and before the first list.
    alive: Option<Instant>,
}

impl Namespaces {
    /// Begins to watch.
    pub(crate) fn start(cluster: &Arc<dyn Cluster>, env: &Env) -> Self {
        let state = Arc::new(Mutex::new(Mirror::default()));
        let request = ListRequest::of(Kind::Namespace, Scope::All)
            .labelled(Selector::everything().equals(label::MANAGED_BY, MANAGER));
        let (cluster, clock, mirror) = (cluster.clone(), env.clone(), state.clone());
        let task = env.spawn("namespace mirror", async move {
            let now = clock.clone();
            list_watch(&*cluster, &clock, &request, move |told| {
                mirror.lock().unwrap_or_else(PoisonError::into_inner).take(told, now.now());
            })
            .await;
        });
        Self { state, _task: task }
    }

    /// Whether none of that name is managed by Pando, as far as a live watch tells. `false` proves nothing.
    pub(crate) fn is_absent(&self, name: &str, now: Instant) -> bool {
        let mirror = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        mirror.alive.is_some_and(|alive| now.since(alive) <= budget::WATCH_SILENCE) && !mirror.names.contains(name)
    }
}

impl Mirror {
    fn take(&mut self, told: Told, now: Instant) {
        let named = |object: &pando_cluster::Object| object.meta().name.clone().unwrap_or_default();
        match told {
            Told::All(objects) => self.names = objects.iter().map(named).collect(),
            Told::Is(object) => {
                self.names.insert(named(&object));
            }
            Told::Gone(object) => {
                self.names.remove(&named(&object));
            }
            Told::Fresh => {}
            Told::Broken(error) => {
                tracing::debug!(%error, "namespaces are read directly until their watch is back");
                self.alive = None;
                return;
            }
        }
        self.alive = Some(now);
    }
}
