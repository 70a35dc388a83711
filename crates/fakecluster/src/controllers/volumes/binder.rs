//! The control plane's part: brings claims and volumes together and tells them apart again.
//!
//! One object a turn and one step of it, as the real one: a volume is bound before its claim says so.
//! <https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/controller/volume/persistentvolume/pv_controller.go>

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use pando_cluster::env::yield_now;
use pando_cluster::{Kind, ObjectKey, Resource as _};
use serde_json::json;

use super::{BIND_COMPLETED, BOUND_BY_CONTROLLER, PROVISIONED_BY, PROVISIONER, SELECTED_NODE, fit};
use crate::FakeCluster;
use crate::controllers::objects::{self, Note, tell, text};
use crate::store::Store;

const CONTROLLER: &str = "persistentvolume-controller";

/// Keeps a volume that a claim has from going before the claim.
const PROTECTION: &str = "kubernetes.io/pv-protection";

/// The provisioner of classes whose volumes an operator makes by hand.
pub(in crate::controllers) const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Binds for ever.
pub(in crate::controllers) async fn run(fake: FakeCluster) {
    let mut binder = Binder { fake, told: BTreeMap::new() };
    let mut seen = 0;
    loop {
        let (work, revision) = binder.fake.with(|store| {
            let news = store.changes_after(seen).is_none_or(|mut all| all.any(|change| matters(change.key.kind)));
            let keys = || store.all(Kind::PersistentVolume).chain(store.all(Kind::PersistentVolumeClaim));
            let work: Vec<_> = if news { keys().map(|(key, _)| key.clone()).collect() } else { Vec::new() };
            (work, store.revision())
        });
        seen = revision;
        if !work.is_empty() {
            let lag = binder.fake.config().delays.binding;
            if !lag.is_zero() {
                binder.fake.env().sleep(lag).await;
            }
        }
        for key in work {
            binder.look(&key);
            yield_now().await;
        }
        binder.fake.changed(seen).await;
    }
}

fn matters(kind: Kind) -> bool {
    matches!(kind, Kind::PersistentVolume | Kind::PersistentVolumeClaim | Kind::StorageClass)
}

struct Binder {
    fake: FakeCluster,
    /// What was last told about each object, so that looking again is not telling again.
    told: BTreeMap<String, String>,
}

/// What is to be told about an object.
struct Word {
    warning: bool,
    reason: &'static str,
    message: String,
}

impl Word {
    fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: false, reason, message: message.into() }
    }

    fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: true, ..Self::normal(reason, message) }
    }
}

impl Binder {
    fn look(&mut self, key: &ObjectKey) {
        let fake = self.fake.clone();
        fake.with(|store| {
            let word = match key.kind {
                Kind::PersistentVolume => look_at_volume(store, key),
                _ => look_at_claim(store, key),
            };
            if let Some(word) = word {
                self.tell(store, key, word);
            }
        });
    }

    fn tell(&mut self, store: &mut Store, key: &ObjectKey, word: Word) {
        let Some(uid) = store.get(key).map(|object| text(object, "/metadata/uid").to_owned()) else { return };
        if self.told.insert(uid, word.message.clone()).as_ref() == Some(&word.message) {
            return;
        }
        let Word { warning, reason, message } = word;
        tell(store, self.fake.env(), Note { about: key, field: None, by: CONTROLLER, warning, reason, message });
    }
}

fn look_at_volume(store: &mut Store, key: &ObjectKey) -> Option<Word> {
    let volume = store.typed::<PersistentVolume>(None, &key.name)?;
    let phase = volume.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    if volume.metadata.deletion_timestamp.is_some() && phase != "Bound" {
        store.update(key, |volume| objects::release(volume, PROTECTION));
        objects::remove_if_free(store, key);
        return None;
    }
    let Some(held) = fit::claim_of(&volume) else {
        set_phase(store, key, "Available");
        return None;
    };
    let uid = held.uid.as_deref().unwrap_or_default();
    if uid.is_empty() {
        // Kept for a claim that may come.
        set_phase(store, key, "Available");
        return None;
    }
    let namespace = held.namespace.as_deref();
    let claim = store.typed::<PersistentVolumeClaim>(namespace, held.name.as_deref().unwrap_or_default());
    let Some(claim) = claim.filter(|claim| claim.metadata.uid.as_deref() == Some(uid)) else {
        if phase != "Failed" {
            set_phase(store, key, "Released");
        }
        return reclaim(store, key, &volume);
    };
    match fit::volume_of(&claim) {
        // The claim's own turn comes.
        "" => {}
        name if name == key.name => set_phase(store, key, "Bound"),
        _ => let_go(store, key, &volume),
    }
    None
}

/// What becomes of a volume whose claim has gone. Retained ones stay, and whoever made the others removes them.
fn reclaim(store: &mut Store, key: &ObjectKey, volume: &PersistentVolume) -> Option<Word> {
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    if policy == Some("Retain") || fit::annotation(&volume.metadata, PROVISIONED_BY).is_some() {
        return None;
    }
    let message = format!("error getting deleter volume plugin for volume {:?}: no volume plugin matched", key.name);
    set_phase(store, key, "Failed");
    store.update(key, |volume| volume["status"]["message"] = message.as_str().into());
    Some(Word::warning("VolumeFailedDelete", message))
}

/// Takes a volume back that was kept for a claim which has another one by now.
fn let_go(store: &mut Store, key: &ObjectKey, volume: &PersistentVolume) {
    let chosen_here = fit::annotation(&volume.metadata, BOUND_BY_CONTROLLER).is_some();
    store.update(key, |volume| {
        if chosen_here {
            objects::leave_out(&mut volume["spec"], "claimRef");
            objects::leave_out(&mut volume["metadata"]["annotations"], BOUND_BY_CONTROLLER);
        } else {
            objects::leave_out(&mut volume["spec"]["claimRef"], "uid");
        }
    });
    set_phase(store, key, "Available");
}

fn set_phase(store: &mut Store, key: &ObjectKey, phase: &str) {
    let now = store.now_text();
    store.update(key, |volume| {
        if volume["status"]["phase"] != phase {
            volume["status"] = json!({"phase": phase, "lastPhaseTransitionTime": now});
        }
    });
}

fn look_at_claim(store: &mut Store, key: &ObjectKey) -> Option<Word> {
    let claim = store.typed::<PersistentVolumeClaim>(key.namespace.as_deref(), &key.name)?;
    if fit::annotation(&claim.metadata, BIND_COMPLETED).is_some() {
        look_at_bound(store, key, &claim)
    } else if fit::volume_of(&claim).is_empty() {
        look_for_volume(store, key, &claim)
    } else {
        look_at_wish(store, key, &claim)
    }
}

/// A claim that has its volume keeps it, or has lost it.
fn look_at_bound(store: &mut Store, key: &ObjectKey, claim: &PersistentVolumeClaim) -> Option<Word> {
    let name = fit::volume_of(claim);
    let volume = store.typed::<PersistentVolume>(None, name);
    let (reason, why) = match volume {
        Some(volume) if fit::claim_of(&volume).is_none() || fit::is_for(&volume, claim) => {
            return bind(store, key, claim, &volume);
        }
        Some(_) => ("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly"),
        None if name.is_empty() => {
            ("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
        }
        None => ("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"),
    };
    let lost = store.get(key).is_some_and(|claim| text(claim, "/status/phase") == "Lost");
    store.update(key, |claim| claim["status"] = json!({"phase": "Lost"}));
    (!lost).then(|| Word::warning(reason, why))
}

/// A claim that names the volume it wants.
fn look_at_wish(store: &mut Store, key: &ObjectKey, claim: &PersistentVolumeClaim) -> Option<Word> {
    let volume = store.typed::<PersistentVolume>(None, fit::volume_of(claim))?;
    if fit::claim_of(&volume).is_some() && !fit::is_for(&volume, claim) {
        let message = format!("volume {:?} already bound to a different claim.", fit::volume_of(claim));
        return Some(Word::warning("FailedBinding", message));
    }
    if !fit::satisfies(&volume, claim) {
        let message = format!("Cannot bind to requested volume {:?}: requested PV is too small", fit::volume_of(claim));
        return Some(Word::warning("VolumeMismatch", message));
    }
    bind(store, key, claim, &volume)
}

/// A claim that takes any volume that suits it, and else has one made.
fn look_for_volume(store: &mut Store, key: &ObjectKey, claim: &PersistentVolumeClaim) -> Option<Word> {
    let class = store.typed::<StorageClass>(None, fit::class_of(claim));
    let chosen = fit::annotation(&claim.metadata, SELECTED_NODE).is_some();
    let waits = class.as_ref().is_some_and(waits_for_first_consumer) && !chosen;
    let volumes: Vec<_> = store.all_typed::<PersistentVolume>().collect();
    if let Some(volume) = fit::best(volumes.iter(), claim, waits) {
        return bind(store, key, claim, volume);
    }
    if waits {
        let message = "waiting for first consumer to be created before binding";
        return Some(Word::normal("WaitForFirstConsumer", message));
    }
    let name = fit::class_of(claim);
    match class {
        _ if name.is_empty() => Some(Word::normal(
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set",
        )),
        None => Some(Word::warning("ProvisioningFailed", format!("storageclass.storage.k8s.io {name:?} not found"))),
        Some(class) if class.provisioner == NO_PROVISIONER => {
            Some(Word::warning("ProvisioningFailed", "no volume plugin matched name: kubernetes.io/no-provisioner"))
        }
        Some(class) => Some(ask_provisioner(store, key, &class.provisioner)),
    }
}

pub(in crate::controllers) fn waits_for_first_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

fn ask_provisioner(store: &mut Store, key: &ObjectKey, provisioner: &str) -> Word {
    store.update(key, |claim| {
        for name in PROVISIONER {
            claim["metadata"]["annotations"][*name] = provisioner.into();
        }
    });
    let message = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
    );
    Word::normal("ExternalProvisioning", message)
}

/// Gives the volume to the claim and to nobody else.
pub(in crate::controllers) fn reserve(store: &mut Store, volume: &ObjectKey, claim: &PersistentVolumeClaim) {
    let ObjectKey { namespace, name, .. } = claim.key();
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    store.update(volume, |volume| {
        let held = &mut volume["spec"]["claimRef"];
        if held["uid"] == uid {
            return;
        }
        let chosen_here = held.is_null();
        *held = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": namespace, "uid": uid,
            "resourceVersion": claim.metadata.resource_version,
        });
        if chosen_here {
            volume["metadata"]["annotations"][BOUND_BY_CONTROLLER] = "yes".into();
        }
    });
}

/// Takes the next step of binding the two: the volume's reference, the volume's phase, the claim's reference, the
/// claim's phase.
fn bind(store: &mut Store, key: &ObjectKey, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Word> {
    let at = volume.key();
    reserve(store, &at, claim);
    if volume.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        set_phase(store, &at, "Bound");
        return None;
    }
    if !fit::is_bound(claim) {
        let chosen_here = fit::volume_of(claim).is_empty();
        store.update(key, |claim| {
            claim["spec"]["volumeName"] = at.name.as_str().into();
            let annotations = &mut claim["metadata"]["annotations"];
            annotations[BIND_COMPLETED] = "yes".into();
            if chosen_here {
                annotations[BOUND_BY_CONTROLLER] = "yes".into();
            }
        });
    }
    let spec = volume.spec.clone().unwrap_or_default();
    store.update(key, |claim| {
        let status = &mut claim["status"];
        if status["phase"] != "Bound" {
            // What a claim has grown to is its own business from then on.
            status["capacity"] = json!(spec.capacity);
        }
        status["phase"] = "Bound".into();
        status["accessModes"] = json!(spec.access_modes);
    });
    None
}
