//! What is played: from where, what is done, and what must come of it in the end.

use super::plans::{DB, MISSING_IMAGE, NEW_IMAGE, WEB};

/// A version of the app's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One workload.
    First,
    /// The same with another image, another secret, twice the processor.
    Second,
    /// [`Self::First`] with another image, and nothing else.
    OtherImage,
    /// Two workloads: one with a carried file and a private image starts after one with a volume and a health check.
    Whole,
    /// [`Self::Whole`], with another image of the workload that starts last.
    NewImage,
    /// [`Self::Whole`], with an image of that workload that cannot be had.
    MissingImage,
    /// [`Self::Whole`], without the workload that starts last.
    WithoutWeb,
}

impl Version {
    /// The workloads that run once it was applied.
    pub(super) const fn workloads(self) -> &'static [&'static str] {
        match self {
            Self::First | Self::Second | Self::OtherImage => &[WEB],
            Self::Whole | Self::NewImage | Self::MissingImage => &[DB, WEB],
            Self::WithoutWeb => &[DB],
        }
    }
}

/// An operation of the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Applies that version of the plan.
    Apply(Version),
    /// Stops the app.
    Stop,
    /// Takes the app away, and keeps what holds data.
    Destroy,
}

/// How a scenario comes to its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The operation was done, by a process that has ended since.
    Done(Op),
    /// The app's processes died.
    Died,
    /// The adapter before this one left [`Version::First`].
    LeftBefore,
}

/// Which faults befall the calls of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// All of them.
    All,
    /// One of each class: those that the adapter takes the same way are told once, in another scenario.
    Classes,
    /// Those that may leave something behind: what differs from another scenario only in what comes after it or beside it.
    Lasting,
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
    /// Which faults befall calls.
    pub faults: Faults,
    /// Workloads that run before and go on running, whatever goes wrong.
    pub untouched: &'static [&'static str],
    /// The image that is had before whatever runs of that workload is ended (S-79).
    pub image_first: Option<(&'static str, &'static str)>,
}

const FIRST: Op = Op::Apply(Version::First);
const SECOND: Op = Op::Apply(Version::Second);
const OTHER_IMAGE: Op = Op::Apply(Version::OtherImage);
const RUNNING: &[Before] = &[Before::Done(FIRST)];

const WHOLE: Op = Op::Apply(Version::Whole);
const NEW_WEB: Op = Op::Apply(Version::NewImage);
const MISSING: Op = Op::Apply(Version::MissingImage);
const DB_ALONE: Op = Op::Apply(Version::WithoutWeb);
const WHOLE_RUNNING: &[Before] = &[Before::Done(WHOLE)];

const fn scenario(name: &'static str, before: &'static [Before], ops: &'static [Op], then: &'static [Op]) -> Scenario {
    Scenario {
        name,
        before,
        ops,
        then,
        warm: false,
        strict: true,
        faults: Faults::Classes,
        untouched: &[],
        image_first: None,
    }
}

/// One that is told under every fault.
const fn in_full(name: &'static str, before: &'static [Before], ops: &'static [Op], then: &'static [Op]) -> Scenario {
    Scenario { faults: Faults::All, ..scenario(name, before, ops, then) }
}

/// One that differs from another one only in what comes after or beside.
const fn variant(name: &'static str, before: &'static [Before], ops: &'static [Op], then: &'static [Op]) -> Scenario {
    Scenario { faults: Faults::Lasting, ..scenario(name, before, ops, then) }
}

/// Every scenario.
pub const SCENARIOS: &[Scenario] = &[
    in_full("first_apply", &[], &[FIRST], &[FIRST]),
    in_full("satisfied_apply", RUNNING, &[FIRST], &[FIRST]),
    in_full("changed_plan", RUNNING, &[SECOND], &[SECOND]),
    variant("changed_plan_and_back", RUNNING, &[SECOND], &[FIRST]),
    scenario("apply_after_stop", &[Before::Done(FIRST), Before::Done(Op::Stop)], &[FIRST], &[FIRST]),
    scenario("apply_of_an_ended_app", &[Before::Done(FIRST), Before::Died], &[FIRST], &[FIRST]),
    in_full("stop", RUNNING, &[Op::Stop], &[Op::Stop]),
    variant("stop_then_apply", RUNNING, &[Op::Stop], &[FIRST]),
    in_full("destroy", RUNNING, &[Op::Destroy], &[Op::Destroy]),
    variant("destroy_again_then_apply", RUNNING, &[Op::Destroy], &[Op::Destroy, FIRST]),
    scenario("destroy_then_apply", RUNNING, &[Op::Destroy], &[FIRST]),
    variant("first_apply_then_stop", &[], &[FIRST], &[Op::Stop]),
    variant("changed_plan_then_stop", RUNNING, &[SECOND], &[Op::Stop]),
    variant("first_apply_then_destroy", &[], &[FIRST], &[Op::Destroy]),
    scenario("two_first_applies", &[], &[FIRST, FIRST], &[FIRST]),
    variant("two_applies_of_one_change", RUNNING, &[SECOND, SECOND], &[SECOND]),
    Scenario { strict: false, ..variant("two_applies_of_two_plans", RUNNING, &[FIRST, SECOND], &[SECOND]) },
    scenario("apply_beside_stop", RUNNING, &[SECOND, Op::Stop], &[SECOND]),
    variant("apply_beside_stop_then_stop", RUNNING, &[SECOND, Op::Stop], &[Op::Stop]),
    Scenario { strict: false, ..variant("apply_beside_destroy", RUNNING, &[SECOND, Op::Destroy], &[SECOND]) },
    Scenario { warm: true, ..scenario("warm_first_apply", &[], &[FIRST], &[FIRST]) },
    Scenario { warm: true, ..scenario("warm_changed_plan", RUNNING, &[SECOND], &[SECOND]) },
    Scenario { warm: true, ..variant("warm_destroy_then_apply", RUNNING, &[Op::Destroy], &[FIRST]) },
    Scenario { untouched: &[WEB], ..scenario("adoption", &[Before::LeftBefore], &[FIRST], &[FIRST]) },
    scenario("no_adoption", &[Before::LeftBefore], &[OTHER_IMAGE], &[OTHER_IMAGE]),
    scenario("whole_first_apply", &[], &[WHOLE], &[WHOLE]),
    Scenario { untouched: &[DB, WEB], ..scenario("whole_satisfied_apply", WHOLE_RUNNING, &[WHOLE], &[WHOLE]) },
    Scenario {
        untouched: &[DB],
        image_first: Some((WEB, NEW_IMAGE)),
        ..scenario("whole_new_image", WHOLE_RUNNING, &[NEW_WEB], &[NEW_WEB])
    },
    Scenario {
        untouched: &[DB],
        image_first: Some((WEB, MISSING_IMAGE)),
        strict: false,
        ..scenario("whole_missing_image", WHOLE_RUNNING, &[MISSING], &[WHOLE])
    },
    Scenario { untouched: &[DB], ..scenario("whole_workload_removed", WHOLE_RUNNING, &[DB_ALONE], &[DB_ALONE]) },
    Scenario {
        untouched: &[DB],
        ..scenario("whole_workload_added", &[Before::Done(DB_ALONE)], &[NEW_WEB], &[NEW_WEB])
    },
    scenario("whole_stop", WHOLE_RUNNING, &[Op::Stop], &[Op::Stop]),
    scenario("whole_destroy", WHOLE_RUNNING, &[Op::Destroy], &[Op::Destroy]),
    variant("whole_apply_after_destroy", &[Before::Done(WHOLE), Before::Done(Op::Destroy)], &[WHOLE], &[WHOLE]),
    variant("whole_two_first_applies", &[], &[WHOLE, WHOLE], &[WHOLE]),
    variant("whole_apply_beside_stop", WHOLE_RUNNING, &[NEW_WEB, Op::Stop], &[NEW_WEB]),
    Scenario { strict: false, ..variant("whole_apply_beside_destroy", RUNNING, &[WHOLE, Op::Destroy], &[WHOLE]) },
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

    /// Whether it is about the whole app.
    pub(super) fn is_whole(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Apply(version) if version.workloads().contains(&DB)))
            || self.before.contains(&Before::Done(WHOLE))
    }

    /// Whether anything of it ends apps on purpose.
    pub(super) fn ends_apps(&self) -> bool {
        self.ops.iter().chain(self.then).any(|op| matches!(op, Op::Stop | Op::Destroy))
    }
}
