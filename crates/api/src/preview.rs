//! What an apply would do, told beforehand by one that only reads.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an apply of a plan would do now. Nothing was written to find it out, and nothing holds it to be so a moment later.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Preview {
    /// The runtime's own name of the bundle's place; opaque to core.
    pub handle: String,
    /// What it would wait for before it comes to any workload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
    /// The plan's workloads in its order, then those that left it, by name.
    pub workloads: Vec<WorkloadPreview>,
    /// Every object that it would look at, in the order in which it comes to them.
    pub objects: Vec<ObjectPreview>,
}

impl Preview {
    /// Whether the plan is satisfied: an apply would change nothing.
    pub fn is_satisfied(&self) -> bool {
        self.waits_for.is_empty()
            && self.workloads.iter().all(|workload| workload.would == Foreseen::Unchanged)
            && self.objects.iter().all(|object| object.would == Fate::Leave)
    }
}

/// What would become of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadPreview {
    /// The workload.
    pub workload: String,
    /// What would become of it.
    pub would: Foreseen,
    /// Why, where the fields that differ do not say so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// In which of the plan's fields what runs differs from the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<FieldChange>,
    /// What it would wait for, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
}

/// What would become of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Foreseen {
    /// It stays as it is.
    Unchanged,
    /// It is not there and would be started.
    Created,
    /// What runs of it would be ended, and it would be started by the plan.
    Replaced,
    /// It has ended or was stopped, and would be started.
    StartedAgain,
    /// What the adapter before this one runs of it would become this one's, and runs on.
    Adopted,
    /// Somebody else is starting it by this plan; that would be waited for.
    Awaited,
    /// It left the plan, and would be ended and taken away.
    Removed,
}

/// What would become of one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectPreview {
    /// The object's kind, in the runtime's words.
    pub kind: String,
    /// The object's name.
    pub name: String,
    /// What would become of it.
    pub would: Fate,
    /// What would be changed of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldChange>,
}

/// What would become of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It is as it should be.
    Leave,
    /// It would be made.
    Create,
    /// Fields of it would be changed.
    Change,
    /// It would be removed and made anew, since what differs cannot be changed.
    Replace,
    /// It would be removed.
    Remove,
}

/// A field whose value differs. What is confidential is told as `[redacted]`, and so is only that it differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FieldChange {
    /// The field, e.g. `image` or `spec.selector.app`.
    pub field: String,
    /// Its value now; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// Its value afterwards; absent where it would have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}
