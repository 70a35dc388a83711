//! The ground an app's pods stand on: namespace, rights, account, policy, quota, and what workloads are given. All of it is
//! there before the first pod.

pub(crate) mod contents;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, ResourceQuota, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::RoleBinding;
use pando_api::{Code, Error};
use pando_cluster::converge::{Change, ConvergeError, Known, Quantity};
use pando_cluster::names::{TO_BE_DELETED, annotation, annotation_value, is_ours, label, label_value, object};
use pando_cluster::resilient::backoff;
use pando_cluster::{ClusterError, Kind, ListRequest, ObjectKey, Scope, Selector, Told, Uid, budget, list_watch};
use pando_network::{ClusterAddresses, Egress, default_policy};
use serde_json::json;

use crate::call::{Call, namespace_key};
use crate::digest::EnvKey;
use crate::error::{not_made, unchanged, unread};
use crate::objects;
use crate::plan::Plan;
use crate::pull::Pulls;
use crate::record::Revision;
use crate::start;
use crate::view::AppView;

/// How often the namespace may come and go under our hands before we give up.
const ROUNDS: u32 = 5;

/// What an app's pods stand on, as it was found or made.
#[derive(Debug)]
pub(crate) struct Ground {
    /// What each workload stands on, by its name.
    pub(crate) standing: BTreeMap<String, Standing>,
    /// The quota is wider than the plan needs, and is to be narrowed once nothing older runs.
    pub(crate) quota_is_wide: bool,
    /// The records in the namespace, of every workload.
    pub(crate) records: Vec<Service>,
    /// The pods in the namespace, of every workload.
    pub(crate) pods: Vec<Pod>,
    /// Secrets of ours that the plan has no use for.
    pub(crate) idle_secrets: Vec<Secret>,
    /// Files of workloads that have none any more.
    pub(crate) idle_files: Vec<ConfigMap>,
    /// Claims that the plan's workloads mount, as they are.
    pub(crate) claims: Vec<PersistentVolumeClaim>,
}

/// What one workload stands on.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// The key of the environment's digest.
    pub(crate) key: EnvKey,
    /// The key was lost with its Secret while a pod of the workload existed.
    pub(crate) key_lost: bool,
    /// The Secret was there and held exactly the plan's environment.
    pub(crate) same_env: bool,
    /// This call made the workload's record, at this revision.
    pub(crate) raised: Option<Revision>,
    /// What the workload is given and is to be changed: pods read it by name when they start, so it is written when none is there
    /// that runs, or could come to run, by another plan.
    pub(crate) pending: Pending,
}

/// What a workload is given and is to be changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    pub(crate) env: Option<Secret>,
    pub(crate) files: Option<ConfigMap>,
}

/// The namespace as it is; not read where it is known to be absent.
pub(crate) async fn look(call: &Call<'_>, is_absent: bool) -> Result<Option<Namespace>, Error> {
    if is_absent {
        return Ok(None);
    }
    call.cluster.read::<Namespace>(None, &call.namespace()).await.map_err(unread)
}

/// Makes the ground. In dependent steps: the namespace, our rights in it, everything else at once; in a namespace that this
/// call made, the workloads' records too.
pub(crate) async fn prepare(
    call: &Call<'_>,
    plan: &Plan,
    pulls: &Pulls<'_>,
    live: Option<Namespace>,
    seen: Option<&AppView>,
    addresses: &ClusterAddresses,
) -> Result<Ground, Error> {
    call.tell("", "preparing the namespace", "");
    let fresh = namespace(call, plan, live).await?;
    rights(call, fresh).await?;
    let known = || if fresh { Start::Absent } else { Start::Unknown };
    let account = objects::service_account(call.app);
    let policy = default_policy(call.app, &call.settings.network, addresses, Egress::Open);
    let account = async { call.ensure(&account, known().known()).await.map_err(not_made) };
    let seen = seen.filter(|_| !fresh);
    let known_policy = match seen.and_then(|seen| default_policy_of(seen)) {
        Some(policy) => Known::Live(Box::new(policy.clone())),
        None => known().known(),
    };
    let policy = async { call.ensure(&policy, known_policy).await.map_err(not_made) };
    let (_, _, quota_is_wide, secrets, files, claims, workloads) = futures::try_join!(
        account,
        policy,
        widen_quota(call, plan, fresh),
        contents::secrets(call, plan, pulls, fresh),
        contents::files(call, plan, fresh),
        contents::claims(call, plan, seen, fresh),
        workloads(call, plan, seen, fresh)
    )?;
    let Workloads { raised, records, pods } = workloads;
    let standing = plan.workloads.iter().zip(secrets.environments).zip(raised).map(|((workload, env), raised)| {
        let has_pods = pods.iter().any(|pod| objects::workload_of_pod(pod) == Some(&workload.name));
        let is_its = |files: &&ConfigMap| objects::workload_of(&files.metadata) == Some(&workload.name);
        let pending = Pending { env: env.pending, files: files.pending.iter().find(is_its).cloned() };
        let key_lost = env.key_lost && has_pods;
        let standing = Standing { key: env.key, key_lost, same_env: env.same, raised, pending };
        (workload.name.clone(), standing)
    });
    let standing = standing.collect();
    Ok(Ground { standing, quota_is_wide, records, pods, idle_secrets: secrets.idle, idle_files: files.idle, claims })
}

/// What is known of an object before it is made so.
enum Start {
    Absent,
    Unknown,
}

impl Start {
    fn known<T>(self) -> Known<T> {
        match self {
            Self::Absent => Known::Absent,
            Self::Unknown => Known::Nothing,
        }
    }
}

/// Makes the namespace, and answers whether it is new. One of that name that is going is waited for.
async fn namespace(call: &Call<'_>, plan: &Plan, mut live: Option<Namespace>) -> Result<bool, Error> {
    let desired = objects::namespace(plan);
    for _ in 0..ROUNDS {
        let Some(found) = live else {
            match call.create(&desired).await {
                Ok(_) => return Ok(true),
                Err(error) if error.is_already_exists() => {
                    live = look(call, false).await?;
                    continue;
                }
                Err(error) => return Err(unchanged(error)),
            }
        };
        own(call, &found)?;
        let Some(found) = unmark(call, found).await? else {
            live = look(call, false).await?;
            continue;
        };
        match call.ensure(&desired, Known::Live(Box::new(found))).await {
            Ok(made) => {
                own(call, &made.object)?;
                return Ok(made.change == Change::Created);
            }
            Err(ConvergeError::BeingDeleted { .. }) => {
                gone(call).await?;
                live = None;
            }
            Err(error) => return Err(not_made(error)),
        }
    }
    Err(not_made(ConvergeError::Contended { key: namespace_key(&call.namespace()) }))
}

/// Takes the mark of a deletion to come off the namespace, so that one that is still on its way finds another version; `None` when
/// the namespace changed meanwhile.
async fn unmark(call: &Call<'_>, namespace: Namespace) -> Result<Option<Namespace>, Error> {
    let meta = &namespace.metadata;
    if meta.deletion_timestamp.is_some() || annotation_value(meta, annotation::TOUCHED) != Some(TO_BE_DELETED) {
        return Ok(Some(namespace));
    }
    let body = json!({"metadata": {"annotations": {annotation::TOUCHED: null}}});
    match call.patch(&namespace, body, vec![format!("metadata.annotations.{}", annotation::TOUCHED)]).await {
        Ok(unmarked) => Ok(Some(unmarked)),
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(None),
        Err(error) => Err(unchanged(error)),
    }
}

/// Moves the namespace's version, which a new claim in it does not: whoever listed its claims before, found none, and is about to
/// delete the namespace, finds another version. What is deleted before that takes only claims along that nothing has written to.
async fn touch(call: &Call<'_>) -> Result<(), Error> {
    let key = namespace_key(&call.namespace());
    for _ in 0..ROUNDS {
        let Some(namespace) = look(call, false).await? else { break };
        if namespace.metadata.deletion_timestamp.is_some() {
            return Err(not_made(ConvergeError::BeingDeleted { key }));
        }
        let body = json!({"metadata": {"annotations": {annotation::TOUCHED: call.env.wall.now().to_string()}}});
        match call.patch(&namespace, body, vec![format!("metadata.annotations.{}", annotation::TOUCHED)]).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => return Err(unchanged(error)),
        }
    }
    Err(not_made(ConvergeError::Contended { key }))
}

/// Refuses a namespace that is not this bundle's. The adapter before this one left no exact id: there the label decides.
pub(crate) fn own(call: &Call<'_>, namespace: &Namespace) -> Result<(), Error> {
    let meta = &namespace.metadata;
    let id = annotation_value(meta, annotation::BUNDLE_ID);
    let label = label_value(meta, label::BUNDLE);
    let ours = is_ours(meta) && id.map_or(label == Some(call.app.label()), |id| id == call.app.bundle_id());
    if ours {
        return Ok(());
    }
    let holder = match id {
        Some(id) if is_ours(meta) => format!("belongs to bundle {id:?}"),
        _ => "was not made by Pando".to_owned(),
    };
    let message =
        format!("namespace {} {holder}, so bundle {:?} cannot use it", call.namespace(), call.app.bundle_id());
    Err(Error::new(Code::AdapterFailed, message).remedy("remove or rename that namespace if nobody needs it"))
}

/// Waits until the namespace that has our name is gone.
pub(crate) async fn gone(call: &Call<'_>) -> Result<(), Error> {
    let name = call.namespace();
    call.tell("", "waiting", &format!("namespace {name} to be gone"));
    let read = call.cluster.read::<Namespace>(None, &name).await.map_err(unread)?;
    // One that is not going is another one: somebody was quicker to make it anew.
    let Some(going) = read.filter(|read| read.metadata.deletion_timestamp.is_some()) else { return Ok(()) };
    let (sender, mut told) = futures::channel::mpsc::unbounded();
    let by_name = Selector::everything().equals("metadata.name", &name);
    let request = ListRequest::of(Kind::Namespace, Scope::All).with_fields(by_name);
    let watching = list_watch(&**call.cluster, call.env, &request, move |told| {
        let _ = sender.unbounded_send(told);
    });
    let same = |object: &pando_cluster::Object| Uid::of(object.meta()) == Uid::of(&going.metadata);
    let waiting = async {
        use futures::StreamExt;
        while let Some(told) = told.next().await {
            match told {
                Told::All(objects) if !objects.iter().any(same) => return,
                Told::Gone(object) if same(&object) => return,
                Told::Listing | Told::All(_) | Told::Is(_) | Told::Gone(_) | Told::Fresh | Told::Broken(_) => {}
            }
        }
    };
    let limit = call.within_deadline(budget::NAMESPACE_GOES);
    let both = futures::future::select(Box::pin(waiting), Box::pin(watching));
    if call.env.timeout(limit, both).await.is_ok() {
        return Ok(());
    }
    // A watch that was broken all the while would be silent too.
    let still = call.cluster.read::<Namespace>(None, &name).await.map_err(unread)?;
    match still.filter(|still| still.metadata.uid == going.metadata.uid) {
        Some(still) => Err(stuck(&name, limit.as_secs(), &still)),
        None => Ok(()),
    }
}

/// A namespace that does not go says why in its conditions (BR-76).
fn stuck(name: &str, seconds: u64, namespace: &Namespace) -> Error {
    let conditions = namespace.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let why: Vec<_> = conditions
        .filter(|condition| condition.status == "True")
        .filter_map(|condition| condition.message.clone().filter(|message| !message.is_empty()))
        .collect();
    let why = if why.is_empty() { "Kubernetes names no cause".to_owned() } else { why.join("; ") };
    Error::new(Code::AdapterFailed, format!("namespace {name} is being deleted and has not gone in {seconds} s: {why}"))
        .remedy(format!("`kubectl get namespace {name} -o yaml` shows what holds it"))
}

/// Gives our account its rights in the namespace. A binding to something else is replaced: a role cannot be changed (S-23).
pub(crate) async fn rights(call: &Call<'_>, fresh: bool) -> Result<(), Error> {
    bind(call, fresh, ROUNDS).await
}

/// Whether the binding gives the rights that `desired` does.
pub(crate) fn is_bound(live: &RoleBinding, desired: &RoleBinding) -> bool {
    live.role_ref == desired.role_ref && live.subjects == desired.subjects
}

async fn bind(call: &Call<'_>, fresh: bool, rounds: u32) -> Result<(), Error> {
    let desired = objects::role_binding(call.app, call.settings);
    if !fresh {
        let live = call.read::<RoleBinding>(object::ROLE_BINDING).await.map_err(unread)?;
        match live {
            Some(live) if is_bound(&live, &desired) => return Ok(()),
            Some(live) if is_ours(&live.metadata) => call.delete(&live).await.map_err(unchanged)?,
            Some(live) => {
                let key = ObjectKey::namespaced(Kind::RoleBinding, call.namespace(), object::ROLE_BINDING);
                let manager = label_value(&live.metadata, label::MANAGED_BY).map(str::to_owned);
                return Err(not_made(ConvergeError::Foreign { key, manager }));
            }
            None => {}
        }
    }
    match call.create(&desired).await {
        Ok(_) => Ok(()),
        // Somebody else made it meanwhile, and perhaps another one: it is looked at as if it had been there.
        Err(error) if error.is_already_exists() && rounds > 1 => Box::pin(bind(call, false, rounds - 1)).await,
        Err(error) => Err(unchanged(error)),
    }
}

/// Makes the quota, not narrower than it was: what runs still counts (S-26). Answers whether it is wider than it need be.
async fn widen_quota(call: &Call<'_>, plan: &Plan, fresh: bool) -> Result<bool, Error> {
    let desired = objects::quota(call.app, &plan.resources());
    if fresh {
        return call.ensure(&desired, Known::Absent).await.map(|_| false).map_err(not_made);
    }
    let live = call.read::<ResourceQuota>(object::QUOTA).await.map_err(unread)?;
    let (wide, known) = match live {
        Some(live) => (widened(&live, desired.clone()), Known::Live(Box::new(live))),
        None => (desired.clone(), Known::Absent),
    };
    let made = call.ensure(&wide, known).await.map_err(not_made)?;
    if made.change != Change::Unchanged {
        settled(call, made.object).await?;
    }
    Ok(wide != desired)
}

/// Narrows the quota to what the plan needs, once nothing older runs.
pub(crate) async fn narrow_quota(call: &Call<'_>, plan: &Plan) -> Result<(), Error> {
    let desired = objects::quota(call.app, &plan.resources());
    call.ensure(&desired, Known::Nothing).await.map(|_| ()).map_err(not_made)
}

/// `desired`, with each limit that both have at the higher value. A limit that only one has would refuse pods of the
/// other, so it is left out.
fn widened(live: &ResourceQuota, desired: ResourceQuota) -> ResourceQuota {
    let held = live.spec.as_ref().and_then(|spec| spec.hard.clone()).unwrap_or_default();
    let mut wide = desired;
    if let Some(hard) = wide.spec.as_mut().and_then(|spec| spec.hard.as_mut()) {
        hard.retain(|resource, limit| {
            let Some(held) = held.get(resource) else { return resource.starts_with("services.") };
            if held.0.parse::<Quantity>().ok() > limit.0.parse::<Quantity>().ok() && !resource.starts_with("services.")
            {
                limit.0.clone_from(&held.0);
            }
            true
        });
    }
    wide
}

/// Waits until a changed quota is in force: a pod created at once was refused by the old one in 5 of 8 tries.
async fn settled(call: &Call<'_>, mut quota: ResourceQuota) -> Result<(), Error> {
    let in_force = |quota: &ResourceQuota| {
        let wanted = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
        wanted.is_none_or(|wanted| quota.status.as_ref().and_then(|status| status.hard.as_ref()) == Some(wanted))
    };
    let waiting = async {
        for times in 0.. {
            if in_force(&quota) {
                break;
            }
            call.env.sleep(backoff(budget::FIRST_BACKOFF / 4, budget::FIRST_BACKOFF * 10, times)).await;
            match call.read::<ResourceQuota>(object::QUOTA).await? {
                Some(read) => quota = read,
                None => break,
            }
        }
        Ok::<_, ClusterError>(())
    };
    if let Ok(settled) = call.env.timeout(budget::QUOTA_SETTLES, waiting).await {
        return settled.map_err(unread);
    }
    // The pod's own creation says whether that matters.
    tracing::warn!(app = %call.app, "quota not in force after its change");
    Ok(())
}

/// The workloads of a namespace as they are before the plan is carried out.
struct Workloads {
    /// For each of the plan's, the revision at which this call made its record.
    raised: Vec<Option<Revision>>,
    records: Vec<Service>,
    pods: Vec<Pod>,
}

/// The app's policy as the view has it.
fn default_policy_of(seen: &AppView) -> Option<&NetworkPolicy> {
    seen.policies.iter().find(|policy| policy.metadata.name.as_deref() == Some(object::DEFAULT_POLICY))
}

/// All records and pods of the namespace, from the view where it knows them: whatever is to be ended or begun by them is read
/// again. Where this call made the namespace there are none, and the records are made instead.
async fn workloads(call: &Call<'_>, plan: &Plan, seen: Option<&AppView>, fresh: bool) -> Result<Workloads, Error> {
    if !fresh {
        let (records, pods) = match seen {
            Some(seen) => (seen.records.clone(), seen.pods.clone()),
            None => call.records_and_pods().await?,
        };
        return Ok(Workloads { raised: vec![None; plan.workloads.len()], records, pods });
    }
    let revision = Revision::default().next();
    let make = |workload| async move {
        // Unless another caller was there first.
        let made = start::make_record(call, workload, revision).await?;
        Ok::<_, Error>(made.then_some(revision))
    };
    let raised = futures::future::try_join_all(plan.workloads.iter().map(make)).await?;
    Ok(Workloads { raised, records: Vec::new(), pods: Vec::new() })
}

/// The namespace as it is, if it is this bundle's.
///
/// # Errors
///
/// When it could not be read, or is another's.
pub(crate) async fn find(call: &Call<'_>) -> Result<Option<Namespace>, Error> {
    let key = namespace_key(&call.namespace());
    let Some(found) = call.cluster.read::<Namespace>(None, &key.name).await.map_err(unread)? else { return Ok(None) };
    own(call, &found)?;
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
    use pando_cluster::names::AppNamespace;

    use super::*;
    use crate::plan::Resources;

    fn quota(cpu: Option<u64>) -> ResourceQuota {
        let resources = Resources {
            cpu_millis: cpu.and_then(NonZeroU64::new),
            memory_bytes: NonZeroU64::new(1),
            ephemeral_bytes: None,
        };
        objects::quota(&AppNamespace::of("a", &[]), &[resources])
    }

    fn hard(quota: &ResourceQuota) -> BTreeMap<String, Amount> {
        quota.spec.as_ref().and_then(|spec| spec.hard.clone()).expect("limits")
    }

    #[test]
    fn a_quota_never_refuses_what_runs_while_it_changes() {
        let cpu =
            |live, desired| hard(&widened(&quota(live), quota(desired))).get("limits.cpu").map(|limit| limit.0.clone());
        assert_eq!(cpu(Some(100), Some(500)), Some("1500m".to_owned()), "more is in force before");
        assert_eq!(cpu(Some(500), Some(100)), Some("1500m".to_owned()), "less comes after");
        assert_eq!(cpu(Some(100), None), None, "no limit any more");
        assert_eq!(cpu(None, Some(100)), None, "what runs has no limit yet");
    }

    #[test]
    fn nothing_is_ever_reachable_from_outside() {
        let mut opened = quota(Some(1));
        let limits = opened.spec.as_mut().and_then(|spec| spec.hard.as_mut()).expect("limits");
        limits.insert("services.nodeports".to_owned(), Amount("5".to_owned()));
        assert_eq!(hard(&widened(&opened, quota(Some(1))))["services.nodeports"].0, "0");
    }
}
