//! The beds there are.

mod images;
mod memory;
mod real;

pub use memory::{MemoryBed, Scripts};
pub use real::{RealBed, RealCluster};
