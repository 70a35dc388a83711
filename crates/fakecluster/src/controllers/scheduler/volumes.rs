//! The scheduler's part in volumes: a pod goes where its volumes are, and new volumes where their pod goes.
//!
//! <https://kubernetes.io/docs/concepts/storage/storage-classes/#volume-binding-mode>

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, PodSpec};
use k8s_openapi::api::storage::v1::StorageClass;
use pando_cluster::{ObjectKey, Resource as _};

use crate::controllers::volumes::{self, fit};
use crate::store::Store;

/// The claims of a pod that is to be placed.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// The volumes of those that have one.
    bound: Vec<PersistentVolume>,
    /// Those that wait for this pod.
    open: Vec<PersistentVolumeClaim>,
    /// The volumes that those could have.
    volumes: Vec<PersistentVolume>,
    /// The classes of those that wait.
    classes: BTreeMap<String, StorageClass>,
}

impl Claims {
    /// Reads the claims of a pod; in the scheduler's words, what is wrong with one of them.
    pub(super) fn read(store: &Store, pod: &ObjectKey, spec: &PodSpec) -> Result<Self, String> {
        let named = spec.volumes.iter().flatten().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        let mut claims = Self { volumes: store.all_typed().collect(), ..Self::default() };
        let mut immediate = false;
        for name in named.map(|claim| claim.claim_name.as_str()) {
            let claim = store.typed::<PersistentVolumeClaim>(pod.namespace.as_deref(), name);
            let claim = claim.ok_or_else(|| format!("persistentvolumeclaim {name:?} not found"))?;
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            let volume = fit::volume_of(&claim);
            if phase == Some("Lost") {
                return Err(format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
                ));
            }
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            let class = store.typed::<StorageClass>(None, fit::class_of(&claim));
            if fit::is_bound(&claim) {
                claims.bound.extend(store.typed::<PersistentVolume>(None, volume));
            } else if let Some(class) = class.filter(|class| volume.is_empty() && volumes::waits(class)) {
                claims.classes.insert(fit::class_of(&claim).to_owned(), class);
                claims.open.push(claim);
            } else {
                immediate = true;
            }
        }
        if immediate { Err("pod has unbound immediate PersistentVolumeClaims".to_owned()) } else { Ok(claims) }
    }

    /// Whether each has its volume.
    pub(super) fn are_bound(&self) -> bool {
        self.open.is_empty()
    }

    /// Why the pod cannot be on `node` for its volumes.
    pub(super) fn refuse(&self, node: &Node) -> Option<&'static str> {
        let labels = node.metadata.labels.clone().unwrap_or_default();
        if !self.bound.iter().all(|volume| fit::is_within_reach(volume, &labels)) {
            return Some("node(s) didn't match PersistentVolume's node affinity");
        }
        let can_be_had = |claim: &PersistentVolumeClaim| {
            let class = self.classes.get(fit::class_of(claim));
            self.made_already(claim, &labels).is_some()
                || class.is_some_and(|class| class.provisioner != volumes::NO_PROVISIONER)
        };
        if self.open.iter().all(can_be_had) {
            None
        } else {
            Some("node(s) didn't find available persistent volumes to bind")
        }
    }

    /// Has the claims that wait bound on `node`: to volumes that are there, or to new ones.
    pub(super) fn choose(&self, store: &mut Store, node: &Node) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let labels = node.metadata.labels.clone().unwrap_or_default();
        for claim in &self.open {
            match self.made_already(claim, &labels) {
                Some(volume) => volumes::reserve(store, &volume.key(), claim),
                None => store.update(&claim.key(), |claim| {
                    claim["metadata"]["annotations"][volumes::SELECTED_NODE] = name.into();
                }),
            }
        }
    }

    fn made_already(
        &self,
        claim: &PersistentVolumeClaim,
        labels: &BTreeMap<String, String>,
    ) -> Option<&PersistentVolume> {
        fit::best(self.volumes.iter().filter(|volume| fit::is_within_reach(volume, labels)), claim, false)
    }
}
