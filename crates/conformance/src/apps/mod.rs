//! Apps that the adapter runs on a bed, for cases about the adapter.

mod endpoints;
mod history;
mod parts;
mod progress;
mod torn;
mod traces;
mod wire;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use pando_adapter::{KubernetesRuntime, Settings};
use pando_api::{
    ApplyResult, BundlePlan, BundleRef, CallContext, DestroyOptions, Error, ObservedBundle, ObservedWorkload, Outcome,
    RuntimeAdapter as _, Secret, WorkloadPlan, WorkloadRef, WorkloadResult,
};
use pando_cluster::names::{label, label_value};
use pando_cluster::{Cluster, Kind, ListRequest, ObjectKey, Resource, Scope};
use pando_fakecluster::behaviour::{Behaviour, Target};
use pando_fakecluster::netpol::PodName;
use serde_json::{Value, json};

pub(crate) use endpoints::Endpoints;
pub(crate) use history::{History, has_ended, may_run};
pub(crate) use parts::{FILE_MODE, after, changing, healthy_on, is_of, result_of, with_volume, without};
pub(crate) use progress::listen;
pub(crate) use torn::{Tear, Torn};
pub(crate) use traces::places_that_hold;
pub(crate) use wire::Wire;

use crate::bed::{Bed, namespace_of};

/// The name of the workload that apps here have.
pub(crate) const WEB: &str = "web";

/// What the adapter is told of the beds' clusters, with `change` laid over it.
pub(crate) fn settings(change: &Value) -> Settings {
    let mut json = json!({"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/16", "stop_grace_seconds": 2});
    for (key, value) in change.as_object().expect("settings are an object") {
        json[key] = value.clone();
    }
    Settings::from_json(&json).expect("these settings are right")
}

/// One app, and a runtime that runs it under the rights of Pando's account.
#[derive(Debug)]
pub(crate) struct App<'a> {
    pub(crate) bed: &'a dyn Bed,
    pub(crate) runtime: KubernetesRuntime,
    /// The bundle's id.
    pub(crate) id: String,
    /// The namespace it lives in.
    pub(crate) namespace: String,
}

impl<'a> App<'a> {
    /// An app that nobody has heard of yet; `word` appears in its id.
    pub(crate) fn new(bed: &'a dyn Bed, word: &str) -> Self {
        Self::with(bed, word, &json!({}))
    }

    /// The same with other settings.
    pub(crate) fn with(bed: &'a dyn Bed, word: &str, change: &Value) -> Self {
        Self::called(bed, bed.unique(word), change)
    }

    fn called(bed: &'a dyn Bed, id: String, change: &Value) -> Self {
        let runtime = KubernetesRuntime::new(settings(change), bed.cluster(), bed.env().clone());
        Self { bed, runtime, namespace: namespace_of(&id), id }
    }

    /// An app whose process reaches the cluster by a way that can be handled.
    pub(crate) fn through(bed: &'a dyn Bed, word: &str) -> (Self, Arc<Wire>) {
        let wire = Wire::new(bed.cluster(), bed.env().clone());
        let runtime = KubernetesRuntime::new(settings(&json!({})), Arc::<Wire>::clone(&wire), bed.env().clone());
        (Self { runtime, ..Self::new(bed, word) }, wire)
    }

    /// The same app, in the hands of another process that knows nothing yet.
    pub(crate) fn elsewhere(&self) -> Self {
        Self::called(self.bed, self.id.clone(), &json!({}))
    }

    /// The same app, seen by way of `cluster`.
    pub(crate) fn by_way_of(&self, cluster: Arc<dyn Cluster>) -> Self {
        let runtime = KubernetesRuntime::new(settings(&json!({})), cluster, self.bed.env().clone());
        Self { bed: self.bed, runtime, id: self.id.clone(), namespace: self.namespace.clone() }
    }

    /// A plan by which the app's one workload does `behaviour`.
    pub(crate) fn plan(&self, behaviour: &Behaviour) -> BundlePlan {
        let workload = WorkloadPlan {
            name: WEB.to_owned(),
            image: self.bed.image().to_owned(),
            entrypoint: self.bed.command(behaviour),
            ..WorkloadPlan::default()
        };
        BundlePlan { bundle_id: self.id.clone(), workloads: vec![workload], ..BundlePlan::default() }
    }

    /// A plan by which the app is the bed's web server.
    pub(crate) fn web_server(&self) -> BundlePlan {
        let workload = WorkloadPlan {
            name: WEB.to_owned(),
            image: self.bed.app_image().to_owned(),
            ports: vec![pando_api::PortPlan { number: 80, protocol: pando_api::Protocol::Tcp }],
            ..WorkloadPlan::default()
        };
        BundlePlan { bundle_id: self.id.clone(), workloads: vec![workload], ..BundlePlan::default() }
    }

    /// Makes it so.
    pub(crate) async fn apply(&self, plan: &BundlePlan) -> ApplyResult {
        self.apply_as(plan, &self.context()).await
    }

    /// The same, for a caller of one's own.
    pub(crate) async fn apply_as(&self, plan: &BundlePlan, context: &CallContext) -> ApplyResult {
        let applied = self.runtime.apply(plan, context).await;
        applied.unwrap_or_else(|error| panic!("{}: {error}, {:?}", error.code, error.details))
    }

    /// Why it cannot be made so.
    pub(crate) async fn refused(&self, plan: &BundlePlan) -> Error {
        self.runtime.apply(plan, &self.context()).await.expect_err("this cannot be applied")
    }

    /// What is there of the app.
    pub(crate) async fn observe(&self) -> ObservedBundle {
        self.runtime.observe(&self.bundle(), &self.context()).await.expect("what is there can be observed")
    }

    /// What is there of its one workload.
    pub(crate) async fn observed(&self) -> ObservedWorkload {
        let [workload]: [_; 1] = self.observe().await.workloads.try_into().expect("one workload");
        workload
    }

    /// Ends it.
    pub(crate) async fn stop(&self) {
        self.runtime.stop(&self.bundle(), &self.context()).await.expect("it can be stopped");
    }

    /// Takes it away.
    pub(crate) async fn destroy(&self) {
        let keeping = DestroyOptions::default();
        self.runtime.destroy(&self.bundle(), &keeping, &self.context()).await.expect("it can be destroyed");
    }

    /// Where Pando's server reaches the workload's port, as a program dials it.
    pub(crate) fn upstream(&self, port: u16) -> Target {
        let workload = WorkloadRef { bundle_id: self.id.clone(), workload: WEB.to_owned() };
        let url = self.runtime.upstream(&workload, port).expect("a name and a port").url;
        let host = url.strip_prefix("http://").and_then(|rest| rest.rsplit_once(':'));
        let (host, port) = host.unwrap_or_else(|| panic!("{url} has a scheme, a host and a port"));
        Target::name(host, port.parse().unwrap_or_else(|_| panic!("{url} ends with a port")))
    }

    /// The bundle's name for core.
    pub(crate) fn bundle(&self) -> BundleRef {
        BundleRef::new(self.id.clone())
    }

    /// A caller with a request id.
    pub(crate) fn context(&self) -> CallContext {
        CallContext::new(format!("request-of-{}", self.id))
    }

    /// The key of an object in the app's namespace.
    pub(crate) fn key(&self, kind: Kind, name: &str) -> ObjectKey {
        ObjectKey::namespaced(kind, &*self.namespace, name)
    }

    /// An object of the app's namespace.
    pub(crate) async fn read<T: Resource>(&self, name: &str) -> T {
        let read = self.bed.admin().read::<T>(Some(&self.namespace), name).await.expect("a read");
        read.unwrap_or_else(|| panic!("there is a {} {name}", T::OBJECT_KIND.name()))
    }

    /// Every object of a kind in the app's namespace.
    pub(crate) async fn all<T: Resource>(&self) -> Vec<T> {
        let request = ListRequest::of(T::OBJECT_KIND, Scope::Namespace(self.namespace.clone()));
        self.bed.admin().list_all(&request).await.expect("a list").0
    }

    /// The only pod of the app's workload.
    pub(crate) async fn pod(&self) -> Pod {
        let mut pods: Vec<Pod> = self.all().await;
        pods.retain(|pod| label_value(&pod.metadata, label::WORKLOAD).is_some());
        let [pod]: [Pod; 1] = pods.try_into().expect("one pod");
        pod
    }
}

/// The result of a plan with one workload.
pub(crate) fn of_web(result: &ApplyResult) -> &WorkloadResult {
    let [workload] = &*result.workloads else { panic!("one workload, one result: {result:?}") };
    workload
}

/// The code that a workload had ended with when that was told; `None` where it ran.
pub(crate) fn ended_with(outcome: &Outcome) -> Option<i32> {
    match outcome {
        Outcome::Ended { exit_code, .. } => *exit_code,
        _ => None,
    }
}

/// The plan with these variables in its workload's environment.
pub(crate) fn with_env(mut plan: BundlePlan, env: &[(&str, &str)]) -> BundlePlan {
    for workload in &mut plan.workloads {
        workload.env.extend(env.iter().map(|(key, value)| ((*key).to_owned(), Secret::new(*value))));
    }
    plan
}

/// The plan with its workload changed.
pub(crate) fn with(mut plan: BundlePlan, change: impl FnOnce(&mut WorkloadPlan)) -> BundlePlan {
    change(plan.workloads.first_mut().expect("a plan of one workload"));
    plan
}

/// A pod's identity.
pub(crate) fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().expect("a stored pod has a uid")
}

/// What the bed knows a pod by.
pub(crate) fn pod_name(pod: &Pod) -> PodName {
    let meta = &pod.metadata;
    PodName::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// A pod's address.
pub(crate) fn address(pod: &Pod) -> std::net::IpAddr {
    let ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).expect("a pod that runs has an address");
    ip.parse().expect("it is one")
}
