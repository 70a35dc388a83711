//! Keeping a volume's data: which volume a claim is bound to, and whether deleting the claim would delete it.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use pando_cluster::Uid;

/// The policy that keeps a volume when its claim goes.
///
/// <https://kubernetes.io/docs/concepts/storage/persistent-volumes/#reclaiming>
pub const RETAIN: &str = "Retain";

/// The volume that the claim is bound to; `None` while it is to none.
pub fn bound_volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    let bound = claim.status.as_ref()?.phase.as_deref() == Some("Bound");
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| bound && !name.is_empty())
}

/// Whether the volume is bound to exactly this claim: names are used again, identities are not.
pub fn belongs_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let holder = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let uid = Uid::of(&claim.metadata);
    uid.is_some() && holder.and_then(|holder| holder.uid.as_deref()) == uid.as_ref().map(Uid::as_str)
}

/// Whether the volume's data stays when its claim goes.
pub fn is_retained(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some(RETAIN)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(spec: Value, phase: &str) -> PersistentVolumeClaim {
        serde_json::from_value(
            json!({"metadata": {"name": "data", "uid": "u1"}, "spec": spec, "status": {"phase": phase}}),
        )
        .expect("a claim")
    }

    fn volume(uid: &str, policy: &str) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": "pv"},
            "spec": {"claimRef": {"name": "data", "uid": uid}, "persistentVolumeReclaimPolicy": policy}}))
        .expect("a volume")
    }

    #[test]
    fn a_claim_names_its_volume_once_it_is_bound() {
        assert_eq!(bound_volume(&claim(json!({"volumeName": "pv"}), "Bound")), Some("pv"));
        for claim in [
            claim(json!({"volumeName": "pv"}), "Pending"),
            claim(json!({}), "Bound"),
            claim(json!({"volumeName": ""}), "Bound"),
            claim(json!({"volumeName": "pv"}), "Lost"),
        ] {
            assert_eq!(bound_volume(&claim), None);
        }
    }

    #[test]
    fn a_volume_belongs_to_a_claim_by_identity() {
        let data = claim(json!({}), "Bound");
        assert!(belongs_to(&volume("u1", "Delete"), &data) && !belongs_to(&volume("u2", "Delete"), &data));
        assert!(is_retained(&volume("u1", "Retain")) && !is_retained(&volume("u1", "Delete")));
    }
}
