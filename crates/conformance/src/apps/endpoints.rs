//! Where a workload's name leads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_cluster::env::Task;
use pando_cluster::names::label_value;
use pando_cluster::{Kind, ListRequest, Resource, Scope, Told, list_watch};

use super::App;
use crate::bed::eventually;

/// The label by which a slice says whose it is.
const OF_SERVICE: &str = "kubernetes.io/service-name";

/// Longer than the controller of endpoints takes.
const SOON: Duration = Duration::from_mins(1);

/// The identities of the pods that a name leads to.
pub(crate) type Leads = BTreeSet<String>;

/// A record of all that the names of an app's workloads lead to, from its beginning on.
#[derive(Debug)]
pub(crate) struct Endpoints {
    moments: Arc<Mutex<Vec<Slices>>>,
    _task: Task,
}

/// The slices there were at a moment, by name.
type Slices = BTreeMap<String, EndpointSlice>;

impl Endpoints {
    /// Begins the record.
    pub(crate) async fn of(app: &App<'_>) -> Self {
        let request = ListRequest::of(Kind::EndpointSlice, Scope::Namespace(app.namespace.clone()));
        let moments = Arc::new(Mutex::new(Vec::new()));
        let (cluster, env, record) = (app.bed.admin(), app.bed.env().clone(), Arc::clone(&moments));
        let clock = env.clone();
        let task = env.spawn("endpoints of an app", async move {
            list_watch(&*cluster, &clock, &request, |told| take(&mut lock(&record), told)).await;
        });
        let endpoints = Self { moments, _task: task };
        let begun = || async { (!lock(&endpoints.moments).is_empty()).then_some(()) };
        eventually(app.bed.env(), "the record of the endpoints begins", SOON, begun).await;
        endpoints
    }

    /// Everything that the workload's name led to up to now, in order, each once in a row; with all that the controller of endpoints
    /// had to do by now.
    pub(crate) async fn until_now(&self, app: &App<'_>, workload: &str) -> Vec<Leads> {
        let marker = format!("marker-{}", lock(&self.moments).len());
        app.bed.admin().make(&service_of_nobody(app, &marker)).await.expect("a Service");
        let of = |slice: &EndpointSlice, service: &str| label_value(&slice.metadata, OF_SERVICE) == Some(service);
        let told = || async {
            let moments = lock(&self.moments);
            let end = moments.iter().position(|slices| slices.values().any(|slice| of(slice, &marker)))?;
            let mut leads: Vec<Leads> = Vec::new();
            for slices in &moments[..end] {
                let now: Leads = slices.values().filter(|slice| of(slice, workload)).flat_map(pods).collect();
                if leads.last() != Some(&now) {
                    leads.push(now);
                }
            }
            Some(leads)
        };
        eventually(app.bed.env(), "the endpoints of a later Service are there", SOON, told).await
    }
}

/// A Service that selects nobody, so that its slice tells only that the controller has come to it.
fn service_of_nobody(app: &App<'_>, name: &str) -> Service {
    let spec = ServiceSpec {
        cluster_ip: Some("None".to_owned()),
        ports: Some(vec![ServicePort { port: 80, ..ServicePort::default() }]),
        selector: Some([("nobody".to_owned(), "has-this".to_owned())].into()),
        ..ServiceSpec::default()
    };
    let metadata =
        ObjectMeta { name: Some(name.to_owned()), namespace: Some(app.namespace.clone()), ..ObjectMeta::default() };
    Service { metadata, spec: Some(spec), status: None }
}

/// The pods whose addresses a slice gives to those who ask for the name.
fn pods(slice: &EndpointSlice) -> impl Iterator<Item = String> {
    let answered = slice.endpoints.iter().filter(|it| it.conditions.as_ref().is_some_and(|it| it.ready != Some(false)));
    answered.filter_map(|endpoint| endpoint.target_ref.as_ref()?.uid.clone())
}

fn lock(moments: &Mutex<Vec<Slices>>) -> std::sync::MutexGuard<'_, Vec<Slices>> {
    moments.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(moments: &mut Vec<Slices>, told: Told) {
    let named = |slice: EndpointSlice| (slice.metadata.name.clone().unwrap_or_default(), slice);
    let mut slices = moments.last().cloned().unwrap_or_default();
    match told {
        Told::All(objects) => slices = objects.into_iter().filter_map(EndpointSlice::from_object).map(named).collect(),
        Told::Is(object) => slices.extend(EndpointSlice::from_object(object).map(named)),
        Told::Gone(object) => {
            slices.remove(object.meta().name.as_deref().unwrap_or_default());
        }
        Told::Listing | Told::Fresh | Told::Broken(_) => return,
    }
    moments.push(slices);
}
