//! What must be true of a cluster behind the port, and of what is built on it, proved on three beds.
//!
//! A [`Case`] is an ordinary async function that is given a [`Bed`]: a cluster, seen as Pando's account and as
//! an administrator, with ways to look at what containers and packets do. The same [`CASES`] run on the
//! cluster in memory (`tests/fake.rs`), on kube's client over that cluster's HTTP face (`tests/face.rs`) and on
//! a real cluster (`tests/kind.rs`). A bed that cannot meet a case's [`Need`] skips the case, and says so; it
//! may not skip more than its ceiling.
//!
//! A case may not know which bed it is on.

mod apps;
pub mod bed;
pub mod beds;
mod cases;
pub mod faults;
pub mod manifests;
pub mod program;
pub mod runner;
mod verdict;

pub use bed::{Bed, Need, Write};
pub use cases::{CASES, Case, Profile};
