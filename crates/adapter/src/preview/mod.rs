//! What an apply would do, by reads alone: the same pure decisions over what was read, and no write.
//!
//! What objects are is said elsewhere (`objects`, `pod`, `pull`), and so is how they are compared (`converge`), what is done about a
//! workload (`record`) and what is left over (`leftovers`): here the answers are put together and told.

mod field;
mod objects;
mod parts;
mod workload;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::RoleBinding;
use pando_api::{Error, Foreseen, Preview, WorkloadPreview};
use pando_cluster::names::{MANAGER, is_ours, label, object};
use pando_cluster::{ClusterError, Failure, Resource, Selector};
use pando_network::ClusterAddresses;
use pando_storage::bound_volume;

use crate::call::Call;
use crate::error::unread;
use crate::ground;
use crate::plan::Plan;
use crate::pull::Pulls;
use crate::{leftovers, objects as wanted};

/// What there is of an app.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// The namespace, unless it is being deleted.
    namespace: Option<Namespace>,
    /// The namespace is there and being deleted.
    is_going: bool,
    binding: Option<RoleBinding>,
    account: Option<ServiceAccount>,
    policy: Option<NetworkPolicy>,
    quota: Option<ResourceQuota>,
    secrets: Vec<Secret>,
    files: Vec<ConfigMap>,
    claims: Vec<PersistentVolumeClaim>,
    /// Volumes that claims of the plan are bound to.
    volumes: Vec<PersistentVolume>,
    /// Services of whomever: a stranger's may have a record's name.
    services: Vec<Service>,
    pods: Vec<Pod>,
}

impl Live {
    /// Reads it.
    pub(crate) async fn read(call: &Call<'_>, plan: &Plan) -> Result<Self, Error> {
        call.tell("", "reading", "");
        let Some(namespace) = ground::find(call).await? else { return Ok(Self::default()) };
        if namespace.metadata.deletion_timestamp.is_some() {
            return Ok(Self { is_going: true, ..Self::default() });
        }
        let binding = get::<RoleBinding>(call, object::ROLE_BINDING).await.map_err(unread)?;
        let rights = wanted::role_binding(call.app, call.settings);
        let is_bound = binding.as_ref().is_some_and(|binding| ground::is_bound(binding, &rights));
        let live = Self::read_contents(call, plan).await.map_err(|error| {
            let lacks_rights = !is_bound && matches!(error.failure, Failure::Forbidden { .. });
            let error = unread(error);
            if !lacks_rights {
                return error;
            }
            error.remedy("Pando's role binding in that namespace is missing or another one; an apply without --dry-run puts it right")
        })?;
        Ok(Self { namespace: Some(namespace), binding, ..live })
    }

    async fn read_contents(call: &Call<'_>, plan: &Plan) -> Result<Self, ClusterError> {
        let ours = || Selector::everything().equals(label::MANAGED_BY, MANAGER);
        let (account, policy, quota, secrets, files, claims, services, pods) = futures::try_join!(
            get(call, object::SERVICE_ACCOUNT),
            get(call, object::DEFAULT_POLICY),
            get(call, object::QUOTA),
            list(call, ours()),
            list(call, ours()),
            list::<PersistentVolumeClaim>(call, Selector::everything()),
            list(call, Selector::everything()),
            list(call, ours()),
        )?;
        let is_planned = |claim: &&PersistentVolumeClaim| {
            plan.volumes.iter().any(|volume| claim.metadata.name.as_deref() == Some(&volume.claim_name()))
        };
        let bound = claims.iter().filter(is_planned).filter_map(bound_volume);
        let volumes = try_join_all(bound.map(|name| call.cluster.read::<PersistentVolume>(None, name))).await?;
        let volumes = volumes.into_iter().flatten().collect();
        let live = Self { account, policy, quota, secrets, files, claims, volumes, services, pods, ..Self::default() };
        Ok(live)
    }

    /// The workloads' records.
    fn records(&self) -> Vec<Service> {
        self.services.iter().filter(|service| is_ours(&service.metadata)).cloned().collect()
    }
}

/// Reads an object of the namespace. Rights that are a moment young are not waited for: nothing here gives any.
async fn get<T: Resource>(call: &Call<'_>, name: &str) -> Result<Option<T>, ClusterError> {
    call.cluster.read(Some(&call.namespace()), name).await
}

async fn list<T: Resource>(call: &Call<'_>, labels: Selector) -> Result<Vec<T>, ClusterError> {
    let request = call.list_request(T::OBJECT_KIND).labelled(labels);
    Ok(call.cluster.list_all(&request).await?.0)
}

/// What an apply of `plan` would make of `live`.
///
/// # Errors
///
/// Where the apply would refuse to touch what is there.
pub(crate) fn preview(
    call: &Call<'_>,
    plan: &Plan,
    addresses: &ClusterAddresses,
    live: &Live,
) -> Result<Preview, Error> {
    let pulls = Pulls::of(&plan.workloads);
    let records = live.records();
    let mut objects = objects::Objects::new(call);
    objects.ground(plan, addresses, live)?;
    let environments = objects.contents(plan, &pulls, live)?;
    let mut workloads = Vec::new();
    for (workload, environment) in plan.workloads.iter().zip(&environments) {
        let mind =
            workload::Mind { call, plan, addresses, pulls: &pulls, live, records: &records, workload, environment };
        workloads.push(mind.foresee(&mut objects, &workloads)?);
    }
    for pull in live.pods.iter().filter(|pod| leftovers::is_pull(pod)) {
        objects.remove(pull);
    }
    for left in leftovers::left(plan, &records, &live.pods) {
        workloads.push(workload::leave(left, &records, &live.pods, &mut objects));
    }
    objects.leftovers(plan, &pulls, live);
    let waits_for = live.is_going.then(|| format!("namespace {} to be gone", call.namespace()));
    let redact = |text: &str| call.redact(text);
    for workload in &mut workloads {
        workload.differs = field::redacted(std::mem::take(&mut workload.differs), &redact);
    }
    let objects = objects.told(&redact);
    Ok(Preview { handle: call.namespace(), waits_for: waits_for.into_iter().collect(), workloads, objects })
}

/// What has been foreseen of the workload of that name.
fn of<'a>(workloads: &'a [WorkloadPreview], name: &str) -> Option<&'a WorkloadPreview> {
    workloads.iter().find(|workload| workload.workload == name)
}

/// Whether a workload that this is foreseen of comes to be started.
const fn starts(would: Foreseen) -> bool {
    matches!(would, Foreseen::Created | Foreseen::Replaced | Foreseen::StartedAgain | Foreseen::Awaited)
}
