//! Ending a bundle's workloads, and taking the bundle away.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_api::{Code, Error};
use pando_cluster::converge::ConvergeError;
use pando_cluster::names::{TO_BE_DELETED, annotation, annotation_value, is_ours, label, label_value, role};
use pando_cluster::{DeleteOptions, Kind, ObjectKey, ResourceVersion, Uid};
use serde_json::json;

use crate::call::{Call, name, namespace_key};
use crate::error::{not_made, unchanged, unread};
use crate::follow::Followed;
use crate::ground;
use crate::objects::workload_of_record;
use crate::observe::is_ended_and_named;
use crate::record::Seen;
use crate::{objects, sight};

/// How often an object may change under our hands before we give up.
const ROUNDS: u32 = 5;

/// Ends every workload of the bundle (S-47). A pod that was there when it was called, gated or not, does not run afterwards; a
/// start that has no pod yet counts as one that came later.
pub(crate) async fn stop(call: &Call<'_>) -> Result<(), Error> {
    let Some(namespace) = ground::find(call).await? else { return Ok(()) };
    if namespace.metadata.deletion_timestamp.is_some() {
        return ground::gone(call).await;
    }
    // Whoever made the namespace may have died before it had rights in it.
    ground::rights(call, false).await?;
    end_all(call).await
}

/// Ends whatever runs, or could come to run, of the bundle's workloads. The records are raised before anything is deleted, so
/// that a deletion that arrives when everybody has gone on meets only pods that nobody wants.
async fn end_all(call: &Call<'_>) -> Result<(), Error> {
    let pods = call.ours::<Pod>().await.map_err(unread)?;
    for pod in pods.iter().filter(|pod| is_ended_and_named(pod)) {
        call.retire(pod).await;
    }
    if !pods.iter().any(is_to_end) {
        return Ok(());
    }
    for workload in workloads(&pods) {
        raise(call, &workload).await?;
    }
    // Listed after the records were raised: whoever creates a pod later reads a record that names another revision.
    let mut follower = call.follow(Followed::Workloads).await?;
    let running: Vec<Pod> = follower.pods().filter(|pod| is_to_end(pod)).cloned().collect();
    call.end(&running, &mut follower).await
}

/// A pod of a workload that has not ended; helpers carry a role and are left alone.
fn is_to_end(pod: &Pod) -> bool {
    objects::workload_of_pod(pod).is_some() && !sight::has_ended(pod)
}

fn workloads(pods: &[Pod]) -> std::collections::BTreeSet<String> {
    pods.iter().filter(|pod| is_to_end(pod)).filter_map(objects::workload_of_pod).map(str::to_owned).collect()
}

/// Raises the workload's record, so that it selects no pod and no start in progress may open its gate.
async fn raise(call: &Call<'_>, workload: &str) -> Result<(), Error> {
    for _ in 0..ROUNDS {
        // A stranger's Service of that name is no record: nobody opens a gate by it, and it is not ours to change.
        let record = call.read::<Service>(workload).await.map_err(unread)?;
        let Some(record) = record.filter(|record| is_ours(&record.metadata)) else { return Ok(()) };
        let pods = call.ours::<Pod>().await.map_err(unread)?;
        let own: Vec<Pod> = pods.into_iter().filter(|pod| objects::workload_of_pod(pod) == Some(workload)).collect();
        let next = Seen { record: Some(&record), pods: &own }.highest().unwrap_or_default().next().to_string();
        let body =
            json!({"metadata": {"labels": {label::REVISION: next}}, "spec": {"selector": {label::REVISION: next}}});
        match call
            .patch(&record, body, vec![format!("metadata.labels.{}", label::REVISION), "spec.selector".to_owned()])
            .await
        {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => return Err(unchanged(error)),
        }
    }
    let key = ObjectKey::namespaced(Kind::Service, call.namespace(), workload);
    Err(not_made(ConvergeError::Contended { key }))
}

/// Takes the bundle away (S-48). What holds data stays, and with it the namespace; with no claim at all it goes too.
pub(crate) async fn destroy(call: &Call<'_>, keep_volumes: bool) -> Result<(), Error> {
    for _ in 0..ROUNDS {
        if try_to_destroy(call, keep_volumes).await? {
            return Ok(());
        }
    }
    Err(not_made(ConvergeError::Contended { key: namespace_key(&call.namespace()) }))
}

/// One attempt; `false` when the namespace changed meanwhile, be it by our own deletion whose answer was lost.
async fn try_to_destroy(call: &Call<'_>, keep_volumes: bool) -> Result<bool, Error> {
    // Read before the claims are listed: whoever makes a claim later moves the namespace's version first, so that it is not
    // deleted with the claim.
    let Some(namespace) = ground::find(call).await? else { return Ok(true) };
    if namespace.metadata.deletion_timestamp.is_some() {
        return ground::gone(call).await.map(|()| true);
    }
    ground::rights(call, false).await?;
    let claims = call.list_request(Kind::PersistentVolumeClaim);
    let claims = call.with_young_rights(|| call.cluster.list_all::<PersistentVolumeClaim>(&claims)).await;
    let (claims, _) = claims.map_err(unread)?;
    if !claims.is_empty() && !keep_volumes {
        let names: Vec<_> = claims.iter().map(|claim| name(&claim.metadata)).collect();
        let message = format!(
            "namespace {} holds claims, which this version does not remove: {}",
            call.namespace(),
            names.join(", ")
        );
        return Err(Error::new(Code::PlanCapabilityUnsupported, message)
            .remedy("keep the volumes, or delete the claims by hand first"));
    }
    if !claims.is_empty() {
        return empty(call).await.map(|()| true);
    }
    let Some(marked) = mark(call, &namespace).await? else { return Ok(false) };
    // Kubernetes takes a namespace's policies away before its pods have ended: what still ran would be open to everybody.
    end_all(call).await?;
    let Some(uid) = Uid::of(&marked.metadata) else { return Ok(true) };
    let options = DeleteOptions { version: ResourceVersion::of(&marked.metadata), ..DeleteOptions::of(uid) };
    match call.cluster.delete(&namespace_key(&call.namespace()), &options).await {
        Ok(()) => {
            call.note(Kind::Namespace, &call.namespace(), pando_api::Change::Deleted, Vec::new());
            call.tell("", "removing", "");
            ground::gone(call).await.map(|()| true)
        }
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) if error.is_conflict() => Ok(false),
        Err(error) => Err(unchanged(error)),
    }
}

/// Marks the namespace before it is deleted; `None` when it changed meanwhile. An apply takes the mark off, and with it moves the
/// version: a deletion that arrives when its caller is long dead finds another one, and takes nothing along.
async fn mark(call: &Call<'_>, namespace: &Namespace) -> Result<Option<Namespace>, Error> {
    if annotation_value(&namespace.metadata, annotation::TOUCHED) == Some(TO_BE_DELETED) {
        return Ok(Some(namespace.clone()));
    }
    let body = json!({"metadata": {"annotations": {annotation::TOUCHED: TO_BE_DELETED}}});
    match call.patch(namespace, body, vec![format!("metadata.annotations.{}", annotation::TOUCHED)]).await {
        Ok(marked) => Ok(Some(marked)),
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(None),
        Err(error) => Err(unchanged(error)),
    }
}

/// Takes away all but what holds data and what protects it.
async fn empty(call: &Call<'_>) -> Result<(), Error> {
    // Without its record no start in progress may open its gate: the pods are listed after the records went.
    for record in call.ours::<Service>().await.map_err(unread)?.iter().filter(|it| workload_of_record(it).is_some()) {
        call.delete(record).await.map_err(unchanged)?;
    }
    let mut follower = call.follow(Followed::Workloads).await?;
    let is_own = |pod: &&Pod| objects::workload_of_pod(pod).is_some();
    let own: Vec<Pod> = follower.pods().filter(is_own).cloned().collect();
    call.end(&own, &mut follower).await?;
    let (secrets, files) = futures::try_join!(call.ours::<Secret>(), call.ours::<ConfigMap>()).map_err(unread)?;
    for secret in secrets.iter().filter(|secret| is_an_apps(&secret.metadata)) {
        call.delete(secret).await.map_err(unchanged)?;
    }
    for files in files.iter().filter(|files| is_an_apps(&files.metadata)) {
        call.delete(files).await.map_err(unchanged)?;
    }
    Ok(())
}

/// Whether a Secret or ConfigMap of ours is what workloads are given, or what their images are pulled with.
fn is_an_apps(meta: &ObjectMeta) -> bool {
    match label_value(meta, label::ROLE) {
        None => objects::workload_of(meta).is_some(),
        Some(role) => role == role::PULL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_are_left_alone() {
        let pod = |labels: serde_json::Value, phase: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "web-1", "labels": labels}, "status": {"phase": phase}}))
                .expect("a pod")
        };
        let web = json!({"app.kubernetes.io/managed-by": "pando", "pando.dev/workload": "web"});
        let mut helper = web.clone();
        helper["pando.dev/role"] = json!("volume-helper");
        assert!(is_to_end(&pod(web.clone(), "Running")) && is_to_end(&pod(web.clone(), "Pending")));
        assert!(!is_to_end(&pod(web, "Failed")), "an ended one keeps its log");
        assert!(!is_to_end(&pod(helper, "Running")));
        assert!(!is_to_end(&pod(json!({"pando.dev/workload": "web"}), "Running")), "a stranger's");
    }
}
