//! What to do about a workload: a pure decision over its record and its pods.
//!
//! The record is the workload's Service. It carries the current revision, and its selector selects exactly that
//! revision's pod. A pod is started by raising the revision on the record (a compare-and-swap), ending what is left of
//! older revisions, creating the pod *gated*, reading the record again and, only if it still names this revision,
//! opening the gate. So whatever arrives late or twice can leave a gated pod at worst, and a gated pod never runs.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::core::v1::{Pod, Service};
use pando_cluster::names::{annotation, annotation_value, label, label_value};

use crate::digest::PlanDigest;
use crate::sight;

/// Counts the starts and stops of a workload. 0 is a pod of the adapter before this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Revision(u64);

impl Revision {
    /// The next one.
    pub(crate) const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The revision in an object's label.
    pub(crate) fn of(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Option<Self> {
        label_value(meta, label::REVISION)?.parse().ok()
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Revision {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// What there is of a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    /// Its record.
    pub(crate) record: Option<&'a Service>,
    /// Its pods, of whatever revision and state.
    pub(crate) pods: &'a [Pod],
}

/// What to do about a workload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step<'a> {
    /// Its pod runs, or is on its way, as planned. The others are to go.
    Keep {
        /// The pod.
        pod: &'a Pod,
        /// Its digest must be written anew, since the environment's key was lost.
        redigest: bool,
    },
    /// A pod as planned is there, behind its gate: somebody is starting it, or died while doing so.
    Await {
        /// The pod.
        pod: &'a Pod,
    },
    /// A pod is to be started at this revision.
    Start {
        /// The revision.
        revision: Revision,
        /// What it takes the place of.
        after: Before,
    },
}

/// What a start takes the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// Nothing: the workload is new.
    Nothing,
    /// A pod of another plan.
    OtherPlan,
    /// A pod of this plan that has ended, or a stop.
    Ended,
}

impl Seen<'_> {
    /// The highest revision that the record or any pod has.
    pub(crate) fn highest(&self) -> Option<Revision> {
        self.record
            .and_then(|record| Revision::of(&record.metadata))
            .max(self.pods.iter().filter_map(pod_revision).max())
    }
}

/// The revision of a pod, from its label or, where that was taken off an ended pod, from its name.
pub(crate) fn pod_revision(pod: &Pod) -> Option<Revision> {
    let by_name = || {
        let workload = label_value(&pod.metadata, label::WORKLOAD)?;
        pod.metadata.name.as_deref()?.strip_prefix(workload)?.strip_prefix('-')?.parse().ok()
    };
    Revision::of(&pod.metadata).or_else(by_name)
}

/// Whether the pod belongs to a start before `revision`, or to none that can be told.
pub(crate) fn is_before(pod: &Pod, revision: Revision) -> bool {
    pod_revision(pod) < Some(revision)
}

/// Whether the pod belongs to a start after `revision`: whoever made it has raised the record since, and it is theirs.
pub(crate) fn is_after(pod: &Pod, revision: Revision) -> bool {
    pod_revision(pod) > Some(revision)
}

/// Decides. `key_lost` says that the environment's Secret had vanished, so that its part of a digest cannot be compared.
pub(crate) fn decide<'a>(seen: Seen<'a>, wanted: &PlanDigest, key_lost: bool) -> Step<'a> {
    let current = seen.record.and_then(|record| Revision::of(&record.metadata));
    let fits = |pod: &Pod| match plan_digest(pod) {
        Some(digest) if key_lost => digest.agrees_but_for_env(wanted),
        digest => digest.as_ref() == Some(wanted),
    };
    let live = seen.pods.iter().find(|pod| {
        current.is_some() && Revision::of(&pod.metadata) == current && !sight::is_going(pod) && !sight::has_ended(pod)
    });
    match live {
        Some(pod) if fits(pod) && sight::is_gated(pod) => Step::Await { pod },
        Some(pod) if fits(pod) => Step::Keep { pod, redigest: plan_digest(pod).as_ref() != Some(wanted) },
        other => {
            let after = match (other, seen.highest()) {
                (Some(_), _) => Before::OtherPlan,
                (None, Some(_)) if seen.pods.iter().any(|pod| !sight::has_ended(pod) && !sight::is_going(pod)) => {
                    Before::OtherPlan
                }
                (None, Some(_)) => Before::Ended,
                (None, None) => Before::Nothing,
            };
            Step::Start { revision: seen.highest().unwrap_or_default().next(), after }
        }
    }
}

/// The plan's digest on a pod; `None` on one that this adapter did not make.
fn plan_digest(pod: &Pod) -> Option<PlanDigest> {
    PlanDigest::parse(annotation_value(&pod.metadata, annotation::PLAN_DIGEST)?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const WANTED: &str = "v1.aa.bb";

    fn record(revision: &str) -> Service {
        serde_json::from_value(json!({"metadata": {"name": "web", "labels": {"pando.dev/revision": revision}}}))
            .expect("a Service")
    }

    fn pod(revision: &str, digest: &str, change: &Value) -> Pod {
        let mut pod = json!({"metadata": {"name": format!("web-{revision}"), "annotations": {"pando.dev/plan-digest": digest},
            "labels": {"pando.dev/workload": "web", "pando.dev/revision": revision}}, "spec": {"containers": []}, "status": {"phase": "Running"}});
        for (pointer, value) in change.as_object().expect("an object") {
            let (parent, member) = pointer.rsplit_once('/').expect("a pointer");
            pod.pointer_mut(parent).expect("a place")[member] = value.clone();
        }
        serde_json::from_value(pod).expect("a pod")
    }

    fn start(revision: u64, after: Before) -> Step<'static> {
        Step::Start { revision: Revision(revision), after }
    }

    #[test]
    fn what_to_do_follows_from_record_and_pods() {
        let wanted = PlanDigest::parse(WANTED).expect("a digest");
        let gated = json!({"/spec/schedulingGates": [{"name": "pando.dev/start"}], "/status/phase": "Pending"});
        let ended = json!({"/status/phase": "Failed"});
        let going = json!({"/metadata/deletionTimestamp": "2026-01-01T00:00:00Z"});
        let none = json!({});
        let unlabelled = {
            let mut pod = pod("4", WANTED, &ended);
            pod.metadata.labels.as_mut().expect("labels").remove("pando.dev/revision");
            pod
        };
        let rows: Vec<(&str, Option<Service>, Vec<Pod>, Step<'static>)> = vec![
            ("nothing there", None, vec![], start(1, Before::Nothing)),
            ("a stopped one", Some(record("4")), vec![], start(5, Before::Ended)),
            ("another plan's", Some(record("4")), vec![pod("4", "v1.xx.bb", &none)], start(5, Before::OtherPlan)),
            ("another environment", Some(record("4")), vec![pod("4", "v1.aa.xx", &none)], start(5, Before::OtherPlan)),
            (
                "a digest of the adapter before",
                Some(record("4")),
                vec![pod("4", "0123", &none)],
                start(5, Before::OtherPlan),
            ),
            ("one that ended", Some(record("4")), vec![pod("4", WANTED, &ended)], start(5, Before::Ended)),
            ("one that is going", Some(record("4")), vec![pod("4", WANTED, &going)], start(5, Before::Ended)),
            ("one that ended and left the endpoints", None, vec![unlabelled], start(5, Before::Ended)),
            (
                "an older one beside a raised record",
                Some(record("5")),
                vec![pod("4", WANTED, &none)],
                start(6, Before::OtherPlan),
            ),
            ("a pod whose record was deleted", None, vec![pod("4", WANTED, &none)], start(5, Before::OtherPlan)),
            (
                "a late one beyond the record",
                Some(record("4")),
                vec![pod("7", WANTED, &gated)],
                start(8, Before::OtherPlan),
            ),
        ];
        for (name, record, pods, expected) in rows {
            let step = decide(Seen { record: record.as_ref(), pods: &pods }, &wanted, false);
            assert_eq!(format!("{step:?}"), format!("{expected:?}"), "{name}");
        }
        let (record, pods) = (record("4"), [pod("3", WANTED, &ended), pod("4", WANTED, &none)]);
        let seen = Seen { record: Some(&record), pods: &pods };
        assert!(matches!(decide(seen, &wanted, false), Step::Keep { pod, redigest: false } if pod == &pods[1]));
        let gated = [pod("4", WANTED, &gated)];
        assert!(matches!(decide(Seen { record: Some(&record), pods: &gated }, &wanted, false), Step::Await { .. }));
    }

    #[test]
    fn a_pod_keeps_running_when_only_the_key_of_its_environment_is_lost() {
        let wanted = PlanDigest::parse("v1.aa.fresh").expect("a digest");
        let (record, pods) = (record("4"), [pod("4", WANTED, &json!({}))]);
        let seen = Seen { record: Some(&record), pods: &pods };
        assert!(matches!(decide(seen, &wanted, true), Step::Keep { redigest: true, .. }));
        assert!(matches!(decide(seen, &wanted, false), Step::Start { .. }));
    }

    #[test]
    fn a_start_ends_older_pods_and_never_a_newer_ones() {
        let mut unknown = pod("x", WANTED, &json!({}));
        unknown.metadata.name = Some("web-by-hand".to_owned());
        let none = json!({});
        for (name, pod, sides) in [
            ("older", pod("4", WANTED, &none), (true, false)),
            ("its own", pod("5", WANTED, &none), (false, false)),
            ("newer", pod("6", WANTED, &none), (false, true)),
            ("of no start", unknown, (true, false)),
        ] {
            assert_eq!((is_before(&pod, Revision(5)), is_after(&pod, Revision(5))), sides, "{name}");
        }
    }

    #[test]
    fn a_number_is_never_used_twice() {
        let pods = [pod("9", WANTED, &json!({"/status/phase": "Failed"}))];
        let record = record("4");
        assert_eq!(Seen { record: Some(&record), pods: &pods }.highest(), Some(Revision(9)));
    }
}
