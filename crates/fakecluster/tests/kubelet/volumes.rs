//! Claims, volumes and what is really on them. The words and the order are those of Kubernetes 1.34 (tried on kind).

use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim};
use pando_cluster::{Cluster, Kind, MergePatch, ObjectKey, ResourceVersion};
use pando_fakecluster::behaviour::Behaviour;
use pando_fakecluster::{Delays, FakeConfig, FakeProvisioner, FakeStorageClass};
use serde_json::{Value, json};

use crate::bed::{APP, Bed, pod, script, secs};

fn claim(bed: &Bed, name: &str, with: Value) {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    spec.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
    bed.create(Kind::PersistentVolumeClaim, json!({"metadata": {"name": name, "namespace": APP}, "spec": spec}));
}

fn at(name: &str) -> ObjectKey {
    ObjectKey::namespaced(Kind::PersistentVolumeClaim, APP, name)
}

/// A pod that mounts the claim and may write to it.
fn mounting(name: &str, claim: &str) -> Value {
    pod(
        name,
        json!({"spec": {
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            "containers": [{"volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
        }}),
    )
}

fn phase(bed: &Bed, name: &str) -> String {
    let claim = bed.find::<PersistentVolumeClaim>(name).unwrap_or_else(|| panic!("no claim {name}"));
    claim.status.unwrap().phase.unwrap()
}

fn volume_name(bed: &Bed, claim: &str) -> String {
    bed.find::<PersistentVolumeClaim>(claim).unwrap().spec.unwrap().volume_name.unwrap_or_default()
}

fn volume(bed: &Bed, name: &str) -> Option<PersistentVolume> {
    bed.fake.with(|store| store.typed(None, name))
}

/// The volume's phase; `gone` when there is none.
fn state(bed: &Bed, name: &str) -> String {
    volume(bed, name).map_or_else(|| "gone".to_owned(), |it| it.status.unwrap().phase.unwrap())
}

fn set_volume(bed: &Bed, name: &str, change: impl FnOnce(&mut Value)) {
    bed.fake.with(|store| store.update(&ObjectKey::cluster(Kind::PersistentVolume, name), change));
    bed.sim.settle();
}

fn uid(bed: &Bed, pod: &str) -> String {
    bed.pod(pod).metadata.uid.unwrap()
}

/// Two nodes, and a class of storage on the network that is made at once and can grow.
fn network(config: FakeConfig) -> FakeConfig {
    let class = FakeStorageClass {
        name: "fast".to_owned(),
        provisioner: "csi.test".to_owned(),
        waits_for_first_consumer: false,
        expandable: true,
        ..FakeStorageClass::standard()
    };
    let provisioners = [("csi.test".to_owned(), FakeProvisioner::network())].into();
    FakeConfig { storage_classes: vec![class], provisioners, ..config }
}

#[test]
fn a_volume_is_made_on_the_node_of_its_claims_first_pod() {
    let delays = Delays { provisioning: secs(3), ..Delays::default() };
    let bed = Bed::new(FakeConfig { delays, ..FakeConfig::default() });
    claim(&bed, "data", json!({}));
    bed.sim.advance(secs(600));
    assert_eq!(bed.told("data", "WaitForFirstConsumer"), ["waiting for first consumer to be created before binding"]);
    bed.run(mounting("web", "data"));
    let chosen = bed.find::<PersistentVolumeClaim>("data").unwrap().metadata.annotations.unwrap();
    let node = chosen["volume.kubernetes.io/selected-node"].clone();
    assert_eq!(chosen["volume.kubernetes.io/storage-provisioner"], "rancher.io/local-path");
    assert_eq!((bed.node_of("web").as_str(), phase(&bed, "data").as_str()), ("", "Pending"), "nothing is there yet");
    assert_eq!(bed.wait(secs(60), |bed| bed.phase("web") == "Running"), secs(3));
    assert_eq!(bed.node_of("web"), node);
    let claim = bed.find::<PersistentVolumeClaim>("data").unwrap();
    let name = format!("pvc-{}", claim.metadata.uid.clone().unwrap());
    let volume = volume(&bed, &name).expect("its volume");
    let spec = volume.spec.unwrap();
    let held = spec.claim_ref.unwrap();
    assert_eq!((held.name.as_deref(), held.uid), (Some("data"), claim.metadata.uid));
    assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Delete"));
    assert_eq!(volume.metadata.finalizers.unwrap(), ["kubernetes.io/pv-protection"]);
    let status = claim.status.unwrap();
    assert_eq!((status.phase.as_deref(), status.capacity), (Some("Bound"), spec.capacity));
    assert_eq!(bed.told("data", "ProvisioningSucceeded"), [format!("Successfully provisioned volume {name}")]);
}

#[test]
fn a_volume_is_bound_before_its_claim_says_so() {
    let bed = Bed::new(FakeConfig::default());
    claim(&bed, "data", json!({}));
    bed.run(mounting("web", "data"));
    let order = bed.fake.with(|store| {
        let changes = store.changes_after(store.oldest()).expect("all that are kept");
        let bound = changes.filter(|change| change.after["status"]["phase"] == "Bound");
        let mut kinds: Vec<_> = bound.map(|change| change.key.kind).collect();
        kinds.dedup();
        kinds
    });
    assert_eq!(order, [Kind::PersistentVolume, Kind::PersistentVolumeClaim]);
}

#[test]
fn a_pod_can_only_be_where_its_volume_is() {
    let bed = Bed::new(FakeConfig::default());
    claim(&bed, "data", json!({}));
    bed.run(mounting("web", "data"));
    let node = bed.node_of("web");
    bed.run(mounting("beside", "data"));
    assert_eq!((bed.node_of("beside"), bed.phase("beside").as_str()), (node.clone(), "Running"), "two on one node");
    let other = if node == "node-1" { "node-2" } else { "node-1" };
    let mut elsewhere = mounting("elsewhere", "data");
    elsewhere["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": other});
    bed.run(elsewhere);
    assert_eq!(
        bed.told("elsewhere", "FailedScheduling"),
        [
            "0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity, 1 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
        ]
    );
}

#[test]
fn a_claim_that_cannot_be_had_says_why_and_its_pod_waits() {
    let classes = [("unknown", "somebody.else"), ("byhand", "kubernetes.io/no-provisioner")];
    let classes = classes.map(|(name, provisioner)| FakeStorageClass {
        name: name.to_owned(),
        is_default: false,
        provisioner: provisioner.to_owned(),
        waits_for_first_consumer: name == "byhand",
        ..FakeStorageClass::standard()
    });
    let bed = Bed::new(FakeConfig { storage_classes: classes.into(), ..FakeConfig::default() });
    let unbound = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found";
    for (name, class, reason, words, pod_words) in [
        (
            "none",
            "",
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set",
            unbound,
        ),
        ("nope", "nope", "ProvisioningFailed", "storageclass.storage.k8s.io \"nope\" not found", unbound),
        (
            "unknown",
            "unknown",
            "ExternalProvisioning",
            "Waiting for a volume to be created either by the external provisioner 'somebody.else' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.",
            unbound,
        ),
        (
            "byhand",
            "byhand",
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding",
            "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
        ),
    ] {
        claim(&bed, name, json!({"storageClassName": class}));
        bed.run(mounting(&format!("pod-{name}"), name));
        bed.sim.advance(secs(600));
        assert_eq!(bed.told(name, reason), [words], "{name}");
        assert_eq!(bed.told(&format!("pod-{name}"), "FailedScheduling"), [pod_words], "{name}");
        assert_eq!(phase(&bed, name), "Pending");
    }
}

#[test]
fn a_claim_that_only_an_unplaced_pod_has_goes_at_once() {
    let bed = Bed::new(FakeConfig::default());
    claim(&bed, "none", json!({"storageClassName": ""}));
    bed.run(mounting("web", "none"));
    bed.delete(&at("none"), None);
    assert_eq!(bed.find::<PersistentVolumeClaim>("none"), None);
    assert!(
        bed.told("web", "FailedScheduling")
            .contains(&"0/2 nodes are available: persistentvolumeclaim \"none\" not found. not found".to_owned())
    );
}

#[test]
fn data_that_is_to_be_deleted_goes_after_the_claim_and_with_the_volume() {
    let delays = Delays { reclaiming: secs(3), ..Delays::default() };
    let bed = Bed::new(FakeConfig { delays, ..script([("app", Behaviour::Run)]) });
    claim(&bed, "data", json!({}));
    bed.run(mounting("web", "data"));
    let (name, writer) = (volume_name(&bed, "data"), uid(&bed, "web"));
    bed.delete(&at("data"), None);
    assert_eq!(state(&bed, &name), "Bound", "a pod has it");
    bed.delete_pod("web", None);
    bed.sim.advance(secs(1));
    assert_eq!(bed.find::<PersistentVolumeClaim>("data"), None);
    assert_eq!(state(&bed, &name), "Released");
    assert!(bed.fake.disks()[&name].holds(&writer));
    bed.sim.advance(secs(3));
    assert_eq!(state(&bed, &name), "gone");
    assert!(!bed.fake.disks()[&name].holds(&writer), "and so is what was written");
}

#[test]
fn a_retained_volume_waits_for_the_one_claim_that_it_is_given_to() {
    let bed = Bed::new(FakeConfig::default());
    claim(&bed, "data", json!({}));
    bed.run(mounting("web", "data"));
    let (name, writer) = (volume_name(&bed, "data"), uid(&bed, "web"));
    set_volume(&bed, &name, |it| it["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into());
    bed.delete_pod("web", None);
    bed.sim.advance(secs(1));
    bed.delete(&at("data"), None);
    bed.sim.advance(secs(3600));
    assert_eq!(state(&bed, &name), "Released");

    claim(&bed, "data", json!({}));
    assert_eq!((phase(&bed, "data").as_str(), state(&bed, &name).as_str()), ("Pending", "Released"), "by name alone");
    let fresh = bed.find::<PersistentVolumeClaim>("data").unwrap().metadata.uid.unwrap();
    set_volume(&bed, &name, |it| it["spec"]["claimRef"]["uid"] = fresh.into());
    assert_eq!((phase(&bed, "data").as_str(), state(&bed, &name).as_str()), ("Bound", "Bound"));
    bed.run(mounting("next", "data"));
    assert_eq!(volume_name(&bed, "data"), name);
    assert!(bed.fake.disks()[&name].holds(&writer), "the old data");
    assert_eq!(bed.fake.disks().len(), 1, "and no new volume");

    bed.delete_pod("next", None);
    bed.sim.advance(secs(1));
    bed.delete(&at("data"), None);
    set_volume(&bed, &name, |it| it["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into());
    assert_eq!(state(&bed, &name), "gone");
}

/// A claim that asks for more than the volume that was given to it gets a fresh one: the data is not lost, but not
/// there either.
#[test]
fn a_claim_larger_than_its_retained_volume_gets_a_fresh_one() {
    let bed = Bed::new(FakeConfig::default());
    claim(&bed, "data", json!({}));
    bed.run(mounting("web", "data"));
    let name = volume_name(&bed, "data");
    set_volume(&bed, &name, |it| it["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into());
    bed.delete_pod("web", None);
    bed.sim.advance(secs(1));
    bed.delete(&at("data"), None);
    claim(&bed, "data", json!({"resources": {"requests": {"storage": "5Gi"}}}));
    let fresh = bed.find::<PersistentVolumeClaim>("data").unwrap().metadata.uid.unwrap();
    set_volume(&bed, &name, |it| it["spec"]["claimRef"]["uid"] = fresh.into());
    assert_eq!(phase(&bed, "data"), "Pending");
    bed.run(mounting("next", "data"));
    assert_eq!(phase(&bed, "data"), "Bound");
    assert_ne!(volume_name(&bed, "data"), name);
    assert_eq!(state(&bed, &name), "Available");
}

fn static_volume(bed: &Bed, name: &str, with: Value) {
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]});
    let mut spec = json!({"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/disk"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}});
    spec.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
    bed.create(Kind::PersistentVolume, json!({"metadata": {"name": name}, "spec": spec}));
}

#[test]
fn a_volume_that_nobody_can_delete_has_failed_and_says_so() {
    let bed = Bed::new(FakeConfig::default());
    static_volume(&bed, "disk", json!({"persistentVolumeReclaimPolicy": "Delete"}));
    assert_eq!(state(&bed, "disk"), "Available");
    claim(&bed, "data", json!({"storageClassName": ""}));
    assert_eq!((phase(&bed, "data").as_str(), volume_name(&bed, "data").as_str()), ("Bound", "disk"));
    bed.delete(&at("data"), None);
    let words = "error getting deleter volume plugin for volume \"disk\": no volume plugin matched";
    let status = volume(&bed, "disk").unwrap().status.unwrap();
    assert_eq!((status.phase.as_deref(), status.message.as_deref()), (Some("Failed"), Some(words)));
    let told: Vec<Event> = bed.fake.with(|store| store.typed_within("default").collect());
    assert_eq!(told.iter().filter_map(|event| event.reason.as_deref()).collect::<Vec<_>>(), ["VolumeFailedDelete"]);
    bed.delete(&ObjectKey::cluster(Kind::PersistentVolume, "disk"), None);
    assert_eq!(state(&bed, "disk"), "gone");
}

#[test]
fn a_bound_volume_goes_with_its_claim_and_one_torn_away_is_lost() {
    let bed = Bed::new(FakeConfig::default());
    for (name, tear) in [("held", false), ("torn", true)] {
        let disk = format!("disk-{name}");
        static_volume(&bed, &disk, json!({"claimRef": {"namespace": APP, "name": name}}));
        claim(&bed, name, json!({"storageClassName": ""}));
        assert_eq!(volume_name(&bed, name), disk);
        bed.delete(&ObjectKey::cluster(Kind::PersistentVolume, disk.as_str()), None);
        assert_eq!((state(&bed, &disk).as_str(), phase(&bed, name).as_str()), ("Bound", "Bound"));
        if tear {
            bed.fake.with(|store| store.remove(&ObjectKey::cluster(Kind::PersistentVolume, disk.as_str())));
            bed.sim.settle();
            assert_eq!(phase(&bed, name), "Lost");
            let words = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            assert_eq!(bed.told(name, "ClaimLost"), [words]);
        } else {
            bed.delete(&at(name), None);
            assert_eq!(state(&bed, &disk), "gone", "though it was to be retained");
        }
    }
}

#[test]
fn a_claim_that_names_its_volume_gets_that_one_or_waits() {
    let bed = Bed::new(FakeConfig::default());
    static_volume(&bed, "disk", json!({}));
    claim(&bed, "first", json!({"storageClassName": "", "volumeName": "disk"}));
    claim(&bed, "second", json!({"storageClassName": "", "volumeName": "disk"}));
    assert_eq!((phase(&bed, "first").as_str(), phase(&bed, "second").as_str()), ("Bound", "Pending"));
    assert_eq!(bed.told("second", "FailedBinding"), ["volume \"disk\" already bound to a different claim."]);
}

#[test]
fn storage_on_the_network_is_made_at_once_grows_and_is_on_one_node_at_a_time() {
    let bed = Bed::new(network(FakeConfig::default()));
    claim(&bed, "data", json!({}));
    assert_eq!(phase(&bed, "data"), "Bound", "nobody has mounted it");
    bed.patch(Kind::PersistentVolumeClaim, "data", json!({"spec": {"resources": {"requests": {"storage": "5Gi"}}}}));
    let claim = bed.find::<PersistentVolumeClaim>("data").unwrap();
    assert_eq!(claim.status.unwrap().capacity.unwrap()["storage"].0, "5Gi");

    bed.run(mounting("web", "data"));
    let (node, name) = (bed.node_of("web"), volume_name(&bed, "data"));
    let other = if node == "node-1" { "node-2" } else { "node-1" };
    let mut second = mounting("second", "data");
    second["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": other});
    bed.run(second);
    assert_eq!(bed.state("second", "app"), "waiting ContainerCreating");
    let words = format!("Multi-Attach error for volume {name:?} Volume is already used by pod(s) web");
    assert_eq!(bed.told("second", "FailedAttachVolume"), [words]);
    bed.delete_pod("web", None);
    bed.wait(secs(300), |bed| bed.phase("second") == "Running");
    assert_eq!(bed.fake.disks()[&name].overlapping_writers(), Vec::<(&str, &str)>::new());
}

#[test]
fn two_pods_that_could_write_at_once_are_seen() {
    let bed = Bed::new(script([("app", Behaviour::IgnoreTerm)]));
    claim(&bed, "data", json!({}));
    bed.run(mounting("web", "data"));
    let (name, first) = (volume_name(&bed, "data"), uid(&bed, "web"));
    bed.sim.advance(secs(1));
    bed.delete_pod("web", Some(0));
    bed.run(mounting("web", "data"));
    let second = uid(&bed, "web");
    assert_eq!(bed.fake.disks()[&name].overlapping_writers(), [(first.as_str(), second.as_str())]);
    bed.sim.advance(secs(60));
    let writers = &bed.fake.disks()[&name].writers;
    assert_eq!(writers.iter().map(|it| it.until.is_some()).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_claim_grows_only_where_its_class_allows() {
    let bed = Bed::new(FakeConfig::default());
    claim(&bed, "data", json!({}));
    bed.run(mounting("web", "data"));
    let key = at("data");
    let object = bed.sim.block_on(bed.fake.get(&key)).unwrap().unwrap();
    let body = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let patch = MergePatch::at(&ResourceVersion::of(object.meta()).unwrap(), body);
    let refused = bed.sim.block_on(bed.fake.patch(&key, &patch)).unwrap_err();
    let words = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    assert!(refused.to_string().contains(words), "{refused}");
}
