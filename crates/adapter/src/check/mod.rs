//! A plan as written, turned into one that is right by construction, or refused whole before any write (S-21).

mod order;
mod places;
#[cfg(test)]
mod tests;
mod workload;

use std::collections::{BTreeMap, BTreeSet};

use pando_api::{BundlePlan, Code, Error, Problem};
use pando_cluster::names::{AppNamespace, object};

use self::places::Volumes;
use crate::dns_label;
use crate::plan::Plan;

/// Checks the whole plan. `reserved` are Pando's own namespaces.
///
/// # Errors
///
/// [`Code::ValidInvalid`] with everything that is wrong, at once; [`Code::PlanCapabilityUnsupported`] when the
/// plan is right but asks for what this runtime cannot do.
pub(crate) fn check(plan: &BundlePlan, reserved: &[&str]) -> Result<Plan, Error> {
    let mut checker = Checker::default();
    let plan_if_right = checker.plan(plan, reserved);
    let what = format!("the plan of bundle {:?}", plan.bundle_id);
    if !checker.wrong.is_empty() {
        return Err(Error::invalid(Code::ValidInvalid, &what, &checker.wrong));
    }
    if !checker.unsupported.is_empty() {
        return Err(Error::invalid(Code::PlanCapabilityUnsupported, &what, &checker.unsupported));
    }
    Ok(plan_if_right)
}

/// Checks a workload's name, wherever one is given.
///
/// # Errors
///
/// The problem, with a name that would do.
pub(crate) fn workload_name(field: &str, name: &str) -> Result<(), Box<Problem>> {
    let problem = if !dns_label::is_valid(name) {
        "is not a workload's name (a-z, 0-9 and -, beginning with a letter, at most 63)"
    } else if name == object::EGRESS_GATEWAY || name == "localhost" {
        "is a name with a meaning of its own"
    } else {
        return Ok(());
    };
    let suggestion = match dns_label::suggest(name) {
        taken if taken == name => format!("{}-app", &taken[..taken.len().min(59)]),
        suggestion => suggestion,
    };
    Err(Box::new(Problem {
        field: field.to_owned(),
        value: name.to_owned(),
        problem: problem.to_owned(),
        remedy: format!("name it {suggestion:?}"),
    }))
}

#[derive(Default)]
struct Checker {
    wrong: Vec<Problem>,
    unsupported: Vec<Problem>,
}

impl Checker {
    fn wrong(&mut self, field: impl Into<String>, value: impl ToString, problem: &str, remedy: impl Into<String>) {
        self.wrong.push(Problem {
            field: field.into(),
            value: value.to_string(),
            problem: problem.to_owned(),
            remedy: remedy.into(),
        });
    }

    fn unsupported(
        &mut self,
        field: impl Into<String>,
        value: impl ToString,
        problem: &str,
        remedy: impl Into<String>,
    ) {
        self.unsupported.push(Problem {
            field: field.into(),
            value: value.to_string(),
            problem: problem.to_owned(),
            remedy: remedy.into(),
        });
    }

    /// Checks everything; what comes out is whole only when nothing was wrong.
    fn plan(&mut self, plan: &BundlePlan, reserved: &[&str]) -> Plan {
        if !plan.network.private {
            self.wrong("network.private", false, "an app's network is always its own", "write true");
        }
        if plan.network.egress.restricts() {
            let remedy = "remove the egress rules, or set them to allow everything";
            let problem = "egress cannot be restricted without an egress gateway";
            self.unsupported("network.egress", "restricting rules", problem, remedy);
        }
        self.labels(&plan.labels);
        let volumes = self.volumes(&plan.volumes);
        let mut names = BTreeSet::new();
        let mut workloads = Vec::new();
        for (index, workload) in plan.workloads.iter().enumerate() {
            let at = format!("workloads[{index}]");
            if let Err(problem) = workload_name(&format!("{at}.name"), &workload.name) {
                self.wrong.push(*problem);
            } else if !names.insert(&workload.name) {
                let remedy = "give each workload its own name";
                self.wrong(format!("{at}.name"), &workload.name, "is the name of another workload too", remedy);
            }
            workloads.extend(self.workload(&at, workload, &volumes));
        }
        self.order(&plan.workloads);
        let app = AppNamespace::of(&plan.bundle_id, reserved);
        Plan { app, labels: plan.labels.clone(), workloads, volumes: volumes.all }
    }

    fn labels(&mut self, labels: &BTreeMap<String, String>) {
        for (key, value) in labels {
            let field = format!("labels[{key:?}]");
            let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
            let reserved = ["pando.dev", "kubernetes.io", "k8s.io"];
            if reserved.iter().any(|own| prefix == *own || prefix.ends_with(&format!(".{own}"))) {
                self.wrong(
                    field,
                    value,
                    "is a reserved key",
                    "choose a key outside pando.dev, kubernetes.io and k8s.io",
                );
            } else if !is_qualified_name(key) {
                self.wrong(field, value, "is not a label's key", "write a name such as pando.app, or example.com/name");
            }
        }
    }
}

/// A key of Kubernetes' labels: an optional DNS name and `/`, then up to 63 of letters, digits, `-`, `_` and `.`.
pub(crate) fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let prefix_fits = prefix.is_none_or(dns_label::is_subdomain);
    prefix_fits && !name.is_empty() && is_label_value(name)
}

/// A value of Kubernetes' labels: empty, or up to 63 of letters, digits, `-`, `_` and `.` between letters or digits.
pub(crate) fn is_label_value(value: &str) -> bool {
    let end = |c: char| c.is_ascii_alphanumeric();
    value.is_empty()
        || value.len() <= 63
            && value.starts_with(end)
            && value.ends_with(end)
            && value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}
