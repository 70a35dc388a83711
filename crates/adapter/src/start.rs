//! Starting a workload, so that never two pods of it run, whoever calls, dies or is late (see [`crate::record`]).

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use pando_api::{Code, Error, Gate, GateProof, Outcome, ReasonKind, WorkloadResult};
use pando_cluster::converge::{ConvergeError, difference};
use pando_cluster::names::{is_ours, label, label_value, object};
use pando_cluster::resilient::backoff;
use pando_cluster::{ClusterError, Kind, ObjectKey, Resource, budget};
use pando_network::gate::Passing;
use serde_json::json;

use crate::call::{Call, name};
use crate::check::Plan;
use crate::digest::PlanDigest;
use crate::error::{not_made, unchanged, unread};
use crate::follow::Follower;
use crate::ground::Ground;
use crate::known::ClusterFacts;
use crate::objects;
use crate::pod::pod;
use crate::record::{Before, Revision, Seen, Step, decide, is_after, is_before, pod_revision};
use crate::sight::{self, Sight};
use crate::wait::{self, End};

/// How often a start may be overtaken by another caller before we give up.
const ROUNDS: u32 = 8;

/// How long another caller's start, seen half-way, is left alone.
const RIVAL: Duration = Duration::from_secs(2);

/// Makes the workload run, unless it does already.
pub(crate) async fn settle(
    call: &Call<'_>,
    plan: &Plan,
    ground: Ground,
    facts: &ClusterFacts,
) -> Result<WorkloadResult, Error> {
    let Ground { key, key_lost, mut raised, mut records, mut pods, .. } = ground;
    let workload = &plan.workload;
    let digest = PlanDigest::of(workload, &key);
    let mut patient = true;
    // They were listed beside other calls that may have taken long.
    let mut old = raised.is_none();
    for round in 0..ROUNDS {
        let record =
            records.iter().find(|record| label_value(&record.metadata, label::WORKLOAD) == Some(&workload.name));
        let own: Vec<Pod> =
            pods.iter().filter(|pod| objects::workload_of(&pod.metadata) == Some(&workload.name)).cloned().collect();
        let start = Start { call, plan, facts, digest: &digest };
        let seen = Seen { record, pods: &own };
        let step = decide(seen, &digest, key_lost);
        if std::mem::take(&mut old) && !matches!(step, Step::Keep { .. }) {
            (records, pods) = call.records_and_pods().await?;
            continue;
        }
        let tried = match (raised.take(), step) {
            (Some(revision), _) => start.begin(Raise::Done, revision, Before::Nothing).await?,
            (None, Step::Keep { pod, redigest }) => start.keep(record, pod, &own, redigest).await?,
            (None, Step::Await { pod }) if patient => {
                start.leave_alone(pod).await?;
                patient = false;
                Tried::Overtaken
            }
            (None, Step::Await { .. }) => {
                let revision = seen.highest().unwrap_or_default().next();
                start.begin(Raise::From(record), revision, Before::Ended).await?
            }
            (None, Step::Start { revision, after }) => start.begin(Raise::From(record), revision, after).await?,
        };
        let taken = match tried {
            Tried::Settled(result) => return Ok(result),
            Tried::Overtaken => None,
            Tried::Taken(revision) => Some(revision),
        };
        // Callers that met each other should not meet again.
        call.env.sleep(call.env.jitter(backoff(budget::FIRST_BACKOFF, budget::LONGEST_BACKOFF, round))).await;
        (records, pods) = call.records_and_pods().await?;
        if let Some(revision) = taken.filter(|revision| was_ended(&records, &pods, &workload.name, *revision)) {
            let pod = crate::pod::pod_name(&workload.name, revision);
            let message = format!(
                "workload {:?} of {} was ended by another call while it started ({pod})",
                workload.name, call.app
            );
            return Err(Error::new(Code::AdapterFailed, message).remedy("apply again if it is to run"));
        }
    }
    let key = ObjectKey::namespaced(Kind::Service, call.namespace(), &workload.name);
    Err(not_made(ConvergeError::Contended { key }))
}

/// Whether a stop or a removal took the pod of that start: its record is gone or was raised since, and nobody starts another.
fn was_ended(records: &[Service], pods: &[Pod], workload: &str, revision: Revision) -> bool {
    let of_workload = |meta| objects::workload_of(meta) == Some(workload);
    let record = records.iter().find(|record| of_workload(&record.metadata));
    let rival = pods.iter().any(|pod| of_workload(&pod.metadata) && is_after(pod, revision) && !sight::has_ended(pod));
    record.is_none_or(|record| Revision::of(&record.metadata) > Some(revision)) && !rival
}

/// What came of an attempt.
enum Tried {
    /// The workload is as it should be.
    Settled(WorkloadResult),
    /// Another caller was there first: look again.
    Overtaken,
    /// The pod that was started at this revision was taken away while it came up.
    Taken(Revision),
}

/// How the record comes to name a start's revision.
enum Raise<'a> {
    /// It does already: this call made it, in a namespace that it made.
    Done,
    /// By a compare-and-swap from this state.
    From(Option<&'a Service>),
}

/// One attempt to start the plan's workload.
struct Start<'a> {
    call: &'a Call<'a>,
    plan: &'a Plan,
    facts: &'a ClusterFacts,
    digest: &'a PlanDigest,
}

impl Start<'_> {
    fn workload(&self) -> &str {
        &self.plan.workload.name
    }

    fn follower(&self) -> Follower {
        Follower::start(self.call.cluster, self.call.env, &self.call.namespace(), Some(self.workload()))
    }

    fn settled(&self, outcome: Outcome, gate: Option<Gate>) -> Tried {
        Tried::Settled(WorkloadResult { workload: self.workload().to_owned(), outcome, gate })
    }

    /// The pod stays; its record is repaired, and other pods of the workload go.
    async fn keep(&self, record: Option<&Service>, pod: &Pod, own: &[Pod], redigest: bool) -> Result<Tried, Error> {
        if let (Some(record), Some(revision)) = (record, pod_revision(pod))
            && !self.repair(record, revision).await?
        {
            return Ok(Tried::Overtaken);
        }
        if redigest {
            let body = json!({"metadata": {"annotations": {pando_cluster::names::annotation::PLAN_DIGEST: self.digest.to_string()}}});
            match self.call.patch(pod, body, vec!["metadata.annotations".to_owned()]).await {
                Ok(_) => {}
                Err(error) if error.is_conflict() || error.is_not_found() => return Ok(Tried::Overtaken),
                Err(error) => return Err(unchanged(error)),
            }
        }
        let others: Vec<Pod> = own.iter().filter(|other| other.metadata.uid != pod.metadata.uid).cloned().collect();
        let running = sight::sight(pod) == Sight::Running;
        if others.is_empty() && running {
            return Ok(self.settled(Outcome::Unchanged, None));
        }
        let mut follower = self.follower();
        self.call.listed(&mut follower).await?;
        self.call.end(&others, &mut follower).await?;
        if running {
            return Ok(self.settled(Outcome::Unchanged, None));
        }
        self.follow(follower, pod, &Outcome::Unchanged).await
    }

    /// Gives a start that somebody else seems to be making the time to end.
    async fn leave_alone(&self, pod: &Pod) -> Result<(), Error> {
        let mut follower = self.follower();
        self.call.listed(&mut follower).await?;
        let moved = async {
            while follower.same(&pod.metadata).is_some_and(sight::is_gated) {
                follower.next().await;
            }
        };
        // When nobody opens the gate, its maker is gone, and we start one of our own.
        let _ = self.call.env.timeout(RIVAL, moved).await;
        Ok(())
    }

    /// Starts a pod at `revision`.
    async fn begin(&self, raise: Raise<'_>, revision: Revision, after: Before) -> Result<Tried, Error> {
        self.call.tell(self.workload(), "starting", "");
        let fresh = matches!(raise, Raise::Done);
        let raised = match raise {
            Raise::Done => true,
            Raise::From(Some(record)) => self.repair(record, revision).await?,
            Raise::From(None) => make_record(self.call, self.plan, revision).await?,
        };
        if !raised {
            return Ok(Tried::Overtaken);
        }
        let mut follower = self.follower();
        let desired = pod(self.plan, self.call.settings, &self.facts.addresses, revision, self.digest);
        // In a namespace that this call made there is nothing to end first; if there is all the same, it goes before the
        // gate opens. Elsewhere the old pod's object is gone before the new one exists.
        let made = if fresh {
            let (listed, made) = futures::join!(self.call.listed(&mut follower), self.call.create(&desired));
            listed.and(Ok(made))
        } else {
            self.call.listed(&mut follower).await?;
            if has_newer(&follower, revision) {
                return Ok(Tried::Overtaken);
            }
            self.end_older(&mut follower, revision).await?;
            Ok(self.call.create(&desired).await)
        };
        let made = match made? {
            Ok(made) => made,
            Err(error) if error.is_already_exists() => return Ok(Tried::Overtaken),
            // The pods of callers that met each other count until they are gone; a pod alone always fits.
            Err(error) if is_our_quotas(&error) && self.has_others(revision).await? => return Ok(Tried::Overtaken),
            Err(error) => return Err(refused(error)),
        };
        let opened = match self.open(&made, revision, &mut follower).await {
            Ok(Some(opened)) => opened,
            Ok(None) => {
                self.remove(&made, &mut follower).await;
                return Ok(Tried::Overtaken);
            }
            // The gate may be open all the same: what then is left behind is said.
            Err(error) => {
                let removed = self.remove(&made, &mut follower).await;
                return Err(if removed { error } else { error.detail("left_behind", name(&made.metadata)) });
            }
        };
        let outcome = match after {
            Before::Nothing => Outcome::Created,
            Before::OtherPlan => Outcome::Replaced,
            Before::Ended => Outcome::StartedAgain,
        };
        self.follow(follower, &opened, &outcome).await
    }

    /// Makes the record what it should be at `revision`, from the very state it was read in; writes only a difference.
    async fn repair(&self, record: &Service, revision: Revision) -> Result<bool, Error> {
        let desired = objects::service(self.call.app, &self.plan.workload, revision);
        if !changes_in_place(record) {
            self.call.delete(record).await.map_err(unchanged)?;
            return make_record(self.call, self.plan, revision).await;
        }
        let as_json = |service: &Service| serde_json::to_value(service).unwrap_or_default();
        let found = difference(Kind::Service, &as_json(&desired), &as_json(record));
        if found.is_none() {
            return Ok(true);
        }
        match self.call.patch(record, found.patch, found.fields).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(false),
            Err(error) => Err(unchanged(error)),
        }
    }

    /// Ends what runs, or could come to run, of older revisions, and waits until it is gone. Ended pods stay for their logs.
    async fn end_older(&self, follower: &mut Follower, revision: Revision) -> Result<(), Error> {
        let older = |pod: &&Pod| is_before(pod, revision) && !sight::has_ended(pod);
        let older: Vec<Pod> = follower.pods().filter(older).cloned().collect();
        self.call.end(&older, follower).await
    }

    /// Whether pods of other starts of the workload are there that have not ended.
    async fn has_others(&self, revision: Revision) -> Result<bool, Error> {
        let pods = self.call.workload_objects::<Pod>().await.map_err(unread)?;
        Ok(pods.iter().any(|pod| {
            objects::workload_of(&pod.metadata) == Some(self.workload())
                && pod_revision(pod) != Some(revision)
                && !sight::has_ended(pod)
        }))
    }

    /// Opens the gate of the pod that was made, if the record still names its revision; `None` if it does not.
    async fn open(&self, made: &Pod, revision: Revision, follower: &mut Follower) -> Result<Option<Pod>, Error> {
        let mut made = made.clone();
        loop {
            if has_newer(follower, revision) {
                return Ok(None);
            }
            self.end_older(follower, revision).await?;
            let record = self.call.read::<Service>(self.workload()).await.map_err(unread)?;
            let named = record.as_ref().and_then(|record| Revision::of(&record.metadata));
            if named != Some(revision) || record.is_some_and(|record| record.metadata.deletion_timestamp.is_some()) {
                return Ok(None);
            }
            let open = json!({"spec": {"schedulingGates": null}});
            match self.call.patch(&made, open, vec!["spec.schedulingGates".to_owned()]).await {
                Ok(opened) => return Ok(Some(opened)),
                Err(error) if error.is_not_found() => return Ok(None),
                // Its answer was lost and it is open, or something else wrote the pod: look at it.
                Err(error) if error.is_conflict() => {
                    match self.call.read::<Pod>(&name(&made.metadata)).await.map_err(unread)? {
                        Some(found) if found.metadata.uid == made.metadata.uid && !sight::is_going(&found) => {
                            if !sight::is_gated(&found) {
                                return Ok(Some(found));
                            }
                            made = found;
                        }
                        _ => return Ok(None),
                    }
                }
                Err(error) => return Err(unchanged(error)),
            }
        }
    }

    /// Takes away a pod whose start did not come to its end, and answers whether that could be done. What cannot be
    /// removed is logged: behind its gate it never runs, and the next call ends it.
    async fn remove(&self, made: &Pod, follower: &mut Follower) -> bool {
        match self.call.end(std::slice::from_ref(made), follower).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(app = %self.call.app, pod = name(&made.metadata), error = &error as &dyn std::error::Error, "pod of a failed start not removed");
                false
            }
        }
    }

    /// Follows the pod until its app runs or has ended; takes it away when that cannot be.
    async fn follow(&self, mut follower: Follower, pod: &Pod, outcome: &Outcome) -> Result<Tried, Error> {
        let breaks = follower.breaks();
        // A gate that had ended before this call looked was watched by nobody here.
        let watched = sight::gate_passing(pod).is_none();
        let end = wait::follow(self.call, self.workload(), &mut follower, pod).await;
        match end {
            End::Running(now) => {
                let gate = self.gate(&now, watched && follower.breaks() == breaks);
                self.forget_ended(&follower, &now).await;
                Ok(self.settled(outcome.clone(), Some(gate)))
            }
            End::Ended { pod: now, exit_code } => {
                let gate = self.gate(&now, watched && follower.breaks() == breaks);
                self.forget_ended(&follower, &now).await;
                self.call.retire(&now).await;
                Ok(self.settled(Outcome::Ended { exit_code }, Some(gate)))
            }
            End::Taken => Ok(pod_revision(pod).map_or(Tried::Overtaken, Tried::Taken)),
            End::Failed { pod: now, kind, error } => {
                let error = self.with_log(*error, &now, kind).await;
                let removed = self.remove(&now, &mut follower).await;
                let outcome = Outcome::Failed { reason: error.message.clone() };
                let result = WorkloadResult { workload: self.workload().to_owned(), outcome, gate: None };
                let error = error.detail("workloads", [result]);
                Err(if removed { error } else { error.detail("left_behind", name(&now.metadata)) })
            }
        }
    }

    /// Ended pods of older revisions were kept for their logs until the new one ran.
    async fn forget_ended(&self, follower: &Follower, now: &Pod) {
        for pod in follower.pods().filter(|pod| pod.metadata.uid != now.metadata.uid && sight::has_ended(pod)) {
            if let Err(error) = self.call.delete(pod).await {
                tracing::warn!(app = %self.call.app, pod = name(&pod.metadata), error = &error as &dyn std::error::Error, "ended pod not removed");
            }
        }
    }

    /// What the gate's passing proves: only when the API server, which it dialled, was reachable all the while.
    fn gate(&self, pod: &Pod, connected: bool) -> Gate {
        match sight::gate_passing(pod) {
            Some(Passing::Closed { after }) => Gate {
                millis: u64::try_from(after.as_millis()).ok(),
                proof: if connected { GateProof::Proved } else { GateProof::Unproved },
            },
            None if self.call.settings.isolation_gate.is_none() => Gate { millis: None, proof: GateProof::Off },
            Some(Passing::NotClosed { .. }) | None => Gate { millis: None, proof: GateProof::Unproved },
        }
    }

    /// Adds the end of the app's log, without any value of its environment.
    async fn with_log(&self, error: Error, pod: &Pod, kind: ReasonKind) -> Error {
        if !matches!(
            kind,
            ReasonKind::Killed | ReasonKind::OutOfMemory | ReasonKind::Evicted | ReasonKind::NodeShutdown
        ) {
            return error;
        }
        match wait::log_tail(self.call, pod).await {
            Some(log) => error.detail("log", self.call.redact(&log)),
            None => error,
        }
    }
}

/// Makes the workload's record at `revision`; `false` when another caller was there first.
pub(crate) async fn make_record(call: &Call<'_>, plan: &Plan, revision: Revision) -> Result<bool, Error> {
    let desired = objects::service(call.app, &plan.workload, revision);
    match call.create(&desired).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_already_exists() => {
            let holder = call.read::<Service>(&plan.workload.name).await.map_err(unread)?;
            match holder {
                Some(holder) if !is_ours(&holder.metadata) => {
                    let manager = label_value(&holder.metadata, label::MANAGED_BY).map(str::to_owned);
                    Err(not_made(ConvergeError::Foreign { key: desired.key(), manager }))
                }
                _ => Ok(false),
            }
        }
        Err(error) => Err(unchanged(error)),
    }
}

/// Whether another caller's later start is under way or came to its end: then ours is over, and theirs is left alone.
fn has_newer(follower: &Follower, revision: Revision) -> bool {
    follower.pods().any(|pod| is_after(pod, revision) && !sight::has_ended(pod))
}

/// Whether Kubernetes lets the record be changed into what we want; otherwise it is made again.
fn changes_in_place(record: &Service) -> bool {
    let Some(spec) = &record.spec else { return false };
    match spec.type_.as_deref().unwrap_or("ClusterIP") {
        "ClusterIP" => spec.cluster_ip.as_deref() == Some("None"),
        "ExternalName" => true,
        _ => false,
    }
}

/// Whether it was the app's own quota that refused a pod, and no other one of the namespace.
fn is_our_quotas(error: &ClusterError) -> bool {
    let ours = format!("exceeded quota: {},", object::QUOTA);
    matches!(&error.failure, pando_cluster::Failure::QuotaExceeded(message) if message.contains(&ours))
}

/// A pod that the API server did not take.
fn refused(error: ClusterError) -> Error {
    match error.failure {
        pando_cluster::Failure::QuotaExceeded(_) => {
            let mapped = Error::new(Code::CapacityWouldOversubscribe, error.to_string());
            let remedy = error.remedy().unwrap_or_default();
            mapped.remedy(remedy).caused_by(error)
        }
        _ => unchanged(error),
    }
}

/// Takes away what belongs to workloads that left the plan (S-40).
pub(crate) async fn remove_leftovers(call: &Call<'_>, plan: &Plan, ground: &Ground) -> Result<(), Error> {
    let left = |workload: Option<&str>| workload.filter(|workload| *workload != plan.workload.name).map(str::to_owned);
    let mut leftovers: BTreeMap<String, Vec<&Service>> = BTreeMap::new();
    for record in &ground.records {
        if let Some(workload) = left(objects::workload_of(&record.metadata)) {
            leftovers.entry(workload).or_default().push(record);
        }
    }
    for pod in &ground.pods {
        if let Some(workload) = left(objects::workload_of(&pod.metadata)) {
            leftovers.entry(workload).or_default();
        }
    }
    for (workload, records) in leftovers {
        for record in records {
            call.delete(record).await.map_err(unchanged)?;
        }
        // Listed after the record went: a pod made since our own list cannot have its gate opened any more.
        let mut follower = Follower::start(call.cluster, call.env, &call.namespace(), Some(&workload));
        call.listed(&mut follower).await?;
        let pods: Vec<Pod> = follower.pods().cloned().collect();
        call.end(&pods, &mut follower).await?;
        let secret = call
            .read::<k8s_openapi::api::core::v1::Secret>(&objects::env_secret_name(&workload))
            .await
            .map_err(unread)?;
        if let Some(secret) = secret.filter(|secret| is_ours(&secret.metadata)) {
            call.delete(&secret).await.map_err(unchanged)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_apps_own_quota_is_told_from_a_lack_of_room() {
        let refused = |quota: &str| {
            let message = format!(
                "pods \"web-7\" is forbidden: exceeded quota: {quota}, requested: limits.cpu=200m, used: limits.cpu=800m, limited: limits.cpu=900m"
            );
            let key = ObjectKey::namespaced(Kind::Pod, "pando-a", "web-7");
            ClusterError::new("create", key, pando_cluster::Failure::QuotaExceeded(message))
        };
        assert!(is_our_quotas(&refused("pando-quota")));
        assert!(!is_our_quotas(&refused("pando-quota-of-an-admin")) && !is_our_quotas(&refused("team")));
    }

    #[test]
    fn records_that_kubernetes_cannot_change_are_made_again() {
        for (spec, in_place) in [
            (json!({"clusterIP": "None"}), true),
            (json!({"type": "ClusterIP", "clusterIP": "None"}), true),
            (json!({"type": "ExternalName", "externalName": "x"}), true),
            (json!({"type": "ClusterIP", "clusterIP": "10.96.0.9"}), false),
            (json!({"type": "NodePort", "clusterIP": "10.96.0.9"}), false),
        ] {
            let service: Service = serde_json::from_value(json!({"metadata": {}, "spec": spec})).expect("a Service");
            assert_eq!(changes_in_place(&service), in_place, "{spec}");
        }
    }
}
