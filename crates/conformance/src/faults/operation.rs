//! One operation in a process of its own, as the schedule has it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::channel::oneshot;
use pando_cluster::Env;
use pando_cluster::env::Instant;
use pando_fakecluster::sim::droppable;

use super::fault::Fault;
use super::scenario::Op;
use super::witness::Eyes;
use super::world::{Caller, World};

/// What happens to the process of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// Nothing.
    None,
    /// A call goes wrong.
    Fault(usize, Fault),
    /// Whoever called lets go of the call after so many polls of the process's tasks.
    Dropped(u64),
    /// The process is killed after so many polls of its tasks.
    Killed(u64),
}

/// How an operation came to its end.
pub(super) enum End {
    Returned(Result<String, pando_api::Error>),
    Dropped,
    Died,
}

/// An operation that has come to its end.
pub(super) struct Ended {
    pub(super) end: End,
    pub(super) at: Instant,
    pub(super) took: Duration,
    /// The pods that ran at that moment, by uid, with their names.
    pub(super) running: BTreeMap<String, String>,
    pub(super) points: Points,
}

/// The polls of a process at which something can befall it.
#[derive(Clone, Debug, Default)]
pub(super) struct Points {
    /// How many there were.
    polls: u64,
    /// Those in which a call was made, arrived or was answered, or a watch told something.
    told: Vec<u64>,
    /// Those in which a write arrived.
    written: Vec<u64>,
}

impl Points {
    /// Where letting go of the call can make a difference: between two polls in which it learned nothing and nothing of it
    /// arrived, only time passes. Of those a few are taken too.
    pub(super) fn to_drop(&self) -> Vec<u64> {
        Self::with_some(&self.told, self.polls, 12)
    }

    /// Where killing the process can make a difference: what it knew is lost with it, so only what it has written counts, and
    /// how far the cluster is. Of the polls between two writes a few are taken too.
    pub(super) fn to_kill(&self) -> Vec<u64> {
        Self::with_some(&self.written, self.polls, 12)
    }

    fn with_some(points: &[u64], polls: u64, others: u64) -> Vec<u64> {
        let step = polls.div_ceil(others).max(1);
        let mut all: Vec<u64> = points.iter().copied().chain((1..=polls).filter(|poll| poll % step == 0)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// How many polls there were.
    pub(super) const fn polls(&self) -> u64 {
        self.polls
    }
}

/// Tells of an operation's end, once.
#[derive(Clone)]
struct Reporter {
    sender: Arc<Mutex<Option<oneshot::Sender<Ended>>>>,
    points: Arc<Mutex<Points>>,
    began: Arc<Mutex<Instant>>,
    eyes: Arc<Eyes>,
    env: Env,
}

impl Reporter {
    fn report(&self, end: End) {
        self.eyes.look();
        let Some(sender) = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let began = *self.began.lock().unwrap_or_else(PoisonError::into_inner);
        let points = std::mem::take(&mut *self.points.lock().unwrap_or_else(PoisonError::into_inner));
        let at = self.env.now();
        // The play is there until every operation has ended.
        let _ = sender.send(Ended { end, at, took: at.since(began), running: self.eyes.running(), points });
    }
}

/// Begins `op` after `delay`, in the caller's process.
pub(super) fn begin(
    world: &World,
    caller: &Caller,
    op: Op,
    delay: Duration,
    disturbance: Disturbance,
) -> oneshot::Receiver<Ended> {
    let (sender, ended) = oneshot::channel();
    let reporter = Reporter {
        sender: Arc::new(Mutex::new(Some(sender))),
        points: Arc::default(),
        began: Arc::default(),
        eyes: Arc::clone(&world.eyes),
        env: world.env().clone(),
    };
    let fault = match disturbance {
        Disturbance::Fault(call, fault) => Some((call, fault)),
        Disturbance::None | Disturbance::Dropped(_) | Disturbance::Killed(_) => None,
    };
    let (process, dead) = (caller.process.clone(), reporter.clone());
    caller.faulty.arm(fault, move || {
        process.kill();
        dead.report(End::Died);
    });
    let (fake, caller) = (world.fake.clone(), caller.clone());
    let env = caller.process.env();
    env.clone().spawn_detached("operation", async move {
        env.sleep(delay).await;
        *reporter.began.lock().unwrap_or_else(PoisonError::into_inner) = env.now();
        let (call, dropper) = droppable(caller.call(op));
        let (process, planted, faulty) = (caller.process.clone(), caller.planted.clone(), caller.faulty.clone());
        let reports = reporter.clone();
        let (mut last, mut last_written) = (None, 0);
        let after = move |polls| match disturbance {
            Disturbance::Dropped(at) if at == polls && dropper.drop_now() => {
                if let Some(planted) = &planted {
                    planted.give_up();
                }
                reports.report(End::Dropped);
            }
            Disturbance::Killed(at) if at == polls => {
                process.kill();
                reports.report(End::Died);
            }
            Disturbance::None => {
                let calls = fake.calls();
                let landed = calls.iter().filter(|call| call.code.is_some()).count();
                let answered = calls.iter().filter(|call| call.end.is_some()).count();
                let written = calls.iter().filter(|call| call.code.is_some() && call.is_write()).count();
                let now = (faulty.counts(), landed, answered);
                let mut points = reports.points.lock().unwrap_or_else(PoisonError::into_inner);
                points.polls = polls;
                if last.replace(now) != Some(now) {
                    points.told.push(polls);
                }
                if std::mem::replace(&mut last_written, written) != written {
                    points.written.push(polls);
                }
            }
            Disturbance::Fault(..) | Disturbance::Dropped(_) | Disturbance::Killed(_) => {}
        };
        caller.process.after_poll(after);
        // Where it was dropped, that was told there and then.
        if let Some(result) = call.await {
            reporter.report(End::Returned(result));
        }
    });
    ended
}
