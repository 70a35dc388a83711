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
