//! Fault enumeration: every scenario under every fault at every call, on the cluster in memory.
//!
//! A [`Scenario`] is told once undisturbed; that tells which calls there are. Then it is told again for each of them
//! and each [`Fault`] that can befall it, once for each point of its process's work at which whoever called can let go of the
//! call, and once for each at which the process can be killed. After every step
//! the invariants are held against what really runs, what is stored and what was written; then the faults are over,
//! and one more operation must succeed, lead to the state of the undisturbed telling, and leave nothing to do.
//!
//! What proves the enumeration itself: [`Bug`]s that are planted on purpose and must all be caught.

mod enumerate;
mod fault;
mod faulty;
mod judge;
mod operation;
mod plans;
mod planted;
mod play;
mod scenario;
mod state;
mod witness;
mod words;
mod world;

pub use enumerate::{Finding, Place, Report, catch, enumerate, replay};
pub use fault::{Asked, Fault, Verb};
pub use faulty::Faulty;
pub use planted::Bug;
pub use play::Schedule;
pub use scenario::{Before, Faults, Op, SCENARIOS, Scenario, Version};
