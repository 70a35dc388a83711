//! What admission says of a new object before it is stored: life cycle, account, RuntimeClass.

use k8s_openapi::api::core::v1::{
    Namespace, PersistentVolumeClaim, Pod, ProjectedVolumeSource, ServiceAccount, Volume, VolumeMount,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_cluster::{Kind, Object, ObjectKey, Scoped};
use serde_json::json;

use super::refusal::Refusal;
use super::{Server, User, access, kinds, pod_security};

/// Refuses what is to be made in a namespace that is not there or going; answers the namespace.
pub(super) fn life_cycle(server: &Server<'_>, key: &ObjectKey) -> Result<Option<Namespace>, Refusal> {
    if key.kind.scoped() == Scoped::Cluster {
        return Ok(None);
    }
    let name = key.namespace.as_deref().unwrap_or_default();
    let namespace: Namespace =
        server.store.typed(None, name).ok_or_else(|| Refusal::not_found(&ObjectKey::cluster(Kind::Namespace, name)))?;
    if namespace.metadata.deletion_timestamp.is_some() {
        return Err(Refusal::terminating(key));
    }
    Ok(Some(namespace))
}

/// What admission changes in a new object; refuses a pod whose account or RuntimeClass is missing.
pub(super) fn change(server: &Server<'_>, object: &mut Object) -> Result<(), Refusal> {
    match object {
        Object::Pod(pod) => {
            give_account(server, pod)?;
            kinds::tolerate_lost_nodes(pod);
            kinds::prioritise(server.config, pod)?;
            kinds::refuse_runtime_class(server.config, pod)?;
        }
        Object::PersistentVolumeClaim(claim) => {
            give_class(server, claim);
            protect(&mut claim.metadata, "kubernetes.io/pvc-protection");
        }
        Object::PersistentVolume(volume) => protect(&mut volume.metadata, "kubernetes.io/pv-protection"),
        _ => {}
    }
    Ok(())
}

/// Keeps a claim from going before its pods, and a volume before its claim; a controller takes the finalizer off.
///
/// <https://kubernetes.io/docs/concepts/storage/persistent-volumes/#storage-object-in-use-protection>
fn protect(meta: &mut ObjectMeta, finalizer: &str) {
    let held = meta.finalizers.get_or_insert_default();
    if held.iter().all(|it| it != finalizer) {
        held.push(finalizer.to_owned());
    }
}

/// A claim that names no class gets the default one, the newest if there are several.
///
/// <https://kubernetes.io/docs/concepts/storage/storage-classes/#default-storageclass>
fn give_class(server: &Server<'_>, claim: &mut PersistentVolumeClaim) {
    let old_way =
        claim.metadata.annotations.as_ref().and_then(|all| all.get("volume.beta.kubernetes.io/storage-class"));
    let spec = claim.spec.get_or_insert_default();
    if old_way.is_some() || spec.storage_class_name.is_some() {
        return;
    }
    let defaults = server.store.all_typed::<StorageClass>().filter(is_default);
    let newest_then_name = |class: &StorageClass| {
        (class.metadata.creation_timestamp.clone(), std::cmp::Reverse(class.metadata.name.clone()))
    };
    spec.storage_class_name = defaults.max_by_key(newest_then_name).and_then(|class| class.metadata.name);
}

fn is_default(class: &StorageClass) -> bool {
    let marks = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    let annotations = class.metadata.annotations.as_ref();
    marks.iter().any(|mark| annotations.and_then(|all| all.get(*mark)).is_some_and(|value| value == "true"))
}

/// What admission only judges: pod security, and role bindings that would give away too much.
pub(super) fn judge(
    server: &Server<'_>,
    user: &User,
    namespace: Option<&Namespace>,
    object: &Object,
) -> Result<(), Refusal> {
    match (object, namespace) {
        (Object::Pod(pod), Some(namespace)) => pod_security::judge(namespace, pod),
        (Object::RoleBinding(binding), _) => access::refuse_escalation(server, user, binding),
        _ => Ok(()),
    }
}

/// What admission says of the change of a claim: it grows only where its class allows.
///
/// <https://kubernetes.io/docs/concepts/storage/persistent-volumes/#expanding-persistent-volumes-claims>
pub(super) fn judge_change(server: &Server<'_>, new: &Object, old: &Object) -> Result<(), Refusal> {
    let (Object::PersistentVolumeClaim(new), Object::PersistentVolumeClaim(old)) = (new, old) else { return Ok(()) };
    if kinds::claimed_size(new) <= kinds::claimed_size(old) {
        return Ok(());
    }
    let spec = old.spec.as_ref();
    let class = spec.and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default();
    let class = server.store.typed::<StorageClass>(None, class);
    if class.is_some_and(|class| class.allow_volume_expansion == Some(true)) {
        return Ok(());
    }
    let name = new.metadata.name.as_deref().unwrap_or_default();
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    Err(Refusal::forbidden(Kind::PersistentVolumeClaim, name, why))
}

/// <https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#serviceaccount-admission-controller>
fn give_account(server: &Server<'_>, pod: &mut Pod) -> Result<(), Refusal> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let name = pod.metadata.name.clone().unwrap_or_default();
    let spec = pod.spec.get_or_insert_default();
    let account = match spec.service_account_name.as_deref().or(spec.service_account.as_deref()).unwrap_or_default() {
        "" => "default".to_owned(),
        account => account.to_owned(),
    };
    let Some(found) = server.store.typed::<ServiceAccount>(Some(&namespace), &account) else {
        let why =
            format!("error looking up service account {namespace}/{account}: serviceaccount {account:?} not found");
        return Err(Refusal::forbidden(Kind::Pod, &name, why));
    };
    spec.service_account_name = Some(account.clone());
    spec.service_account = Some(account);
    if spec.automount_service_account_token.or(found.automount_service_account_token).unwrap_or(true) {
        mount_token(server, pod);
    }
    if let Some(spec) = pod.spec.as_mut().filter(|spec| spec.image_pull_secrets.as_ref().is_none_or(Vec::is_empty)) {
        spec.image_pull_secrets = found.image_pull_secrets.filter(|secrets| !secrets.is_empty());
    }
    Ok(())
}

/// Gives every container the account's token, where nothing else is mounted there.
fn mount_token(server: &Server<'_>, pod: &mut Pod) {
    const PLACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    let volume = format!("kube-api-access-{}", super::write::random_suffix(server.env));
    let Some(spec) = pod.spec.as_mut() else { return };
    let mut used = false;
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let mounts = container.volume_mounts.get_or_insert_default();
        if mounts.iter().all(|mount| mount.mount_path != PLACE) {
            used = true;
            mounts.push(VolumeMount {
                name: volume.clone(),
                mount_path: PLACE.to_owned(),
                read_only: Some(true),
                ..VolumeMount::default()
            });
        }
    }
    if used {
        let projected = json!({"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
            ]}},
        ]});
        let projected: Option<ProjectedVolumeSource> = serde_json::from_value(projected).ok();
        spec.volumes.get_or_insert_default().push(Volume { name: volume, projected, ..Volume::default() });
    }
}
