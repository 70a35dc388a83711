//! Volumes: what phase each is in, and that one that a claim has is not taken from it.
//!
//! <https://kubernetes.io/docs/concepts/storage/persistent-volumes/#lifecycle-of-a-volume-and-claim>

use pando_cluster::{Kind, ObjectKey};

use super::objects::{is_being_deleted, text};
use crate::FakeCluster;
use crate::store::Store;

/// Keeps a volume that a claim has from going before the claim.
const PROTECTION: &str = "kubernetes.io/pv-protection";

/// Brings volumes to their phases and lets them go, for ever.
pub(super) async fn run(fake: FakeCluster) {
    let mut seen = 0;
    loop {
        fake.with(|store| {
            let matters = |kind| matches!(kind, Kind::PersistentVolume | Kind::PersistentVolumeClaim);
            if store.changes_after(seen).is_none_or(|mut all| all.any(|change| matters(change.key.kind))) {
                let volumes: Vec<_> = store.all(Kind::PersistentVolume).map(|(key, _)| key.clone()).collect();
                for volume in volumes {
                    look(store, &volume);
                }
            }
            seen = store.revision();
        });
        fake.changed(seen).await;
    }
}

fn look(store: &mut Store, key: &ObjectKey) {
    let Some(volume) = store.get(key) else { return };
    if is_being_deleted(volume) && text(volume, "/status/phase") != "Bound" {
        store.update(key, |volume| super::objects::release(volume, PROTECTION));
        super::objects::remove_if_free(store, key);
        return;
    }
    if text(volume, "/status/phase") == "Pending" && text(volume, "/spec/claimRef/name").is_empty() {
        let now = store.now_text();
        store.update(key, |volume| {
            volume["status"]["phase"] = "Available".into();
            volume["status"]["lastPhaseTransitionTime"] = now.into();
        });
    }
}
