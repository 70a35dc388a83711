//! Everything that happened to an app's pods.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSchedulingGate, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_cluster::env::{Instant, Task};
use pando_cluster::names::START_GATE;
use pando_cluster::{DeleteOptions, Kind, ListRequest, Resource, Scope, Told, Uid, list_watch};

use super::App;
use crate::bed::eventually;

/// Longer than a watch takes to tell what is there.
const SOON: Duration = Duration::from_secs(30);

/// A record of an app's pods, from its beginning on: a moment for each thing that happened.
#[derive(Debug)]
pub(crate) struct History {
    moments: Arc<Mutex<Vec<Moment>>>,
    _task: Task,
}

/// The pods there were at a moment, by name.
pub(crate) type Pods = BTreeMap<String, Pod>;

/// When the pods were told, and which.
type Moment = (Instant, Pods);

impl History {
    /// Begins the record.
    pub(crate) async fn of(app: &App<'_>) -> Self {
        let request = ListRequest::of(Kind::Pod, Scope::Namespace(app.namespace.clone()));
        let moments = Arc::new(Mutex::new(Vec::new()));
        let (cluster, env, record) = (app.bed.admin(), app.bed.env().clone(), Arc::clone(&moments));
        let clock = env.clone();
        let task = env.spawn("history of an app", async move {
            list_watch(&*cluster, &clock, &request, |told| take(&mut lock(&record), clock.now(), told)).await;
        });
        let history = Self { moments, _task: task };
        let begun = || async { (!lock(&history.moments).is_empty()).then_some(()) };
        eventually(app.bed.env(), "the record of the app's pods begins", SOON, begun).await;
        history
    }

    /// The record up to now, with everything that the cluster had done by then: a watch tells in order, so when it tells
    /// of a pod that is made now, it has told of all that went before.
    pub(crate) async fn until_now(&self, app: &App<'_>) -> Moments {
        let fence = fence(app, &format!("fence-{}", lock(&self.moments).len()));
        let made = app.bed.admin().make(&fence).await.expect("a pod behind a gate");
        let name = made.metadata.name.clone().expect("a stored pod has a name");
        let told = || async {
            let moments = lock(&self.moments);
            let end = moments.iter().position(|(_, pods)| pods.contains_key(&name))?;
            Some(Moments(moments[..end].to_vec()))
        };
        let moments = eventually(app.bed.env(), "the record of the app's pods has caught up", SOON, told).await;
        let identity = Uid::of(&made.metadata).expect("a stored pod has a uid");
        app.bed.admin().delete(&app.key(Kind::Pod, &name), &DeleteOptions::of(identity)).await.expect("it goes");
        moments
    }
}

/// A pod of nobody's that never runs.
fn fence(app: &App<'_>, name: &str) -> Pod {
    // As a quota asks for it that counts the app's limits.
    let little =
        [("cpu", "1m"), ("memory", "1Mi")].map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
    let resources = ResourceRequirements { limits: Some(little.into()), ..ResourceRequirements::default() };
    let container = Container {
        name: "app".to_owned(),
        image: Some(app.bed.image().to_owned()),
        resources: Some(resources),
        ..Container::default()
    };
    let spec = PodSpec {
        containers: vec![container],
        scheduling_gates: Some(vec![PodSchedulingGate { name: START_GATE.to_owned() }]),
        automount_service_account_token: Some(false),
        ..PodSpec::default()
    };
    let metadata =
        ObjectMeta { name: Some(name.to_owned()), namespace: Some(app.namespace.clone()), ..ObjectMeta::default() };
    Pod { metadata, spec: Some(spec), status: None }
}

/// A moment's place in the record; of two at one time the order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Point {
    place: usize,
    at: Instant,
}

impl Point {
    /// How long after `earlier` it was.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.at.since(earlier.at)
    }
}

/// Moments in their order.
#[derive(Debug)]
pub(crate) struct Moments(Vec<Moment>);

impl Moments {
    /// How many pods of this sort there were at the worst moment.
    pub(crate) fn most(&self, is: impl Fn(&Pod) -> bool) -> usize {
        self.0.iter().map(|(_, pods)| pods.values().filter(|pod| is(pod)).count()).max().unwrap_or(0)
    }

    /// The identities of all pods that were ever of this sort.
    pub(crate) fn ever(&self, is: impl Fn(&Pod) -> bool) -> std::collections::BTreeSet<String> {
        let all = self.0.iter().flat_map(|(_, pods)| pods.values());
        all.filter(|pod| is(pod)).filter_map(|pod| pod.metadata.uid.clone()).collect()
    }

    /// The first moment of that sort, where there was one.
    pub(crate) fn first(&self, is: impl Fn(&Pods) -> bool) -> Option<Point> {
        let found = self.0.iter().enumerate().find(|(_, (_, pods))| is(pods));
        found.map(|(place, (at, _))| Point { place, at: *at })
    }
}

fn lock(moments: &Mutex<Vec<Moment>>) -> std::sync::MutexGuard<'_, Vec<Moment>> {
    moments.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(moments: &mut Vec<Moment>, at: Instant, told: Told) {
    let named = |pod: Pod| (pod.metadata.name.clone().unwrap_or_default(), pod);
    let mut pods = moments.last().map(|(_, pods)| pods.clone()).unwrap_or_default();
    match told {
        Told::All(objects) => pods = objects.into_iter().filter_map(Pod::from_object).map(named).collect(),
        Told::Is(object) => pods.extend(Pod::from_object(object).map(named)),
        Told::Gone(object) => {
            pods.remove(object.meta().name.as_deref().unwrap_or_default());
        }
        Told::Listing | Told::Fresh | Told::Broken(_) => return,
    }
    moments.push((at, pods));
}

/// Whether the pod is behind the scheduling gate: it does not run.
fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.into_iter().any(|gate| gate.name == START_GATE)
}

/// Whether the pod's phase says that nothing of it runs any more.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether the pod may run, or does: at no moment may a workload have two of these. The end of its app shows a moment
/// before its phase.
pub(crate) fn may_run(pod: &Pod) -> bool {
    let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let mut states = containers.filter_map(|container| container.state.as_ref());
    !is_gated(pod) && !has_ended(pod) && !states.any(|state| state.terminated.is_some())
}
