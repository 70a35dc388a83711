//! One call on behalf of core: what it may use, what it wrote, and how it makes, ends and waits.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_api::{CallContext, Change, Code, Error, Progress, Secret, Written};
use pando_cluster::converge::{self, Converge, ConvergeError, Converged, Known};
use pando_cluster::env::Instant;
use pando_cluster::names::{AppNamespace, annotation, label};
use pando_cluster::resilient::Retry;
use pando_cluster::{
    Cluster, ClusterError, DeleteOptions, Env, Failure, Kind, ListRequest, MergePatch, ObjectKey, Resource,
    ResourceVersion, Scope, Selector, Uid, budget,
};
use serde_json::json;

use crate::config::Settings;
use crate::error;
use crate::follow::{Followed, Follower};
use crate::record::Revision;
use crate::view::{AppView, Feed, View};
use crate::{objects, sight};

/// How long what this process wrote may take to be seen in the view before the cluster is asked itself.
const CATCHING_UP: Duration = Duration::from_secs(1);

/// How long a watch that tells nothing is relied on, while something is waited for.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// One call in progress.
pub(crate) struct Call<'a> {
    pub(crate) cluster: &'a std::sync::Arc<dyn Cluster>,
    pub(crate) env: &'a Env,
    pub(crate) settings: &'a Settings,
    pub(crate) context: &'a CallContext,
    pub(crate) app: &'a AppNamespace,
    view: Option<&'a View>,
    began: Instant,
    stamp: BTreeMap<String, String>,
    /// Values that no text of this call may show.
    hidden: Vec<&'a str>,
    written: Mutex<Vec<Written>>,
    begun: Mutex<BTreeSet<Begun>>,
    /// What was told last.
    doing: Mutex<String>,
}

/// Something of this call's that runs, or could come to run, and has not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Begun {
    /// A workload's start at that revision.
    Start(String, Revision),
    /// A pod of that name that pulls an image.
    Pull(String),
    /// Claims may be bound by now to volumes that would go with them.
    Claims,
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        cluster: &'a std::sync::Arc<dyn Cluster>,
        env: &'a Env,
        settings: &'a Settings,
        context: &'a CallContext,
        app: &'a AppNamespace,
        view: Option<&'a View>,
    ) -> Self {
        let stamp = match context.request_id.as_str() {
            "" => BTreeMap::new(),
            id => [(annotation::REQUEST_ID.to_owned(), id.to_owned())].into(),
        };
        Self {
            cluster,
            env,
            settings,
            context,
            app,
            view,
            began: env.now(),
            stamp,
            hidden: Vec::new(),
            written: Mutex::default(),
            begun: Mutex::default(),
            doing: Mutex::default(),
        }
    }

    /// Notes what is about to be begun, so that it can be undone.
    pub(crate) fn begin(&self, begun: Begun) {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(begun);
    }

    /// Notes that what was begun has come to its end.
    pub(crate) fn finish(&self, begun: &Begun) {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).remove(begun);
    }

    /// What was begun and has not come to its end.
    pub(crate) fn unfinished(&self) -> BTreeSet<Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets no text that passes [`Call::redact`] show these values.
    pub(crate) fn hide(&mut self, values: impl Iterator<Item = &'a Secret>) {
        self.hidden.extend(values.map(Secret::expose));
    }

    /// Somebody else's text without the values that are to be hidden.
    pub(crate) fn redact(&self, text: &str) -> String {
        redact(text, &self.hidden)
    }

    /// The namespace's name.
    pub(crate) fn namespace(&self) -> String {
        self.app.name()
    }

    /// Whatever was written so far, in order.
    pub(crate) fn take_written(&self) -> Vec<Written> {
        std::mem::take(&mut self.written.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn note(&self, kind: Kind, name: &str, change: Change, fields: Vec<String>) {
        let written = Written { kind: kind.name().to_owned(), name: name.to_owned(), change, fields };
        self.written.lock().unwrap_or_else(PoisonError::into_inner).push(written);
    }

    /// Tells what the call is doing.
    pub(crate) fn tell(&self, workload: &str, step: &str, waiting_for: &str) {
        let parts = [step, waiting_for, workload].into_iter().filter(|part| !part.is_empty());
        let doing = parts.map(|part| self.redact(part)).collect::<Vec<_>>().join(" ");
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = doing;
        self.context.tell(Progress {
            workload: workload.to_owned(),
            step: step.to_owned(),
            waiting_for: self.redact(waiting_for),
            since: self.env.wall.now(),
        });
    }

    /// What was told last, for a sentence.
    pub(crate) fn told(&self) -> String {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How much of `limit` the caller's own deadline leaves.
    pub(crate) fn within_deadline(&self, limit: Duration) -> Duration {
        self.time_left().map_or(limit, |left| left.min(limit))
    }

    /// How much time the caller's own deadline leaves; `None` without one.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        Some(self.context.deadline?.saturating_sub(self.env.now().since(self.began)))
    }

    /// Makes an object so, and notes what was written. The rights in a namespace may be a moment younger than the
    /// call, so a missing one is asked for again (S-9).
    pub(crate) async fn ensure<T: Resource>(
        &self,
        desired: &T,
        known: Known<T>,
    ) -> Result<Converged<T>, ConvergeError> {
        let converge = Converge { cluster: &**self.cluster, stamp: &self.stamp };
        let mut retry = Retry::new(self.env);
        let made = loop {
            match converge.ensure(desired, known.clone()).await {
                Err(ConvergeError::Cluster(error))
                    if is_missing_right(&error) && retry.wait_before_another(&error).await => {}
                made => break made?,
            }
        };
        let name = desired.key().name;
        match &made.change {
            converge::Change::Created => self.note(T::OBJECT_KIND, &name, Change::Created, Vec::new()),
            converge::Change::Changed(fields) => self.note(T::OBJECT_KIND, &name, Change::Changed, fields.clone()),
            converge::Change::Unchanged => {}
        }
        Ok(made)
    }

    /// Makes a call again while a right is missing that may be a moment young.
    pub(crate) async fn with_young_rights<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, ClusterError>
    where
        F: Future<Output = Result<T, ClusterError>>,
    {
        let mut retry = Retry::new(self.env);
        loop {
            match attempt().await {
                Err(error) if is_missing_right(&error) && retry.wait_before_another(&error).await => {}
                answer => return answer,
            }
        }
    }

    /// Creates an object under the call's stamp.
    pub(crate) async fn create<T: Resource>(&self, object: &T) -> Result<T, ClusterError> {
        let mut object = object.clone();
        object.metadata_mut().annotations.get_or_insert_default().extend(self.stamp.clone());
        let made = self.with_young_rights(|| self.cluster.make(&object)).await?;
        self.note(T::OBJECT_KIND, &object.key().name, Change::Created, Vec::new());
        Ok(made)
    }

    /// Changes an object by a patch of these fields, at the version it was read at.
    pub(crate) async fn patch<T: Resource>(
        &self,
        live: &T,
        body: serde_json::Value,
        fields: Vec<String>,
    ) -> Result<T, ClusterError> {
        let key = live.key();
        let mut body = body;
        for (annotation, value) in &self.stamp {
            body["metadata"]["annotations"][annotation.as_str()] = value.as_str().into();
        }
        let version = ResourceVersion::of(live.metadata()).unwrap_or_else(|| ResourceVersion::new(""));
        let changed = self.cluster.change(&key, &MergePatch::at(&version, body)).await?;
        self.note(T::OBJECT_KIND, &key.name, Change::Changed, fields);
        Ok(changed)
    }

    /// Deletes exactly the object that was read; one that is gone, or another one by now, is a success.
    pub(crate) async fn delete<T: Resource>(&self, live: &T) -> Result<(), ClusterError> {
        let Some(uid) = Uid::of(live.metadata()) else { return Ok(()) };
        match self.cluster.delete(&live.key(), &DeleteOptions::of(uid)).await {
            Ok(()) => {
                self.note(T::OBJECT_KIND, &live.key().name, Change::Deleted, Vec::new());
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Asks the namespace's objects of a kind.
    pub(crate) fn list_request(&self, kind: Kind) -> ListRequest {
        ListRequest::of(kind, Scope::Namespace(self.namespace()))
    }

    /// The namespace's objects of ours. Not only those labelled with a workload: that label is easily taken off.
    pub(crate) async fn ours<T: Resource>(&self) -> Result<Vec<T>, ClusterError> {
        let ours = Selector::everything().equals(label::MANAGED_BY, pando_cluster::names::MANAGER);
        let request = self.list_request(T::OBJECT_KIND).labelled(ours);
        Ok(self.with_young_rights(|| self.cluster.list_all(&request)).await?.0)
    }

    /// The records and pods of all workloads, as they are now.
    pub(crate) async fn records_and_pods(&self) -> Result<(Vec<Service>, Vec<Pod>), Error> {
        futures::try_join!(self.ours::<Service>(), self.ours::<Pod>()).map_err(error::unread)
    }

    /// Lists pods and follows them from then on: by the view where there is one, and otherwise by a watch of its own.
    pub(crate) async fn follow(&self, which: Followed) -> Result<Follower, Error> {
        if let Some(feed) = self.feed() {
            return Ok(Follower::fed(feed, which, self.ours().await.map_err(error::unread)?));
        }
        let mut follower = Follower::start(self.cluster, self.env, &self.namespace(), which);
        self.listed(&mut follower).await?;
        Ok(follower)
    }

    /// What the view is told of the namespace's pods from now on; `None` where it cannot be relied on.
    pub(crate) fn feed(&self) -> Option<Feed> {
        self.view?.follow(&self.namespace())
    }

    /// What there is of the app as the view knows it; `None` where it does not know for sure.
    pub(crate) async fn seen(&self) -> Option<AppView> {
        self.view?.current(&self.namespace(), self.within_deadline(CATCHING_UP)).await
    }

    /// Waits until the follower was told of all pods once.
    async fn listed(&self, follower: &mut Follower) -> Result<(), Error> {
        follower.listed(self.env, budget::PAGE + budget::TRYING).await.map_err(|trouble| match trouble {
            Some(trouble) => error::unread(trouble),
            None => {
                Error::new(Code::AdapterUnavailable, format!("the pods of {} could not be listed in time", self.app))
            }
        })
    }

    /// Ends these pods and waits until their objects are gone, however little time the call has left: what was told to end
    /// is seen to end. One that does not go is an error that says what holds it.
    pub(crate) async fn end(&self, pods: &[Pod], follower: &mut Follower) -> Result<(), Error> {
        for pod in pods {
            self.delete(pod).await.map_err(error::unchanged)?;
        }
        for pod in pods {
            let workload = objects::workload_of_pod(pod).unwrap_or_default();
            self.tell(workload, "stopping", &name(&pod.metadata));
            self.gone(pod, end_window(pod), follower).await?;
        }
        Ok(())
    }

    /// Takes away a pod whose start did not come to its end.
    pub(crate) async fn take_away(&self, pod: &Pod, follower: &mut Follower) -> Result<(), Error> {
        self.delete(pod).await.map_err(error::unchanged)?;
        self.gone(pod, end_window(pod), follower).await
    }

    /// Waits until the pod's object is gone.
    async fn gone(&self, pod: &Pod, limit: Duration, follower: &mut Follower) -> Result<(), Error> {
        let begun = self.env.now();
        loop {
            let left = limit.saturating_sub(self.env.now().since(begun));
            if follower.until_gone(self.env, left.min(LOOK_AGAIN), &pod.metadata).await.is_ok() {
                return Ok(());
            }
            // A watch that is broken would be silent too: so the pod itself is read.
            let still = self.read::<Pod>(&name(&pod.metadata)).await.map_err(error::unread)?;
            let Some(still) = still.filter(|still| still.metadata.uid == pod.metadata.uid) else { return Ok(()) };
            if self.env.now().since(begun) >= limit {
                return Err(stays(&still, limit));
            }
        }
    }

    /// Takes the revision off an ended pod, so that it leaves the endpoints: Kubernetes keeps it there by itself, while
    /// its address may already be another app's (S-82). A failure is logged: the next call meets the pod again.
    pub(crate) async fn retire(&self, pod: &Pod) {
        let off = json!({"metadata": {"labels": {label::REVISION: null}}});
        match self.patch(pod, off, vec![format!("metadata.labels.{}", label::REVISION)]).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => {
                tracing::warn!(app = %self.app, pod = name(&pod.metadata), error = &error as &dyn std::error::Error, "ended pod not taken out of the endpoints");
            }
        }
    }

    /// Reason and message of the newest event about a pod that is `wanted`; some causes live nowhere else (S-84).
    pub(crate) async fn newest_event(
        &self,
        pod: &Pod,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<Option<(String, String)>, ClusterError> {
        let Some(uid) = Uid::of(&pod.metadata) else { return Ok(None) };
        let about = Selector::everything().equals("involvedObject.uid", uid.as_str());
        let request = self.list_request(Kind::Event).with_fields(about);
        let (events, _) = self.cluster.list_all::<Event>(&request).await?;
        let time = |event: &Event| {
            let last = event.last_timestamp.as_ref().or(event.first_timestamp.as_ref()).map(|time| time.0);
            last.or(event.event_time.as_ref().map(|time| time.0))
        };
        let newest = events.into_iter().filter(wanted).max_by_key(time);
        Ok(newest.map(|event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default())))
    }

    /// The object of this key, read now.
    pub(crate) async fn read<T: Resource>(&self, object_name: &str) -> Result<Option<T>, ClusterError> {
        let namespace = self.namespace();
        self.with_young_rights(|| self.cluster.read(Some(&namespace), object_name)).await
    }
}

/// How long a pod that is told to end may take to go.
fn end_window(pod: &Pod) -> Duration {
    sight::grace(pod) + budget::STOP_SLACK
}

/// The error for a pod that does not go.
fn stays(pod: &Pod, waited: Duration) -> Error {
    let place = match sight::node(pod) {
        "" => "no node".to_owned(),
        node => format!("node {node}"),
    };
    let (pod_name, seconds) = (name(&pod.metadata), waited.as_secs());
    let message = format!("pod {pod_name} on {place} has not gone {seconds} s after it was told to end");
    let holders = pod.metadata.finalizers.as_deref().unwrap_or_default().join(", ");
    if holders.is_empty() {
        return Error::new(Code::AdapterFailed, message)
            .remedy("look at that node: when it is gone for good, delete its Node object, and the pod goes with it");
    }
    Error::new(Code::AdapterFailed, format!("{message}: finalizers hold it ({holders})"))
        .remedy("whoever put the finalizers there takes them off; see to it that it still runs")
}

/// `text` without the values; ones of less than four bytes are no secrets, and would tear every text apart.
fn redact(text: &str, values: &[&str]) -> String {
    let mut values: Vec<_> = values.iter().filter(|value| value.len() >= 4).collect();
    // A value may be the beginning of another one.
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    values.into_iter().fold(text.to_owned(), |text, value| text.replace(*value, Secret::REDACTED))
}

/// An object's name.
pub(crate) fn name(meta: &ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
}

fn is_missing_right(error: &ClusterError) -> bool {
    matches!(error.failure, Failure::Forbidden { .. })
}

/// The key of a namespace.
pub(crate) fn namespace_key(namespace: &str) -> ObjectKey {
    ObjectKey::cluster(Kind::Namespace, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_shows_no_value_of_the_environment() {
        let text = "password hunter2, prefix hunter2-long, flag on";
        assert_eq!(redact(text, &["hunter2", "hunter2-long", "on"]), "password [redacted], prefix [redacted], flag on");
    }
}
