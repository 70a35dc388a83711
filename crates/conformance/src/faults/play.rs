//! One telling of a scenario: under one schedule of faults, from one seed, with every invariant held against it.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::FutureExt;
use pando_fakecluster::sim::Sim;
use serde_json::Value;

use super::fault::{Asked, Fault};
use super::judge::LONGEST;
use super::operation::{self, Disturbance, End, Ended, Points};
use super::planted::Bug;
use super::scenario::{Before, Op, Scenario};
use super::state;
use super::witness::by_workload;
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
    /// F-09: whoever called lets go of the call.
    Dropped {
        /// The caller, by the place of its operation in the scenario.
        caller: usize,
        /// After so many polls of its process's tasks.
        polls: u64,
    },
    /// F-01, F-02: the caller's process is killed.
    Killed {
        /// The caller, by the place of its operation in the scenario.
        caller: usize,
        /// After so many polls of its tasks.
        polls: u64,
    },
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undisturbed => f.write_str("undisturbed"),
            Self::Fault { caller, call, fault } => write!(f, "{caller}:{call}:{fault}"),
            Self::Dropped { caller, polls } => write!(f, "{caller}:{polls}:dropped"),
            Self::Killed { caller, polls } => write!(f, "{caller}:{polls}:killed"),
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
    /// The polls of each caller's process at which something can befall it.
    pub(super) points: Vec<Points>,
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
/// The most reads that a satisfied operation may make.
const SATISFIED: usize = 20;

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

pub(super) struct Play<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) schedule: Schedule,
    pub(super) sim: &'a Sim,
    pub(super) reference: Option<Reference<'a>>,
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
        world.eyes.hold(self.scenario);
        if self.refuses_pulls() {
            world.eyes.forget_images();
        }
        let ends = self.disturbed(&world, &callers).await;
        for call in callers.iter().flat_map(|caller| caller.faulty.impatient()) {
            world.eyes.broken("S-9", format!("{call} was asked again before its time"));
        }
        let calls: Vec<_> = callers.iter().map(|caller| caller.faulty.disarm()).collect();
        self.judge(&world, &ends, &calls).await;
        self.forgive_removal(&world);
        let state = self.mend(&world, &callers, &ends).await;
        self.judge_state(&world, &state);
        for line in words.lines().iter().chain(&world.told.lines()) {
            world.eyes.read("what is told", line);
            self.sim.note(line);
        }
        Played {
            broken: world.eyes.take_broken(),
            calls,
            points: ends.into_iter().map(|ended| ended.points).collect(),
            state,
            story: world.story(),
            hash: 0,
        }
    }

    /// An app that is started while its namespace is being deleted loses its policy before it ends: no order of calls can keep
    /// Kubernetes from that.
    fn forgive_removal(&self, world: &World) {
        if self.is_removed_beside() {
            world.eyes.forgive("I-01");
        }
    }

    /// Whether an app is made and destroyed at once.
    fn is_removed_beside(&self) -> bool {
        self.scenario.ops.len() > 1 && self.scenario.ops.contains(&Op::Destroy)
    }

    /// An apply whose secrets are destroyed beside it takes its pod away, since that cannot start. Where it dies over that deletion, the next
    /// apply makes the secrets again, the very pod starts, and the deletion lands minutes later: it names the pod by its UID, which is
    /// right. It ends pods and starts none; the next apply starts them again.
    fn is_ended_by_a_dead_caller(&self, before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> bool {
        let is_dead = matches!(self.fault(), Some(Fault::DiesInFlight | Fault::DiesLongBefore));
        is_dead && self.is_removed_beside() && after.iter().all(|(uid, pod)| before.get(uid) == Some(pod))
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
                Before::LeftBefore => world.make_what_was_left().await,
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
        let begun = callers.iter().zip(self.scenario.ops).enumerate().map(|(index, (caller, op))| {
            let delay = Duration::from_millis(offset) * u32::try_from(index).unwrap_or(0);
            operation::begin(world, caller, *op, delay, self.disturbance(index))
        });
        let begun: Vec<_> = begun.collect();
        let ends = futures::future::join_all(begun).await;
        ends.into_iter().map(|end| end.expect("every operation tells of its end")).collect()
    }

    /// What befalls the process of that caller.
    fn disturbance(&self, index: usize) -> Disturbance {
        match self.schedule {
            Schedule::Fault { caller, call, fault } if caller == index => Disturbance::Fault(call, fault),
            Schedule::Dropped { caller, polls } if caller == index => Disturbance::Dropped(polls),
            Schedule::Killed { caller, polls } if caller == index => Disturbance::Killed(polls),
            _ => Disturbance::None,
        }
    }

    pub(super) const fn fault(&self) -> Option<Fault> {
        match self.schedule {
            Schedule::Fault { fault, .. } => Some(fault),
            Schedule::Undisturbed | Schedule::Dropped { .. } | Schedule::Killed { .. } => None,
        }
    }

    pub(super) fn lands_late(&self) -> bool {
        self.fault().is_some_and(Fault::lands_late)
    }

    /// Whether the fault is one that no operation may fail for.
    pub(super) fn must_succeed(&self) -> bool {
        self.scenario.strict && self.fault().is_none_or(Fault::is_absorbed)
    }

    /// The faults are over: the scenario's last operation succeeds, and then has nothing to do.
    async fn mend(&self, world: &World, callers: &[Caller], ends: &[Ended]) -> BTreeMap<String, Value> {
        let eyes = &world.eyes;
        // What is late lands while the mending goes on, or before it: one call this way, the next one that way.
        if self.lands_late() && (self.sim.seed() + self.number()) % 2 == 1 {
            world.env().sleep(Fault::LONG * 2).await;
            self.forgive_removal(world);
        }
        let alive = callers.iter().zip(ends).find(|(_, ended)| !matches!(ended.end, End::Died));
        let caller = alive.map_or_else(|| world.caller(self.sim), |(caller, _)| caller.clone());
        for op in self.scenario.then {
            self.must(world, &caller, *op, "I-20").await;
        }
        if self.lands_late() {
            let before = eyes.running();
            world.env().sleep(Fault::LONG * 2).await;
            let after = eyes.running();
            if before != after && !self.is_ended_by_a_dead_caller(&before, &after) {
                eyes.broken("I-22", format!("{before:?} ran, and {after:?} run since something arrived late"));
            }
            self.must(world, &caller, self.scenario.last(), "I-20, once all has landed").await;
        }
        let gated = eyes.gated();
        if !gated.is_empty() {
            eyes.broken("gates", format!("mended, and {gated:?} wait behind their gates"));
        }
        // What has ended goes by itself.
        world.env().sleep(Duration::from_secs(5)).await;
        self.judge_done(world, self.scenario.last(), "mended");
        let state = state::of(&world.fake);
        // A process that knows nothing.
        let fresh = world.caller(self.sim);
        let written = world.fake.writes().len();
        fresh.faulty.arm(None, || {});
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
        let wanted = match op {
            Op::Apply(version) => version.workloads(),
            Op::Stop | Op::Destroy => &[],
        };
        if by_workload(&running).into_keys().ne(wanted.iter().copied()) {
            world.eyes.broken(invariant, format!("{op:?} is done, and {running:?} run"));
        }
    }
}
