//! Whoever makes volumes for a class: makes them, grows them and removes them, each after a while.
//!
//! <https://github.com/kubernetes-sigs/sig-storage-lib-external-provisioner>

use std::collections::BTreeMap;

use futures::future::select;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use pando_cluster::env::Instant;
use pando_cluster::{Kind, ObjectKey, Resource};
use serde_json::{Value, json};

use super::{PROVISIONED_BY, PROVISIONER, SELECTED_NODE, fit};
use crate::FakeCluster;
use crate::config::FakeProvisioner;
use crate::controllers::objects::{Note, ask_to_end, tell};
use crate::store::Store;

/// Serves claims and volumes for ever.
pub(in crate::controllers) async fn run(fake: FakeCluster) {
    let mut seen = 0;
    let mut due: BTreeMap<Job, Instant> = BTreeMap::new();
    loop {
        let now = fake.env().now();
        let news = fake.with(|store| {
            let matters = |kind| matches!(kind, Kind::PersistentVolume | Kind::PersistentVolumeClaim);
            let news = store.changes_after(seen).is_none_or(|mut all| all.any(|change| matters(change.key.kind)));
            seen = store.revision();
            news
        });
        if news {
            let jobs = fake.with(|store| jobs(&fake, store));
            due.retain(|job, _| jobs.contains(job));
            for job in jobs {
                let begun = due.contains_key(&job);
                let at = *due.entry(job.clone()).or_insert(now.plus(job.takes(&fake)));
                if !begun && at > now {
                    job.begin(&fake);
                }
            }
        }
        for job in due.extract_if(.., |_, at| *at <= now).map(|(job, _)| job).collect::<Vec<_>>() {
            job.finish(&fake);
        }
        let changed = std::pin::pin!(fake.changed(seen));
        match due.values().min() {
            Some(next) => drop(select(changed, fake.env().clock.sleep_until(*next)).await),
            None => drop(changed.await),
        }
    }
}

/// Something a provisioner has to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Job {
    /// A volume for the claim of that identity.
    Make(ObjectKey, String),
    /// The end of a volume of that identity, whose claim has gone.
    Remove(ObjectKey, String),
    /// More room for the claim of that identity: so much.
    Grow(ObjectKey, String, String),
}

/// What there is to do at present, for the provisioners that there are.
fn jobs(fake: &FakeCluster, store: &Store) -> Vec<Job> {
    let mut jobs = Vec::new();
    for claim in store.all_typed::<PersistentVolumeClaim>() {
        let Some(provisioner) = provisioner_of(fake, &claim) else { continue };
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        if !fit::is_bound(&claim) {
            if fit::volume_of(&claim).is_empty() && claim.metadata.deletion_timestamp.is_none() {
                jobs.push(Job::Make(claim.key(), uid));
            }
        } else if let Some(size) = wanted_growth(&claim).filter(|_| provisioner.resizes) {
            jobs.push(Job::Grow(claim.key(), uid, size));
        }
    }
    for volume in store.all_typed::<PersistentVolume>() {
        let maker = fit::annotation(&volume.metadata, PROVISIONED_BY);
        let is_known = maker.is_some_and(|maker| fake.config().provisioners.contains_key(maker));
        let spec = volume.spec.as_ref();
        let is_ours_to_remove =
            spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some("Delete");
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        if is_known && is_ours_to_remove && phase == Some("Released") && volume.metadata.deletion_timestamp.is_none() {
            jobs.push(Job::Remove(volume.key(), volume.metadata.uid.clone().unwrap_or_default()));
        }
    }
    jobs
}

/// The provisioner that was asked for the claim's volume, where the cluster has it.
fn provisioner_of<'a>(fake: &'a FakeCluster, claim: &PersistentVolumeClaim) -> Option<&'a FakeProvisioner> {
    let asked = PROVISIONER.iter().find_map(|name| fit::annotation(&claim.metadata, name))?;
    fake.config().provisioners.get(asked)
}

/// The size that a bound claim asks for beyond what it has.
fn wanted_growth(claim: &PersistentVolumeClaim) -> Option<String> {
    let asked = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    let has = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    (fit::size(Some(asked)) > fit::size(has)).then(|| asked.get("storage").map(|size| size.0.clone()))?
}

impl Job {
    fn takes(&self, fake: &FakeCluster) -> std::time::Duration {
        let delays = &fake.config().delays;
        match self {
            Self::Make(..) => delays.provisioning,
            Self::Remove(..) => delays.reclaiming,
            Self::Grow(..) => delays.expansion,
        }
    }

    fn begin(&self, fake: &FakeCluster) {
        let Self::Make(key, _) = self else { return };
        let message = format!("External provisioner is provisioning volume for claim {:?}", path(key));
        fake.with(|store| say(fake, store, key, false, "Provisioning", message));
    }

    /// Does it, unless what it was for is another one or gone by now.
    fn finish(&self, fake: &FakeCluster) {
        match self {
            Self::Make(key, uid) => make(fake, key, uid),
            Self::Remove(key, uid) => {
                fake.machines().with(|state| state.disks.destroy(&key.name, fake.env().now()));
                fake.with(|store| {
                    if read::<PersistentVolume>(store, key, uid).is_some() {
                        ask_to_end(store, fake.env(), key);
                    }
                });
            }
            Self::Grow(key, uid, size) => fake.with(|store| {
                let Some(claim) = read::<PersistentVolumeClaim>(store, key, uid) else { return };
                let volume = ObjectKey::cluster(Kind::PersistentVolume, fit::volume_of(&claim));
                store.update(&volume, |volume| volume["spec"]["capacity"]["storage"] = size.as_str().into());
                store.update(key, |claim| claim["status"]["capacity"]["storage"] = size.as_str().into());
                say(fake, store, key, false, "FileSystemResizeSuccessful", String::new());
            }),
        }
    }
}

fn make(fake: &FakeCluster, key: &ObjectKey, uid: &str) {
    fake.with(|store| {
        let Some(claim) = read::<PersistentVolumeClaim>(store, key, uid) else { return };
        let Some(provisioner) = provisioner_of(fake, &claim) else { return };
        let Some(class) = store.typed::<StorageClass>(None, fit::class_of(&claim)) else { return };
        let node = fit::annotation(&claim.metadata, SELECTED_NODE);
        let failure = match (&provisioner.fails, node) {
            (Some(words), _) => Some(words.as_str()),
            (None, None) if provisioner.is_local => Some("configuration error, no node was specified"),
            (None, _) => None,
        };
        if let Some(words) = failure {
            let class = fit::class_of(&claim);
            let message = format!("failed to provision volume with StorageClass {class:?}: {words}");
            return say(fake, store, key, true, "ProvisioningFailed", message);
        }
        let name = format!("pvc-{uid}");
        store.insert(Kind::PersistentVolume, volume(&name, &claim, &class, node.filter(|_| provisioner.is_local)));
        fake.machines().with(|state| state.disks.make(&name, path(key)));
        say(fake, store, key, false, "ProvisioningSucceeded", format!("Successfully provisioned volume {name}"));
    });
}

/// The volume for `claim`; on `node`, or within reach of all nodes.
fn volume(name: &str, claim: &PersistentVolumeClaim, class: &StorageClass, node: Option<&str>) -> Value {
    let spec = claim.spec.clone().unwrap_or_default();
    let asked = spec.resources.and_then(|resources| resources.requests).unwrap_or_default();
    let at = claim.key();
    let namespace = at.namespace.as_deref().unwrap_or_default();
    let mut volume = json!({
        "metadata": {
            "name": name,
            "annotations": {PROVISIONED_BY: class.provisioner},
            "finalizers": ["kubernetes.io/pv-protection"],
        },
        "spec": {
            "accessModes": spec.access_modes,
            "capacity": {"storage": asked.get("storage")},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": at.name, "namespace": namespace,
                "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
            },
            "persistentVolumeReclaimPolicy": class.reclaim_policy,
            "storageClassName": class.metadata.name,
            "volumeMode": spec.volume_mode,
        },
        "status": {"phase": "Pending"},
    });
    match node {
        Some(node) => {
            let directory = format!("/var/local-path-provisioner/{name}_{namespace}_{}", at.name);
            volume["spec"]["hostPath"] = json!({"path": directory, "type": "DirectoryOrCreate"});
            let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
            volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}});
        }
        None => volume["spec"]["csi"] = json!({"driver": class.provisioner, "volumeHandle": name}),
    }
    volume
}

fn read<T: Resource>(store: &Store, key: &ObjectKey, uid: &str) -> Option<T> {
    let object = store.typed::<T>(key.namespace.as_deref(), &key.name)?;
    (object.metadata().uid.as_deref() == Some(uid)).then_some(object)
}

fn path(key: &ObjectKey) -> String {
    format!("{}/{}", key.namespace.as_deref().unwrap_or_default(), key.name)
}

fn say(fake: &FakeCluster, store: &mut Store, key: &ObjectKey, warning: bool, reason: &str, message: String) {
    let by = store.get(key).and_then(|claim| claim["metadata"]["annotations"][PROVISIONER[0]].as_str());
    let by = by.unwrap_or("volume_expand").to_owned();
    tell(store, fake.env(), Note { about: key, field: None, by: &by, warning, reason, message });
}
