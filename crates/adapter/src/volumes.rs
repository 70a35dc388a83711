//! Keeping the data of volumes: each is set to `Retain` as soon as its claim is bound (S-41).
//!
//! Kubernetes makes a volume with its class's policy, which is mostly `Delete`: until that is changed, whoever deletes the claim or
//! its namespace deletes the data. So what binds is followed from the claim's making on, beside the start of the pods, and looked at
//! once more when an apply comes to its end, whichever.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use pando_api::{Change, Error};
use pando_cluster::resilient::Retry;
use pando_cluster::{ClusterError, Kind, MergePatch, Resource, ResourceVersion, Told, budget, list_watch};
use pando_storage::{RETAIN, belongs_to, bound_volume, is_retained};
use serde_json::json;

use crate::call::{Call, name};
use crate::error::{unchanged, unread};

/// Claims whose volumes are not known to be kept.
pub(crate) struct Keeping<'a, 'c> {
    call: &'a Call<'c>,
    open: BTreeMap<String, PersistentVolumeClaim>,
    /// Claims that pods mount: the others may wait for their first for ever.
    mounted: BTreeSet<&'a str>,
}

impl<'a, 'c> Keeping<'a, 'c> {
    /// Begins with these claims, of which pods mount some; keeps at once what is bound already. `known` are volumes as the view has
    /// them.
    pub(crate) async fn of(
        call: &'a Call<'c>,
        claims: &[PersistentVolumeClaim],
        mounted: BTreeSet<&'a str>,
        known: &[PersistentVolume],
    ) -> Result<Self, Error> {
        let is_kept = |claim: &PersistentVolumeClaim| {
            let is_bound = bound_volume(claim).is_some();
            is_bound && known.iter().any(|volume| belongs_to(volume, claim) && is_retained(volume))
        };
        let open = claims.iter().filter(|claim| !is_kept(claim));
        let open = open.map(|claim| (name(&claim.metadata), claim.clone())).collect();
        let mut keeping = Self { call, open, mounted };
        keeping.keep_bound().await?;
        Ok(keeping)
    }

    /// Keeps whatever is bound, as far as is known. What could not be kept stays open, and keeps no other from it.
    async fn keep_bound(&mut self) -> Result<(), Error> {
        let bound: Vec<PersistentVolumeClaim> =
            self.open.values().filter(|claim| bound_volume(claim).is_some()).cloned().collect();
        let mut failed = Ok(());
        for claim in bound {
            match keep(self.call, &claim).await {
                Ok(()) => drop(self.open.remove(&name(&claim.metadata))),
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed
    }

    fn waits(&self) -> bool {
        self.open.keys().any(|claim| self.mounted.contains(&**claim))
    }

    /// Follows the claims until the volumes of all that are mounted are kept. Failures are tried again as long as this runs.
    pub(crate) async fn follow(&mut self) {
        if !self.waits() {
            return;
        }
        let (sender, mut told) = futures::channel::mpsc::unbounded();
        let request = self.call.list_request(Kind::PersistentVolumeClaim);
        let watching = list_watch(&**self.call.cluster, self.call.env, &request, move |told| {
            let _ = sender.unbounded_send(told);
        });
        let keeping = async {
            while self.waits() {
                let Some(told) = told.next().await else { return };
                self.take(told);
                while let Err(error) = self.keep_bound().await {
                    tracing::warn!(app = %self.call.app, error = &error as &dyn std::error::Error, "volume not set to Retain");
                    self.call.env.sleep(budget::LONGEST_BACKOFF).await;
                }
            }
        };
        futures::future::select(Box::pin(keeping), Box::pin(watching)).await;
    }

    fn take(&mut self, told: Told) {
        let objects = match told {
            Told::All(objects) => objects,
            Told::Is(object) => vec![object],
            Told::Gone(_) | Told::Fresh | Told::Listing | Told::Broken(_) => Vec::new(),
        };
        for claim in objects.into_iter().filter_map(PersistentVolumeClaim::from_object) {
            if let Some(open) = self.open.get_mut(&name(&claim.metadata)) {
                *open = claim;
            }
        }
    }

    /// Looks once more, at what is open, when nothing is followed any longer.
    ///
    /// # Errors
    ///
    /// When a volume is bound and could not be kept: its data hangs on its claim.
    pub(crate) async fn finish(mut self) -> Result<(), Error> {
        for claim in self.open.values_mut() {
            let read = self.call.read::<PersistentVolumeClaim>(&name(&claim.metadata)).await.map_err(unread)?;
            if let Some(read) = read {
                *claim = read;
            }
        }
        self.keep_bound().await
    }
}

/// Sets the volume of a bound claim to `Retain`, unless it is so already.
async fn keep(call: &Call<'_>, claim: &PersistentVolumeClaim) -> Result<(), Error> {
    let Some(volume) = bound_volume(claim) else { return Ok(()) };
    let mut retry = Retry::new(call.env);
    loop {
        let read = call.cluster.read::<PersistentVolume>(None, volume).await.map_err(unread)?;
        // One that is another claim's by now is another's to keep.
        let Some(read) = read.filter(|volume| belongs_to(volume, claim) && !is_retained(volume)) else { return Ok(()) };
        match retain(call, &read).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_conflict() && retry.wait_before_another(&error).await => {}
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(unchanged(error)),
        }
    }
}

async fn retain(call: &Call<'_>, volume: &PersistentVolume) -> Result<(), ClusterError> {
    let version = ResourceVersion::of(&volume.metadata).unwrap_or_else(|| ResourceVersion::new(""));
    let body = json!({"spec": {"persistentVolumeReclaimPolicy": RETAIN}});
    call.cluster.patch(&volume.key(), &MergePatch::at(&version, body)).await?;
    let field = "spec.persistentVolumeReclaimPolicy".to_owned();
    call.note(Kind::PersistentVolume, &name(&volume.metadata), Change::Changed, vec![field]);
    Ok(())
}
