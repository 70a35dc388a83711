//! What is held against a telling: what the operations said and left, against what they did.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pando_cluster::env::Instant;
use serde_json::Value;

use super::fault::{Asked, Fault, Verb};
use super::operation::{End, Ended};
use super::plans::plan;
use super::play::{Play, Schedule};
use super::scenario::{Before, Op, Scenario, Version};
use super::state;
use super::witness::by_workload;
use super::world::World;

/// No operation may take so long, whatever one fault does to it (I-15, I-26).
pub(super) const LONGEST: Duration = Duration::from_mins(4);
/// One fault may cost so many calls more: a call's five tries, a start that begins anew, a watch opened again and again
/// for as long as an outage lasts.
const CALLS_A_FAULT: usize = 130;
/// One fault may cost so many writes more: a start that begins anew (I-27).
const WRITES_A_FAULT: usize = 24;
/// An operation that was let go of has undone what it began by then: what it ends has that long, and some time to end.
const UNDONE: Duration = Duration::from_mins(1);
/// How long what a failed operation left is watched: longer than a start may take, and than anything lands late (I-09).
const AFTERMATH: Duration = Duration::from_mins(11);
/// How long endpoints take to follow pods.
const ENDPOINTS: Duration = Duration::from_secs(1);

impl Play<'_> {
    /// Holds what the operations said and left against what they did.
    pub(super) async fn judge(&self, world: &World, ends: &[Ended], calls: &[Vec<Asked>]) {
        let eyes = &world.eyes;
        eyes.look();
        self.judge_effort(world, calls);
        let mut results = Vec::new();
        for (index, ended) in ends.iter().enumerate() {
            if let End::Returned(result) = &ended.end {
                self.judge_one(world, index, ended, result);
                results.push(result);
            }
        }
        // Whoever acts on what it read seconds ago may start the app anew; that costs a restart, and is allowed.
        let slow =
            [Fault::SlowThere, Fault::SlowBack, Fault::Hangs, Fault::LateSoon, Fault::LateLong, Fault::Overloaded];
        let given_up = ends.iter().any(|ended| !matches!(ended.end, End::Returned(_)));
        if self.scenario.agrees() && !given_up && !self.fault().is_some_and(|fault| slow.contains(&fault)) {
            judge_agreement(world, ends);
        }
        if ends.iter().any(|ended| matches!(ended.end, End::Died)) {
            return;
        }
        if let Some(dropped) = ends.iter().find(|ended| matches!(ended.end, End::Dropped)) {
            // Half of them are mended at once, beside the undoing.
            if self.number().is_multiple_of(2) {
                self.judge_undone(world, dropped).await;
            }
            return;
        }
        if self.must_succeed() && results.iter().all(|result| result.is_err()) {
            eyes.broken("S-7", "all callers failed, though that passes");
        }
        if results.iter().all(|result| result.is_ok()) {
            let gated = eyes.gated();
            if !gated.is_empty() && !self.lands_late() {
                eyes.broken("gates", format!("all is done, and {gated:?} wait behind their gates"));
            }
            if ends.len() == 1 {
                world.env().sleep(ENDPOINTS).await;
                self.judge_done(world, self.scenario.ops[0], "done");
            }
            return;
        }
        if !self.spoils_volumes() {
            self.judge_volumes(world, "failed", true);
        }
        self.nothing_starts(world).await;
    }

    /// Operations may cost no more calls and writes than they take, and some for their fault. Of several callers any may be the one
    /// that does the work, so they count together.
    fn judge_effort(&self, world: &World, calls: &[Vec<Asked>]) {
        let Some(reference) = self.reference.filter(|_| self.scenario.strict) else { return };
        let all = |calls: &[Vec<Asked>]| calls.iter().map(Vec::len).sum::<usize>();
        let writes = |calls: &[Vec<Asked>]| calls.iter().flatten().filter(|asked| asked.writes()).count();
        for (invariant, what, made, usual, more) in [
            ("I-15", "calls", all(calls), all(reference.calls), CALLS_A_FAULT),
            ("I-27", "writes", writes(calls), writes(reference.calls), WRITES_A_FAULT),
        ] {
            if made > usual + more * calls.len() {
                world.eyes.broken(invariant, format!("{made} {what} were made, {usual} without the fault"));
            }
        }
    }

    /// Holds what one operation said against what it did.
    fn judge_one(&self, world: &World, index: usize, ended: &Ended, result: &Result<String, pando_api::Error>) {
        let (eyes, op, alone) = (&world.eyes, self.scenario.ops[index], self.scenario.ops.len() == 1);
        let text = format!("{result:?}");
        self.sim.note(&text);
        eyes.read("an answer", &text);
        match (result, op) {
            // Of several callers one may lose to another one; a stop does not.
            (Err(error), _) if self.must_succeed() && (alone || op == Op::Stop) => {
                eyes.broken("S-7", format!("{op:?} of caller {index} failed, though that passes: {error}"));
            }
            (Ok(_), Op::Apply(Version::MissingImage)) => eyes.broken("S-79", "done, without an image"),
            (Ok(_), Op::Apply(version)) if alone => {
                let runs = by_workload(&ended.running).into_keys().collect::<Vec<_>>();
                if runs != version.workloads() {
                    eyes.broken("I-09", format!("done, and {runs:?} run"));
                }
            }
            (Ok(_), Op::Stop | Op::Destroy) if !ended.running.is_empty() && alone => {
                eyes.broken("I-09", "done, and it runs");
            }
            (Ok(_) | Err(_), _) => {}
        }
        if ended.took > LONGEST {
            eyes.broken("I-15", format!("{op:?} of caller {index} took {:?}", ended.took));
        }
    }

    /// What is as wanted once `op` was done, a moment later.
    pub(super) fn judge_done(&self, world: &World, op: Op, when: &str) {
        let dead = world.eyes.dead_ends();
        if !dead.is_empty() && !matches!(op, Op::Destroy) {
            world.eyes.broken("S-82", format!("{when}, and records lead to {dead:?}, which do not run"));
        }
        let Op::Apply(version) = op else { return };
        let wanted: BTreeMap<String, String> =
            plan(version).workloads.into_iter().map(|workload| (workload.name, workload.image)).collect();
        let images = world.eyes.images();
        if images != wanted {
            world.eyes.broken("I-23", format!("{when}, and what runs is {images:?}, not {wanted:?}"));
        }
        self.judge_volumes(world, when, false);
    }

    /// The data of a volume that is bound does not hang on its claim (S-41). What was ended before it ran may leave a claim that is
    /// bound after everybody has gone on: there is no data, and the next apply sees to it.
    fn judge_volumes(&self, world: &World, when: &str, only_written: bool) {
        let unkept = world.eyes.unkept(only_written);
        // Whoever only ends things need not see to volumes.
        if !unkept.is_empty() && self.scenario.ops.iter().all(|op| matches!(op, Op::Apply(_))) {
            world.eyes.broken("I-07", format!("{when}, and {unkept:?} would go with their claims"));
        }
    }

    /// Whether the fault itself may keep volumes from being kept: it befalls what is asked of them, or all that is asked.
    fn spoils_volumes(&self) -> bool {
        let asked = self.asked().map(|asked| asked.kind);
        let of_volumes = [pando_cluster::Kind::PersistentVolume, pando_cluster::Kind::PersistentVolumeClaim];
        asked.is_some_and(|kind| of_volumes.contains(&kind)) || self.fault() == Some(Fault::Outage)
    }

    /// What an operation that was let go of has left once it had the time to undo what it began (S-80).
    async fn judge_undone(&self, world: &World, dropped: &Ended) {
        let eyes = &world.eyes;
        world.env().sleep(UNDONE).await;
        if self.scenario.ops.iter().all(|op| matches!(op, Op::Apply(_))) {
            let coming = eyes.coming();
            if !coming.is_empty() {
                eyes.broken("S-80", format!("let go of, and {coming:?} may come to run"));
            }
            let starts = eyes.app_starts();
            let started = |uid: &String| starts.get(uid).is_some_and(|at| *at > dropped.at);
            let later: Vec<_> =
                eyes.running().into_iter().filter(|(uid, _)| started(uid)).map(|(_, pod)| pod).collect();
            if !later.is_empty() && self.scenario.ops.len() == 1 {
                eyes.broken("S-80", format!("let go of, and {later:?} came to run after that, and run on"));
            }
            self.judge_volumes(world, "let go of", true);
        }
        self.nothing_starts(world).await;
    }

    /// Nothing that an operation left starts later on its own.
    async fn nothing_starts(&self, world: &World) {
        let before = world.eyes.starts();
        world.env().sleep(AFTERMATH).await;
        let later: BTreeMap<String, Instant> =
            world.eyes.starts().into_iter().filter(|(uid, _)| !before.contains_key(uid)).collect();
        if !later.is_empty() {
            world.eyes.broken("I-09", format!("something started by itself after a failure: {later:?}"));
        }
    }

    /// Holds what there is in the end against what there is without faults.
    pub(super) fn judge_state(&self, world: &World, state: &BTreeMap<String, Value>) {
        // What a stop leaves depends on how far an apply before it came.
        let comparable = self.scenario.last() != Op::Stop || self.scenario.ops == [Op::Stop];
        if let Some(reference) = self.reference.filter(|_| comparable)
            && let Some(difference) = state::difference(reference.state, state)
        {
            world.eyes.broken("I-20", difference);
        }
        let Scenario { before, ops, then, .. } = self.scenario;
        let has_claims = before.contains(&Before::Done(Op::Apply(Version::Whole)));
        let stays = has_claims || !ops.iter().chain(*then).any(|op| *op == Op::Destroy);
        let inside = !before.is_empty() && stays;
        for hurt in world.hurt_strangers(inside) {
            world.eyes.broken("I-04", format!("{hurt} is not as its owner left it"));
        }
    }

    /// A number that differs from schedule to schedule.
    pub(super) fn number(&self) -> u64 {
        match self.schedule {
            Schedule::Undisturbed => 0,
            // Of the two that land when everybody has gone on, one lands this way at each call and one that way.
            Schedule::Fault { call, fault, .. } => {
                u64::try_from(call).unwrap_or(0) + u64::from(fault == Fault::DiesLongBefore)
            }
            Schedule::Dropped { polls, .. } | Schedule::Killed { polls, .. } => polls,
        }
    }

    /// The call that the schedule's fault befalls.
    pub(super) fn asked(&self) -> Option<Asked> {
        match (self.schedule, self.reference) {
            (Schedule::Fault { caller, call, .. }, Some(reference)) => reference.calls[caller].get(call).copied(),
            _ => None,
        }
    }

    /// The fault keeps the adapter from making the pod that pulls an image: the start itself then tells.
    pub(super) fn refuses_pulls(&self) -> bool {
        let creates =
            self.asked().is_some_and(|asked| asked.verb == Verb::Create && asked.kind == pando_cluster::Kind::Pod);
        creates && self.fault().is_some_and(|fault| !fault.is_absorbed())
    }
}

/// Where all want the same, what one of them said runs goes on running.
fn judge_agreement(world: &World, ends: &[Ended]) {
    let now: BTreeSet<String> = world.eyes.running().into_keys().collect();
    for ended in ends.iter().filter(|ended| matches!(ended.end, End::Returned(Ok(_)))) {
        for uid in ended.running.keys().filter(|uid| !now.contains(*uid)) {
            world.eyes.broken("I-09", format!("pod {uid} was said to run as planned, and another caller ended it"));
        }
    }
}
