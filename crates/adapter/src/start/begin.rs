//! Starting a pod at a revision.

use k8s_openapi::api::core::v1::{Pod, Service};
use pando_api::{Code, Error, Outcome};
use pando_cluster::names::object;
use pando_cluster::{ClusterError, Failure};
use serde_json::json;

use super::service::make_record;
use super::{Raise, Starter, Tried};
use crate::call::{Begun, name};
use crate::error::{unchanged, unread};
use crate::follow::Follower;
use crate::pod::pod;
use crate::record::{Before, Revision, is_after, is_before, pod_revision};
use crate::{objects, sight};

impl Starter<'_> {
    /// Starts a pod at `revision`.
    pub(super) async fn begin(&self, raise: Raise<'_>, revision: Revision, after: Before) -> Result<Tried, Error> {
        self.call.tell(self.workload(), "starting", "");
        let fresh = matches!(raise, Raise::Done);
        let raised = match raise {
            Raise::Done => true,
            Raise::From(Some(record)) => self.repair(record, revision).await?,
            Raise::From(None) => make_record(self.call, self.template.workload, revision).await?,
        };
        if !raised {
            return Ok(Tried::Overtaken);
        }
        let desired = pod(&self.template, revision);
        let begun = Begun::Start(self.workload().to_owned(), revision);
        let made = if fresh {
            self.create_alone(&desired, begun.clone()).await
        } else {
            // The old pod's object is gone before the new one exists.
            let mut follower = self.call.follow(self.followed()).await?;
            if has_newer(&follower, revision) {
                return Ok(Tried::Overtaken);
            }
            self.end_older(&mut follower, revision).await?;
            self.give().await?;
            self.call.begin(begun.clone());
            self.call.create(&desired).await.map(|made| (follower, made))
        };
        let (mut follower, made) = match made {
            Ok(made) => made,
            // Another caller's, by now.
            Err(error) if error.is_already_exists() => {
                self.call.finish(&begun);
                return Ok(Tried::Overtaken);
            }
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

    /// Creates the pod in a namespace that this call made: there is nothing to end first, and nothing to list. Whoever makes
    /// another one all the same raises the record first, and is told of.
    async fn create_alone(&self, desired: &Pod, begun: Begun) -> Result<(Follower, Pod), ClusterError> {
        self.call.begin(begun);
        let feed = self.call.feed();
        let made = self.call.create(desired).await?;
        let follower = match feed {
            Some(feed) => Follower::fed(feed, self.followed(), Vec::new()),
            None => Follower::after(self.call.cluster, self.call.env, &made, self.followed()),
        };
        Ok((follower, made))
    }

    /// Ends what runs, or could come to run, of older revisions, and waits until it is gone. Ended pods stay for their logs.
    async fn end_older(&self, follower: &mut Follower, revision: Revision) -> Result<(), Error> {
        let older = |pod: &&Pod| is_before(pod, revision) && !sight::has_ended(pod);
        let older: Vec<Pod> = follower.pods().filter(older).cloned().collect();
        self.call.end(&older, follower).await
    }

    /// Whether pods of other starts of the workload are there that have not ended.
    async fn has_others(&self, revision: Revision) -> Result<bool, Error> {
        let pods = self.call.ours::<Pod>().await.map_err(unread)?;
        Ok(pods.iter().any(|pod| {
            objects::workload_of_pod(pod) == Some(self.workload())
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
    pub(super) async fn remove(&self, made: &Pod, follower: &mut Follower) -> bool {
        match self.call.take_away(made, follower).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(app = %self.call.app, pod = name(&made.metadata), error = &error as &dyn std::error::Error, "pod of a failed start not removed");
                false
            }
        }
    }
}

/// Whether another caller's later start is under way or came to its end: then ours is over, and theirs is left alone.
pub(super) fn has_newer(follower: &Follower, revision: Revision) -> bool {
    follower.pods().any(|pod| is_after(pod, revision) && !sight::has_ended(pod))
}

/// Whether it was the app's own quota that refused a pod, and no other one of the namespace.
fn is_our_quotas(error: &ClusterError) -> bool {
    let ours = format!("exceeded quota: {},", object::QUOTA);
    matches!(&error.failure, Failure::QuotaExceeded(message) if message.contains(&ours))
}

/// A pod that the API server did not take.
fn refused(error: ClusterError) -> Error {
    match error.failure {
        Failure::QuotaExceeded(_) => {
            let mapped = Error::new(Code::CapacityWouldOversubscribe, error.to_string());
            let remedy = error.remedy().unwrap_or_default();
            mapped.remedy(remedy).caused_by(error)
        }
        _ => unchanged(error),
    }
}

#[cfg(test)]
mod tests {
    use pando_cluster::{Kind, ObjectKey};

    use super::*;

    #[test]
    fn only_the_apps_own_quota_is_told_from_a_lack_of_room() {
        let refused = |quota: &str| {
            let message = format!(
                "pods \"web-7\" is forbidden: exceeded quota: {quota}, requested: limits.cpu=200m, used: limits.cpu=800m, limited: limits.cpu=900m"
            );
            let key = ObjectKey::namespaced(Kind::Pod, "pando-a", "web-7");
            ClusterError::new("create", key, Failure::QuotaExceeded(message))
        };
        assert!(is_our_quotas(&refused("pando-quota")));
        assert!(!is_our_quotas(&refused("pando-quota-of-an-admin")) && !is_our_quotas(&refused("team")));
    }
}
