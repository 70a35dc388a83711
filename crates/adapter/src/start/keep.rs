//! Leaving a pod as it is: repairing what is around it, adopting it, or leaving it to whoever starts it.

use k8s_openapi::api::core::v1::{Pod, Service};
use pando_api::{Error, Gate, GateProof, Outcome};
use pando_cluster::names::{annotation, label, label_value};
use serde_json::{Value, json};

use super::service::make_record;
use super::{RIVAL, Starter, Tried};
use crate::error::unchanged;
use crate::record::{ADOPTED, pod_revision};
use crate::sight::{self, Sight};

impl Starter<'_> {
    /// The pod stays; its record is repaired, and other pods of the workload go.
    pub(super) async fn keep(
        &self,
        record: Option<&Service>,
        pod: &Pod,
        own: &[Pod],
        redigest: bool,
    ) -> Result<Tried, Error> {
        if let (Some(record), Some(revision)) = (record, pod_revision(pod))
            && !self.repair(record, revision).await?
        {
            return Ok(Tried::Overtaken);
        }
        // Somebody changed by hand what the pod is given by this very plan.
        self.give().await?;
        let Some(mended) = self.mend(pod, redigest).await? else { return Ok(Tried::Overtaken) };
        let pod = &mended;
        let others: Vec<Pod> = own.iter().filter(|other| other.metadata.uid != pod.metadata.uid).cloned().collect();
        let running = sight::sight(pod) == Sight::Running;
        if others.is_empty() && running {
            return Ok(self.settled(Outcome::Unchanged, None, pod.clone()));
        }
        let mut follower = self.call.follow(self.followed()).await?;
        // Until this one runs, the log of one that ended stays.
        let others: Vec<Pod> = others.into_iter().filter(|other| running || !sight::has_ended(other)).collect();
        self.call.end(&others, &mut follower).await?;
        if running {
            return Ok(self.settled(Outcome::Unchanged, None, pod.clone()));
        }
        self.follow(follower, pod, &Outcome::Unchanged).await
    }

    /// Gives the pod back the labels that somebody took off it, without which its name does not lead to it, and the digest whose
    /// key was lost. `None` when it changed meanwhile.
    async fn mend(&self, pod: &Pod, redigest: bool) -> Result<Option<Pod>, Error> {
        let digest = redigest.then(|| self.template.digest.to_string());
        let (body, fields) = mending(pod, self.workload(), digest.as_deref());
        if fields.is_empty() {
            return Ok(Some(pod.clone()));
        }
        match self.call.patch(pod, body, fields).await {
            Ok(mended) => Ok(Some(mended)),
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(None),
            Err(error) => Err(unchanged(error)),
        }
    }

    /// Makes a pod of the adapter before this one the pod of revision 0: it runs on, and is ours from then on (S-81). It runs
    /// without a gate and by another template, which is told as drift until its next replacement.
    pub(super) async fn adopt(&self, record: Option<&Service>, pod: &Pod) -> Result<Tried, Error> {
        let body = json!({"metadata": {
            "labels": {label::WORKLOAD: self.workload(), label::REVISION: ADOPTED.to_string()},
            "annotations": {annotation::PLAN_DIGEST: self.template.digest.to_string()},
        }});
        // First the label that the record's selector will ask for, or the pod would leave the endpoints for a moment.
        let fields = [format!("metadata.labels.{}", label::REVISION), "metadata.annotations".to_owned()];
        let labels = json!({"metadata": {"labels": body["metadata"]["labels"]}});
        let labelled = match self.call.patch(pod, labels, fields[..1].to_vec()).await {
            Ok(labelled) => labelled,
            Err(error) if error.is_conflict() || error.is_not_found() => return Ok(Tried::Overtaken),
            Err(error) => return Err(unchanged(error)),
        };
        let recorded = match record {
            Some(record) => self.repair(record, ADOPTED).await?,
            None => make_record(self.call, self.template.workload, ADOPTED).await?,
        };
        if !recorded {
            return Ok(Tried::Overtaken);
        }
        // Last the digest: until then an adoption that was cut short is begun again.
        match self.call.patch(&labelled, body, fields[1..].to_vec()).await {
            Ok(adopted) => {
                let gate = Gate { millis: None, proof: GateProof::Ungated };
                Ok(self.settled(Outcome::Adopted, Some(gate), adopted))
            }
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(Tried::Overtaken),
            Err(error) => Err(unchanged(error)),
        }
    }

    /// Gives a start that somebody else seems to be making the time to end.
    pub(super) async fn leave_alone(&self, pod: &Pod) -> Result<(), Error> {
        let mut follower = self.call.follow(self.followed()).await?;
        let moved = async {
            while follower.same(&pod.metadata).is_some_and(sight::is_gated) {
                follower.next().await;
            }
        };
        // When nobody opens the gate, its maker is gone, and we start one of our own.
        let _ = self.call.env.timeout(RIVAL, moved).await;
        Ok(())
    }
}

/// The merge patch that mends a pod of the workload, and the fields in it: the labels that were taken off it, and the plan's digest
/// where it is to be written anew.
pub(crate) fn mending(pod: &Pod, workload: &str, digest: Option<&str>) -> (Value, Vec<String>) {
    let mut body = json!({});
    let mut fields = Vec::new();
    let revision = pod_revision(pod).map(|revision| revision.to_string());
    for (key, wanted) in [(label::WORKLOAD, Some(workload)), (label::REVISION, revision.as_deref())] {
        if wanted.is_some() && label_value(&pod.metadata, key) != wanted {
            body["metadata"]["labels"][key] = wanted.into();
            fields.push(format!("metadata.labels.{key}"));
        }
    }
    if let Some(digest) = digest {
        body["metadata"]["annotations"][annotation::PLAN_DIGEST] = digest.into();
        fields.push("metadata.annotations".to_owned());
    }
    (body, fields)
}
