//! Claims and volumes, as far as the port shows them.

use k8s_openapi::api::core::v1::{
    Node, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, Pod,
    Volume, VolumeMount, VolumeResourceRequirements,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pando_cluster::{Failure, Kind, ListRequest, ObjectKey, Scope};
use pando_fakecluster::behaviour::Behaviour;
use serde_json::json;

use super::fixture::{delete, failure, gone, key, meta, namespace, patch, pod, until};
use crate::bed::Bed;

/// A claim to a volume of the default class.
fn claim(namespace: &str, name: &str, size: &str) -> PersistentVolumeClaim {
    let asked = [("storage".to_owned(), Quantity(size.to_owned()))].into();
    let spec = PersistentVolumeClaimSpec {
        access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
        resources: Some(VolumeResourceRequirements { requests: Some(asked), ..VolumeResourceRequirements::default() }),
        ..PersistentVolumeClaimSpec::default()
    };
    PersistentVolumeClaim { metadata: meta(namespace, name), spec: Some(spec), ..PersistentVolumeClaim::default() }
}

/// A pod that runs and has the claim at `/data`.
fn mounting(bed: &dyn Bed, namespace: &str, name: &str, claim: &str) -> Pod {
    let mut pod = pod(bed, namespace, name, &Behaviour::Run);
    let spec = pod.spec.get_or_insert_default();
    let source = PersistentVolumeClaimVolumeSource { claim_name: claim.to_owned(), read_only: None };
    let volume = Volume { name: "data".to_owned(), persistent_volume_claim: Some(source), ..Volume::default() };
    spec.volumes = Some(vec![volume]);
    for container in &mut spec.containers {
        let mount = VolumeMount { name: "data".to_owned(), mount_path: "/data".to_owned(), ..VolumeMount::default() };
        container.volume_mounts = Some(vec![mount]);
    }
    pod
}

fn of_claim(namespace: &str, name: &str) -> ObjectKey {
    key(Kind::PersistentVolumeClaim, namespace, name)
}

fn of_volume(name: &str) -> ObjectKey {
    ObjectKey::cluster(Kind::PersistentVolume, name)
}

/// Makes the pod, waits until it runs, and answers its node.
async fn running(bed: &dyn Bed, pod: &Pod) -> String {
    let made = bed.admin().make(pod).await.expect("a pod");
    let (namespace, name) = (made.metadata.namespace.unwrap_or_default(), made.metadata.name.unwrap_or_default());
    let node = |pod: &Pod| {
        let phase = pod.status.as_ref()?.phase.as_deref();
        (phase == Some("Running")).then(|| pod.spec.clone()?.node_name)?
    };
    until(bed, &key(Kind::Pod, &namespace, &name), "runs", node).await
}

/// Waits until the claim has its volume, and answers the volume's name.
async fn bound(bed: &dyn Bed, namespace: &str, name: &str) -> String {
    let volume = |claim: &PersistentVolumeClaim| {
        let phase = claim.status.as_ref()?.phase.as_deref();
        (phase == Some("Bound")).then(|| claim.spec.clone()?.volume_name)?
    };
    until(bed, &of_claim(namespace, name), "is bound", volume).await
}

async fn phase_is(bed: &dyn Bed, volume: &str, wanted: &str) {
    let phase = |volume: &PersistentVolume| (volume.status.as_ref()?.phase.as_deref() == Some(wanted)).then_some(());
    until(bed, &of_volume(volume), &format!("is {wanted}"), phase).await;
}

/// What the scheduler says of a pod that it cannot place.
async fn refused(bed: &dyn Bed, namespace: &str, name: &str, words: &str) {
    let says = |pod: &Pod| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let condition = conditions.iter().find(|it| it.type_ == "PodScheduled" && it.status == "False")?;
        (condition.reason.as_deref() == Some("Unschedulable")
            && condition.message.as_deref().is_some_and(|message| message.contains(words)))
        .then_some(())
    };
    until(bed, &key(Kind::Pod, namespace, name), &format!("is refused: {words}"), says).await;
}

pub(super) async fn a_claim_without_a_class_gets_the_default_one_and_waits_for_a_pod(bed: &dyn Bed) {
    let namespace = namespace(bed, "waits").await;
    let (classes, _) = bed
        .admin()
        .list_all::<StorageClass>(&ListRequest::of(Kind::StorageClass, Scope::All))
        .await
        .expect("the classes");
    let default = |class: &&StorageClass| {
        let annotations = class.metadata.annotations.as_ref();
        annotations
            .and_then(|all| all.get("storageclass.kubernetes.io/is-default-class"))
            .is_some_and(|value| value == "true")
    };
    let class = classes.iter().find(default).expect("a default class");
    assert_eq!(class.volume_binding_mode.as_deref(), Some("WaitForFirstConsumer"));
    let made = bed.admin().make(&claim(&namespace, "data", "1Gi")).await.expect("a claim");
    assert_eq!(made.spec.and_then(|spec| spec.storage_class_name), class.metadata.name);
    assert_eq!(made.status.and_then(|status| status.phase).as_deref(), Some("Pending"));
    running(bed, &pod(bed, &namespace, "other", &Behaviour::Run)).await;
    let waiting: PersistentVolumeClaim =
        bed.admin().read(Some(&namespace), "data").await.expect("a read").expect("it is there");
    assert_eq!(waiting.status.and_then(|status| status.phase).as_deref(), Some("Pending"), "nobody mounts it");
}

pub(super) async fn a_claims_first_pod_gets_it_a_volume(bed: &dyn Bed) {
    let namespace = namespace(bed, "first").await;
    let made = bed.admin().make(&claim(&namespace, "data", "1Gi")).await.expect("a claim");
    let node = running(bed, &mounting(bed, &namespace, "a", "data")).await;
    let name = bound(bed, &namespace, "data").await;
    let uid = made.metadata.uid.expect("a uid");
    assert_eq!(name, format!("pvc-{uid}"));
    let claim: PersistentVolumeClaim =
        bed.admin().read(Some(&namespace), "data").await.expect("a read").expect("it is there");
    let annotations = claim.metadata.annotations.unwrap_or_default();
    assert_eq!(annotations.get("volume.kubernetes.io/selected-node"), Some(&node));
    assert_eq!(annotations.get("pv.kubernetes.io/bind-completed").map(String::as_str), Some("yes"));
    let volume: PersistentVolume = bed.admin().read(None, &name).await.expect("a read").expect("its volume");
    assert_eq!(volume.metadata.finalizers.unwrap_or_default(), ["kubernetes.io/pv-protection"]);
    let spec = volume.spec.expect("a spec");
    let held = spec.claim_ref.expect("it is for a claim");
    assert_eq!((held.namespace, held.name.as_deref(), held.uid), (Some(namespace), Some("data"), Some(uid)));
    assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Delete"));
    assert_eq!(spec.capacity, claim.status.and_then(|status| status.capacity));
}

pub(super) async fn two_pods_of_one_node_have_one_claim_at_once(bed: &dyn Bed) {
    let namespace = namespace(bed, "shared").await;
    bed.admin().make(&claim(&namespace, "data", "1Gi")).await.expect("a claim");
    let first = running(bed, &mounting(bed, &namespace, "a", "data")).await;
    let second = running(bed, &mounting(bed, &namespace, "b", "data")).await;
    assert_eq!(first, second, "the volume is there and nowhere else");
}

pub(super) async fn a_pod_is_not_placed_away_from_its_volume(bed: &dyn Bed) {
    let namespace = namespace(bed, "away").await;
    bed.admin().make(&claim(&namespace, "data", "1Gi")).await.expect("a claim");
    let node = running(bed, &mounting(bed, &namespace, "a", "data")).await;
    let all = ListRequest::of(Kind::Node, Scope::All);
    let (nodes, _) = bed.admin().list_all::<Node>(&all).await.expect("the nodes");
    let mut elsewhere = mounting(bed, &namespace, "b", "data");
    let names = nodes.into_iter().filter_map(|it| it.metadata.name);
    let other = names.into_iter().find(|name| *name != node).expect("another node");
    let spec = elsewhere.spec.get_or_insert_default();
    spec.node_selector = Some([("kubernetes.io/hostname".to_owned(), other)].into());
    bed.admin().make(&elsewhere).await.expect("a pod");
    refused(bed, &namespace, "b", "1 node(s) didn't match PersistentVolume's node affinity").await;
}

pub(super) async fn a_pod_without_its_claim_is_not_placed(bed: &dyn Bed) {
    let namespace = namespace(bed, "noclaim").await;
    bed.admin().make(&mounting(bed, &namespace, "a", "data")).await.expect("a pod");
    refused(bed, &namespace, "a", "persistentvolumeclaim \"data\" not found").await;
    bed.admin().make(&claim(&namespace, "data", "1Gi")).await.expect("a claim");
    bound(bed, &namespace, "data").await;
}

pub(super) async fn a_claim_that_an_ended_pod_has_stays_until_that_pod_goes(bed: &dyn Bed) {
    let namespace = namespace(bed, "held").await;
    bed.admin().make(&claim(&namespace, "data", "1Gi")).await.expect("a claim");
    let mut short = mounting(bed, &namespace, "a", "data");
    let behaviour = Behaviour::Exit { after: std::time::Duration::ZERO, code: 0 };
    short.spec.get_or_insert_default().containers[0].command = Some(bed.command(&behaviour));
    bed.admin().make(&short).await.expect("a pod");
    let ended = |pod: &Pod| (pod.status.as_ref()?.phase.as_deref() == Some("Succeeded")).then_some(());
    until(bed, &key(Kind::Pod, &namespace, "a"), "has ended", ended).await;
    let volume = bound(bed, &namespace, "data").await;
    delete(bed, &of_claim(&namespace, "data")).await;
    bed.admin().make(&mounting(bed, &namespace, "b", "data")).await.expect("a pod");
    refused(bed, &namespace, "b", "persistentvolumeclaim \"data\" is being deleted").await;
    assert!(bed.admin().get(&of_claim(&namespace, "data")).await.expect("a read").is_some());
    // The pod that was never placed does not hold the claim.
    delete(bed, &key(Kind::Pod, &namespace, "a")).await;
    gone(bed, &of_claim(&namespace, "data")).await;
    gone(bed, &of_volume(&volume)).await;
}

pub(super) async fn a_retained_volume_is_given_to_one_claim_and_to_no_other(bed: &dyn Bed) {
    let namespace = namespace(bed, "retain").await;
    bed.admin().make(&claim(&namespace, "data", "1Gi")).await.expect("a claim");
    running(bed, &mounting(bed, &namespace, "a", "data")).await;
    let name = bound(bed, &namespace, "data").await;
    bed.remove_afterwards(of_volume(&name));
    let policy = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    patch(bed, &of_volume(&name), policy("Retain")).await.expect("it is to be retained");
    delete(bed, &key(Kind::Pod, &namespace, "a")).await;
    delete(bed, &of_claim(&namespace, "data")).await;
    gone(bed, &of_claim(&namespace, "data")).await;
    phase_is(bed, &name, "Released").await;

    let fresh = bed.admin().make(&claim(&namespace, "data", "1Gi")).await.expect("a claim of the same name");
    let to = json!({"spec": {"claimRef": {"uid": fresh.metadata.uid, "resourceVersion": null}}});
    patch(bed, &of_volume(&name), to).await.expect("the volume is given to it");
    assert_eq!(bound(bed, &namespace, "data").await, name);
    phase_is(bed, &name, "Bound").await;

    delete(bed, &of_claim(&namespace, "data")).await;
    phase_is(bed, &name, "Released").await;
    patch(bed, &of_volume(&name), policy("Delete")).await.expect("it is to be deleted");
    gone(bed, &of_volume(&name)).await;
}

pub(super) async fn a_claim_grows_only_where_its_class_allows(bed: &dyn Bed) {
    let namespace = namespace(bed, "grow").await;
    bed.admin().make(&claim(&namespace, "data", "1Gi")).await.expect("a claim");
    running(bed, &mounting(bed, &namespace, "a", "data")).await;
    bound(bed, &namespace, "data").await;
    let size = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    let refusal = failure(patch(bed, &of_claim(&namespace, "data"), size("2Gi")).await);
    let why = "the storageclass that provisions the pvc must support resize";
    assert!(matches!(&refusal, Failure::Refused(words) if words.contains(why)), "{refusal:?}");
    let refusal = failure(patch(bed, &of_claim(&namespace, "data"), size("1Mi")).await);
    assert!(matches!(refusal, Failure::Invalid { .. }), "{refusal:?}");
}

pub(super) async fn a_bound_volume_that_is_deleted_goes_with_its_claim(bed: &dyn Bed) {
    let namespace = namespace(bed, "torn").await;
    bed.admin().make(&claim(&namespace, "data", "1Gi")).await.expect("a claim");
    running(bed, &mounting(bed, &namespace, "a", "data")).await;
    let name = bound(bed, &namespace, "data").await;
    delete(bed, &of_volume(&name)).await;
    let volume: PersistentVolume = bed.admin().read(None, &name).await.expect("a read").expect("a claim has it");
    assert!(volume.metadata.deletion_timestamp.is_some());
    assert_eq!(volume.status.and_then(|status| status.phase).as_deref(), Some("Bound"));
    delete(bed, &key(Kind::Pod, &namespace, "a")).await;
    delete(bed, &of_claim(&namespace, "data")).await;
    gone(bed, &of_volume(&name)).await;
}
