//! Whether an installation can be trusted with apps.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What was found of an installation that is fit to run apps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// How apps are kept from each other.
    pub isolation: Isolation,
}

/// That the networks of apps are closed to each other, found out by trying.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Isolation {
    /// When it was found out, by the cluster's own clock.
    pub checked: Timestamp,
    /// How long after the policy was made the last way was seen closed, in milliseconds. What it takes to see that is in it.
    pub time_to_deny_millis: u64,
    /// The families of addresses that were tried, in order: `IPv4`, `IPv6`.
    pub families: Vec<String>,
    /// The machines on which it was tried, in order.
    pub places: Vec<String>,
}

/// What was looked at of an installation, in order, each by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Diagnosis {
    /// What was looked at.
    pub checks: Vec<Check>,
}

impl Diagnosis {
    /// Whether nothing keeps the installation from running apps.
    pub fn is_healthy(&self) -> bool {
        self.checks.iter().all(|check| matches!(check.state, CheckState::Passed | CheckState::Warned))
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What it is, in a word or two; the same in every diagnosis.
    pub name: String,
    /// What came of it.
    pub state: CheckState,
    /// What was found, for a person.
    pub fact: String,
    /// What a person can do about it; none where nothing is to be done.
    pub remedy: Option<String>,
}

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// All is as it should be.
    Passed,
    /// Apps run, and there is something to know.
    Warned,
    /// Apps cannot be run, or not safely.
    Failed,
    /// It could not be looked at.
    Unknown,
}
