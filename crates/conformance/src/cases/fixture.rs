//! Objects that cases start from.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    Container, Namespace, Pod, PodSpec, ResourceQuota, ResourceQuotaSpec, Secret, Service, ServiceAccount, ServicePort,
    ServiceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_cluster::names::{AppNamespace, annotation, label};
use pando_cluster::{
    ClusterError, DeleteOptions, Failure, Kind, MergePatch, Object, ObjectKey, Resource, ResourceVersion, Uid,
};
use pando_fakecluster::behaviour::Behaviour;
use serde_json::{Value, json};

use crate::bed::{Bed, eventually, namespace_of};

/// Longer than anything here takes on a slow machine.
pub(super) const SOON: Duration = Duration::from_mins(1);

/// A namespace as Pando makes it, with the account `pando-app` for its pods; made by an administrator.
pub(super) async fn namespace(bed: &dyn Bed, word: &str) -> String {
    let app = AppNamespace::of(&bed.unique(word), &[]);
    let mut labels = app.owned_labels();
    labels.insert(label::POD_SECURITY.to_owned(), "baseline".to_owned());
    let annotations = [(annotation::BUNDLE_ID.to_owned(), app.bundle_id().to_owned())].into();
    let meta = ObjectMeta {
        name: Some(app.name()),
        labels: Some(labels),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    };
    bed.admin().make(&Namespace { metadata: meta, ..Namespace::default() }).await.expect("a fresh namespace");
    bed.admin().make(&account(&app.name(), "pando-app")).await.expect("its account");
    app.name()
}

/// Metadata of an object.
pub(super) fn meta(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() }
}

/// The same with labels.
pub(super) fn labelled(namespace: &str, name: &str, labels: &[(&str, &str)]) -> ObjectMeta {
    ObjectMeta { labels: Some(map(labels)), ..meta(namespace, name) }
}

/// An account that holds nothing.
pub(super) fn account(namespace: &str, name: &str) -> ServiceAccount {
    ServiceAccount { metadata: meta(namespace, name), ..ServiceAccount::default() }
}

/// A Secret with these values.
pub(super) fn secret(namespace: &str, name: &str, values: &[(&str, &str)]) -> Secret {
    let data = values.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())));
    Secret { metadata: meta(namespace, name), data: Some(data.collect()), ..Secret::default() }
}

/// A Service of that type with the port 80; `None` is a headless one.
pub(super) fn service(namespace: &str, name: &str, kind: Option<&str>) -> Service {
    let port = ServicePort { name: Some("tcp-80".to_owned()), port: 80, ..ServicePort::default() };
    let spec = ServiceSpec {
        type_: kind.map(str::to_owned),
        cluster_ip: kind.is_none().then(|| "None".to_owned()),
        ports: Some(vec![port]),
        ..ServiceSpec::default()
    };
    Service { metadata: meta(namespace, name), spec: Some(spec), ..Service::default() }
}

/// A pod that does `behaviour`, ends in a second when asked to, and is never started anew.
pub(super) fn pod(bed: &dyn Bed, namespace: &str, name: &str, behaviour: &Behaviour) -> Pod {
    let container = Container {
        name: "app".to_owned(),
        image: Some(bed.image().to_owned()),
        command: Some(bed.command(behaviour)),
        ..Container::default()
    };
    let spec = PodSpec {
        containers: vec![container],
        restart_policy: Some("Never".to_owned()),
        service_account_name: Some("pando-app".to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(1),
        ..PodSpec::default()
    };
    Pod { metadata: meta(namespace, name), spec: Some(spec), ..Pod::default() }
}

/// The quota `limits` of these hard limits, in force: its status holds them.
pub(super) async fn quota(bed: &dyn Bed, namespace: &str, hard: &[(&str, &str)]) {
    let hard: BTreeMap<_, _> =
        hard.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect();
    let spec = ResourceQuotaSpec { hard: Some(hard.clone()), ..ResourceQuotaSpec::default() };
    let quota = ResourceQuota { metadata: meta(namespace, "limits"), spec: Some(spec), ..ResourceQuota::default() };
    bed.admin().make(&quota).await.expect("a quota");
    let admin = bed.admin();
    eventually(bed.env(), "the quota is in force", SOON, || async {
        let quota: ResourceQuota = admin.read(Some(namespace), "limits").await.expect("the quota can be read")?;
        (quota.status?.hard? == hard).then_some(())
    })
    .await;
}

/// Keeps the object from going until [`release`] is called: a finalizer of ours.
pub(super) async fn hold(bed: &dyn Bed, key: &ObjectKey) {
    patch(bed, key, json!({"metadata": {"finalizers": ["pando.dev/hold"]}})).await.expect("a finalizer is added");
}

/// Lets go what [`hold`] held.
pub(super) async fn release(bed: &dyn Bed, key: &ObjectKey) {
    patch(bed, key, json!({"metadata": {"finalizers": null}})).await.expect("a finalizer is removed");
}

/// Patches the object at the version it is at.
pub(super) async fn patch(bed: &dyn Bed, key: &ObjectKey, body: Value) -> Result<Object, ClusterError> {
    let mut tries = 0;
    loop {
        let object = bed.admin().get(key).await?.expect("it is there");
        let answer = bed.admin().patch(key, &MergePatch::at(&version(object.meta()), body.clone())).await;
        tries += 1;
        match answer {
            // A controller's write came between: at most a few of those.
            Err(error) if error.is_conflict() && tries < 5 => {}
            answer => return answer,
        }
    }
}

/// Deletes exactly the object that is there now.
pub(super) async fn delete(bed: &dyn Bed, key: &ObjectKey) {
    let object = bed.admin().get(key).await.expect("it can be read").expect("it is there");
    bed.admin().delete(key, &DeleteOptions::of(uid(object.meta()))).await.expect("it can be deleted");
}

/// Waits until there is no object at `key`.
pub(super) async fn gone(bed: &dyn Bed, key: &ObjectKey) {
    let admin = bed.admin();
    eventually(bed.env(), &format!("{key} is gone"), SOON, || async {
        admin.get(key).await.expect("it can be read").is_none().then_some(())
    })
    .await;
}

/// Waits until `look` finds what it looks for in the object at `key`, and answers it.
pub(super) async fn until<R: Resource, T: Send>(
    bed: &dyn Bed,
    key: &ObjectKey,
    what: &str,
    look: impl Fn(&R) -> Option<T> + Send + Sync,
) -> T {
    let admin = bed.admin();
    eventually(bed.env(), &format!("{key} {what}"), SOON, || async {
        let object: R = admin.read(key.namespace.as_deref(), &key.name).await.expect("it can be read")?;
        look(&object)
    })
    .await
}

/// The failure of a call that must not succeed.
pub(super) fn failure<T: Debug>(answer: Result<T, ClusterError>) -> Failure {
    answer.expect_err("this must be refused").failure
}

/// The key of an object in a namespace.
pub(super) fn key(kind: Kind, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey::namespaced(kind, namespace, name)
}

/// The identity of a stored object.
pub(super) fn uid(meta: &ObjectMeta) -> Uid {
    Uid::of(meta).expect("a stored object has a uid")
}

/// The version of a stored object.
pub(super) fn version(meta: &ObjectMeta) -> ResourceVersion {
    ResourceVersion::of(meta).expect("a stored object has a version")
}

/// Labels, or any other names with values.
pub(super) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A namespace's name that nothing has.
pub(super) fn nowhere(bed: &dyn Bed) -> String {
    namespace_of(&bed.unique("nowhere"))
}
