//! What admission says of a new object before it is stored: life cycle, account, RuntimeClass.

use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::api::core::v1::{ProjectedVolumeSource, Volume, VolumeMount};
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
    if let Object::Pod(pod) = object {
        give_account(server, pod)?;
        kinds::tolerate_lost_nodes(pod);
        kinds::prioritise(server.config, pod)?;
        kinds::refuse_runtime_class(server.config, pod)?;
    }
    if let Object::PersistentVolumeClaim(claim) = object {
        // A claim outlives the pods that mount it; a controller takes this off.
        let held = claim.metadata.finalizers.get_or_insert_default();
        if held.iter().all(|it| it != "kubernetes.io/pvc-protection") {
            held.push("kubernetes.io/pvc-protection".to_owned());
        }
    }
    Ok(())
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
