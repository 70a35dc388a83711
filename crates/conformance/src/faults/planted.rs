//! Bugs that are planted on purpose: a suite that lets one of them pass proves nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use pando_cluster::names::{MANAGER, label, label_value, role};
use pando_cluster::{
    ByteStream, Cluster, ClusterError, DeleteOptions, Env, EventStream, Failure, Kind, ListRequest, LogRequest,
    MergePatch, Object, ObjectKey, Page, ResourceVersion, Selector, Uid, WatchEvent, WatchRequest,
};

use super::plans::plan;
use super::scenario::Version;

/// A way in which such an adapter goes wrong, done to the right one from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The record is read again as the caller itself wrote it last: others' writes are not seen.
    ReadsOldRecords,
    /// Changes carry no version.
    PatchesBlindly,
    /// What is deleted is whatever has the name when the call arrives.
    DeletesByName,
    /// Pods are created without the scheduling gate.
    StartsUngated,
    /// Pods are deleted without grace.
    KillsAtOnce,
    /// Deletions of pods are answered and not done.
    LeavesPods,
    /// The environment is repeated in an annotation of the account.
    TellsSecrets,
    /// The default policy is written two seconds after it was said to be.
    ClosesLate,
    /// Every pod that names a workload is taken for its own.
    OwnsStrangers,
    /// Undoing does not see the pods that pull images.
    ForgetsPulls,
    /// Undoing does not see the pods of starts.
    ForgetsStarts,
    /// Volumes are left to be deleted with their claims.
    LeavesVolumes,
    /// No image is pulled ahead.
    PullsLate,
    /// A pod is taken for ready as soon as its app runs.
    WaitsForNobody,
    /// What the adapter before this one left is taken for the plan's, whatever its image is.
    AdoptsAnything,
}

impl Bug {
    /// Every bug.
    pub const ALL: &[Self] = &[
        Self::ReadsOldRecords,
        Self::PatchesBlindly,
        Self::DeletesByName,
        Self::StartsUngated,
        Self::KillsAtOnce,
        Self::LeavesPods,
        Self::TellsSecrets,
        Self::ClosesLate,
        Self::OwnsStrangers,
        Self::ForgetsPulls,
        Self::ForgetsStarts,
        Self::LeavesVolumes,
        Self::PullsLate,
        Self::WaitsForNobody,
        Self::AdoptsAnything,
    ];

    /// The scenarios that must catch it, by name.
    pub(super) const fn scenarios(self) -> &'static [&'static str] {
        match self {
            Self::ReadsOldRecords => &["apply_beside_stop_then_stop", "two_applies_of_one_change", "two_first_applies"],
            Self::DeletesByName => &["destroy_again_then_apply"],
            Self::StartsUngated => &["changed_plan_then_stop", "changed_plan", "first_apply"],
            Self::PatchesBlindly | Self::LeavesPods | Self::KillsAtOnce | Self::OwnsStrangers => &["changed_plan"],
            Self::TellsSecrets | Self::ClosesLate => &["first_apply"],
            Self::ForgetsStarts | Self::LeavesVolumes | Self::WaitsForNobody => &["whole_first_apply"],
            Self::PullsLate => &["whole_new_image"],
            Self::ForgetsPulls => &["whole_missing_image"],
            Self::AdoptsAnything => &["no_adoption"],
        }
    }

    /// The invariants it breaks, by how their lines begin; one of them must be told.
    pub(super) const fn breaks(self) -> &'static [&'static str] {
        match self {
            Self::ReadsOldRecords | Self::LeavesPods => &["two pods", "I-09", "I-20"],
            Self::PatchesBlindly => &["I-05"],
            Self::DeletesByName => &["I-22"],
            Self::StartsUngated => &["two pods", "I-09", "I-22"],
            Self::KillsAtOnce => &["S-83"],
            Self::TellsSecrets => &["I-06"],
            Self::ClosesLate => &["I-01", "I-02"],
            Self::OwnsStrangers => &["I-04"],
            Self::ForgetsPulls | Self::ForgetsStarts => &["S-80"],
            Self::LeavesVolumes => &["I-07"],
            Self::PullsLate => &["S-79"],
            Self::WaitsForNobody => &["R-096"],
            Self::AdoptsAnything => &["I-23"],
        }
    }
}

/// A cluster through which the adapter behaves as if it had the bug.
#[derive(Debug)]
pub(super) struct Planted {
    inner: Arc<dyn Cluster>,
    wire: Env,
    bug: Bug,
    /// The records as this caller wrote them last.
    own: Mutex<BTreeMap<ObjectKey, Object>>,
    /// The environment's values, as they went by.
    secret: Mutex<String>,
    /// Whoever called has let go of the call.
    given_up: AtomicBool,
}

impl Planted {
    pub(super) fn new(inner: Arc<dyn Cluster>, wire: Env, bug: Bug) -> Self {
        Self { inner, wire, bug, own: Mutex::default(), secret: Mutex::default(), given_up: AtomicBool::new(false) }
    }

    /// Whoever called has let go of the call: what comes now is its undoing.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    fn is_undoing(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Whether the bug keeps the adapter from seeing the pod.
    fn hides(&self, pod: &Object) -> bool {
        let is_pull = label_value(pod.meta(), label::ROLE) == Some(role::PULL);
        match self.bug {
            Bug::ForgetsPulls => self.is_undoing() && is_pull,
            Bug::ForgetsStarts => self.is_undoing() && !is_pull,
            _ => false,
        }
    }

    /// The pod as the adapter sees it with the bug.
    fn shown(&self, mut object: Object) -> Object {
        let Object::Pod(pod) = &mut object else { return object };
        match self.bug {
            Bug::OwnsStrangers => {
                pod.metadata.labels.get_or_insert_default().insert(label::MANAGED_BY.to_owned(), MANAGER.to_owned());
            }
            Bug::WaitsForNobody => {
                let runs = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
                let runs = runs.into_iter().any(|app| app.state.as_ref().is_some_and(|state| state.running.is_some()));
                let conditions = pod.status.iter_mut().flat_map(|status| status.conditions.iter_mut().flatten());
                for condition in conditions.filter(|condition| runs && condition.type_ == "Ready") {
                    "True".clone_into(&mut condition.status);
                }
            }
            Bug::AdoptsAnything if label_value(&pod.metadata, label::REVISION).is_none() => {
                let wanted = plan(Version::OtherImage).workloads.remove(0).image;
                for app in pod.spec.iter_mut().flat_map(|spec| &mut spec.containers) {
                    app.image = Some(wanted.clone());
                }
            }
            _ => {}
        }
        object
    }

    fn wrote(&self, object: &Object) {
        if object.kind() == Kind::Service {
            self.own.lock().unwrap_or_else(PoisonError::into_inner).insert(object.key(), object.clone());
        }
    }
}

#[async_trait]
impl Cluster for Planted {
    async fn get(&self, key: &ObjectKey) -> Result<Option<Object>, ClusterError> {
        if self.bug == Bug::ReadsOldRecords {
            let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
            if own.is_some() {
                return Ok(own);
            }
        }
        Ok(self.inner.get(key).await?.map(|object| self.shown(object)))
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ClusterError> {
        let anybodys = Selector::everything().exists(label::WORKLOAD);
        let request = match self.bug {
            Bug::OwnsStrangers if request.kind == Kind::Pod => request.clone().labelled(anybodys),
            _ => request.clone(),
        };
        let mut page = self.inner.list(&request).await?;
        page.items.retain(|object| request.kind != Kind::Pod || !self.hides(object));
        page.items = page.items.into_iter().map(|object| self.shown(object)).collect();
        Ok(page)
    }

    async fn create(&self, object: &Object) -> Result<Object, ClusterError> {
        let mut object = object.clone();
        match (self.bug, &mut object) {
            (Bug::StartsUngated, Object::Pod(pod)) => {
                if let Some(spec) = &mut pod.spec {
                    spec.scheduling_gates = None;
                }
            }
            (Bug::ClosesLate, Object::NetworkPolicy(_)) => {
                let (inner, wire, late) = (Arc::clone(&self.inner), self.wire.clone(), object.clone());
                self.wire.spawn_detached("late policy", async move {
                    wire.sleep(Duration::from_secs(2)).await;
                    drop(inner.create(&late).await);
                });
                return Ok(object);
            }
            (Bug::PullsLate, Object::Pod(pod)) if label_value(&pod.metadata, label::ROLE) == Some(role::PULL) => {
                // Taken for a want of room.
                let failure = Failure::QuotaExceeded("planted".to_owned());
                return Err(ClusterError::new("create", object.key(), failure));
            }
            (Bug::TellsSecrets, Object::Secret(secret)) => {
                let value = secret.data.iter().flatten().next().map(|(_, value)| value.0.clone());
                let value = String::from_utf8(value.unwrap_or_default()).unwrap_or_default();
                *self.secret.lock().unwrap_or_else(PoisonError::into_inner) = value;
            }
            (Bug::TellsSecrets, Object::Pod(pod)) => {
                let value = self.secret.lock().unwrap_or_else(PoisonError::into_inner).clone();
                pod.metadata.annotations.get_or_insert_default().insert("env".to_owned(), value);
            }
            _ => {}
        }
        let made = self.inner.create(&object).await?;
        self.wrote(&made);
        Ok(made)
    }

    async fn patch(&self, key: &ObjectKey, patch: &MergePatch) -> Result<Object, ClusterError> {
        if self.bug == Bug::LeavesVolumes && key.kind == Kind::PersistentVolume {
            let read = self.inner.get(key).await?;
            return read.ok_or_else(|| ClusterError::new("patch", key.clone(), Failure::NotFound));
        }
        let changed = if self.bug == Bug::PatchesBlindly {
            let blind = MergePatch::at(&ResourceVersion::new(""), patch.as_json().clone());
            self.inner.patch(key, &blind).await?
        } else {
            self.inner.patch(key, patch).await?
        };
        self.wrote(&changed);
        Ok(changed)
    }

    async fn delete(&self, key: &ObjectKey, options: &DeleteOptions) -> Result<(), ClusterError> {
        let mut options = options.clone();
        match self.bug {
            Bug::KillsAtOnce if key.kind == Kind::Pod => options.grace_seconds = Some(0),
            Bug::LeavesPods if key.kind == Kind::Pod => return Ok(()),
            Bug::DeletesByName => {
                if let Some(uid) = self.inner.get(key).await?.and_then(|found| Uid::of(found.meta())) {
                    options = DeleteOptions { version: None, uid, ..options };
                }
            }
            _ => {}
        }
        self.inner.delete(key, &options).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<EventStream, ClusterError> {
        let events = self.inner.watch(request).await?;
        if self.bug != Bug::WaitsForNobody {
            return Ok(events);
        }
        let early = Self::new(Arc::clone(&self.inner), self.wire.clone(), self.bug);
        let shown = move |event| match event {
            WatchEvent::Added(object) => WatchEvent::Added(early.shown(object)),
            WatchEvent::Modified(object) => WatchEvent::Modified(early.shown(object)),
            other => other,
        };
        Ok(events.map(move |event| event.map(&shown)).boxed())
    }

    async fn logs(&self, request: &LogRequest) -> Result<ByteStream, ClusterError> {
        self.inner.logs(request).await
    }
}
