//! Why a command failed, for people and for programs.

use std::error::Error as StdError;
use std::fmt::Write;

use pando_api::{Error, Problem, WorkloadResult, Written};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::args::Output;
use crate::document;
use crate::show;
use crate::text;

/// The failure in the form that was asked for, each line ended.
pub(crate) fn print(error: &Error, output: Output, verbose: bool) -> String {
    let printed = match output {
        Output::Table => return human(error, verbose),
        Output::Json => document::json(&tree(error)),
        Output::Yaml => document::yaml([&tree(error)]),
    };
    printed.unwrap_or_else(|_| human(error, verbose))
}

/// A JSON object; what is absent is left out.
fn tree(error: &Error) -> Value {
    let mut tree = json!({"code": error.code, "message": error.message});
    if let Some(remedy) = &error.remedy {
        tree["remedy"] = json!(remedy);
    }
    if !error.details.is_empty() {
        tree["details"] = Value::Object(Map::from_iter(error.details.clone()));
    }
    let causes: Vec<_> = causes(error).collect();
    if !causes.is_empty() {
        tree["causes"] = json!(causes);
    }
    tree
}

/// What lay beneath, the nearest first. Each says something that the one above does not.
fn causes(error: &Error) -> impl Iterator<Item = String> {
    let mut above = error.message.clone();
    let chain = std::iter::successors(StdError::source(error), |cause: &&dyn StdError| (*cause).source());
    chain.map(ToString::to_string).filter(move |cause| {
        let new = !above.contains(cause.as_str());
        above.clone_from(cause);
        new
    })
}

fn human(error: &Error, verbose: bool) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = human_to(&mut text, error, verbose);
    text
}

fn human_to(text: &mut String, error: &Error, verbose: bool) -> std::fmt::Result {
    let problems: Vec<Problem> = detail(error, "problems");
    writeln!(text, "error: {}", text::line(headline(&error.message, &problems)))?;
    for Problem { field, value, problem, remedy } in &problems {
        let value = if value.is_empty() { String::new() } else { format!(" = {}", text::line(value)) };
        writeln!(text, "  {}{value}: {}; {}", text::line(field), text::line(problem), text::line(remedy))?;
    }
    for WorkloadResult { workload, outcome, .. } in detail::<WorkloadResult>(error, "workloads") {
        let outcome = show::outcome(&outcome);
        // A bundle of one workload has said so already.
        if !outcome.ends_with(&error.message) {
            writeln!(text, "  {}: {}", text::line(&workload), text::line(&outcome))?;
        }
    }
    for (key, words) in [("node", "on node"), ("left_behind", "could not be removed:")] {
        if let Some(Value::String(value)) = error.details.get(key).filter(|value| **value != json!("")) {
            writeln!(text, "  {words} {}", text::line(value))?;
        }
    }
    if let Some(Value::String(log)) = error.details.get("log").filter(|log| **log != json!("")) {
        writeln!(text, "the end of its log:")?;
        for line in log.lines() {
            writeln!(text, "  | {}", text::lines(line))?;
        }
    }
    if let Some(remedy) = &error.remedy {
        writeln!(text, "remedy: {}", text::line(remedy))?;
    }
    writeln!(text, "code: {}", error.code)?;
    if verbose {
        for cause in causes(error) {
            writeln!(text, "caused by: {}", text::line(&cause))?;
        }
        let written: Vec<Written> = detail(error, "written");
        if !written.is_empty() {
            writeln!(text, "written until then:\n{}", show::written(&written))?;
        }
    }
    Ok(())
}

/// The message as far as the problems below it do not say the same.
fn headline<'a>(message: &'a str, problems: &[Problem]) -> &'a str {
    let first = problems.first().and_then(|first| message.find(&first.to_string()));
    first.map_or(message, |at| message[..at].trim_end_matches([' ', ':']))
}

/// A list among the details; empty when there is none of that form.
fn detail<T: DeserializeOwned>(error: &Error, key: &str) -> Vec<T> {
    error.details.get(key).and_then(|value| serde_json::from_value(value.clone()).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use pando_api::{Change, Code, Outcome};

    use super::*;

    fn problem(field: &str, value: &str) -> Problem {
        Problem {
            field: field.to_owned(),
            value: value.to_owned(),
            problem: "is not a port".to_owned(),
            remedy: "write 1 to 65535".to_owned(),
        }
    }

    #[test]
    fn every_problem_is_told_once() {
        let error = Error::invalid(Code::ValidInvalid, "the plan", &[problem("a", "0"), problem("b", "")]);
        let expected = "\
error: the plan is refused
  a = 0: is not a port; write 1 to 65535
  b: is not a port; write 1 to 65535
code: VALID_INVALID
";
        assert_eq!(human(&error, false), expected);
    }

    fn failed_start() -> Error {
        let failed = |workload: &str, reason: &str| WorkloadResult {
            workload: workload.to_owned(),
            outcome: Outcome::Failed { reason: reason.to_owned() },
            gate: None,
            unready_dependencies: Vec::new(),
        };
        let written =
            Written { kind: "Pod".to_owned(), name: "web-1".to_owned(), change: Change::Created, fields: Vec::new() };
        Error::new(Code::AdapterFailed, "web was killed")
            .remedy("give it more memory")
            .detail("workloads", [failed("web", "web was killed"), failed("db", "no such tag")])
            .detail("node", "worker")
            .detail("log", "one\n\u{1b}[31mtwo\n")
            .detail("written", [written])
            .caused_by(std::io::Error::other("exit code 137"))
    }

    #[test]
    fn a_failed_start_tells_outcomes_place_log_and_remedy() {
        let expected = "\
error: web was killed
  db: failed: no such tag
  on node worker
the end of its log:
  | one
  | \u{fffd}[31mtwo
remedy: give it more memory
code: ADAPTER_FAILED
";
        assert_eq!(human(&failed_start(), false), expected);
    }

    #[test]
    fn more_is_told_when_asked() {
        let text = human(&failed_start(), true);
        assert!(text.contains("caused by: exit code 137\n"), "{text}");
        assert!(text.contains("created   Pod    web-1"), "{text}");
    }

    #[test]
    fn programs_get_everything() {
        let error = failed_start();
        let json: Value = serde_json::from_str(&print(&error, Output::Json, false)).expect("JSON");
        assert_eq!((&json["code"], &json["remedy"]), (&json!("ADAPTER_FAILED"), &json!("give it more memory")));
        assert_eq!((&json["details"]["node"], &json["causes"]), (&json!("worker"), &json!(["exit code 137"])));
        assert_eq!(document::read(&print(&error, Output::Yaml, false)).expect("YAML"), json);
        let bare = tree(&Error::new(Code::Internal, "x"));
        assert_eq!(bare, json!({"code": "INTERNAL", "message": "x"}));
    }

    #[test]
    fn a_cause_that_only_repeats_is_left_out() {
        let error = Error::new(Code::AdapterUnavailable, "no answer").caused_by(std::io::Error::other("no answer"));
        assert_eq!(causes(&error).count(), 0);
    }
}
