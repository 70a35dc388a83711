//! Whether Pando's account has exactly the rights it needs, by the API server's own audit log.
//!
//! A right that a whole run of the suite never used may be one to take away: it is told. A call that no role allows
//! is a right that is missing: that is an error.

use std::collections::BTreeSet;
use std::fmt;
use std::process::Command;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::kubectl::{ACCOUNT, Kubectl};
use crate::shell;

/// The roles of Pando's account: kind, namespace, name.
const ROLES: &[(&str, &str, &str)] = &[
    ("clusterrole", "", "pando"),
    ("clusterrole", "", "pando-app-manager"),
    ("role", "default", "pando-api-server"),
    ("role", "pando", "pando-isolation"),
];

/// Rights that show in no audit log of Kubernetes 1.34, with the reason to have them.
const UNSEEN: &[(&str, &str, &str)] = &[
    ("bind", "clusterroles", "it is asked about when a role binding is created, and is no call of its own"),
    (
        "get",
        "pods/log",
        "only the log of a pod that its node ended while it started is read, which no case brings about",
    ),
];

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    verb: String,
    /// With its subresource, and its group unless that is the core group: `pods/log`, `networkpolicies.networking.k8s.io`.
    resource: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

/// What a run says about the rights.
#[derive(Debug, Default, PartialEq, Eq)]
struct Verdict {
    /// Granted and never used.
    unused: BTreeSet<Right>,
    /// Refused, and granted by no role.
    missing: BTreeSet<Right>,
}

/// Reads the audit log by `print` and judges every call since `since` (seconds since 1970).
pub(crate) fn check(kubectl: &Kubectl, print: &[String], since: u64) -> Result<()> {
    let mut granted = BTreeSet::new();
    for (kind, namespace, name) in ROLES {
        granted.extend(granted_by(&kubectl.get(&["-n", namespace, kind, name])?));
    }
    let (program, arguments) = print.split_first().map_or(("true", [].as_slice()), |(program, rest)| (program, rest));
    let log = shell::read(Command::new(program).args(arguments))?;
    let verdict = judge(&granted, calls(&log, since));
    for (name, rights) in [("granted and never used", &verdict.unused), ("needed and not granted", &verdict.missing)] {
        for right in rights {
            println!("right {name}: {right}");
        }
    }
    if verdict == Verdict::default() {
        println!("{} rights, each of them used, none missing", granted.len());
        return Ok(());
    }
    // A right that one run did not use may be another's: it is told. One that is missing breaks something.
    if verdict.missing.is_empty() {
        println!("{} rights, none missing, {} not used by this run", granted.len(), verdict.unused.len());
        return Ok(());
    }
    bail!("the roles in deploy/kubernetes lack {} right(s) that the adapter needs", verdict.missing.len());
}

fn judge(granted: &BTreeSet<Right>, calls: impl Iterator<Item = (Right, bool)>) -> Verdict {
    let mut used = BTreeSet::new();
    let mut missing = BTreeSet::new();
    for (right, allowed) in calls {
        if allowed {
            used.insert(right);
        } else if !granted.contains(&right) {
            // A right that a role grants may be refused for a moment: a fresh binding is late.
            missing.insert(right);
        }
    }
    let unseen = |right: &Right| {
        UNSEEN.iter().any(|(verb, resource, _)| right.verb == *verb && right.resource.starts_with(resource))
    };
    let unused = granted.iter().filter(|right| !used.contains(right) && !unseen(right)).cloned().collect();
    Verdict { unused, missing }
}

/// Every right in a role.
fn granted_by(role: &Value) -> Vec<Right> {
    let words = |rule: &Value, field: &str| -> Vec<String> {
        rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut rights = Vec::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        for group in words(rule, "apiGroups") {
            for resource in words(rule, "resources") {
                let resource = qualified(&resource, &group);
                rights.extend(words(rule, "verbs").into_iter().map(|verb| Right { verb, resource: resource.clone() }));
            }
        }
    }
    rights
}

/// The calls of Pando's account in an audit log, and whether each was allowed by the access rules.
fn calls(log: &str, since: u64) -> impl Iterator<Item = (Right, bool)> {
    let user = format!("system:serviceaccount:{}:{}", ACCOUNT.0, ACCOUNT.1);
    log.lines().filter_map(move |line| {
        // Most lines are others': look for the name before reading JSON.
        let event: Value = if line.contains(&user) { serde_json::from_str(line).ok()? } else { return None };
        let at = event["requestReceivedTimestamp"].as_str().and_then(epoch_seconds)?;
        if event["user"]["username"] != user.as_str() || at < since {
            return None;
        }
        let object = &event["objectRef"];
        let word = |field: &str| object[field].as_str().unwrap_or_default();
        let resource = match word("subresource") {
            "" => word("resource").to_owned(),
            subresource => format!("{}/{subresource}", word("resource")),
        };
        if resource.is_empty() {
            return None;
        }
        let right =
            Right { verb: event["verb"].as_str()?.to_owned(), resource: qualified(&resource, word("apiGroup")) };
        Some((right, event["annotations"]["authorization.k8s.io/decision"] == "allow"))
    })
}

fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

/// Seconds since 1970 of an RFC 3339 time in UTC, as Kubernetes writes it.
fn epoch_seconds(time: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| time.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    // Days since 1970 in the Gregorian calendar, with March as the first month so that the leap day comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = (year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day).checked_sub(719_469)?;
    Some(((days * 24 + number(11..13)?) * 60 + number(14..16)?) * 60 + number(17..19)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn right(verb: &str, resource: &str) -> Right {
        Right { verb: verb.to_owned(), resource: resource.to_owned() }
    }

    #[test]
    fn unused_and_missing_rights_are_told_apart() {
        let granted = BTreeSet::from([
            right("get", "pods"),
            right("list", "pods"),
            right("bind", "clusterroles.rbac.authorization.k8s.io"),
        ]);
        let calls = [
            (right("get", "pods"), true),
            // A fresh binding was late once: no right is missing.
            (right("get", "pods"), false),
            (right("delete", "nodes"), false),
        ];
        let verdict = judge(&granted, calls.into_iter());
        assert_eq!(verdict.unused, BTreeSet::from([right("list", "pods")]));
        assert_eq!(verdict.missing, BTreeSet::from([right("delete", "nodes")]));
    }

    #[test]
    fn a_role_grants_every_verb_on_every_resource_of_every_group() {
        let role = json!({"rules": [
            {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]},
            {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["get"]},
        ]});
        assert_eq!(
            granted_by(&role),
            [
                right("get", "pods"),
                right("list", "pods"),
                right("get", "pods/log"),
                right("list", "pods/log"),
                right("get", "networkpolicies.networking.k8s.io"),
            ]
        );
    }

    #[test]
    fn only_the_accounts_own_calls_since_the_start_count() {
        let line = |user: &str, at: &str, decision: &str| {
            json!({
                "user": {"username": user},
                "verb": "get",
                "objectRef": {"resource": "pods", "subresource": "log", "namespace": "x"},
                "requestReceivedTimestamp": at,
                "annotations": {"authorization.k8s.io/decision": decision},
            })
            .to_string()
        };
        let ours = "system:serviceaccount:pando:pando";
        let log = [
            line(ours, "2026-01-01T00:00:00.000000Z", "allow"),
            line("kubernetes-admin", "2026-01-01T00:00:10.000000Z", "allow"),
            line("system:serviceaccount:pando:pando-2", "2026-01-01T00:00:10.000000Z", "allow"),
            line(ours, "2026-01-01T00:00:10.500000Z", "forbid"),
            "not JSON system:serviceaccount:pando:pando".to_owned(),
        ];
        let found: Vec<_> = calls(&log.join("\n"), 1_767_225_605).collect();
        assert_eq!(found, [(right("get", "pods/log"), false)]);
    }

    #[test]
    fn times_are_read_as_kubernetes_writes_them() {
        let rows = [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:01.5Z", 951_825_601),
            ("2026-01-01T00:00:00.000000Z", 1_767_225_600),
            ("2026-12-31T23:59:59Z", 1_798_761_599),
        ];
        for (time, expected) in rows {
            assert_eq!(epoch_seconds(time), Some(expected), "{time}");
        }
        assert_eq!(epoch_seconds("yesterday"), None);
    }
}
