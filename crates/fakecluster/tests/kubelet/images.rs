//! Images and files: what a container needs before it starts. The words are containerd's and the kubelet's of
//! Kubernetes 1.34 (tried on kind with a registry that refuses).

use data_encoding::BASE64;
use pando_cluster::Kind;
use pando_fakecluster::{FakeConfig, Image, Login};
use serde_json::{Value, json};

use crate::bed::{APP, Bed, pod, secs};

const IMAGE: &str = "registry.test/app:1";

fn private() -> FakeConfig {
    let image = Image::Private { login: Login::new("pando", "secret"), after: secs(2) };
    FakeConfig { images: [(IMAGE.to_owned(), image)].into(), ..FakeConfig::default() }
}

/// A pull secret with one entry.
fn credential(bed: &Bed, name: &str, registry: &str, login: &str) {
    let config = json!({"auths": {registry: {"auth": BASE64.encode(login.as_bytes())}}}).to_string();
    bed.create(
        Kind::Secret,
        json!({"metadata": {"name": name, "namespace": APP}, "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": config}}),
    );
}

fn pulling(name: &str, policy: &str, secrets: &[&str]) -> Value {
    let secrets: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
    let node = json!({"kubernetes.io/hostname": "node-1"});
    pod(
        name,
        json!({"spec": {"imagePullSecrets": secrets, "nodeSelector": node, "containers": [{"imagePullPolicy": policy}]}}),
    )
}

fn why(bed: &Bed, pod: &str) -> String {
    bed.container(pod, "app").state.unwrap().waiting.unwrap().message.unwrap_or_default()
}

#[test]
fn a_private_image_is_given_to_who_knows_the_password_only() {
    let refused = "failed to pull and unpack image \"registry.test/app:1\": failed to resolve reference \"registry.test/app:1\": pulling from host registry.test failed with status code [manifests 1]: 401 Unauthorized";
    for (secrets, expected) in [
        (&[][..], Some(refused.to_owned())),
        (&["good"], None),
        (&["wrong"], Some(refused.to_owned())),
        (&["other"], Some(refused.to_owned())),
        (&["wrong", "good"], None),
        (&["wrong", "missing"], Some(refused.to_owned())),
        (&["wrong", "worse"], Some(format!("[{refused}, {refused}]"))),
    ] {
        let bed = Bed::new(private());
        credential(&bed, "good", "registry.test", "pando:secret");
        credential(&bed, "wrong", "registry.test", "pando:guess");
        credential(&bed, "worse", "https://registry.test/v1/", "other:secret");
        credential(&bed, "other", "elsewhere.test", "pando:secret");
        bed.run(pulling("web", "IfNotPresent", secrets));
        bed.sim.advance(secs(5));
        match expected {
            None => assert_eq!(bed.phase("web"), "Running", "{secrets:?}"),
            Some(words) => {
                assert_eq!(bed.state("web", "app"), "waiting ErrImagePull", "{secrets:?}");
                assert_eq!(why(&bed, "web"), words, "{secrets:?}");
            }
        }
        let told = bed.told("web", "FailedToRetrieveImagePullSecret");
        let words =
            "Unable to retrieve some image pull secrets (missing); attempting to pull the image may not succeed.";
        assert_eq!(told, if secrets.contains(&"missing") { vec![words] } else { vec![] });
    }
}

#[test]
fn an_image_that_is_there_needs_no_password_unless_it_is_always_pulled() {
    let bed = Bed::new(private());
    credential(&bed, "good", "registry.test", "pando:secret");
    bed.run(pulling("first", "IfNotPresent", &["good"]));
    bed.wait(secs(10), |bed| bed.phase("first") == "Running");
    bed.run(pulling("present", "IfNotPresent", &[]));
    bed.run(pulling("never", "Never", &[]));
    bed.run(pulling("always", "Always", &[]));
    bed.run(pulling("allowed", "Always", &["good"]));
    bed.sim.advance(secs(5));
    for name in ["present", "never", "allowed"] {
        assert_eq!(bed.phase(name), "Running", "{name}");
    }
    assert_eq!(bed.state("always", "app"), "waiting ErrImagePull");
}

#[test]
fn a_registry_that_refuses_is_quoted() {
    for (image, words) in [
        (Image::denied(IMAGE), "pulling from host registry.test failed with status code [manifests 1]: 403 Forbidden"),
        (
            Image::rate_limited(IMAGE),
            "pulling from host registry.test failed with status code [manifests 1]: 429 Too Many Requests",
        ),
        (
            Image::other_platform(IMAGE),
            "rpc error: code = NotFound desc = failed to pull and unpack image \"registry.test/app:1\": no match for platform in manifest: not found",
        ),
    ] {
        let bed = Bed::new(FakeConfig { other_images: image, ..FakeConfig::default() });
        bed.run(pulling("web", "IfNotPresent", &[]));
        bed.sim.advance(secs(5));
        assert!(why(&bed, "web").ends_with(words), "{}", why(&bed, "web"));
        bed.sim.advance(secs(10));
        assert!(why(&bed, "web").starts_with("Back-off pulling image") && why(&bed, "web").ends_with(words));
    }
}

fn with_volume(name: &str, source: &Value, mounts: &Value) -> Value {
    let mut volume = json!({"name": "v"});
    volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    let spec =
        json!({"automountServiceAccountToken": false, "volumes": [volume], "containers": [{"volumeMounts": mounts}]});
    pod(name, json!({"spec": spec}))
}

#[test]
fn what_is_mounted_is_there_before_the_sandbox_or_an_event_says_why_not() {
    let bed = Bed::new(FakeConfig::default());
    bed.create(Kind::ConfigMap, json!({"metadata": {"name": "map", "namespace": APP}, "data": {"a": "x"}}));
    bed.create(Kind::Secret, json!({"metadata": {"name": "secret", "namespace": APP}, "stringData": {"a": "x"}}));
    let item = json!([{"key": "zz", "path": "zz"}]);
    let rows = [
        (json!({"configMap": {"name": "late"}}), "configmap \"late\" not found"),
        (json!({"configMap": {"name": "map", "items": item}}), "configmap references non-existent config key: zz"),
        (json!({"secret": {"secretName": "nope"}}), "secret \"nope\" not found"),
        (json!({"secret": {"secretName": "secret", "items": item}}), "references non-existent secret key: zz"),
        (json!({"projected": {"sources": [{"configMap": {"name": "nope"}}]}}), "configmap \"nope\" not found"),
    ];
    for (index, (source, words)) in rows.iter().enumerate() {
        let name = format!("web-{index}");
        bed.run(with_volume(&name, source, &json!([{"name": "v", "mountPath": "/d"}])));
        bed.sim.advance(secs(60));
        assert_eq!(bed.state(&name, "app"), "waiting ContainerCreating");
        assert_eq!(bed.condition(&name, "PodReadyToStartContainers"), "False");
        let told = format!("MountVolume.SetUp failed for volume \"v\" : {words}");
        assert_eq!(bed.told(&name, "FailedMount"), [told]);
    }
    bed.create(Kind::ConfigMap, json!({"metadata": {"name": "late", "namespace": APP}}));
    let took = bed.wait(secs(122), |bed| bed.phase("web-0") == "Running");
    assert!(took > secs(1), "the kubelet looks again later and later");
    let optional = json!({"configMap": {"name": "nope", "optional": true}});
    bed.run(with_volume("optional", &optional, &json!([{"name": "v", "mountPath": "/d"}])));
    assert_eq!(bed.phase("optional"), "Running");
}

#[test]
fn a_container_finds_its_files_with_their_modes() {
    let bed = Bed::new(FakeConfig::default());
    bed.create(
        Kind::ConfigMap,
        json!({"metadata": {"name": "files", "namespace": APP}, "data": {"f0": "#!/bin/sh\n"}, "binaryData": {"f1": "AAEC"}}),
    );
    let items = json!([{"key": "f0", "path": "f0", "mode": 0o755}, {"key": "f1", "path": "f1"}]);
    let mounts = json!([
        {"name": "v", "mountPath": "/usr/bin/run", "subPath": "f0", "readOnly": true},
        {"name": "v", "mountPath": "/etc/logo", "subPath": "f1", "readOnly": true},
        {"name": "v", "mountPath": "/all/"},
    ]);
    bed.run(with_volume("web", &json!({"configMap": {"name": "files", "items": items}}), &mounts));
    let files = bed.fake.mounted_files(&Bed::name("web"), "app");
    let seen: Vec<_> = files.iter().map(|it| (it.path.as_str(), it.mode, it.contents.as_slice())).collect();
    let (run, logo) = (b"#!/bin/sh\n".as_slice(), [0, 1, 2].as_slice());
    assert_eq!(
        seen,
        [("/usr/bin/run", 0o755, run), ("/etc/logo", 0o644, logo), ("/all/f0", 0o755, run), ("/all/f1", 0o644, logo),]
    );
    assert!(!format!("{files:?}").contains("bin/sh"), "{files:?}");
}

#[test]
fn an_environment_from_a_config_map_waits_for_it() {
    let bed = Bed::new(FakeConfig::default());
    let from = json!({"spec": {"containers": [{"envFrom": [{"configMapRef": {"name": "env"}}],
        "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "env", "key": "zz"}}}]}]}});
    bed.run(pod("web", from));
    assert_eq!(why(&bed, "web"), "configmap \"env\" not found");
    bed.create(Kind::ConfigMap, json!({"metadata": {"name": "env", "namespace": APP}, "data": {"a": "b"}}));
    assert_eq!(why(&bed, "web"), "couldn't find key zz in ConfigMap app/env");
    assert_eq!(bed.state("web", "app"), "waiting CreateContainerConfigError");
}
