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
use crate::objects::workload_of_pod;
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

/// Far beyond what starts and stops can reach, and far from the end of the numbers: a label that somebody set higher is none of
/// ours, or the next number after it would be that number again.
const HIGHEST: u64 = 1_000_000_000_000_000;

/// A text that is no revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRevision;

impl FromStr for Revision {
    type Err = NoRevision;

    fn from_str(text: &str) -> Result<Self, NoRevision> {
        let number = text.parse().ok().filter(|number| *number <= HIGHEST);
        // Only the very text that we write: `+7` and `007` are others.
        number.map(Self).filter(|revision| revision.to_string() == text).ok_or(NoRevision)
    }
}

/// The revision of a pod that the adapter before this one made (S-81).
pub(crate) const ADOPTED: Revision = Revision(0);

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
    /// A pod of the adapter before this one runs as planned: it is made one of ours.
    Adopt {
        /// The pod.
        pod: &'a Pod,
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
        let workload = workload_of_pod(pod)?;
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

/// What a workload is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// The plan's digest.
    pub(crate) digest: &'a PlanDigest,
    /// The environment's Secret had vanished, so that its part of a digest cannot be compared.
    pub(crate) key_lost: bool,
    /// Whether a pod that the adapter before this one made is as the plan has it.
    pub(crate) adopts: &'a dyn Adopts,
}

/// Tells whether a pod of the adapter before this one is as the plan has it.
pub(crate) trait Adopts: fmt::Debug + Sync {
    /// Whether it is.
    fn adopts(&self, pod: &Pod) -> bool;
}

/// Decides.
pub(crate) fn decide<'a>(seen: Seen<'a>, wanted: Wanted<'_>) -> Step<'a> {
    let current = seen.record.and_then(|record| Revision::of(&record.metadata));
    let fits = |pod: &Pod| match plan_digest(pod) {
        Some(digest) if wanted.key_lost => digest.agrees_but_for_env(wanted.digest),
        digest => digest.as_ref() == Some(wanted.digest),
    };
    if let Some(pod) = to_adopt(seen).filter(|pod| wanted.adopts.adopts(pod)) {
        return Step::Adopt { pod };
    }
    let live = seen.pods.iter().find(|pod| {
        current.is_some() && pod_revision(pod) == current && !sight::is_going(pod) && !sight::has_ended(pod)
    });
    match live {
        Some(pod) if fits(pod) && sight::is_gated(pod) => Step::Await { pod },
        Some(pod) if fits(pod) => Step::Keep { pod, redigest: plan_digest(pod).as_ref() != Some(wanted.digest) },
        other => {
            let lives = |pod: &Pod| !sight::has_ended(pod) && !sight::is_going(pod);
            let after = if other.is_some() || seen.pods.iter().any(lives) {
                Before::OtherPlan
            } else if seen.record.is_some() || !seen.pods.is_empty() {
                Before::Ended
            } else {
                Before::Nothing
            };
            Step::Start { revision: seen.highest().unwrap_or_default().next(), after }
        }
    }
}

/// The one pod that runs, where neither it nor its record is of this adapter's making.
fn to_adopt(seen: Seen<'_>) -> Option<&Pod> {
    if seen.record.is_some_and(|record| Revision::of(&record.metadata).is_some_and(|revision| revision != ADOPTED)) {
        return None;
    }
    let mut live = seen.pods.iter().filter(|pod| !sight::has_ended(pod));
    let (only, other) = (live.next()?, live.next());
    let theirs = pod_revision(only).is_none_or(|revision| revision == ADOPTED) && plan_digest(only).is_none();
    (other.is_none() && theirs && !sight::is_going(only) && !sight::is_gated(only)).then_some(only)
}

/// The plan's digest on a pod; `None` on one that this adapter did not make.
pub(crate) fn plan_digest(pod: &Pod) -> Option<PlanDigest> {
    PlanDigest::parse(annotation_value(&pod.metadata, annotation::PLAN_DIGEST)?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const WANTED: &str = "v1.aa.bb";

    /// Adopts what carries its mark.
    #[derive(Debug)]
    struct Marked;

    impl Adopts for Marked {
        fn adopts(&self, pod: &Pod) -> bool {
            annotation_value(&pod.metadata, "as-planned").is_some()
        }
    }

    fn decided<'a>(seen: Seen<'a>, digest: &PlanDigest, key_lost: bool) -> Step<'a> {
        decide(seen, Wanted { digest, key_lost, adopts: &Marked })
    }

    fn record(revision: &str) -> Service {
        serde_json::from_value(json!({"metadata": {"name": "web", "labels": {"pando.dev/revision": revision}}}))
            .expect("a Service")
    }

    fn pod(revision: &str, digest: &str, change: &Value) -> Pod {
        let mut pod = json!({"metadata": {"name": format!("web-{revision}"), "annotations": {"pando.dev/plan-digest": digest},
            "labels": {"app.kubernetes.io/managed-by": "pando", "pando.dev/workload": "web", "pando.dev/revision": revision}}, "spec": {"containers": []}, "status": {"phase": "Running"}});
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
        let theirs = |phase: &str| {
            let mut pod = pod("x", "0123456789abcdef", &json!({"/status/phase": phase}));
            pod.metadata.name = Some("web-b4k2x".to_owned());
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
            ("one of the adapter before, of another plan", None, vec![theirs("Running")], start(1, Before::OtherPlan)),
            ("one of the adapter before that ended", None, vec![theirs("Failed")], start(1, Before::Ended)),
            (
                "a late one beyond the record",
                Some(record("4")),
                vec![pod("7", WANTED, &gated)],
                start(8, Before::OtherPlan),
            ),
        ];
        for (name, record, pods, expected) in rows {
            let step = decided(Seen { record: record.as_ref(), pods: &pods }, &wanted, false);
            assert_eq!(format!("{step:?}"), format!("{expected:?}"), "{name}");
        }
        let (record, pods) = (record("4"), [pod("3", WANTED, &ended), pod("4", WANTED, &none)]);
        let seen = Seen { record: Some(&record), pods: &pods };
        assert!(matches!(decided(seen, &wanted, false), Step::Keep { pod, redigest: false } if pod == &pods[1]));
        let gated = [pod("4", WANTED, &gated)];
        assert!(matches!(decided(Seen { record: Some(&record), pods: &gated }, &wanted, false), Step::Await { .. }));
    }

    #[test]
    fn a_pod_keeps_running_when_only_the_key_of_its_environment_is_lost() {
        let wanted = PlanDigest::parse("v1.aa.fresh").expect("a digest");
        let (record, pods) = (record("4"), [pod("4", WANTED, &json!({}))]);
        let seen = Seen { record: Some(&record), pods: &pods };
        assert!(matches!(decided(seen, &wanted, true), Step::Keep { redigest: true, .. }));
        assert!(matches!(decided(seen, &wanted, false), Step::Start { .. }));
    }

    #[test]
    fn a_pod_of_the_adapter_before_is_adopted_where_it_is_as_planned_and_alone() {
        let wanted = PlanDigest::parse(WANTED).expect("a digest");
        let theirs = |change: Value| {
            let mut pod = pod("x", "0123456789abcdef", &json!({}));
            pod.metadata.name = Some("web-b4k2x".to_owned());
            let meta = &mut pod.metadata;
            meta.labels.as_mut().expect("labels").remove("pando.dev/revision");
            meta.annotations.as_mut().expect("annotations").insert("as-planned".to_owned(), "yes".to_owned());
            let mut pod = serde_json::to_value(pod).expect("JSON");
            json_patch::merge(&mut pod, &change);
            serde_json::from_value::<Pod>(pod).expect("a pod")
        };
        let plain: Service = serde_json::from_value(json!({"metadata": {"name": "web"}})).expect("a Service");
        let adopts = |record: Option<&Service>, pods: &[Pod]| {
            matches!(decided(Seen { record, pods }, &wanted, false), Step::Adopt { .. })
        };
        let half_way = json!({"metadata": {"labels": {"pando.dev/revision": "0"}}});
        assert!(adopts(Some(&plain), &[theirs(json!({}))]) && adopts(None, &[theirs(json!({}))]));
        assert!(adopts(Some(&record("0")), &[theirs(half_way)]), "an adoption that was cut short goes on");
        let other_plan = json!({"metadata": {"annotations": {"as-planned": null}}});
        for (name, record, pods) in [
            ("another plan", None, vec![theirs(other_plan)]),
            ("two of them", None, vec![theirs(json!({})), theirs(json!({}))]),
            ("a record of ours", Some(record("3")), vec![theirs(json!({}))]),
            ("one that ended", None, vec![theirs(json!({"status": {"phase": "Failed"}}))]),
            (
                "one that is going",
                None,
                vec![theirs(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}))],
            ),
        ] {
            assert!(!adopts(record.as_ref(), &pods), "{name}");
        }
    }

    #[test]
    fn a_revision_is_only_what_we_write() {
        assert_eq!("7".parse(), Ok(Revision(7)));
        for text in ["", "+7", "007", "-1", "x", "18446744073709551615", "1000000000000001"] {
            assert_eq!(text.parse::<Revision>(), Err(NoRevision), "{text}");
        }
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
