//! What a form asks of the person who configures a runtime.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a runtime is and what it must be told before it can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterInfo {
    /// Its name, for a person.
    pub label: String,
    /// The keys of its configuration, in the order of a form.
    pub fields: Vec<FormField>,
}

/// A key of a configuration, as a form shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormField {
    /// The key in the configuration's JSON.
    pub key: String,
    /// Its name, for a person.
    pub label: String,
    /// What it is for and how it is written.
    pub help: String,
    /// What may be given.
    #[serde(rename = "type")]
    pub kind: FieldKind,
    /// What counts when nothing is given; absent when there is no such value, or when it is the cluster's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// A value to show as a hint, where the default is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example: Option<String>,
    /// Whether something must be given.
    pub required: bool,
    /// Whether most installations do without it.
    pub advanced: bool,
    /// The values to choose from; empty when others may be given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// When the form shows it; absent for always. It is checked all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown_when: Option<ShownWhen>,
}

/// What may be given in a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FieldKind {
    /// A text; a blank one counts as nothing.
    Text,
    /// Yes or no.
    Flag,
    /// A whole number.
    Number {
        /// The least that may be given.
        minimum: u64,
        /// The most that may be given.
        maximum: u64,
    },
}

/// Another key's value on which a field is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShownWhen {
    /// The other key.
    pub key: String,
    /// The value it has, its default included.
    pub equals: Value,
}
