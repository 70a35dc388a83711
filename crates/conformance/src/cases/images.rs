//! What a container needs before it starts: its image, its files, its configuration.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapEnvSource, ConfigMapVolumeSource, ContainerStateTerminated, ContainerStateWaiting,
    EnvFromSource, Event, KeyToPath, LocalObjectReference, Pod, Secret, SecretEnvSource, SecretVolumeSource, Volume,
    VolumeMount,
};
use pando_cluster::{Kind, ListRequest, Scope};
use pando_fakecluster::behaviour::Behaviour;
use pando_fakecluster::netpol::PodName;
use pando_fakecluster::{Image, Login};
use serde_json::json;

use super::fixture::{SOON, key, meta, namespace, pod, secret, until};
use crate::bed::{Bed, eventually};

fn running(pod: &Pod) -> Option<()> {
    (pod.status.as_ref()?.phase.as_deref() == Some("Running")).then_some(())
}

fn waiting(pod: &Pod) -> Option<ContainerStateWaiting> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.state.as_ref()?.waiting.clone()
}

fn ended(pod: &Pod) -> Option<ContainerStateTerminated> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.state.as_ref()?.terminated.clone()
}

/// Waits until the pod's container waits for this reason, and answers why.
async fn waits_for(bed: &dyn Bed, namespace: &str, name: &str, reason: &str) -> String {
    let why = |pod: &Pod| {
        let waiting = waiting(pod)?;
        (waiting.reason.as_deref() == Some(reason)).then(|| waiting.message.unwrap_or_default())
    };
    until(bed, &key(Kind::Pod, namespace, name), &format!("waits: {reason}"), why).await
}

/// Waits until an Event with this reason about the pod says `words`.
async fn told(bed: &dyn Bed, namespace: &str, name: &str, reason: &str, words: &str) {
    let admin = bed.admin();
    eventually(bed.env(), &format!("{name} is told {reason}: {words}"), SOON, || async {
        let events = ListRequest::of(Kind::Event, Scope::Namespace(namespace.to_owned()));
        let (events, _) = admin.list_all::<Event>(&events).await.expect("the events");
        let about = |event: &&Event| {
            event.involved_object.name.as_deref() == Some(name) && event.reason.as_deref() == Some(reason)
        };
        let said = events.iter().filter(about).filter_map(|event| event.message.as_deref());
        said.into_iter().any(|message| message.contains(words)).then_some(())
    })
    .await;
}

fn map(namespace: &str, name: &str, values: &[(&str, &str)]) -> ConfigMap {
    let data = values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ConfigMap { metadata: meta(namespace, name), data: Some(data), ..ConfigMap::default() }
}

fn from_map(name: &str, items: &[KeyToPath]) -> Volume {
    let items = (!items.is_empty()).then(|| items.to_vec());
    let source = ConfigMapVolumeSource { name: name.to_owned(), items, ..ConfigMapVolumeSource::default() };
    Volume { name: "files".to_owned(), config_map: Some(source), ..Volume::default() }
}

/// A pod that mounts the volume at `/files`.
fn mounting(bed: &dyn Bed, namespace: &str, name: &str, volume: Volume) -> Pod {
    let mut pod = pod(bed, namespace, name, &Behaviour::Run);
    let spec = pod.spec.get_or_insert_default();
    let mount = VolumeMount { name: volume.name.clone(), mount_path: "/files".to_owned(), ..VolumeMount::default() };
    spec.containers[0].volume_mounts = Some(vec![mount]);
    spec.volumes = Some(vec![volume]);
    pod
}

pub(super) async fn a_file_that_cannot_be_mounted_is_told_by_an_event_alone(bed: &dyn Bed) {
    let namespace = namespace(bed, "mounts").await;
    bed.admin().make(&map(&namespace, "map", &[("a", "x")])).await.expect("a map");
    bed.admin().make(&secret(&namespace, "secret", &[("a", "x")])).await.expect("a secret");
    let item = [KeyToPath { key: "zz".to_owned(), path: "zz".to_owned(), mode: None }];
    let from_secret = |name: &str, items: Option<Vec<KeyToPath>>| {
        let source = SecretVolumeSource { secret_name: Some(name.to_owned()), items, ..SecretVolumeSource::default() };
        Volume { name: "files".to_owned(), secret: Some(source), ..Volume::default() }
    };
    let rows = [
        ("no-map", from_map("nope", &[]), "configmap \"nope\" not found"),
        ("no-key", from_map("map", &item), "configmap references non-existent config key: zz"),
        ("no-secret", from_secret("nope", None), "secret \"nope\" not found"),
        ("no-secret-key", from_secret("secret", Some(item.to_vec())), "references non-existent secret key: zz"),
    ];
    for (name, volume, _) in &rows {
        bed.admin().make(&mounting(bed, &namespace, name, volume.clone())).await.expect("a pod");
    }
    for (name, _, words) in &rows {
        told(bed, &namespace, name, "FailedMount", &format!("volume \"files\" : {words}")).await;
        assert_eq!(waits_for(bed, &namespace, name, "ContainerCreating").await, "", "its state says nothing");
    }
}

/// The program itself looks at its files: it ends with another code when they are not as they were written.
pub(super) async fn files_of_a_map_are_where_their_mounts_say_with_their_modes(bed: &dyn Bed) {
    let namespace = namespace(bed, "files").await;
    bed.admin().make(&map(&namespace, "map", &[("f0", "#!/bin/sh\necho ran\n"), ("f1", "x")])).await.expect("a map");
    let item = |key: &str, mode| KeyToPath { key: key.to_owned(), path: key.to_owned(), mode };
    let mount = |path: &str, inside: &str| VolumeMount {
        name: "files".to_owned(),
        mount_path: path.to_owned(),
        sub_path: Some(inside.to_owned()),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    let mut pod = mounting(bed, &namespace, "a", from_map("map", &[item("f0", Some(0o755)), item("f1", None)]));
    let spec = pod.spec.get_or_insert_default();
    spec.containers[0].volume_mounts = Some(vec![mount("/opt/run", "f0"), mount("/etc/two", "f1")]);
    let check = "[ \"$(/opt/run)\" = ran ] && [ \"$(cat /etc/two)\" = x ] && [ \"$(stat -c %a /etc/two)\" = 644 ] || exit 7; exec sleep 3600";
    spec.containers[0].command = Some(["sh", "-c", check].map(str::to_owned).to_vec());
    bed.admin().make(&pod).await.expect("a pod");
    until(bed, &key(Kind::Pod, &namespace, "a"), "runs", running).await;
    if let Some(memory) = bed.memory() {
        let files = memory.fake().mounted_files(&PodName::new(namespace, "a"), "app");
        let seen: Vec<_> = files.iter().map(|it| (it.path.as_str(), it.mode, it.contents.as_slice())).collect();
        let run = b"#!/bin/sh\necho ran\n".as_slice();
        assert_eq!(seen, [("/opt/run", 0o755, run), ("/etc/two", 0o644, b"x".as_slice())]);
    }
}

pub(super) async fn an_environment_that_is_not_there_holds_the_container(bed: &dyn Bed) {
    let namespace = namespace(bed, "noenv").await;
    let from_secret = EnvFromSource {
        secret_ref: Some(SecretEnvSource { name: "nope".to_owned(), optional: None }),
        ..EnvFromSource::default()
    };
    let from_map = EnvFromSource {
        config_map_ref: Some(ConfigMapEnvSource { name: "nope".to_owned(), optional: None }),
        ..EnvFromSource::default()
    };
    for (name, source, words) in
        [("a", from_secret, "secret \"nope\" not found"), ("b", from_map, "configmap \"nope\" not found")]
    {
        let mut pod = pod(bed, &namespace, name, &Behaviour::Run);
        pod.spec.get_or_insert_default().containers[0].env_from = Some(vec![source]);
        bed.admin().make(&pod).await.expect("a pod");
        assert_eq!(waits_for(bed, &namespace, name, "CreateContainerConfigError").await, words);
    }
}

pub(super) async fn an_image_that_must_not_be_pulled_is_not(bed: &dyn Bed) {
    let namespace = namespace(bed, "never").await;
    let mut pod = pod(bed, &namespace, "a", &Behaviour::Run);
    let container = &mut pod.spec.get_or_insert_default().containers[0];
    container.image = Some("registry.invalid/never:1".to_owned());
    container.image_pull_policy = Some("Never".to_owned());
    bed.admin().make(&pod).await.expect("a pod");
    let why = waits_for(bed, &namespace, "a", "ErrImageNeverPull").await;
    assert_eq!(why, "Container image \"registry.invalid/never:1\" is not present with pull policy of Never");
}

/// What a pod for a pull and nothing else lives by.
pub(super) async fn a_command_that_is_not_there_fails_after_the_image_is(bed: &dyn Bed) {
    let namespace = namespace(bed, "nocmd").await;
    let message = "no such file or directory".to_owned();
    bed.admin().make(&pod(bed, &namespace, "a", &Behaviour::StartError { message })).await.expect("a pod");
    let failed = |pod: &Pod| {
        let phase = pod.status.as_ref()?.phase.as_deref();
        (phase == Some("Failed")).then(|| ended(pod))?
    };
    let end = until(bed, &key(Kind::Pod, &namespace, "a"), "has failed", failed).await;
    assert_eq!((end.exit_code, end.reason.as_deref()), (128, Some("StartError")));
    assert!(end.message.is_some_and(|message| message.contains("no such file or directory")));
    told(bed, &namespace, "a", "Pulled", "busybox").await;
}

pub(super) async fn a_pull_secret_that_is_not_there_is_told_and_stops_nothing(bed: &dyn Bed) {
    let namespace = namespace(bed, "nopull").await;
    let mut pod = pod(bed, &namespace, "a", &Behaviour::Run);
    let spec = pod.spec.get_or_insert_default();
    spec.image_pull_secrets = Some(vec![LocalObjectReference { name: "nope".to_owned() }]);
    spec.containers[0].image_pull_policy = Some("IfNotPresent".to_owned());
    bed.admin().make(&pod).await.expect("a pod");
    until(bed, &key(Kind::Pod, &namespace, "a"), "runs", running).await;
    let words = "Unable to retrieve some image pull secrets (nope); attempting to pull the image may not succeed.";
    told(bed, &namespace, "a", "FailedToRetrieveImagePullSecret", words).await;
}

pub(super) async fn a_private_image_needs_its_password(bed: &dyn Bed) {
    const IMAGE: &str = "registry.test/private:1";
    let namespace = namespace(bed, "private").await;
    let fake = bed.memory().expect("a cluster in memory").fake();
    let after = std::time::Duration::from_secs(1);
    fake.set_image(IMAGE, Image::Private { login: Login::new("pando", "secret"), after });
    let config = json!({"auths": {"registry.test": {"username": "pando", "password": "secret"}}}).to_string();
    let credential = Secret {
        metadata: meta(&namespace, "pull"),
        type_: Some("kubernetes.io/dockerconfigjson".to_owned()),
        data: Some([(".dockerconfigjson".to_owned(), ByteString(config.into_bytes()))].into()),
        ..Secret::default()
    };
    bed.admin().make(&credential).await.expect("a credential");
    let mut refused = pod(bed, &namespace, "a", &Behaviour::Run);
    refused.spec.get_or_insert_default().containers[0].image = Some(IMAGE.to_owned());
    let mut allowed = refused.clone();
    allowed.metadata.name = Some("b".to_owned());
    let secrets = vec![LocalObjectReference { name: "pull".to_owned() }];
    allowed.spec.get_or_insert_default().image_pull_secrets = Some(secrets);
    bed.admin().make(&refused).await.expect("a pod");
    let why = waits_for(bed, &namespace, "a", "ErrImagePull").await;
    assert!(why.ends_with("401 Unauthorized"), "{why}");
    bed.admin().make(&allowed).await.expect("a pod");
    until(bed, &key(Kind::Pod, &namespace, "b"), "runs", running).await;
}
