//! What would become of a workload, by the very decision that an apply makes.

use k8s_openapi::api::core::v1::{Pod, Service};
use pando_api::{Error, Fate, FieldChange, Foreseen, WorkloadPreview};
use pando_cluster::Kind;
use pando_cluster::names::label;
use pando_network::ClusterAddresses;

use super::objects::{Environment, Objects};
use super::{Live, of, parts, starts};
use crate::adopt::Adoption;
use crate::call::{Call, name};
use crate::digest::PlanDigest;
use crate::fetch;
use crate::objects::{service, workload_of_pod, workload_of_record};
use crate::plan::{Plan, Workload};
use crate::pod::{Template, pod, pod_name};
use crate::pull::Pulls;
use crate::record::{ADOPTED, Before, Revision, Seen, Step, Wanted, decide, plan_digest, pod_revision};
use crate::sight::{self, Sight};
use crate::start::{changes_in_place, mending};

/// All that the decision about a workload takes.
pub(super) struct Mind<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) plan: &'a Plan,
    pub(super) addresses: &'a ClusterAddresses,
    pub(super) pulls: &'a Pulls<'a>,
    pub(super) live: &'a Live,
    pub(super) records: &'a [Service],
    pub(super) workload: &'a Workload,
    pub(super) environment: &'a Environment,
}

impl Mind<'_> {
    /// Tells what would become of the workload, and of its objects. `before` is what has been foreseen of others.
    pub(super) fn foresee(
        &self,
        objects: &mut Objects<'_>,
        before: &[WorkloadPreview],
    ) -> Result<WorkloadPreview, Error> {
        let name = &*self.workload.name;
        let record = self.records.iter().find(|record| workload_of_record(record) == Some(name));
        let own: Vec<Pod> = self.live.pods.iter().filter(|pod| workload_of_pod(pod) == Some(name)).cloned().collect();
        let Environment { key, key_lost, same, .. } = self.environment;
        let digest = PlanDigest::of(self.workload, key);
        let adopts = Adoption { workload: self.workload, same_env: *same };
        let wanted = Wanted { digest: &digest, key_lost: *key_lost && !own.is_empty(), adopts: &adopts };
        let step = decide(Seen { record, pods: &own }, wanted);
        let told = |would| WorkloadPreview {
            workload: name.to_owned(),
            would,
            why: String::new(),
            differs: Vec::new(),
            waits_for: Vec::new(),
        };
        match step {
            Step::Keep { pod, redigest } => {
                self.record(record, pod_revision(pod), objects)?;
                // The digest is under a key that is yet to be drawn.
                let digest = redigest.then_some("[drawn anew]");
                objects.patch(pod, &mending(pod, name, digest).0)?;
                for other in own.iter().filter(|other| other.metadata.uid != pod.metadata.uid) {
                    objects.remove(other);
                }
                Ok(WorkloadPreview { waits_for: comes_up(pod), ..told(Foreseen::Unchanged) })
            }
            Step::Adopt { pod } => {
                let mut patch = mending(pod, name, Some(&digest.to_string())).0;
                patch["metadata"]["labels"][label::REVISION] = ADOPTED.to_string().into();
                objects.patch(pod, &patch)?;
                self.record(record, Some(ADOPTED), objects)?;
                Ok(told(Foreseen::Adopted))
            }
            Step::Await { pod } => {
                self.record(record, pod_revision(pod), objects)?;
                objects.tell(Kind::Pod, crate::call::name(&pod.metadata), Fate::Leave, Vec::new());
                let waits_for = vec![format!("the start of pod {} by another call", crate::call::name(&pod.metadata))];
                Ok(WorkloadPreview { waits_for, ..told(Foreseen::Awaited) })
            }
            Step::Start { revision, after } => {
                let old = newest(&own);
                let differs = old.map(|old| self.differing(old, &digest, revision)).unwrap_or_default();
                let why = why(after, record, old, &digest, differs.is_empty());
                let waits_for = self.waits(&own, before);
                self.record(record, Some(revision), objects)?;
                for pod in &own {
                    objects.remove(pod);
                }
                objects.tell(Kind::Pod, pod_name(name, revision), Fate::Create, Vec::new());
                Ok(WorkloadPreview { why, differs, waits_for, ..told(foreseen(after)) })
            }
        }
    }

    /// Tells what would become of the workload's record.
    fn record(
        &self,
        live: Option<&Service>,
        revision: Option<Revision>,
        objects: &mut Objects<'_>,
    ) -> Result<(), Error> {
        let Some(revision) = revision else { return Ok(()) };
        let desired = service(self.call.app, self.workload, revision);
        match live {
            Some(live) if changes_in_place(live) => objects.ensure(&desired, Some(live)),
            Some(live) => objects.replace(&desired, live),
            // A stranger's Service of that name is refused.
            None => {
                objects.ensure(&desired, self.live.services.iter().find(|it| it.metadata.name == desired.metadata.name))
            }
        }
    }

    /// In what the pod that was there differs from the plan.
    fn differing(&self, old: &Pod, digest: &PlanDigest, revision: Revision) -> Vec<FieldChange> {
        let pull_secret = self.pulls.name_for(self.workload);
        let template = Template {
            app: self.call.app,
            workload: self.workload,
            digest,
            pull_secret: pull_secret.as_deref(),
            settings: self.call.settings,
            cluster: self.addresses,
        };
        let mut differing = parts::differing(old, &pod(&template, revision));
        differing.extend(self.environment.changes.iter().cloned());
        differing
    }

    /// What a start would wait for, in order.
    fn waits(&self, own: &[Pod], before: &[WorkloadPreview]) -> Vec<String> {
        let mut waits = Vec::new();
        for dependency in &self.workload.depends_on {
            let has_health = self.plan.workload(dependency).is_some_and(|workload| workload.health.is_some());
            let starts = of(before, dependency).is_none_or(|foreseen| starts(foreseen.would));
            let pods = self.live.pods.iter().filter(|pod| workload_of_pod(pod) == Some(dependency));
            let is_ready = !starts && pods.clone().any(sight::is_ready);
            match (has_health, starts) {
                (true, _) if !is_ready => waits.push(format!("workload {dependency:?} to be ready")),
                (false, true) => waits.push(format!("workload {dependency:?} to run")),
                _ => {}
            }
        }
        let image = self.workload.image.as_str();
        if let Some(old) = fetch::older(own, self.workload) {
            waits.push(format!("image {image} to be pulled, while {} runs on", name(&old.metadata)));
        }
        for old in own.iter().filter(|pod| !sight::has_ended(pod)) {
            let grace = sight::grace(old).as_secs();
            waits.push(format!("pod {} to be gone (it is given {grace} s to end)", name(&old.metadata)));
        }
        waits
    }
}

/// What is told of a workload that left the plan.
pub(super) fn leave(workload: &str, records: &[Service], pods: &[Pod], objects: &mut Objects<'_>) -> WorkloadPreview {
    for record in records.iter().filter(|record| workload_of_record(record) == Some(workload)) {
        objects.remove(record);
    }
    let mut waits_for = Vec::new();
    for pod in pods.iter().filter(|pod| workload_of_pod(pod) == Some(workload)) {
        objects.remove(pod);
        waits_for.push(format!("pod {} to be gone", name(&pod.metadata)));
    }
    WorkloadPreview {
        workload: workload.to_owned(),
        would: Foreseen::Removed,
        why: "it is not in the plan".to_owned(),
        differs: Vec::new(),
        waits_for,
    }
}

/// What comes of a start.
const fn foreseen(after: Before) -> Foreseen {
    match after {
        Before::Nothing => Foreseen::Created,
        Before::OtherPlan => Foreseen::Replaced,
        Before::Ended => Foreseen::StartedAgain,
    }
}

/// The pod of the newest start; one that runs before one that has ended.
fn newest(own: &[Pod]) -> Option<&Pod> {
    own.iter().max_by_key(|pod| (!sight::has_ended(pod), pod_revision(pod)))
}

/// What is waited for of a pod that stays.
fn comes_up(pod: &Pod) -> Vec<String> {
    let is_coming = matches!(sight::sight(pod), Sight::Coming { .. });
    is_coming.then(|| format!("pod {} to run", name(&pod.metadata))).into_iter().collect()
}

/// Why a workload would be started, where no field of the plan says so.
fn why(after: Before, record: Option<&Service>, old: Option<&Pod>, digest: &PlanDigest, no_field: bool) -> String {
    let current = record.and_then(|record| Revision::of(&record.metadata));
    let why = match (after, old) {
        (Before::Nothing, _) | (Before::OtherPlan, None) => "",
        (Before::Ended, Some(old)) if sight::is_going(old) => "it is being ended",
        (Before::Ended, Some(_)) => "it has ended",
        (Before::Ended, None) => "it was stopped",
        (Before::OtherPlan, Some(old)) if pod_revision(old) != current => "its Service does not lead to its pod",
        (Before::OtherPlan, Some(old)) => match plan_digest(old) {
            None => "its pod was made by another version of the adapter",
            Some(_) if !no_field => "",
            Some(found) if !found.agrees_on_env(digest) => {
                "its environment or its files are not those it was started with"
            }
            Some(_) => "its plan is not the one it was started with",
        },
    };
    why.to_owned()
}
