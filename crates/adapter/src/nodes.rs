//! Which nodes an app's pod could be put on, as the scheduler will see it.

use k8s_openapi::api::core::v1::{Node, Toleration};
use pando_cluster::names::label_value;

use crate::config::Settings;

/// What to do where no node takes apps.
pub(crate) const NONE_FITS: &str =
    "see that a node is Ready and schedulable, has the labels of node_selector, and no taint but those of tolerations";

/// The nodes that take an app's pod (S-61), in the order of their names.
pub(crate) fn eligible<'a>(nodes: &'a [Node], settings: &Settings) -> Vec<&'a str> {
    let takes = nodes.iter().filter(|node| why_not(node, settings).is_none());
    let mut names: Vec<_> = takes.filter_map(|node| node.metadata.name.as_deref()).collect();
    names.sort_unstable();
    names
}

/// Why a node takes no pod of an app; `None` where it does.
pub(crate) fn why_not(node: &Node, settings: &Settings) -> Option<String> {
    let spec = node.spec.as_ref();
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    if !conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True") {
        return Some("it is not Ready".to_owned());
    }
    if spec.and_then(|spec| spec.unschedulable).unwrap_or_default() {
        return Some("it is cordoned".to_owned());
    }
    let wanted = settings.node_selector.iter();
    if let Some((key, value)) = wanted.into_iter().find(|(key, value)| label_value(&node.metadata, key) != Some(*value))
    {
        return Some(format!("it has no label {key}={value}"));
    }
    let mut taints = spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let taint = taints.find(|taint| {
        let value = taint.value.as_deref().unwrap_or_default();
        taint.effect != "PreferNoSchedule"
            && !settings.tolerations.iter().any(|it| tolerates(it, &taint.key, value, &taint.effect))
    })?;
    Some(format!("no toleration of {}:{}", taint.key, taint.effect))
}

/// <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>
fn tolerates(toleration: &Toleration, key: &str, value: &str, effect: &str) -> bool {
    let any_value = toleration.operator.as_deref() == Some("Exists");
    toleration.effect.as_deref().is_none_or(|it| it.is_empty() || it == effect)
        && toleration.key.as_deref().map_or(any_value, |it| it == key)
        && (any_value || toleration.value.as_deref().unwrap_or_default() == value)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn settings(key: &str, value: &str) -> Settings {
        let json = json!({"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/16", key: value});
        Settings::from_json(&json).expect("right settings")
    }

    fn node(name: &str, spec: &Value, ready: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"disk": name}}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
        .expect("a node")
    }

    #[test]
    fn nodes_are_eligible_as_the_scheduler_sees_them() {
        let taint = |effect: &str| json!({"taints": [{"key": "gpu", "value": "a", "effect": effect}]});
        let nodes = [
            node("tainted", &taint("NoSchedule"), "True"),
            node("avoided", &taint("PreferNoSchedule"), "True"),
            node("emptied", &taint("NoExecute"), "True"),
            node("cordoned", &json!({"unschedulable": true}), "True"),
            node("lost", &json!({}), "Unknown"),
            node("a", &json!({}), "True"),
        ];
        let names = |key, value| eligible(&nodes, &settings(key, value)).join(",");
        assert_eq!(names("node_selector", ""), "a,avoided");
        assert_eq!(names("node_selector", "disk=a"), "a");
        assert_eq!(names("tolerations", "gpu=a:NoSchedule"), "a,avoided,tainted");
        assert_eq!(names("tolerations", "gpu:NoExecute"), "a,avoided,emptied");
        assert_eq!(names("tolerations", "gpu=b:NoSchedule,other:NoExecute"), "a,avoided");
        assert_eq!(names("tolerations", ":NoSchedule"), "a,avoided,tainted");
    }

    #[test]
    fn what_keeps_an_app_away_is_told() {
        let taint = json!({"taints": [{"key": "gpu", "effect": "NoSchedule"}]});
        let why = |node: &Node, selector| why_not(node, &settings("node_selector", selector));
        assert_eq!(why(&node("a", &json!({}), "True"), "disk=a"), None);
        for (node, selector, expected) in [
            (node("a", &json!({}), "False"), "", "it is not Ready"),
            (node("a", &json!({"unschedulable": true}), "True"), "", "it is cordoned"),
            (node("a", &taint, "True"), "", "no toleration of gpu:NoSchedule"),
            (node("a", &json!({}), "True"), "disk=ssd", "it has no label disk=ssd"),
        ] {
            assert_eq!(why(&node, selector).as_deref(), Some(expected));
        }
    }
}
