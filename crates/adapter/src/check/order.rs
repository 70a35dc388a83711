//! Which workload starts before which.

use std::collections::{BTreeMap, BTreeSet};

use pando_api::WorkloadPlan;

use super::Checker;

impl Checker {
    /// Checks the dependencies: each names another workload of the bundle, once, and none waits for itself in the end.
    pub(super) fn order(&mut self, workloads: &[WorkloadPlan]) {
        let names: BTreeSet<&str> = workloads.iter().map(|workload| &*workload.name).collect();
        for (index, workload) in workloads.iter().enumerate() {
            let mut seen = BTreeSet::new();
            for (position, name) in workload.depends_on.iter().enumerate() {
                let field = format!("workloads[{index}].depends_on[{position}]");
                if *name == workload.name {
                    self.wrong(field, name, "is the workload itself", "remove it");
                } else if !names.contains(&**name) {
                    self.wrong(field, name, "is no workload of the bundle", "name one of the bundle's workloads");
                } else if !seen.insert(name) {
                    self.wrong(field, name, "is there twice", "remove one of them");
                }
            }
        }
        if let Some(circle) = circle(workloads) {
            let at = workloads.iter().position(|workload| workload.name == circle[0]).unwrap_or_default();
            let way = [&*circle, &circle[..1]].concat().join(" → ");
            let remedy = "let one of them start without the other";
            self.wrong(format!("workloads[{at}].depends_on"), way, "goes round in a circle", remedy);
        }
    }
}

/// Workloads that wait for each other, each for the one after it and the last for the first. One that names itself is left out.
fn circle(workloads: &[WorkloadPlan]) -> Option<Vec<&str>> {
    let mut waits: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for workload in workloads {
        let others = workload.depends_on.iter().map(String::as_str).filter(|name| *name != workload.name);
        waits.entry(&workload.name).or_default().extend(others);
    }
    // Whoever waits for nobody that is left is no part of a circle.
    loop {
        let free: Vec<&str> = waits
            .iter()
            .filter(|(_, on)| !on.iter().any(|name| waits.contains_key(name)))
            .map(|(name, _)| *name)
            .collect();
        if free.is_empty() {
            break;
        }
        waits.retain(|name, _| !free.contains(name));
    }
    // Everybody left waits for somebody left: following that must come back.
    let mut way = vec![*waits.keys().next()?];
    loop {
        let next = *waits.get(way.last()?)?.iter().find(|name| waits.contains_key(**name))?;
        if let Some(start) = way.iter().position(|name| *name == next) {
            return Some(way.split_off(start));
        }
        way.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(workloads: &[(&str, &[&str])]) -> Vec<WorkloadPlan> {
        let workload = |(name, on): &(&str, &[&str])| WorkloadPlan {
            name: (*name).to_owned(),
            depends_on: on.iter().map(ToString::to_string).collect(),
            ..WorkloadPlan::default()
        };
        workloads.iter().map(workload).collect()
    }

    #[test]
    fn a_circle_is_found_wherever_it_is() {
        for (workloads, expected) in [
            (plan(&[("a", &["b"]), ("b", &["c"]), ("c", &[])]), None),
            (plan(&[("a", &["b", "c"]), ("b", &["d"]), ("c", &["d"]), ("d", &[])]), None),
            (plan(&[("a", &["b"]), ("b", &["a"])]), Some(vec!["a", "b"])),
            (plan(&[("a", &["b"]), ("b", &["c"]), ("c", &["d", "b"]), ("d", &[])]), Some(vec!["b", "c"])),
            (plan(&[("a", &["a"]), ("b", &["nobody"])]), None),
        ] {
            assert_eq!(circle(&workloads), expected, "{workloads:?}");
        }
    }
}
