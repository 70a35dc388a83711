//! The configuration as operators meet it: the documented table, the exact refusals, and whatever else may be written.
//!
//! `PANDO_UPDATE=1 cargo test -p pando-adapter --test configuration` rewrites `docs/configuration.md` and
//! `refused_configurations.txt`; read the difference before it is committed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use pando_adapter::Settings;
use pando_api::{Code, FieldKind, FormField, Problem};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Where the rows are: a line of JSON, what is set beside the two ranges, and below it the problems it gets.
const REFUSED: &str = "tests/refused_configurations.txt";

const REFERENCE: &str = "../../docs/configuration.md";

#[test]
fn the_reference_is_what_the_table_says() {
    compare(REFERENCE, &reference(&Settings::info().fields));
}

#[test]
fn every_bad_configuration_gets_exactly_its_refusals() {
    let text = std::fs::read_to_string(at(REFUSED)).expect("the file of refusals");
    let rows: Vec<_> = text.lines().filter(|line| !line.starts_with("  ") && !line.is_empty()).collect();
    assert!(rows.len() >= 60, "{} rows", rows.len());
    let told = rows.iter().map(|row| {
        let problems = problems(&configuration(row));
        assert!(!problems.is_empty(), "{row} is not refused");
        let mut told = format!("{row}\n");
        for problem in problems {
            writeln!(told, "  {problem}").expect("a text takes it");
        }
        told + "\n"
    });
    compare(REFUSED, told.collect::<String>().trim_end_matches('\n'));
}

/// A problem says where, what, why and what to write instead.
#[test]
fn every_refusal_names_its_key_its_value_and_a_remedy() {
    let known: Vec<_> = Settings::info().fields.into_iter().map(|field| field.key).collect();
    let text = std::fs::read_to_string(at(REFUSED)).expect("the file of refusals");
    for row in text.lines().filter(|line| !line.starts_with("  ") && !line.is_empty()) {
        for problem in problems(&configuration(row)) {
            assert!(!problem.problem.is_empty() && !problem.remedy.is_empty(), "{row}: {problem}");
            let told = ["write", "remove", "did you mean"].iter().any(|word| problem.remedy.contains(word));
            assert!(told, "what to write instead: {row}: {problem}");
            if known.contains(&problem.field) && problem.problem != "is missing" {
                assert!(!problem.value.is_empty(), "{row}: {problem}");
            }
        }
    }
}

/// Every secret of the rows is this one.
#[test]
fn no_refusal_shows_a_secret() {
    let text = std::fs::read_to_string(at(REFUSED)).expect("the file of refusals");
    let secret: Vec<_> = text.lines().filter(|line| line.starts_with('{') && line.contains("hunter2")).collect();
    assert!(secret.len() >= 5, "rows with a secret: {secret:?}");
    for row in secret {
        let error = Settings::from_json(&configuration(row)).expect_err(row);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{row}: {error:?}");
    }
}

/// What a row means: an object is set beside the two ranges, anything else is the whole.
fn configuration(row: &str) -> Value {
    let written: Value = serde_json::from_str(row).unwrap_or_else(|error| panic!("{row}: {error}"));
    let Value::Object(set) = written else { return written };
    let mut whole = json!({"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/16"});
    whole.as_object_mut().expect("an object").extend(set);
    whole
}

fn problems(configuration: &Value) -> Vec<Problem> {
    match Settings::from_json(configuration) {
        Ok(_) => Vec::new(),
        Err(error) => {
            assert_eq!(error.code, Code::ValidInvalid);
            serde_json::from_value(error.details["problems"].clone()).expect("the problems")
        }
    }
}

/// The documentation of every key, as a table for people.
fn reference(fields: &[FormField]) -> String {
    let mut text = String::from(
        "# Configuration\n\n\
        The configuration is one JSON or YAML object. Two keys are required. `null` and blank texts count as absent. Unknown keys and \
        bad values are refused, all at once, before anything is contacted. `pando-k8s schema config` prints this table as JSON Schema.\n\n\
        | key | type | default | what it is for |\n| --- | --- | --- | --- |\n",
    );
    for field in fields {
        let kind = match field.kind {
            FieldKind::Text => "text".to_owned(),
            FieldKind::Flag => "true or false".to_owned(),
            FieldKind::Number { minimum, maximum } => format!("{minimum} to {maximum}"),
        };
        let default = match (&field.default, &field.example) {
            _ if field.required => format!("required, e.g. `{}`", field.example.as_deref().unwrap_or_default()),
            (Some(Value::String(default)), _) => format!("`{default}`"),
            (Some(default), _) => format!("{default}"),
            (None, Some(example)) => format!("none; e.g. `{example}`"),
            (None, None) => "none".to_owned(),
        };
        writeln!(text, "| `{}` | {kind} | {default} | {} |", field.key, field.help).expect("a text takes it");
    }
    text
}

/// Fails when a file is not the text, or makes it so when told to.
fn compare(file: &str, text: &str) {
    let (path, text) = (at(file), format!("{}\n", text.trim_end_matches('\n')));
    if std::env::var_os("PANDO_UPDATE").is_some() {
        std::fs::write(&path, text).expect("written");
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = found.lines().zip(text.lines()).find(|(found, told)| found != told);
    let stale = format!("{file} is stale; PANDO_UPDATE=1 rewrites it, read the difference then");
    assert!(found == text, "{stale}\nfirst difference: {differs:#?}");
}

fn at(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// Any JSON value, three levels deep at most.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[-a-z0-9.,:=/~ A-Z]{0,24}".prop_map(Value::from),
        "[0-9a-f.:]{1,12}/[0-9]{1,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A configuration of some known keys and some others, each with any value.
fn any_configuration() -> impl Strategy<Value = Value> {
    let known: Vec<_> = Settings::info().fields.into_iter().map(|field| field.key).collect();
    let key = prop_oneof![4 => prop::sample::select(known), 1 => any::<String>()];
    prop::collection::btree_map(key, any_json(), 0..8)
        .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>()))
}

proptest! {
    /// Whatever is written is taken or refused, and each problem says where it is and what helps.
    #[test]
    fn nothing_that_is_written_is_met_with_a_panic(written in prop_oneof![3 => any_configuration(), 1 => any_json()]) {
        for problem in problems(&written) {
            prop_assert!(!problem.field.is_empty() && !problem.problem.is_empty() && !problem.remedy.is_empty(), "{problem:?}");
            let written_there = written.get(&problem.field).is_some();
            let named = written_there || problem.problem == "is missing" || problem.field.starts_with(['(', '"'])
                || problem.field.ends_with('…');
            prop_assert!(named, "a key of what was written: {problem:?}");
        }
    }
}
