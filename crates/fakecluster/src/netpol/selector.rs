//! Label selectors.
//!
//! <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors>

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// A `LabelSelector`, ready to be asked. All of its requirements must hold; without any, it matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelMatch(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    Absent,
    /// An operator that Kubernetes does not know. The API server refuses it; should one get here, it matches nothing.
    Unknown,
}

impl LabelMatch {
    /// Reads a selector. One that is missing is, in a policy, the empty one.
    pub fn new(selector: &LabelSelector) -> Self {
        let equal = selector
            .match_labels
            .iter()
            .flatten()
            .map(|(key, value)| Requirement { key: key.clone(), rule: Rule::In([value.clone()].into()) });
        let expressions = selector.match_expressions.iter().flatten().map(|expression| {
            let values = || expression.values.iter().flatten().cloned().collect();
            let rule = match expression.operator.as_str() {
                "In" => Rule::In(values()),
                "NotIn" => Rule::NotIn(values()),
                "Exists" => Rule::Exists,
                "DoesNotExist" => Rule::Absent,
                _ => Rule::Unknown,
            };
            Requirement { key: expression.key.clone(), rule }
        });
        Self(equal.chain(expressions).collect())
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| {
            let value = labels.get(&requirement.key);
            match &requirement.rule {
                Rule::In(values) => value.is_some_and(|value| values.contains(value)),
                // A label that is not there is not one of the values.
                Rule::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Rule::Exists => value.is_some(),
                Rule::Absent => value.is_none(),
                Rule::Unknown => false,
            }
        })
    }
}
