//! Carrying out a plan: the ground, then every workload, each after those it depends on and otherwise beside each other.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use pando_api::{Error, Outcome, WorkloadResult};

use crate::call::{Begun, Call, name};
use crate::digest::PlanDigest;
use crate::error::unread;
use crate::follow::Followed;
use crate::ground::{self, Ground};
use crate::known::ClusterFacts;
use crate::leftovers;
use crate::objects::workload_of_pod;
use crate::plan::{Plan, Workload};
use crate::pod::Template;
use crate::pull::Pulls;
use crate::record::pod_revision;
use crate::sight;
use crate::start::{Settled, Starter};
use crate::volumes::Keeping;
use crate::wait::Dependency;

/// Makes the bundle as the plan says.
pub(crate) async fn carry_out(
    call: &Call<'_>,
    plan: &Plan,
    facts: &ClusterFacts,
    live: Option<Namespace>,
) -> Result<Vec<WorkloadResult>, Error> {
    let pulls = Pulls::of(&plan.workloads);
    let seen = if live.is_some() { call.seen().await } else { None };
    let ground = Box::pin(ground::prepare(call, plan, &pulls, live, seen.as_ref(), &facts.addresses)).await?;
    if !ground.claims.is_empty() {
        call.begin(Begun::Claims);
    }
    let known = seen.map(|seen| seen.volumes).unwrap_or_default();
    let mut keeping = Keeping::of(call, &ground.claims, mounted(plan), &known).await?;
    let started = async {
        let leftovers = leftovers::remove_workloads(call, plan, &ground).await?;
        Workloads { call, plan, facts, pulls: &pulls, ground: &ground, leftovers }.settle_all().await
    };
    let started = match select(Box::pin(started), Box::pin(keeping.follow())).await {
        Either::Left((started, _)) => started,
        Either::Right(((), started)) => started.await,
    };
    // Also where the apply failed: what was bound meanwhile holds data.
    let kept = keeping.finish().await;
    if kept.is_ok() {
        call.finish(&Begun::Claims);
    }
    let results = match (started, kept) {
        (Ok(results), Ok(())) => results,
        (Ok(_), Err(unkept)) => return Err(unkept),
        (Err(error), Ok(())) => return Err(error),
        (Err(error), Err(unkept)) => return Err(error.detail("volumes", unkept.message)),
    };
    tidy(call, plan, &ground).await;
    Ok(results)
}

/// The claims that workloads mount.
fn mounted(plan: &Plan) -> BTreeSet<&str> {
    plan.workloads.iter().flat_map(|workload| &workload.mounts).map(|mount| &*mount.claim).collect()
}

/// Takes away what nothing has a use for any more. Failures are logged: the workloads are as they should be, and the next apply does
/// it again.
async fn tidy(call: &Call<'_>, plan: &Plan, ground: &Ground) {
    let log = |error: &Error, what: &str| {
        tracing::warn!(app = %call.app, error = error as &dyn std::error::Error, "{what}");
    };
    if let Err(error) = leftovers::remove_contents(call, ground).await {
        log(&error, "leftovers not removed");
    }
    if ground.quota_is_wide
        && let Err(error) = ground::narrow_quota(call, plan).await
    {
        log(&error, "quota not narrowed");
    }
}

/// The workloads of a plan, on their ground.
struct Workloads<'a> {
    call: &'a Call<'a>,
    plan: &'a Plan,
    facts: &'a ClusterFacts,
    pulls: &'a Pulls<'a>,
    ground: &'a Ground,
    /// Workloads were ended since the ground was looked at.
    leftovers: bool,
}

/// What became of a workload.
type End = Result<Settled, Box<Failed>>;

/// A workload that is not as it should be.
enum Failed {
    /// It could not be made so.
    By(Error),
    /// Another one, which it starts after, failed.
    After(String),
}

impl Workloads<'_> {
    /// Starts each workload when those that it depends on have come to their ends.
    async fn settle_all(&self) -> Result<Vec<WorkloadResult>, Error> {
        let mut ends: BTreeMap<&str, End> = BTreeMap::new();
        let mut waiting: Vec<&Workload> = self.plan.workloads.iter().collect();
        let mut running = FuturesUnordered::new();
        loop {
            let (free, others): (Vec<_>, Vec<_>) = waiting
                .into_iter()
                .partition(|workload| workload.depends_on.iter().all(|name| ends.contains_key(&**name)));
            waiting = others;
            for workload in free {
                let failed = workload.depends_on.iter().find(|name| ends.get(&***name).is_some_and(Result::is_err));
                let pods = workload.depends_on.iter().filter_map(|name| {
                    let settled = ends.get(&**name)?.as_ref().ok()?;
                    Some((name.clone(), settled.pod.clone()))
                });
                let pods: Vec<(String, Box<Pod>)> = pods.collect();
                let has_moved = |name: &String| {
                    let end = ends.get(&**name).and_then(|end| end.as_ref().ok());
                    end.is_some_and(|settled| settled.result.outcome != Outcome::Unchanged)
                };
                let others_moved = workload.depends_on.iter().any(has_moved);
                running.push(Box::pin(async move {
                    let end = match failed {
                        Some(other) => Err(Failed::After(other.clone())),
                        None => self.settle(workload, &pods, others_moved).await.map_err(Failed::By),
                    };
                    (&*workload.name, end.map_err(Box::new))
                }));
            }
            let Some((workload, end)) = running.next().await else { break };
            ends.insert(workload, end);
        }
        in_plan_order(self.plan, ends)
    }

    /// Settles a workload. `pods` are those that it depends on; some of them may have been begun anew meanwhile.
    async fn settle(
        &self,
        workload: &Workload,
        pods: &[(String, Box<Pod>)],
        others_moved: bool,
    ) -> Result<Settled, Error> {
        let Some(standing) = self.ground.standing.get(&workload.name) else {
            unreachable!("every workload of the plan has its ground")
        };
        let digest = PlanDigest::of(workload, &standing.key);
        let pull_secret = self.pulls.name_for(workload);
        let dependencies = pods
            .iter()
            .map(|(name, pod)| Dependency {
                workload: name,
                has_health: self.plan.workload(name).is_some_and(|workload| workload.health.is_some()),
                pod,
            })
            .collect();
        let template = Template {
            app: self.call.app,
            workload,
            digest: &digest,
            pull_secret: pull_secret.as_deref(),
            settings: self.call.settings,
            cluster: &self.facts.addresses,
        };
        let starter = Starter { call: self.call, template, standing, dependencies };
        // While others were ended and begun, this one may have ended too.
        let is_there = standing.raised.is_none();
        let (records, pods) = if is_there && (self.leftovers || others_moved) {
            self.call.records_and_pods().await?
        } else {
            (self.ground.records.clone(), self.ground.pods.clone())
        };
        Box::pin(starter.settle(records, pods)).await
    }
}

/// The results, or the first failure in plan order with what became of every workload (S-39).
fn in_plan_order(plan: &Plan, mut ends: BTreeMap<&str, End>) -> Result<Vec<WorkloadResult>, Error> {
    let mut first = None;
    let mut results = Vec::new();
    for workload in &plan.workloads {
        let failed = |outcome| WorkloadResult {
            workload: workload.name.clone(),
            outcome,
            gate: None,
            unready_dependencies: Vec::new(),
        };
        match ends.remove(&*workload.name).map(|end| end.map_err(|failed| *failed)) {
            Some(Ok(settled)) => results.push(settled.result),
            Some(Err(Failed::By(error))) => {
                results.push(failed(Outcome::Failed { reason: error.message.clone() }));
                first.get_or_insert(error);
            }
            Some(Err(Failed::After(other))) => {
                results.push(failed(Outcome::Skipped {
                    reason: format!("workload {other:?}, which it starts after, failed"),
                }));
            }
            None => {
                results.push(failed(Outcome::Skipped { reason: "it was not reached".to_owned() }));
            }
        }
    }
    match first {
        None => Ok(results),
        Some(error) => Err(error.detail("workloads", results)),
    }
}

/// Ends what the call began and did not come to the end of, so that nothing of it starts later on its own (S-80), and keeps the
/// data of what was bound meanwhile.
pub(crate) async fn undo(call: &Call<'_>, unfinished: &BTreeSet<Begun>) -> Result<(), Error> {
    let ended = end_unfinished(call, unfinished).await;
    if unfinished.contains(&Begun::Claims) {
        let claims: Vec<PersistentVolumeClaim> = call.ours().await.map_err(unread)?;
        Keeping::of(call, &claims, BTreeSet::new(), &[]).await?;
    }
    ended
}

async fn end_unfinished(call: &Call<'_>, unfinished: &BTreeSet<Begun>) -> Result<(), Error> {
    if unfinished.iter().all(|begun| *begun == Begun::Claims) {
        return Ok(());
    }
    let mut follower = call.follow(Followed::All).await?;
    let is_ours = |pod: &&Pod| {
        let start = workload_of_pod(pod).zip(pod_revision(pod));
        let start = start.map(|(workload, revision)| Begun::Start(workload.to_owned(), revision));
        let pull = Begun::Pull(name(&pod.metadata));
        !sight::has_ended(pod) && (start.is_some_and(|start| unfinished.contains(&start)) || unfinished.contains(&pull))
    };
    let pods: Vec<Pod> = follower.pods().filter(is_ours).cloned().collect();
    call.end(&pods, &mut follower).await
}
