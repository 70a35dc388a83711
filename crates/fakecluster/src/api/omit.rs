//! What the API server does not write: members that hold their type's empty value.
//!
//! In Go most fields say `omitempty`, so an empty list, an empty text, a `false` or a zero that a client sent
//! is simply gone when the object is read again, unless the field is a pointer. Code that compares what it
//! sent with what it reads must know, so the fake does it too.
//! <https://github.com/kubernetes/kubernetes/blob/v1.34.0/staging/src/k8s.io/api/core/v1/types.go>

use serde_json::Value;

/// Maps of texts: empty ones go, and what is in them is never touched.
const TEXT_MAPS: &[&str] = &[
    "annotations",
    "binaryData",
    "data",
    "labels",
    "matchLabels",
    "nodeSelector",
    "parameters",
    "selector",
    "stringData",
];

/// Maps of amounts.
const AMOUNT_MAPS: &[&str] = &["capacity", "hard", "limits", "overhead", "requests"];

/// Lists that are written though empty.
const KEPT_LISTS: &[&str] = &["containers", "endpoints"];

/// Texts that are written though empty: pointers, and fields without `omitempty`.
const KEPT_TEXTS: &[&str] = &[
    "apiGroup",
    "cidr",
    "driver",
    "key",
    "kind",
    "mountPath",
    "name",
    "operator",
    "path",
    "provisioner",
    "server",
    "storageClassName",
    "topologyKey",
    "type",
    "volumeHandle",
    "volumeName",
];

/// Flags that are no pointers: `false` is the same as nothing.
const PLAIN_FLAGS: &[&str] = &[
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "publishNotReadyAddresses",
    "readOnly",
    "stdin",
    "stdinOnce",
    "tty",
    "unschedulable",
];

/// Numbers that are no pointers: zero is the same as nothing.
const PLAIN_NUMBERS: &[&str] = &["healthCheckNodePort", "hostPort", "initialDelaySeconds", "nodePort"];

/// Takes out of `object` what the API server would not write; its status is left as it is.
pub(super) fn omit_empty(object: &mut Value) {
    let Some(members) = object.as_object_mut() else { return };
    let status = members.remove("status");
    tidy(object);
    if let Some(status) = status {
        object["status"] = status;
    }
}

fn tidy(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (_, member) in members.iter_mut().filter(|(name, _)| !TEXT_MAPS.contains(&name.as_str())) {
                tidy(member);
            }
            members.retain(|name, member| is_written(name, member));
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_written(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag || !PLAIN_FLAGS.contains(&name),
        Value::Number(number) => number.as_i64() != Some(0) || !PLAIN_NUMBERS.contains(&name),
        Value::String(text) => !text.is_empty() || KEPT_TEXTS.contains(&name),
        Value::Array(items) => !items.is_empty() || KEPT_LISTS.contains(&name),
        Value::Object(members) => !members.is_empty() || !(TEXT_MAPS.contains(&name) || AMOUNT_MAPS.contains(&name)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_go_would_leave_out_goes() {
        let mut object = json!({
            "metadata": {"name": "a", "labels": {}, "annotations": {"kept": ""}, "finalizers": []},
            "spec": {
                "hostNetwork": false, "hostname": "", "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 0, "securityContext": {}, "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "c", "args": [""], "env": [{"name": "A", "value": ""}],
                    "resources": {"limits": {}}, "readinessProbe": {"initialDelaySeconds": 0}}],
                "podSelector": {"matchLabels": {}}, "ingress": [{}], "egress": [], "storageClassName": "",
            },
            "data": {"kept": ""},
            "status": {"phase": ""},
        });
        omit_empty(&mut object);
        assert_eq!(
            object,
            json!({
                "metadata": {"name": "a", "annotations": {"kept": ""}},
                "spec": {
                    "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0, "securityContext": {},
                    "volumes": [{"name": "v", "emptyDir": {}}],
                    "containers": [{"name": "c", "args": [""], "env": [{"name": "A"}], "resources": {},
                        "readinessProbe": {}}],
                    "podSelector": {}, "ingress": [{}], "storageClassName": "",
                },
                "data": {"kept": ""},
                "status": {"phase": ""},
            })
        );
    }
}
