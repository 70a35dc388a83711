//! What a call answered, as text for people and as a tree for programs.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use pando_api::{
    ApplyResult, Change, CheckState, Code, Diagnosis, Gate, GateProof, ObservedBundle, ObservedWorkload, Outcome,
    Reason, ReasonKind, WorkloadResult, Written,
};
use serde_json::{Value, json};

use crate::args::Output;
use crate::document;
use crate::table::Table;
use crate::text;

/// The result of a command. The default is nothing: what there was to print is printed.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// For people; each line ended.
    pub(crate) text: String,
    /// For programs.
    pub(crate) tree: Value,
    /// What a script is to take it for, where it is no success.
    pub(crate) failed: Option<Code>,
}

impl Report {
    /// A success, in text and as a tree.
    pub(crate) fn done(text: String, tree: Value) -> Self {
        Self { text, tree, failed: None }
    }

    /// The report in the form that was asked for.
    pub(crate) fn print(&self, output: Output) -> String {
        if self.tree.is_null() {
            return String::new();
        }
        let printed = match output {
            Output::Table => return self.text.clone(),
            Output::Json => document::json(&self.tree),
            Output::Yaml => document::yaml([&self.tree]),
        };
        // The text says the same; a tree of JSON can always be written.
        printed.unwrap_or_else(|_| self.text.clone())
    }
}

/// What `doctor` found.
pub(crate) fn diagnosed(diagnosis: &Diagnosis) -> Report {
    let mut table = Table::new(["CHECK", "STATE", "FACT"]);
    let mut remedies = String::new();
    for check in &diagnosis.checks {
        let state = match check.state {
            CheckState::Passed => "ok",
            CheckState::Warned => "warning",
            CheckState::Failed => "FAILED",
            CheckState::Unknown => "unknown",
        };
        table.row([check.name.clone(), state.to_owned(), check.fact.clone()]);
        if let Some(remedy) = &check.remedy {
            // Writing to a String cannot fail.
            let _ = write!(remedies, "\n{}: {}\n", check.name, text::line(remedy));
        }
    }
    let failed = (!diagnosis.is_healthy()).then_some(Code::AdapterUnavailable);
    Report { text: table.print() + &remedies, tree: json!(diagnosis), failed }
}

/// What `apply` did.
pub(crate) fn applied(result: &ApplyResult) -> Report {
    let mut table = Table::new(["WORKLOAD", "OUTCOME", "GATE", "PROOF"]);
    for workload in &result.workloads {
        let (gate, proof) = workload.gate.as_ref().map_or_else(Default::default, gate);
        table.row([workload.workload.clone(), outcome(&workload.outcome), gate, proof]);
    }
    let notes: String = result.workloads.iter().map(notes).collect();
    let written = if result.written.is_empty() {
        "\nNothing was written: all was as planned.\n".to_owned()
    } else {
        format!("\n{}", written(&result.written))
    };
    Report::done(table.print() + &notes + &written, json!(result))
}

/// What more there is to say of a workload.
fn notes(workload: &WorkloadResult) -> String {
    let name = &workload.workload;
    let unready = match workload.unready_dependencies.join(", ").as_str() {
        "" => String::new(),
        unready => format!("\n{name} was started although not healthy by then: {unready}\n"),
    };
    let log = match &workload.outcome {
        Outcome::Ended { log: Some(log), .. } => {
            format!("\nThe end of {name}'s log:\n{}\n", text::lines(log.trim_end()))
        }
        _ => String::new(),
    };
    unready + &log
}

/// What became of a workload, in words.
pub(crate) fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Created => "created".to_owned(),
        Outcome::Replaced => "replaced".to_owned(),
        Outcome::Unchanged => "unchanged".to_owned(),
        Outcome::StartedAgain => "started again".to_owned(),
        Outcome::Adopted => "adopted".to_owned(),
        Outcome::Ended { exit_code, reason, .. } => {
            let why = reason.as_ref().map(|reason| format!(": {}", reason.sentence)).unwrap_or_default();
            ended(*exit_code) + &why
        }
        Outcome::Failed { reason } => format!("failed: {reason}"),
        Outcome::Skipped { reason } => format!("skipped: {reason}"),
    }
}

fn ended(exit_code: Option<i32>) -> String {
    exit_code.map_or_else(|| "ended, code not known".to_owned(), |code| format!("ended {code}"))
}

fn gate(gate: &Gate) -> (String, String) {
    let proof = match gate.proof {
        GateProof::Proved => "closed before it started",
        GateProof::Unproved => "not proved",
        GateProof::Off => "gate is off",
        GateProof::Ungated => "started without one",
    };
    let millis = gate.millis.map(|millis| format!("{}.{:03}s", millis / 1000, millis % 1000));
    (millis.unwrap_or_default(), proof.to_owned())
}

/// The objects that were written, a line each, names only.
pub(crate) fn written(written: &[Written]) -> String {
    let mut table = Table::new(["WRITTEN", "KIND", "NAME", "FIELDS"]);
    for Written { kind, name, change, fields } in written {
        let change = match change {
            Change::Created => "created",
            Change::Changed => "changed",
            Change::Deleted => "deleted",
        };
        table.row([change.to_owned(), kind.clone(), name.clone(), fields.join(", ")]);
    }
    table.print()
}

/// What is there of a bundle at `now`.
pub(crate) fn observed(bundle_id: &str, bundle: &ObservedBundle, now: Timestamp) -> Report {
    let tree = json!(bundle);
    if !bundle.exists {
        return Report::done(format!("There is nothing of bundle {bundle_id:?}.\n"), tree);
    }
    let mut table = Table::new(["WORKLOAD", "STATE", "HEALTHY", "SINCE", "IMAGE", "REASON"]);
    for workload in &bundle.workloads {
        let healthy = workload.healthy.map_or("", |healthy| if healthy { "yes" } else { "no" });
        table.row([
            workload.name.clone(),
            state(workload),
            healthy.to_owned(),
            workload.started_at.map(|started| age(started, now)).unwrap_or_default(),
            short_digest(&workload.image_digest).to_owned(),
            workload.reason.as_ref().map(reason).unwrap_or_default(),
        ]);
    }
    let mut text = table.print();
    if !bundle.volumes.is_empty() {
        let mut volumes = Table::new(["VOLUME", "PRESENT", "HANDLE"]);
        for volume in &bundle.volumes {
            let present = if volume.present { "yes" } else { "no" };
            volumes.row([volume.volume_id.clone(), present.to_owned(), volume.handle.clone()]);
        }
        text = text + "\n" + &volumes.print();
    }
    if !bundle.drift.is_empty() {
        text.push_str("\nDrift:\n");
        text.extend(bundle.drift.iter().map(|sentence| format!("  {}\n", text::line(sentence))));
    }
    Report::done(text, tree)
}

/// What is known of a workload in two words. One that is on its way and one that was stopped are the same fact, so that
/// neither word would be true of both.
fn state(workload: &ObservedWorkload) -> String {
    if !workload.present {
        "absent".to_owned()
    } else if workload.running {
        "running".to_owned()
    } else if workload.starting {
        "starting".to_owned()
    } else if workload.reason.as_ref().is_some_and(|reason| reason.kind == ReasonKind::NodeLost) {
        "not known".to_owned()
    } else if workload.exit_code.is_some() || workload.started_at.is_some() {
        ended(workload.exit_code)
    } else {
        "not running".to_owned()
    }
}

/// How long ago that was; `0s` for what lies ahead, since machines' clocks differ.
fn age(past: Timestamp, now: Timestamp) -> String {
    text::lasting(Duration::try_from(now.duration_since(past)).unwrap_or_default())
}

/// As much of a digest as people compare.
fn short_digest(digest: &str) -> &str {
    let hex = digest.rsplit_once("sha256:").map_or(digest, |(_, hex)| hex);
    hex.get(..12).unwrap_or(hex)
}

/// A cause: its kind, in words, and its sentence.
pub(crate) fn reason(reason: &Reason) -> String {
    let kind = match reason.kind {
        ReasonKind::Evicted => "evicted",
        ReasonKind::NodeLost => "node lost",
        ReasonKind::NodeShutdown => "node shut down",
        ReasonKind::Placement => "placement",
        ReasonKind::OutOfMemory => "out of memory",
        ReasonKind::Killed => "killed",
        ReasonKind::Image => "image",
        ReasonKind::Config => "config",
        ReasonKind::Mount => "mount",
        ReasonKind::Scheduling => "scheduling",
        ReasonKind::Gate => "gate",
        ReasonKind::StartError => "start error",
        ReasonKind::Vanished => "vanished",
        ReasonKind::Unknown => return reason.sentence.clone(),
    };
    format!("{kind}: {}", reason.sentence)
}

#[cfg(test)]
mod tests {
    use pando_api::ObservedVolume;

    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_000_000, 0);

    fn result(outcomes: &[(Outcome, Option<Gate>)]) -> ApplyResult {
        let workload = |(index, (outcome, gate)): (usize, &(Outcome, Option<Gate>))| WorkloadResult {
            workload: format!("w{index}"),
            outcome: outcome.clone(),
            gate: gate.clone(),
            unready_dependencies: Vec::new(),
        };
        ApplyResult {
            handle: "pando-app-1".to_owned(),
            workloads: outcomes.iter().enumerate().map(workload).collect(),
            written: Vec::new(),
        }
    }

    #[test]
    fn an_apply_tells_outcomes_gates_and_writes() {
        let mut result = result(&[
            (Outcome::Created, Some(Gate { millis: Some(1_042), proof: GateProof::Proved })),
            (Outcome::Unchanged, None),
            (
                Outcome::Ended { exit_code: Some(3), reason: None, log: None },
                Some(Gate { millis: None, proof: GateProof::Off }),
            ),
        ]);
        let fields = vec!["spec.selector".to_owned(), "metadata.labels".to_owned()];
        for (kind, name, change, fields) in
            [("Namespace", "pando-app-1", Change::Created, Vec::new()), ("Service", "w1", Change::Changed, fields)]
        {
            result.written.push(Written { kind: kind.to_owned(), name: name.to_owned(), change, fields });
        }
        let expected = "\
WORKLOAD   OUTCOME     GATE     PROOF
w0         created     1.042s   closed before it started
w1         unchanged   -        -
w2         ended 3     -        gate is off

WRITTEN   KIND        NAME          FIELDS
created   Namespace   pando-app-1   -
changed   Service     w1            spec.selector, metadata.labels
";
        assert_eq!(applied(&result).print(Output::Table), expected);
    }

    #[test]
    fn a_satisfied_plan_says_that_nothing_was_written() {
        assert!(
            applied(&result(&[(Outcome::Unchanged, None)]))
                .text
                .ends_with("Nothing was written: all was as planned.\n")
        );
    }

    #[test]
    fn an_observation_tells_states_and_drift() {
        let workload =
            |name: &str| ObservedWorkload { name: name.to_owned(), present: true, ..ObservedWorkload::default() };
        let reason = |kind, sentence: &str| Some(Reason { kind, sentence: sentence.to_owned() });
        let bundle = ObservedBundle {
            exists: true,
            workloads: vec![
                ObservedWorkload {
                    running: true,
                    healthy: Some(true),
                    started_at: Some(NOW - jiff::SignedDuration::from_secs(185)),
                    image_digest: "nginx@sha256:0123456789abcdef0123".to_owned(),
                    ..workload("a")
                },
                ObservedWorkload {
                    exit_code: Some(137),
                    reason: reason(ReasonKind::OutOfMemory, "it used more than 64 MiB"),
                    ..workload("b")
                },
                ObservedWorkload { reason: reason(ReasonKind::Image, "no such tag"), ..workload("c") },
                workload("d"),
            ],
            volumes: vec![ObservedVolume { volume_id: "v".to_owned(), present: false, handle: "n/c".to_owned() }],
            drift: vec!["somebody was\nhere".to_owned()],
        };
        let expected = "\
WORKLOAD   STATE         HEALTHY   SINCE   IMAGE          REASON
a          running       yes       3m05s   0123456789ab   -
b          ended 137     -         -       -              out of memory: it used more than 64 MiB
c          not running   -         -       -              image: no such tag
d          not running   -         -       -              -

VOLUME   PRESENT   HANDLE
v        no        n/c

Drift:
  somebody was here
";
        assert_eq!(observed("app_1", &bundle, NOW).text, expected);
    }

    #[test]
    fn a_bundle_that_is_not_there_is_no_failure() {
        let report = observed("app_1", &ObservedBundle::default(), NOW);
        assert_eq!(report.text, "There is nothing of bundle \"app_1\".\n");
        assert_eq!(report.tree["exists"], json!(false));
    }

    #[test]
    fn a_clock_that_runs_ahead_gives_no_negative_age() {
        assert_eq!(age(NOW + jiff::SignedDuration::from_secs(5), NOW), "0s");
    }

    #[test]
    fn programs_get_the_whole_result() {
        let report = applied(&result(&[(Outcome::Ended { exit_code: Some(3), reason: None, log: None }, None)]));
        for output in [Output::Json, Output::Yaml] {
            let read: ApplyResult =
                serde_json::from_value(document::read(&report.print(output)).expect("a tree")).expect("the result");
            assert_eq!(read.workloads[0].outcome, Outcome::Ended { exit_code: Some(3), reason: None, log: None });
        }
    }
}
