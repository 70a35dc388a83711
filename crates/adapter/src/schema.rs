//! The configuration's JSON Schema: the forms that `config` reads by, and what each key is for.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// What each key is for.
const PURPOSES: &[(&str, &str)] = &[
    ("api_burst", "Calls to the API server at once; at least api_qps."),
    ("api_qps", "Calls to the API server a second, on average."),
    ("app_role", "The ClusterRole that Pando's account gets in every app's namespace."),
    ("cluster_domain", "The cluster's DNS domain."),
    ("context", "A context of the kubeconfig; the current one when absent."),
    ("dns_addresses", "Addresses of DNS servers that are no pods, comma-separated, e.g. 169.254.20.10."),
    ("dns_labels", "Labels of the DNS servers' pods: key=value, comma-separated."),
    ("dns_namespace", "The namespace of the DNS servers' pods."),
    ("egress_except", "Ranges outside of the cluster that no app may reach, comma-separated."),
    ("helper_image", "The image of helpers and isolation gates; it holds a shell and nc."),
    ("isolation_gate", "Whether a workload waits until its own pod has seen that the network policy holds."),
    ("isolation_gate_seconds", "How long it may wait for that."),
    ("kubeconfig", "The path of a kubeconfig; absent inside the cluster."),
    ("node_cidr", "Ranges of the cluster's nodes, comma-separated; nodes that exist are closed without it."),
    ("node_selector", "Labels of the nodes that apps may run on: key=value, comma-separated; empty for every node."),
    ("pando_namespace", "The namespace of Pando itself."),
    ("pod_cidr", "The cluster's ranges of pods, comma-separated."),
    ("priority_class", "The PriorityClass of app pods; the cluster's default when absent."),
    ("runtime_class", "The RuntimeClass of app pods; the cluster's default when absent."),
    ("service_account", "The account that Pando runs as, in its namespace."),
    ("service_cidr", "The cluster's ranges of Services, comma-separated."),
    ("start_timeout_seconds", "How long a start may take, the image included."),
    ("stop_grace_seconds", "Seconds a workload has to end, unless its plan says otherwise."),
    ("storage_class", "The StorageClass of new volumes; the cluster's default when absent."),
    ("tolerations", "Taints that app pods tolerate: key=value:Effect, key:Effect or :Effect, comma-separated."),
    ("unschedulable_seconds", "How long no node may have room for a workload before its start fails."),
    ("volume_size_bytes", "The size of a volume whose plan names none."),
];

/// The schema of a configuration whose keys have these forms. One without a default that takes no null is required.
pub(crate) fn of(forms: BTreeMap<&'static str, Value>) -> Value {
    let required: Vec<_> = forms.iter().filter(|(_, form)| form["type"].is_string()).map(|(key, _)| *key).collect();
    let properties: Map<String, Value> = forms
        .iter()
        .map(|(key, form)| {
            let mut form = form.clone();
            if let Some((_, purpose)) = PURPOSES.iter().find(|(of, _)| of == key) {
                form["description"] = json!(purpose);
            }
            ((*key).to_owned(), form)
        })
        .collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration",
        "description": "What Pando's runtime on Kubernetes is told about an installation.",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    #[test]
    fn every_key_has_its_form_and_its_purpose() {
        let schema = Settings::schema();
        let keys: Vec<_> = schema["properties"].as_object().expect("properties").keys().map(String::as_str).collect();
        assert_eq!(keys, PURPOSES.iter().map(|(key, _)| *key).collect::<Vec<_>>());
        assert_eq!(schema["required"], json!(["pod_cidr", "service_cidr"]));
        let refused = Settings::from_json(&json!({"pod_cidr": "10.0.0.0/8", "service_cidr": "10.0.0.0/8", "none": 1}));
        let told = format!("{:?}", refused.expect_err("no such key").details);
        assert!(keys.iter().all(|key| told.contains(key)), "the reader knows the same keys: {told}");
    }

    #[test]
    fn a_form_says_what_the_reader_takes() {
        let properties = &Settings::schema()["properties"];
        assert_eq!((&properties["api_qps"]["default"], &properties["api_burst"]["minimum"]), (&json!(200), &json!(1)));
        let base = |key: &str, value: Value| {
            let mut map = json!({"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/16"});
            map[key] = value;
            Settings::from_json(&map)
        };
        for (key, form) in properties.as_object().expect("properties") {
            if let Some(default) = form.get("default") {
                base(key, default.clone()).unwrap_or_else(|error| panic!("{key}: {error:?}"));
            }
            for (bound, beyond) in [("minimum", -1_i64), ("maximum", 1)] {
                let Some(limit) = form.get(bound).and_then(Value::as_i64).filter(|limit| *limit != i64::MAX) else {
                    continue;
                };
                // The burst is bounded by the rate, which is the default here.
                let lowest = if key == "api_burst" && bound == "minimum" { 200 } else { limit };
                base(key, json!(lowest)).unwrap_or_else(|error| panic!("{key} = {lowest}: {error:?}"));
                assert!(base(key, json!(lowest + beyond)).is_err(), "{key} beyond its {bound}");
            }
        }
    }
}
