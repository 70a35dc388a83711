//! Bugs that are planted on purpose: a suite that lets one of them pass proves nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use pando_cluster::names::{MANAGER, label};
use pando_cluster::{
    ByteStream, Cluster, ClusterError, DeleteOptions, Env, EventStream, Kind, ListRequest, LogRequest, MergePatch,
    Object, ObjectKey, Page, ResourceVersion, Selector, Uid, WatchRequest,
};

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
    ];

    /// The scenarios that must catch it, by name.
    pub(super) const fn scenarios(self) -> &'static [&'static str] {
        match self {
            Self::ReadsOldRecords => &["apply_beside_stop_then_stop", "two_applies_of_one_change", "two_first_applies"],
            Self::DeletesByName => &["destroy_again_then_apply"],
            Self::StartsUngated => &["changed_plan", "first_apply"],
            Self::PatchesBlindly | Self::LeavesPods | Self::KillsAtOnce | Self::OwnsStrangers => &["changed_plan"],
            Self::TellsSecrets | Self::ClosesLate => &["first_apply"],
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
}

impl Planted {
    pub(super) fn new(inner: Arc<dyn Cluster>, wire: Env, bug: Bug) -> Self {
        Self { inner, wire, bug, own: Mutex::default(), secret: Mutex::default() }
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
        self.inner.get(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ClusterError> {
        if self.bug != Bug::OwnsStrangers || request.kind != Kind::Pod {
            return self.inner.list(request).await;
        }
        let anybodys = request.clone().labelled(Selector::everything().exists(label::WORKLOAD));
        let mut page = self.inner.list(&anybodys).await?;
        for pod in &mut page.items {
            pod.meta_mut().labels.get_or_insert_default().insert(label::MANAGED_BY.to_owned(), MANAGER.to_owned());
        }
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
        self.inner.watch(request).await
    }

    async fn logs(&self, request: &LogRequest) -> Result<ByteStream, ClusterError> {
        self.inner.logs(request).await
    }
}
