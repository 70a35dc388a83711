//! What of an object differs from what we want, and the merge patch that ends the difference.

use serde_json::{Map, Value};

use crate::converge::Quantity;
use crate::object::Kind;

/// A difference between an object and what it should be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Difference {
    /// A JSON merge patch that ends it; `null` when there is none.
    pub patch: Value,
    /// The fields that differ, e.g. `spec.selector`.
    pub fields: Vec<String>,
}

impl Difference {
    /// Whether there is no difference.
    pub fn is_none(&self) -> bool {
        self.fields.is_empty()
    }
}

/// Values that are ours as a whole: a member that we did not set does not belong there. Anywhere else, only the
/// members that we set are ours, since Kubernetes and others add their own.
const OURS_AS_A_WHOLE: &[(Kind, &[&str])] = &[
    (Kind::ConfigMap, &["data", "binaryData"]),
    (Kind::NetworkPolicy, &["spec"]),
    (Kind::ResourceQuota, &["spec"]),
    (Kind::RoleBinding, &["roleRef", "subjects"]),
    (Kind::Secret, &["data"]),
    (Kind::Service, &["spec.selector", "spec.ports", "spec.externalIPs"]),
];

/// Compares `desired` with `live`, two objects of one kind as JSON.
pub fn difference(kind: Kind, desired: &Value, live: &Value) -> Difference {
    let mut fields = Vec::new();
    let whole = OURS_AS_A_WHOLE.iter().find(|(of, _)| *of == kind).map_or(&[][..], |(_, paths)| *paths);
    let patch = Comparison { kind, whole, fields: &mut fields }.members("", desired, live);
    Difference { patch: patch.unwrap_or_default(), fields }
}

struct Comparison<'a> {
    kind: Kind,
    whole: &'static [&'static str],
    fields: &'a mut Vec<String>,
}

impl Comparison<'_> {
    /// Compares the members that `desired` has.
    fn members(&mut self, path: &str, desired: &Value, live: &Value) -> Option<Value> {
        let mut changes = Map::new();
        for (member, wanted) in desired.as_object()? {
            // What the object is, and its status, are not ours to set.
            if path.is_empty() && matches!(member.as_str(), "apiVersion" | "kind" | "status") {
                continue;
            }
            let path = if path.is_empty() { member.clone() } else { format!("{path}.{member}") };
            let found = &live[member.as_str()];
            let change = if wanted.is_object() && !self.whole.contains(&path.as_str()) {
                // An empty object asks for nothing here.
                if found.is_object() || wanted.as_object().is_some_and(Map::is_empty) {
                    self.members(&path, wanted, found)
                } else {
                    self.differs(path);
                    Some(wanted.clone())
                }
            } else if same(self.kind, &path, wanted, found) {
                None
            } else {
                self.differs(path);
                Some(replacing(wanted, found))
            };
            if let Some(change) = change {
                changes.insert(member.clone(), change);
            }
        }
        (!changes.is_empty()).then_some(Value::Object(changes))
    }

    fn differs(&mut self, path: String) {
        self.fields.push(path);
    }
}

/// Whether two values mean the same. An absent list is an empty one; an absent object is not, but for the data of
/// Secrets and config maps, which the API server leaves away when there is none.
fn same(kind: Kind, path: &str, wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            let null = Value::Null;
            wanted.keys().chain(found.keys()).all(|member| {
                let path = format!("{path}.{member}");
                same(kind, &path, wanted.get(member).unwrap_or(&null), found.get(member).unwrap_or(&null))
            })
        }
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len()
                && wanted.iter().zip(found).all(|(wanted, found)| same(kind, path, wanted, found))
        }
        (Value::Array(list), Value::Null) | (Value::Null, Value::Array(list)) => list.is_empty(),
        (Value::Object(data), Value::Null) if matches!(kind, Kind::Secret | Kind::ConfigMap) => data.is_empty(),
        (Value::String(wanted), Value::String(found))
            if kind == Kind::ResourceQuota && path.starts_with("spec.hard.") =>
        {
            match (wanted.parse::<Quantity>(), found.parse::<Quantity>()) {
                (Ok(wanted), Ok(found)) => wanted == found,
                _ => wanted == found,
            }
        }
        _ => wanted == found,
    }
}

/// The merge patch that turns `found` into exactly `wanted`: members that are too many are removed.
fn replacing(wanted: &Value, found: &Value) -> Value {
    let (Value::Object(members), Value::Object(found)) = (wanted, found) else { return wanted.clone() };
    let removed =
        found.keys().filter(|member| !members.contains_key(*member)).map(|member| (member.clone(), Value::Null));
    let kept = members
        .iter()
        .map(|(member, wanted)| (member.clone(), replacing(wanted, found.get(member).unwrap_or(&Value::Null))));
    removed.chain(kept).collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_others_add_is_no_difference() {
        let desired = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"labels": {"a": "1"}}, "spec": {"clusterIP": "None", "externalIPs": []}});
        let live = json!({"metadata": {"labels": {"a": "1", "theirs": "2"}, "uid": "u"}, "status": {},
            "spec": {"clusterIP": "None", "clusterIPs": ["None"], "sessionAffinity": "None"}});
        assert!(difference(Kind::Service, &desired, &live).is_none());
    }

    #[test]
    fn a_file_that_we_did_not_put_into_a_config_map_is_taken_out() {
        let (desired, live) = (json!({"data": {"a": "1"}}), json!({"data": {"a": "1", "b": "2"}}));
        assert_eq!(difference(Kind::ConfigMap, &desired, &live).patch, json!({"data": {"a": "1", "b": null}}));
        assert!(difference(Kind::ConfigMap, &json!({"data": {}, "binaryData": {}}), &json!({})).is_none());
    }

    #[test]
    fn a_secret_without_data_is_an_empty_one() {
        let (none, empty) = (json!({"metadata": {}}), json!({"data": {}}));
        assert!(difference(Kind::Secret, &empty, &none).is_none());
        let added = json!({"data": {"A": "MQ=="}});
        assert_eq!(difference(Kind::Secret, &empty, &added).patch, json!({"data": {"A": null}}));
    }

    #[test]
    fn a_policy_that_somebody_narrowed_is_ours_again() {
        let desired = json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}});
        let narrowed = json!({"spec": {"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Ingress"]}});
        let difference = difference(Kind::NetworkPolicy, &desired, &narrowed);
        assert_eq!(difference.fields, ["spec"]);
        assert_eq!(
            difference.patch,
            json!({"spec": {"podSelector": {"matchLabels": null}, "policyTypes": ["Ingress"]}})
        );
    }

    #[test]
    fn quotas_are_compared_by_value() {
        let desired = json!({"spec": {"hard": {"limits.cpu": "1500m"}}});
        assert!(difference(Kind::ResourceQuota, &desired, &json!({"spec": {"hard": {"limits.cpu": "1.5"}}})).is_none());
        let extra = json!({"spec": {"hard": {"limits.cpu": "1.5", "pods": "1"}}});
        assert_eq!(difference(Kind::ResourceQuota, &desired, &extra).patch["spec"]["hard"]["pods"], Value::Null);
    }

    #[test]
    fn a_key_too_many_in_a_secret_goes() {
        let difference =
            difference(Kind::Secret, &json!({"data": {"A": "YQ=="}}), &json!({"data": {"A": "YQ==", "B": "Yg=="}}));
        assert_eq!(difference.patch, json!({"data": {"A": "YQ==", "B": null}}));
    }

    #[test]
    fn a_secret_that_should_be_empty_loses_its_keys() {
        let difference = difference(Kind::Secret, &json!({"data": {}}), &json!({"data": {"B": "Yg=="}}));
        assert_eq!(difference.patch, json!({"data": {"B": null}}));
    }

    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<u8>().prop_map(|n| json!(n)),
            "[a-c]{1,2}".prop_map(|s| json!(s)),
            Just(json!([])),
            Just(json!([1]))
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            proptest::collection::btree_map("[a-d]", inner, 0..4).prop_map(|map| json!(map))
        })
    }

    proptest! {
        /// The patch ends the difference, leaves the rest alone, and there is none between equal things.
        #[test]
        fn a_patch_ends_the_difference(desired in tree(), live in tree(), kind in proptest::sample::select(Kind::ALL)) {
            let (desired, live) = (json!({"spec": desired}), json!({"spec": live, "theirs": 1}));
            prop_assert!(difference(kind, &desired, &desired).is_none());
            let found = difference(kind, &desired, &live);
            let mut patched = live.clone();
            if !found.is_none() {
                json_patch::merge(&mut patched, &found.patch);
            }
            prop_assert!(difference(kind, &desired, &patched).is_none(), "{} then {}", found.patch, patched);
            prop_assert_eq!(&patched["theirs"], &json!(1));
        }
    }
}
