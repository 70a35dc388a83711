//! What is played: from where, what is done, and what must come of it in the end.

/// A version of the app's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The one that runs at the start, where one does.
    First,
    /// Another image, another secret, twice the processor.
    Second,
}

/// An operation of the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Applies that version of the plan.
    Apply(Version),
    /// Stops the app.
    Stop,
    /// Takes the app away.
    Destroy,
}

/// How a scenario comes to its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The operation was done, by a process that has ended since.
    Done(Op),
    /// The app's process died.
    Died,
}

/// One story that is told under every fault.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What happened before.
    pub before: &'static [Before],
    /// What is done, at once, each by a process of its own; the faults are in here.
    pub ops: &'static [Op],
    /// What is done when the faults are over, one after the other; it must succeed and lead to one state.
    pub then: &'static [Op],
    /// The processes have been there for a while and watch namespaces.
    pub warm: bool,
    /// Faults that pass may not fail an operation. Not so where another operation is allowed to.
    pub strict: bool,
}

const FIRST: Op = Op::Apply(Version::First);
const SECOND: Op = Op::Apply(Version::Second);
const RUNNING: &[Before] = &[Before::Done(FIRST)];

const fn scenario(name: &'static str, before: &'static [Before], ops: &'static [Op], then: &'static [Op]) -> Scenario {
    Scenario { name, before, ops, then, warm: false, strict: true }
}

/// Every scenario.
pub const SCENARIOS: &[Scenario] = &[
    scenario("first_apply", &[], &[FIRST], &[FIRST]),
    scenario("satisfied_apply", RUNNING, &[FIRST], &[FIRST]),
    scenario("changed_plan", RUNNING, &[SECOND], &[SECOND]),
    scenario("changed_plan_and_back", RUNNING, &[SECOND], &[FIRST]),
    scenario("apply_after_stop", &[Before::Done(FIRST), Before::Done(Op::Stop)], &[FIRST], &[FIRST]),
    scenario("apply_of_an_ended_app", &[Before::Done(FIRST), Before::Died], &[FIRST], &[FIRST]),
    scenario("stop", RUNNING, &[Op::Stop], &[Op::Stop]),
    scenario("stop_then_apply", RUNNING, &[Op::Stop], &[FIRST]),
    scenario("destroy", RUNNING, &[Op::Destroy], &[Op::Destroy]),
    scenario("destroy_again_then_apply", RUNNING, &[Op::Destroy], &[Op::Destroy, FIRST]),
    scenario("destroy_then_apply", RUNNING, &[Op::Destroy], &[FIRST]),
    scenario("first_apply_then_stop", &[], &[FIRST], &[Op::Stop]),
    scenario("changed_plan_then_stop", RUNNING, &[SECOND], &[Op::Stop]),
    scenario("first_apply_then_destroy", &[], &[FIRST], &[Op::Destroy]),
    scenario("two_first_applies", &[], &[FIRST, FIRST], &[FIRST]),
    scenario("two_applies_of_one_change", RUNNING, &[SECOND, SECOND], &[SECOND]),
    Scenario { strict: false, ..scenario("two_applies_of_two_plans", RUNNING, &[FIRST, SECOND], &[SECOND]) },
    scenario("apply_beside_stop", RUNNING, &[SECOND, Op::Stop], &[SECOND]),
    scenario("apply_beside_stop_then_stop", RUNNING, &[SECOND, Op::Stop], &[Op::Stop]),
    Scenario { strict: false, ..scenario("apply_beside_destroy", RUNNING, &[SECOND, Op::Destroy], &[SECOND]) },
    Scenario { warm: true, ..scenario("warm_first_apply", &[], &[FIRST], &[FIRST]) },
    Scenario { warm: true, ..scenario("warm_changed_plan", RUNNING, &[SECOND], &[SECOND]) },
    Scenario { warm: true, ..scenario("warm_destroy_then_apply", RUNNING, &[Op::Destroy], &[FIRST]) },
];

impl Scenario {
    /// What is done last of all, and then again.
    pub(super) fn last(&self) -> Op {
        self.then[self.then.len() - 1]
    }

    /// The scenario of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }

    /// Whether all that is done wants the same plan, so that nobody has a reason to end what another one started.
    pub(super) fn agrees(&self) -> bool {
        matches!(self.ops[0], Op::Apply(_)) && self.ops.iter().all(|op| *op == self.ops[0])
    }
}
