//! What a workload wrote: each line once and in order, whatever was cut, rotated or forgotten on the way (S-56).
//!
//! `choose` decides which pod is read and what comes after it, `reading` reads one pod's log to its end over as many answers as that
//! takes, `lines` cuts answers into lines, `place` tells what of an answer is new, `words` what a node says in place of a log, and
//! `pace` how often it is asked.
//!
//! What has to be reckoned with, as kubelets of Kubernetes 1.34 over containerd do it (tried, unless another source is named):
//!
//! - The time asked for is cut to whole seconds, so answers begin with lines that were read before. A line of the error output may
//!   stand before an older one of the standard output.
//! - A line of more than 16 KiB is stored in parts, each with a time of its own, and shown as one line with the first part's. An
//!   answer that begins between two parts begins with text that has no time. `tailLines` counts parts, so of an app that writes
//!   such lines fewer come than were asked for. The last line of a container may have no line break.
//! - Each 10 s a log of more than 10 MiB is rotated (one of an app that writes fast may have 110 MB by then), and only the newest
//!   file is ever read from the beginning: right after a rotation there is nothing to read. A gap is told where the last line read
//!   is no longer there.
//! - A followed log goes on over a rotation, without loss, while its reader keeps up. One whose reader is late **lost a whole file
//!   and then told 780 lines twice** in one and the same answer, since each rotation that the kubelet noticed while it waited for the
//!   reader makes it open the newest file anew. So an answer that goes back is dropped and asked for again from the last line on;
//!   and a reader that was away is told of a gap where the lines' times pause for longer than a rotation takes.
//! - A kubelet that has not reached the end of a file when that is rotated does not notice: its answer fell silent at the file's end
//!   while the app wrote on. So silence is no proof of anything, and after a while the log is asked for once more.
//! - The end of an answer says nothing: a container that ended, a pod that was deleted, and an API server that lost its node all look
//!   alike. The container's state decides. Its last lines may reach the log a moment after its end shows.
//! - Trouble is told with status 200, as a line without a time; it names paths of the node and is not passed on.

mod choose;
mod lines;
mod pace;
mod place;
mod reading;
mod words;

use std::collections::VecDeque;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::unfold;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use pando_api::{Code, Error, LogEvent, LogOptions, LogStream};
use pando_cluster::budget;
use pando_cluster::env::Instant;

use self::choose::Next;
use self::reading::{Reading, Source, Step};
use crate::call::Call;
use crate::check;
use crate::error::unread;
use crate::follow::{Followed, Follower};
use crate::ground;
use crate::objects::workload_of;
use crate::record::Revision;

/// A workload whose record was raised is stopped unless its next pod comes within this time of its last one's end.
const HAND_OVER: Duration = Duration::from_secs(10);
/// A pod on its way is looked at so often at least.
const LOOK: Duration = Duration::from_mins(1);

/// Opens the log of a workload: finds the newest pod that has started, and answers what is read of it.
pub(crate) async fn open(call: &Call<'_>, workload: &str, options: &LogOptions) -> Result<LogStream, Error> {
    check::workload_name("workload", workload)
        .map_err(|problem| Error::invalid(Code::ValidInvalid, "the log", &[*problem]))?;
    let stage = call.env.timeout(call.within_deadline(budget::TRYING), first(call, workload, options)).await;
    let stage = stage.map_err(|elapsed| {
        Error::new(Code::AdapterUnavailable, format!("the log of workload {workload:?} could not be opened in time"))
            .caused_by(elapsed)
    })??;
    let source = Source {
        cluster: call.cluster.clone(),
        env: call.env.clone(),
        namespace: call.namespace(),
        workload: workload.to_owned(),
    };
    let log = Log { source, options: options.clone(), stage, ready: VecDeque::new(), given: None };
    Ok(unfold(log, |mut log| async move { log.next().await.map(|event| (event, log)) }).boxed())
}

async fn first(call: &Call<'_>, workload: &str, options: &LogOptions) -> Result<Stage, Error> {
    let none = || {
        let message = format!("there is no workload {workload:?} in bundle {:?}", call.app.bundle_id());
        Error::new(Code::NotFound, message).remedy("`observe` tells which workloads there are")
    };
    if ground::find(call).await?.is_none() {
        return Err(none());
    }
    let (records, pods) = call.records_and_pods().await?;
    let newest = choose::newest_started(workload, pods.iter());
    let mut records = records.iter().filter(|record| workload_of(&record.metadata) == Some(workload));
    let next = || choose::next(workload, pods.iter(), None);
    Ok(match newest {
        Some(pod) => Stage::Reading(Box::new(Reading::new(pod, options, call.env))),
        None if records.next().is_none() && next() == Next::Nothing => return Err(none()),
        None if options.follow => Stage::Next(None),
        None => Stage::Over,
    })
}

/// A log that is being read.
struct Log {
    source: Source,
    options: LogOptions,
    stage: Stage,
    /// What was read and not yet asked for: no more than one piece of an answer holds.
    ready: VecDeque<LogEvent>,
    /// When the reader was given something last.
    given: Option<Instant>,
}

enum Stage {
    /// The pod after that of this revision is waited for.
    Next(Option<Revision>),
    /// A pod's log is read.
    Reading(Box<Reading>),
    /// There is no more.
    Over,
}

impl Log {
    async fn next(&mut self) -> Option<Result<LogEvent, Error>> {
        let left = self.given.take().map(|given| self.source.env.now().since(given));
        if let (Stage::Reading(reading), Some(left)) = (&mut self.stage, left) {
            reading.was_left(left);
        }
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.given = Some(self.source.env.now());
                return Some(Ok(event));
            }
            if let Err(error) = self.advance().await? {
                self.stage = Stage::Over;
                // With a bundle that is taken away go the rights to read what is left of it.
                let is_gone = error.code == Code::AdapterUnavailable && self.source.is_taken_away().await;
                return (!is_gone).then_some(Err(error));
            }
        }
    }

    /// Does the next thing; `None` when there is none.
    async fn advance(&mut self) -> Option<Result<(), Error>> {
        match &mut self.stage {
            Stage::Over => return None,
            Stage::Reading(reading) => match reading.step(&self.source, &mut self.ready).await {
                Ok(Step::More) => {}
                Ok(Step::Over) if self.options.follow => self.stage = Stage::Next(reading.revision()),
                Ok(Step::Over) => self.stage = Stage::Over,
                Err(error) => return Some(Err(error)),
            },
            Stage::Next(after) => match self.source.successor(*after).await {
                Ok(Some(pod)) => {
                    // The last lines were those of the first pod; of its successors all is wanted.
                    let since = self.options.since;
                    let options = LogOptions { follow: true, since, tail: None };
                    self.stage = Stage::Reading(Box::new(Reading::new(&pod, &options, &self.source.env)));
                }
                Ok(None) => self.stage = Stage::Over,
                Err(error) => return Some(Err(error)),
            },
        }
        Some(Ok(()))
    }
}

impl Source {
    /// Waits for the pod after that of revision `after`; `None` when the workload has ended or was stopped.
    async fn successor(&self, after: Option<Revision>) -> Result<Option<Pod>, Error> {
        if !self.is_raised(after).await? {
            return Ok(None);
        }
        let mut follower =
            Follower::start(&self.cluster, &self.env, &self.namespace, Followed::Workload(self.workload.clone()));
        follower.listed(&self.env, budget::TRYING).await.map_err(|trouble| match trouble {
            Some(trouble) => unread(trouble),
            None => Error::new(Code::AdapterUnavailable, "the workload's pods could not be listed in time"),
        })?;
        let mut seen = self.env.now();
        loop {
            let pods: Vec<&Pod> = follower.pods().collect();
            let wait = match choose::next(&self.workload, pods.iter().copied(), after) {
                Next::Read(pod) => return Ok(Some(pod.clone())),
                Next::Await => {
                    seen = self.env.now();
                    LOOK
                }
                Next::Nothing if self.env.now().since(seen) >= HAND_OVER || !self.is_raised(after).await? => {
                    return Ok(None);
                }
                Next::Nothing => HAND_OVER.saturating_sub(self.env.now().since(seen)),
            };
            // Whether something was told or not, it is looked at again.
            let _ = self.env.timeout(wait, follower.next()).await;
        }
    }

    async fn is_taken_away(&self) -> bool {
        let namespace = self.cluster.read::<Namespace>(None, &self.namespace).await;
        namespace.is_ok_and(|it| it.is_none_or(|it| it.metadata.deletion_timestamp.is_some()))
    }

    async fn is_raised(&self, after: Option<Revision>) -> Result<bool, Error> {
        let record = self.cluster.read::<Service>(Some(&self.namespace), &self.workload).await.map_err(unread)?;
        Ok(choose::is_raised(record.as_ref().filter(|record| pando_cluster::names::is_ours(&record.metadata)), after))
    }
}
