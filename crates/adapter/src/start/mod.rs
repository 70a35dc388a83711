//! Starting a workload, so that never two pods of it run, whoever calls, dies or is late (see [`crate::record`]).

mod begin;
mod end;
mod keep;
mod service;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use pando_api::{Code, Error, Gate, Outcome, WorkloadResult};
use pando_cluster::budget;
use pando_cluster::converge::Known;
use pando_cluster::resilient::backoff;

pub(crate) use self::keep::mending;
pub(crate) use self::service::{changes_in_place, make_record};

use self::begin::has_newer;

use crate::adopt::Adoption;
use crate::call::Call;
use crate::error::not_made;
use crate::follow::Followed;
use crate::ground::{Pending, Standing};
use crate::pod::{Template, pod_name};
use crate::record::{Before, Revision, Seen, Step, Wanted, decide, is_after};
use crate::wait::{self, Dependency};
use crate::{fetch, objects, sight};

/// How often a start may be overtaken by another caller before we give up.
const ROUNDS: u32 = 10;

/// How long another caller's start, seen half-way, is left alone.
const RIVAL: Duration = Duration::from_secs(2);

/// A workload, and what it takes to make it run.
pub(crate) struct Starter<'a> {
    pub(crate) call: &'a Call<'a>,
    pub(crate) template: Template<'a>,
    pub(crate) standing: &'a Standing,
    pub(crate) dependencies: Vec<Dependency<'a>>,
}

/// A workload that is as it should be.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) result: WorkloadResult,
    /// Its pod.
    pub(crate) pod: Box<Pod>,
}

impl Starter<'_> {
    fn workload(&self) -> &str {
        &self.template.workload.name
    }

    /// Makes the workload run, unless it does already. `records` and `pods` are the namespace's: what is to be
    /// ended or begun by them is read again.
    pub(crate) async fn settle(&self, mut records: Vec<Service>, mut pods: Vec<Pod>) -> Result<Settled, Error> {
        let mut raised = self.standing.raised;
        let (mut listed, mut prepared, mut patient) = (raised.is_some(), false, true);
        let mut unready = Vec::new();
        for round in 0..ROUNDS {
            let record = records.iter().find(|record| objects::workload_of_record(record) == Some(self.workload()));
            let own: Vec<Pod> =
                pods.iter().filter(|pod| objects::workload_of_pod(pod) == Some(self.workload())).cloned().collect();
            let seen = Seen { record, pods: &own };
            let step = self.decide(seen);
            // Pods are ended and begun only by what was read in full a moment ago.
            if !matches!(step, Step::Keep { .. }) && !std::mem::replace(&mut listed, true) {
                (records, pods) = self.call.records_and_pods().await?;
                continue;
            }
            if !prepared && !matches!(step, Step::Keep { .. } | Step::Adopt { .. }) {
                let preparation = Box::pin(self.prepare(&own)).await?;
                prepared = preparation.is_done;
                unready = preparation.unready;
                listed = raised.is_some() || !preparation.took_time;
                if !listed {
                    continue;
                }
            }
            let tried = match (raised.take(), step) {
                (Some(revision), _) => Box::pin(self.begin(Raise::Done, revision, Before::Nothing)).await?,
                (None, Step::Keep { pod, redigest }) => self.keep(record, pod, &own, redigest).await?,
                (None, Step::Adopt { pod }) => self.adopt(record, pod).await?,
                (None, Step::Await { pod }) if patient => {
                    self.leave_alone(pod).await?;
                    patient = false;
                    Tried::Overtaken
                }
                (None, Step::Await { .. }) => {
                    let revision = seen.highest().unwrap_or_default().next();
                    Box::pin(self.begin(Raise::From(record), revision, Before::Ended)).await?
                }
                (None, Step::Start { revision, after }) => {
                    Box::pin(self.begin(Raise::From(record), revision, after)).await?
                }
            };
            let taken = match tried {
                Tried::Settled(mut settled) => {
                    settled.result.unready_dependencies = unready;
                    return Ok(*settled);
                }
                Tried::Overtaken => None,
                Tried::Taken(revision) => Some(revision),
            };
            // Callers that met each other should not meet again.
            let call = self.call;
            call.env.sleep(call.env.jitter(backoff(budget::FIRST_BACKOFF, budget::LONGEST_BACKOFF, round))).await;
            (records, pods) = call.records_and_pods().await?;
            let ended = taken.filter(|revision| was_ended(&records, &pods, self.workload(), *revision));
            if let Some(revision) = ended {
                // Whoever raised the record may be about to start the workload: then that is what came of it.
                if !self.is_succeeded(revision).await? {
                    return Err(self.ended_by_another(revision));
                }
                (records, pods) = call.records_and_pods().await?;
            }
        }
        Err(self.contended())
    }

    fn decide<'s>(&self, seen: Seen<'s>) -> Step<'s> {
        let (key_lost, same_env) = (self.standing.key_lost, self.standing.same_env);
        let adopts = Adoption { workload: self.template.workload, same_env };
        decide(seen, Wanted { digest: self.template.digest, key_lost, adopts: &adopts })
    }

    /// What comes before a start: those that the workload depends on are ready (S-37), and while an older version runs the new
    /// one's image is had (S-79).
    async fn prepare(&self, own: &[Pod]) -> Result<Preparation, Error> {
        let waits = self.dependencies.iter().any(Dependency::is_to_be_waited_for);
        let unready = wait::for_dependencies(self.call, self.workload(), &self.dependencies).await;
        let running = own.iter().find(|pod| sight::is_running(pod, false));
        self.in_time(running, &unready)?;
        let old = fetch::older(own, self.template.workload);
        let is_done = match old {
            Some(old) => fetch::image(self.call, &self.template, old).await?,
            None => true,
        };
        self.in_time(running, &[])?;
        Ok(Preparation { unready, took_time: waits || old.is_some(), is_done })
    }

    /// Whether another caller's later start of the workload shows within the time that a start half-way takes.
    async fn is_succeeded(&self, revision: Revision) -> Result<bool, Error> {
        let mut follower = self.call.follow(self.followed()).await?;
        let coming = async {
            while !has_newer(&follower, revision) {
                follower.next().await;
            }
        };
        Ok(self.call.env.timeout(RIVAL, coming).await.is_ok())
    }

    /// Nothing is begun when the caller's time has passed, and what runs is not ended when there is not the time to see it end and
    /// another one begin.
    fn in_time(&self, running: Option<&Pod>, unready: &[String]) -> Result<(), Error> {
        let needed = running.map_or(Duration::ZERO, sight::grace);
        if self.call.time_left().is_none_or(|left| left > needed) {
            return Ok(());
        }
        let (workload, app) = (self.workload(), self.call.app);
        let waited = match unready {
            [] => String::new(),
            unready => format!(": it waited for {} to be ready", unready.join(", ")),
        };
        let message =
            format!("workload {workload:?} of {app} could not be started by the deadline of its apply{waited}");
        Err(Error::new(Code::AdapterFailed, message).remedy("apply again, with a later deadline"))
    }

    fn ended_by_another(&self, revision: Revision) -> Error {
        let (workload, app) = (self.workload(), self.call.app);
        let pod = pod_name(workload, revision);
        let message = format!("workload {workload:?} of {app} was ended by another call while it started ({pod})");
        Error::new(Code::AdapterFailed, message).remedy("apply again if it is to run")
    }

    fn contended(&self) -> Error {
        let (workload, app) = (self.workload(), self.call.app);
        let message =
            format!("other calls kept starting or ending workload {workload:?} of {app} while this one tried to");
        Error::new(Code::AdapterFailed, message).remedy("apply again when no other apply of this bundle is in progress")
    }
}

/// What came of preparing a start.
struct Preparation {
    unready: Vec<String>,
    /// What was read before is old.
    took_time: bool,
    /// `false` when it is to be done again.
    is_done: bool,
}

/// Whether a stop or a removal took the pod of that start: its record is gone or was raised since, and nobody starts another.
fn was_ended(records: &[Service], pods: &[Pod], workload: &str, revision: Revision) -> bool {
    let record = records.iter().find(|record| objects::workload_of_record(record) == Some(workload));
    let of_workload = |pod: &Pod| objects::workload_of_pod(pod) == Some(workload);
    let rival = pods.iter().any(|pod| of_workload(pod) && is_after(pod, revision) && !sight::has_ended(pod));
    record.is_none_or(|record| Revision::of(&record.metadata) > Some(revision)) && !rival
}

/// What came of an attempt.
enum Tried {
    /// The workload is as it should be.
    Settled(Box<Settled>),
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

impl Starter<'_> {
    fn settled(&self, outcome: Outcome, gate: Option<Gate>, pod: Pod) -> Tried {
        let workload = self.workload().to_owned();
        let result = WorkloadResult { workload, outcome, gate, unready_dependencies: Vec::new() };
        Tried::Settled(Box::new(Settled { result, pod: Box::new(pod) }))
    }

    /// Writes what the workload is given, where it changes. Called when no pod is there that could start by it and is to run by
    /// another plan.
    async fn give(&self) -> Result<(), Error> {
        let Pending { env, files } = &self.standing.pending;
        if let Some(env) = env {
            self.call.ensure(env, Known::Nothing).await.map_err(not_made)?;
        }
        if let Some(files) = files {
            self.call.ensure(files, Known::Nothing).await.map_err(not_made)?;
        }
        Ok(())
    }

    fn followed(&self) -> Followed {
        Followed::Workload(self.workload().to_owned())
    }
}
