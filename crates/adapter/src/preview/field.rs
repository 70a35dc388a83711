//! Fields whose values differ, as they may be shown.

use pando_api::{FieldChange, Secret};
use pando_cluster::Kind;
use pando_cluster::names::annotation;
use serde_json::{Map, Value};

/// What the merge patch `patch` changes of `live`, value by value. A Secret's data is hidden, and of a config map's, which holds
/// the files of apps, only the size is told.
pub(super) fn changes(kind: Kind, patch: &Value, live: &Value) -> Vec<FieldChange> {
    let mut changes = Vec::new();
    walk(kind, "", patch, live, &mut changes);
    changes
}

fn walk(kind: Kind, parent: &str, asked: &Value, live: &Value, changes: &mut Vec<FieldChange>) {
    for (member, after) in asked.as_object().into_iter().flatten() {
        let before = &live[member.as_str()];
        let path = if parent.is_empty() { member.clone() } else { format!("{parent}.{member}") };
        match (after, before) {
            (Value::Object(members), Value::Object(_) | Value::Null) if !members.is_empty() => {
                walk(kind, &path, after, before, changes);
            }
            // A patch names also what stays.
            _ if after == before => {}
            _ => {
                let (before, after) = (shown(kind, &path, before), shown(kind, &path, after));
                changes.push(FieldChange { field: path, before, after });
            }
        }
    }
}

/// The value as it may be shown; an absent one is none.
fn shown(kind: Kind, path: &str, value: &Value) -> Option<Value> {
    let is_within =
        |parent: &str| path == parent || path.strip_prefix(parent).is_some_and(|rest| rest.starts_with('.'));
    let key = format!("metadata.annotations.{}", annotation::ENV_DIGEST_KEY);
    match value {
        Value::Null => None,
        value if kind == Kind::Secret && (is_within("data") || is_within("stringData") || path == key) => {
            Some(each(value, &|_| Secret::REDACTED.to_owned()))
        }
        value if kind == Kind::ConfigMap && (is_within("data") || is_within("binaryData")) => {
            Some(each(value, &|text| format!("[{} bytes]", text.len())))
        }
        value => Some(value.clone()),
    }
}

/// The value with another text in place of whatever it holds.
fn each(value: &Value, replace: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), each(value, replace))).collect::<Map<_, _>>().into()
        }
        Value::String(text) => replace(text).into(),
        other => replace(&other.to_string()).into(),
    }
}

/// The changes with every text in them gone through `redact`.
pub(super) fn redacted(mut changes: Vec<FieldChange>, redact: &impl Fn(&str) -> String) -> Vec<FieldChange> {
    for change in &mut changes {
        for value in [&mut change.before, &mut change.after].into_iter().flatten() {
            redact_value(value, redact);
        }
    }
    changes
}

fn redact_value(value: &mut Value, redact: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = redact(text),
        Value::Array(values) => values.iter_mut().for_each(|value| redact_value(value, redact)),
        Value::Object(members) => members.values_mut().for_each(|value| redact_value(value, redact)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use pando_cluster::converge::difference;
    use serde_json::json;

    use super::*;

    fn told(kind: Kind, desired: &Value, live: &Value) -> Value {
        json!(changes(kind, &difference(kind, desired, live).patch, live))
    }

    #[test]
    fn each_value_that_differs_is_told_and_no_other() {
        let live = json!({"metadata": {"labels": {"a.b/c": "1", "same": "x"}},
            "spec": {"selector": {"rev": "1", "old": "y"}, "ports": [{"port": 80}]}});
        let desired = json!({"metadata": {"labels": {"a.b/c": "2", "same": "x"}},
            "spec": {"selector": {"rev": "2", "app": "z"}, "ports": [{"port": 81}]}});
        let expected = json!([
            {"field": "metadata.labels.a.b/c", "before": "1", "after": "2"},
            {"field": "spec.ports", "before": [{"port": 80}], "after": [{"port": 81}]},
            {"field": "spec.selector.app", "after": "z"},
            {"field": "spec.selector.old", "before": "y"},
            {"field": "spec.selector.rev", "before": "1", "after": "2"},
        ]);
        assert_eq!(told(Kind::Service, &desired, &live), expected);
        assert_eq!(told(Kind::Service, &live, &live), json!([]));
    }

    #[test]
    fn of_a_secret_only_the_keys_that_differ_are_told() {
        let key = annotation::ENV_DIGEST_KEY;
        let live = json!({"metadata": {"annotations": {key: "b2xk"}}, "data": {"A": "MQ==", "B": "Mg==", "C": "Mw=="}});
        let desired =
            json!({"metadata": {"annotations": {key: "bmV3"}}, "data": {"A": "MQ==", "B": "NA==", "D": "NQ=="}});
        let expected = json!([
            {"field": "data.B", "before": "[redacted]", "after": "[redacted]"},
            {"field": "data.C", "before": "[redacted]"},
            {"field": "data.D", "after": "[redacted]"},
            {"field": format!("metadata.annotations.{key}"), "before": "[redacted]", "after": "[redacted]"},
        ]);
        assert_eq!(told(Kind::Secret, &desired, &live), expected);
        // A Secret whose data somebody replaced by something that is none.
        let odd = json!({"data": "MQ=="});
        assert!(!told(Kind::Secret, &desired, &odd).to_string().contains("MQ=="));
    }

    #[test]
    fn of_a_file_only_its_size_is_told() {
        let (live, desired) = (json!({"data": {"file-0": "secret"}}), json!({"data": {"file-0": "hunter2"}}));
        let expected = json!([{"field": "data.file-0", "before": "[6 bytes]", "after": "[7 bytes]"}]);
        assert_eq!(told(Kind::ConfigMap, &desired, &live), expected);
    }
}
