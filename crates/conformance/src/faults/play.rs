//! One telling of a scenario: under one schedule of faults, from one seed, with every invariant held against it.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{Either, select};
use pando_cluster::Kind;
use pando_cluster::env::Instant;
use pando_fakecluster::sim::{Sim, drop_at};
use serde_json::Value;

use super::fault::{Asked, Fault, Verb};
use super::planted::Bug;
use super::scenario::{Before, Op, Scenario};
use super::state;
use super::words::Words;
use super::world::{Caller, World};
use crate::runner::words_of;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Nothing.
    Undisturbed,
    /// One call of one caller.
    Fault {
        /// The caller, by the place of its operation in the scenario.
        caller: usize,
        /// The call, counted from zero.
        call: usize,
        /// What happens to it.
        fault: Fault,
    },
    /// The caller lets go of its call.
    Dropped {
        /// The caller, by the place of its operation in the scenario.
        caller: usize,
        /// At which await, counted from one.
        awaits: u64,
    },
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undisturbed => f.write_str("undisturbed"),
            Self::Fault { caller, call, fault } => write!(f, "{caller}:{call}:{fault}"),
            Self::Dropped { caller, awaits } => write!(f, "{caller}:{awaits}:dropped"),
        }
    }
}

/// What a telling came to.
#[derive(Debug, Default)]
pub(super) struct Played {
    /// The invariants that were broken, each a line.
    pub(super) broken: Vec<String>,
    /// The calls of each caller while faults were possible.
    pub(super) calls: Vec<Vec<Asked>>,
    /// The awaits of each operation at which dropping it can make a difference.
    pub(super) awaits: Vec<Vec<u64>>,
    /// What there was of the app in the end.
    pub(super) state: BTreeMap<String, Value>,
    /// Every call that arrived, for people.
    pub(super) story: Vec<String>,
    /// The hash of everything that happened.
    pub(super) hash: u64,
}

/// What an undisturbed telling came to, to compare with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference<'a> {
    pub(super) calls: &'a [Vec<Asked>],
    pub(super) state: &'a BTreeMap<String, Value>,
}

/// No telling takes so much virtual time: it waits for something that never comes.
const LIMIT: Duration = Duration::from_hours(4);
/// No operation may take so long, whatever one fault does to it (I-15, I-26).
const LONGEST: Duration = Duration::from_mins(4);
/// One fault may cost so many calls more: a call's five tries, a start that begins anew, a watch opened again and again
/// for as long as an outage lasts.
const CALLS_A_FAULT: usize = 90;
/// The most reads that a satisfied operation may make.
const SATISFIED: usize = 20;
/// How long what a failed operation left is watched (I-09).
const AFTERMATH: Duration = Duration::from_mins(20);

/// Tells the scenario once.
pub(super) fn play(
    scenario: &Scenario,
    seed: u64,
    schedule: Schedule,
    bug: Option<Bug>,
    reference: Option<Reference<'_>>,
) -> Played {
    let words = Words::default();
    let sim = Sim::new(seed);
    sim.set_limit(LIMIT);
    let told = catch_unwind(AssertUnwindSafe(|| {
        words.during(|| sim.block_on(Play { scenario, schedule, sim: &sim, reference }.tell(bug, &words)))
    }));
    let mut played = told
        .unwrap_or_else(|panic| Played { broken: vec![format!("I-16: {}", words_of(&*panic))], ..Played::default() });
    for line in words.lines() {
        sim.note(&line);
    }
    played.hash = sim.trace_hash();
    played
}

struct Play<'a> {
    scenario: &'a Scenario,
    schedule: Schedule,
    sim: &'a Sim,
    reference: Option<Reference<'a>>,
}

/// How an operation came to its end.
enum End {
    Returned(Result<String, pando_api::Error>),
    Dropped,
    Died,
}

struct Ended {
    end: End,
    took: Duration,
    /// The pod that ran when the operation said that it was done.
    running: Vec<String>,
    awaits: Vec<u64>,
}

impl Play<'_> {
    async fn tell(&self, bug: Option<Bug>, words: &Words) -> Played {
        let world = World::new(self.sim, bug).await;
        self.begin(&world).await;
        let callers: Vec<Caller> = self.scenario.ops.iter().map(|_| world.caller(self.sim)).collect();
        if self.scenario.warm {
            for caller in &callers {
                if let Err(error) = caller.runtime.warm().await {
                    world.eyes.broken("warm", error);
                }
            }
            world.env().sleep(Duration::from_secs(1)).await;
        }
        let ends = self.disturbed(&world, &callers).await;
        let calls: Vec<_> = callers.iter().map(|caller| caller.faulty.disarm()).collect();
        self.judge(&world, &ends, &calls).await;
        if self.scenario.ops.len() > 1 && self.scenario.ops.contains(&Op::Destroy) {
            // An app that is started while its namespace is being deleted loses its policy before it ends: no order of calls
            // can keep Kubernetes from that.
            world.eyes.forgive(&["I-01"]);
        }
        let state = self.mend(&world, &callers, &ends).await;
        self.judge_state(&world, &state);
        for line in words.lines().iter().chain(&world.told.lines()) {
            world.eyes.read("what is told", line);
            self.sim.note(line);
        }
        Played {
            broken: world.eyes.take_broken(),
            calls,
            awaits: ends.into_iter().map(|ended| ended.awaits).collect(),
            state,
            story: world.story(),
            hash: 0,
        }
    }

    /// Comes to the start of the scenario.
    async fn begin(&self, world: &World) {
        for before in self.scenario.before {
            match before {
                Before::Done(op) => {
                    let caller = world.caller(self.sim);
                    if let Err(error) = caller.call(*op).await {
                        world.eyes.broken("before", error);
                    }
                    caller.process.kill();
                }
                Before::Died => world.kill_app().await,
            }
        }
        if !self.scenario.before.is_empty() {
            world.plant_strangers();
            world.env().sleep(Duration::from_secs(3)).await;
        }
    }

    /// Does the scenario's operations at once, under the schedule.
    async fn disturbed(&self, world: &World, callers: &[Caller]) -> Vec<Ended> {
        // The second caller comes at different points of the first one's work.
        let offset = [0, 1, 30, 400, 1_200, 2_600][usize::try_from(self.sim.seed() % 6).unwrap_or(0)];
        let mut ends = Vec::new();
        for (index, (caller, op)) in callers.iter().zip(self.scenario.ops).enumerate() {
            let (sender, end) = oneshot::channel();
            let operation = self.operation(world, caller, *op, index);
            let (env, eyes) = (world.env().clone(), world.eyes.clone());
            let delay = Duration::from_millis(offset) * u32::try_from(index).unwrap_or(0);
            world.env().spawn_detached("operation", async move {
                env.sleep(delay).await;
                let began = env.now();
                let (end, awaits) = operation.await;
                let running = eyes.running().into_keys().collect();
                // The play is there until every operation has ended.
                let _ = sender.send(Ended { end, took: env.now().since(began), running, awaits });
            });
            ends.push(end);
        }
        let ends = futures::future::join_all(ends).await;
        ends.into_iter()
            .map(|end| {
                end.unwrap_or(Ended { end: End::Died, took: Duration::ZERO, running: Vec::new(), awaits: Vec::new() })
            })
            .collect()
    }

    fn operation(
        &self,
        world: &World,
        caller: &Caller,
        op: Op,
        index: usize,
    ) -> impl Future<Output = (End, Vec<u64>)> + Send + use<> {
        let (mut fault, mut awaits) = (None, u64::MAX);
        match self.schedule {
            Schedule::Fault { caller, call, fault: what } if caller == index => fault = Some((call, what)),
            Schedule::Dropped { caller, awaits: at } if caller == index => awaits = at,
            _ => {}
        }
        let died = caller.arm(fault);
        let (mut points, mut awaiting) = (Vec::new(), 0);
        let (fake, faulty) = (world.fake.clone(), caller.faulty.clone());
        let is_reference = self.schedule == Schedule::Undisturbed;
        let mut last = None;
        let mut call = Box::pin(drop_at(caller.call(op), awaits));
        let (process, eyes) = (caller.process.clone(), world.eyes.clone());
        async move {
            let counted = std::future::poll_fn(|context| {
                let polled = call.poll_unpin(context);
                if is_reference && polled.is_pending() {
                    awaiting += 1;
                    // Between two awaits at which no call was made, landed or was answered, a drop is the same drop.
                    let calls = fake.calls();
                    let landed = calls.iter().filter(|call| call.code.is_some()).count();
                    let answered = calls.iter().filter(|call| call.end.is_some()).count();
                    let now = (faulty.count(), landed, answered);
                    if last.replace(now) != Some(now) {
                        points.push(awaiting);
                    }
                }
                polled
            });
            let end = match select(counted, Box::pin(died)).await {
                Either::Left((Some(result), _)) => {
                    eyes.look();
                    End::Returned(result)
                }
                Either::Left((None, _)) => End::Dropped,
                Either::Right(((), _)) => End::Died,
            };
            drop(call);
            if matches!(end, End::Died) {
                process.kill();
            }
            (end, points)
        }
    }

    const fn fault(&self) -> Option<Fault> {
        match self.schedule {
            Schedule::Fault { fault, .. } => Some(fault),
            Schedule::Undisturbed | Schedule::Dropped { .. } => None,
        }
    }

    fn lands_late(&self) -> bool {
        self.fault().is_some_and(Fault::lands_late)
    }

    /// Whether the fault is one that no operation may fail for.
    fn must_succeed(&self) -> bool {
        self.scenario.strict && self.fault().is_none_or(Fault::is_absorbed)
    }

    /// Holds what the operations said and left against what they did.
    async fn judge(&self, world: &World, ends: &[Ended], calls: &[Vec<Asked>]) {
        let eyes = &world.eyes;
        eyes.look();
        let mut results = Vec::new();
        for (index, ended) in ends.iter().enumerate() {
            if let End::Returned(result) = &ended.end {
                self.judge_one(world, index, ended, result);
                results.push(result);
            }
            let usual = self.reference.map_or(usize::MAX, |reference| reference.calls[index].len());
            if self.scenario.strict && calls[index].len() > usual.saturating_add(CALLS_A_FAULT) {
                eyes.broken(
                    "I-15",
                    format!("caller {index} made {} calls, {usual} without the fault", calls[index].len()),
                );
            }
        }
        // Whoever acts on what it read seconds ago may start the app anew; that costs a restart, and is allowed.
        let slow = [Fault::SlowThere, Fault::SlowBack, Fault::Hangs, Fault::Overloaded];
        if self.scenario.agrees() && !self.fault().is_some_and(|fault| slow.contains(&fault)) {
            judge_agreement(world, ends);
        }
        if results.len() < ends.len() {
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
            return;
        }
        let before = eyes.starts();
        world.env().sleep(AFTERMATH).await;
        let later: BTreeMap<String, Instant> =
            eyes.starts().into_iter().filter(|(uid, _)| !before.contains_key(uid)).collect();
        if !later.is_empty() {
            eyes.broken("I-09", format!("something started by itself after a failure: {later:?}"));
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
            (Ok(_), Op::Apply(_)) if ended.running.is_empty() && alone => {
                eyes.broken("I-09", "done, and nothing runs");
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

    /// The faults are over: the scenario's last operation succeeds, and then has nothing to do.
    async fn mend(&self, world: &World, callers: &[Caller], ends: &[Ended]) -> BTreeMap<String, Value> {
        let eyes = &world.eyes;
        // What is late lands while the mending goes on, or before it: one call this way, the next one that way.
        let call = match self.schedule {
            Schedule::Fault { call, .. } => u64::try_from(call).unwrap_or(0),
            Schedule::Undisturbed | Schedule::Dropped { .. } => 0,
        };
        if self.lands_late() && (self.sim.seed() + call) % 2 == 1 {
            world.env().sleep(Fault::LONG * 2).await;
        }
        let alive = callers.iter().zip(ends).find(|(_, ended)| !matches!(ended.end, End::Died));
        let caller = alive.map_or_else(|| world.caller(self.sim), |(caller, _)| caller.clone());
        for op in self.scenario.then {
            self.must(world, &caller, *op, "I-20").await;
        }
        if self.lands_late() {
            world.env().sleep(Fault::LONG * 2).await;
            if self.takes_all_along() {
                eyes.forgive(&[]);
            }
            self.must(world, &caller, self.scenario.last(), "I-20, once all has landed").await;
        }
        let gated = eyes.gated();
        if !gated.is_empty() {
            eyes.broken("gates", format!("mended, and {gated:?} wait behind their gates"));
        }
        // What has ended goes by itself.
        world.env().sleep(Duration::from_secs(5)).await;
        let state = state::of(&world.fake);
        // A process that knows nothing.
        let fresh = world.caller(self.sim);
        let written = world.fake.writes().len();
        drop(fresh.arm(None));
        self.must(world, &fresh, self.scenario.last(), "I-21").await;
        let reads = fresh.faulty.disarm();
        let writes: Vec<_> = world.fake.writes().split_off(written).into_iter().map(|it| (it.verb, it.key)).collect();
        if !writes.is_empty() {
            eyes.broken("I-21", format!("a satisfied operation wrote {writes:?}"));
        }
        if reads.len() > SATISFIED {
            eyes.broken("I-21", format!("a satisfied operation made {} calls", reads.len()));
        }
        world.env().sleep(Duration::from_secs(30)).await;
        if let Some(difference) = state::difference(&state, &state::of(&world.fake)) {
            eyes.broken("I-22", difference);
        }
        state
    }

    /// The fault is a deletion of the namespace that arrives when the namespace is in use again, unchanged: it takes all of
    /// it along, as Kubernetes has it, and only the call after that can mend it.
    fn takes_all_along(&self) -> bool {
        let asked = match (self.schedule, self.reference) {
            (Schedule::Fault { caller, call, .. }, Some(reference)) => reference.calls[caller].get(call),
            _ => None,
        };
        let is_deletion =
            asked.is_some_and(|asked| asked.verb == Verb::DeleteAtVersion && asked.kind == Kind::Namespace);
        is_deletion && matches!(self.scenario.then[0], Op::Apply(_))
    }

    async fn must(&self, world: &World, caller: &Caller, op: Op, invariant: &str) {
        let began = world.env().now();
        let result = caller.call(op).boxed().await;
        let text = format!("{result:?}");
        self.sim.note(&text);
        world.eyes.read("an answer", &text);
        if let Err(error) = result {
            world.eyes.broken(invariant, format!("{op:?} fails: {error}"));
        }
        let took = world.env().now().since(began);
        if took > LONGEST {
            world.eyes.broken("I-26", format!("{op:?} took {took:?}"));
        }
        let running = world.eyes.running();
        let as_wanted = match op {
            Op::Apply(_) => running.len() == 1,
            Op::Stop | Op::Destroy => running.is_empty(),
        };
        if !as_wanted {
            world.eyes.broken(invariant, format!("{op:?} is done, and {running:?} run"));
        }
    }

    /// Holds what there is in the end against what there is without faults.
    fn judge_state(&self, world: &World, state: &BTreeMap<String, Value>) {
        // What a stop leaves depends on how far an apply before it came.
        let comparable = self.scenario.last() != Op::Stop || self.scenario.ops == [Op::Stop];
        if let Some(reference) = self.reference.filter(|_| comparable)
            && let Some(difference) = state::difference(reference.state, state)
        {
            world.eyes.broken("I-20", difference);
        }
        let ours_alone = self.scenario.before.is_empty()
            || self.scenario.then.contains(&Op::Destroy)
            || self.scenario.ops.contains(&Op::Destroy);
        for hurt in world.hurt_strangers(!ours_alone) {
            world.eyes.broken("I-04", format!("{hurt} is not as its owner left it"));
        }
    }
}

/// Where all want the same, what one of them said runs goes on running.
fn judge_agreement(world: &World, ends: &[Ended]) {
    let now = world.eyes.running();
    for ended in ends.iter().filter(|ended| matches!(ended.end, End::Returned(Ok(_)))) {
        for uid in ended.running.iter().filter(|uid| !now.contains_key(*uid)) {
            world.eyes.broken("I-09", format!("pod {uid} was said to run as planned, and another caller ended it"));
        }
    }
}
