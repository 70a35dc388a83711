//! What a runtime answers when it did not do what was asked.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A failure that core shows to people and acts on by its code.
///
/// The message is a sentence for a person; the cause stays in `source` and is not repeated in it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What kind of failure this is.
    pub code: Code,
    /// What happened, for a person.
    pub message: String,
    /// What a person can do about it.
    pub remedy: Option<String>,
    /// Further facts, for programs and for people who look closer.
    pub details: BTreeMap<String, Value>,
    /// What lay beneath.
    pub source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// What was given is not valid; nothing was changed.
    ValidInvalid,
    /// The plan needs something that this runtime, as configured, does not have; nothing was changed.
    PlanCapabilityUnsupported,
    /// The runtime could not be read, or is not usable.
    AdapterUnavailable,
    /// The runtime could not make the change.
    AdapterFailed,
    /// An image's registry refuses further pulls for now.
    AdapterRegistryRateLimited,
    /// There is no room.
    CapacityWouldOversubscribe,
    /// What was named does not exist.
    NotFound,
    /// A defect of the runtime.
    Internal,
}

impl Code {
    /// The code as it is written, e.g. `VALID_INVALID`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ValidInvalid => "VALID_INVALID",
            Self::PlanCapabilityUnsupported => "PLAN_CAPABILITY_UNSUPPORTED",
            Self::AdapterUnavailable => "ADAPTER_UNAVAILABLE",
            Self::AdapterFailed => "ADAPTER_FAILED",
            Self::AdapterRegistryRateLimited => "ADAPTER_REGISTRY_RATE_LIMITED",
            Self::CapacityWouldOversubscribe => "CAPACITY_WOULD_OVERSUBSCRIBE",
            Self::NotFound => "NOT_FOUND",
            Self::Internal => "INTERNAL",
        }
    }

    /// The HTTP status that core answers with.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::ValidInvalid => 400,
            Self::NotFound => 404,
            Self::PlanCapabilityUnsupported | Self::CapacityWouldOversubscribe => 409,
            Self::AdapterUnavailable | Self::AdapterFailed | Self::AdapterRegistryRateLimited => 502,
            Self::Internal => 500,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing wrong with what was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Where, e.g. `workloads[0].ports[1].number`.
    pub field: String,
    /// What was given there; `[redacted]` for a secret.
    pub value: String,
    /// What is wrong with it.
    pub problem: String,
    /// What to write instead.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({:?}); {}", self.field, self.problem, self.value, self.remedy)
    }
}

impl Error {
    /// A failure with a code and a sentence.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), remedy: None, details: BTreeMap::new(), source: None }
    }

    /// Everything that is wrong with what was given, all at once. The first problem leads.
    pub fn invalid(code: Code, what: &str, problems: &[Problem]) -> Self {
        let mut lines = problems.iter().map(ToString::to_string);
        let first = lines.next().unwrap_or_default();
        let more = match lines.len() {
            0 => String::new(),
            rest => format!(" (and {rest} more)"),
        };
        let error = Self::new(code, format!("{what} is refused: {first}{more}"));
        error.detail("problems", problems)
    }

    /// The same with what a person can do about it.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// The same with a further fact. One that cannot be written as JSON is left out.
    #[must_use]
    pub fn detail(mut self, key: &str, value: impl Serialize) -> Self {
        if let Ok(value) = serde_json::to_value(value) {
            self.details.insert(key.to_owned(), value);
        }
        self
    }

    /// The same with what lay beneath.
    #[must_use]
    pub fn caused_by(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { source: Some(source.into()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_status_and_spelling() {
        for (code, spelling, status) in [
            (Code::ValidInvalid, "VALID_INVALID", 400),
            (Code::PlanCapabilityUnsupported, "PLAN_CAPABILITY_UNSUPPORTED", 409),
            (Code::AdapterUnavailable, "ADAPTER_UNAVAILABLE", 502),
            (Code::AdapterFailed, "ADAPTER_FAILED", 502),
            (Code::AdapterRegistryRateLimited, "ADAPTER_REGISTRY_RATE_LIMITED", 502),
            (Code::CapacityWouldOversubscribe, "CAPACITY_WOULD_OVERSUBSCRIBE", 409),
            (Code::NotFound, "NOT_FOUND", 404),
            (Code::Internal, "INTERNAL", 500),
        ] {
            assert_eq!((code.as_str(), code.http_status()), (spelling, status));
            assert_eq!(serde_json::json!(code), serde_json::json!(spelling));
        }
    }

    #[test]
    fn all_problems_are_told_and_the_first_leads() {
        let problem = |field: &str| Problem {
            field: field.to_owned(),
            value: "0".to_owned(),
            problem: "is not a port".to_owned(),
            remedy: "write 1 to 65535".to_owned(),
        };
        let error = Error::invalid(Code::ValidInvalid, "the plan", &[problem("a"), problem("b")]);
        assert_eq!(error.to_string(), r#"the plan is refused: a: is not a port ("0"); write 1 to 65535 (and 1 more)"#);
        assert_eq!(error.details["problems"].as_array().map(Vec::len), Some(2));
    }
}
