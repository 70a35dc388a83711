//! Following a namespace's pods while a call waits for them.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_cluster::env::{Elapsed, Task};
use pando_cluster::names::{MANAGER, label};
use pando_cluster::{ClusterError, Env, Kind, ListRequest, Resource, Scope, Selector, Told, list_watch};

/// Knows the pods of one namespace, or of one workload in it, from a list and a watch of its own.
///
/// Ends with this value. What waits on it ends by its own deadline, since a watch may stay broken.
#[derive(Debug)]
pub(crate) struct Follower {
    told: UnboundedReceiver<Told>,
    pods: BTreeMap<String, Pod>,
    lists: u32,
    breaks: u32,
    trouble: Option<ClusterError>,
    _task: Task,
}

impl Follower {
    /// Begins to follow; `workload` narrows it to that workload's pods.
    pub(crate) fn start(
        cluster: &std::sync::Arc<dyn pando_cluster::Cluster>,
        env: &Env,
        namespace: &str,
        workload: Option<&str>,
    ) -> Self {
        // What is told here may be ended: a stranger's pod that names our workload is none of ours.
        let ours = Selector::everything().equals(label::MANAGED_BY, MANAGER);
        let labels = match workload {
            Some(workload) => ours.equals(label::WORKLOAD, workload),
            None => ours.exists(label::WORKLOAD),
        };
        let request = ListRequest::of(Kind::Pod, Scope::Namespace(namespace.to_owned())).labelled(labels);
        let (sender, told) = unbounded();
        let (cluster, clock) = (cluster.clone(), env.clone());
        let task = env.spawn("pod follower", async move {
            list_watch(&*cluster, &clock, &request, move |told| {
                // The receiver is gone only when this task is about to be.
                let _ = sender.unbounded_send(told);
            })
            .await;
        });
        Self { told, pods: BTreeMap::new(), lists: 0, breaks: 0, trouble: None, _task: task }
    }

    /// The pods as last told.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    /// The pod with that identity; `None` when it is gone, or was never told of.
    pub(crate) fn same(&self, meta: &ObjectMeta) -> Option<&Pod> {
        self.pods.get(meta.name.as_deref()?).filter(|pod| pod.metadata.uid == meta.uid)
    }

    /// How often the pods were listed so far.
    pub(crate) const fn lists(&self) -> u32 {
        self.lists
    }

    /// How often the connection was broken so far.
    pub(crate) const fn breaks(&self) -> u32 {
        self.breaks
    }

    /// Takes in the next thing told.
    pub(crate) async fn next(&mut self) {
        match self.told.next().await {
            Some(Told::All(objects)) => {
                self.pods = objects
                    .into_iter()
                    .filter_map(Pod::from_object)
                    .map(|pod| (crate::call::name(&pod.metadata), pod))
                    .collect();
                self.lists += 1;
            }
            Some(Told::Is(object)) => {
                if let Some(pod) = Pod::from_object(object) {
                    self.pods.insert(crate::call::name(&pod.metadata), pod);
                }
            }
            Some(Told::Gone(object)) => {
                self.pods.remove(object.meta().name.as_deref().unwrap_or_default());
            }
            Some(Told::Fresh) => {}
            Some(Told::Broken(error)) => {
                self.breaks += 1;
                self.trouble = Some(error);
            }
            // The follower's task never ends by itself.
            None => std::future::pending().await,
        }
    }

    /// Waits until the pods were listed once.
    ///
    /// # Errors
    ///
    /// Why they could not be, once `limit` has passed.
    pub(crate) async fn listed(&mut self, env: &Env, limit: Duration) -> Result<(), Option<ClusterError>> {
        let listed = env
            .timeout(limit, async {
                while self.lists == 0 {
                    self.next().await;
                }
            })
            .await;
        listed.map_err(|_: Elapsed| self.trouble.take())
    }

    /// Waits until the pod of that identity is gone.
    ///
    /// # Errors
    ///
    /// When `limit` passed first.
    pub(crate) async fn until_gone(&mut self, env: &Env, limit: Duration, meta: &ObjectMeta) -> Result<(), Elapsed> {
        env.timeout(limit, async {
            while self.lists == 0 || self.same(meta).is_some() {
                self.next().await;
            }
        })
        .await
    }
}
