//! Requests that a real API server (Kubernetes 1.34.4) answered, asked again of the fake.
//!
//! A recording in `tests/data` holds each request with its answer, in the order in which they were sent;
//! it is data and is never edited by hand. What no two servers share is masked: identities,
//! versions, dates, given addresses and ports. Every other difference fails, unless a table says why
//! the words of an answer may differ; a tolerance that is no longer needed fails as well.

use std::collections::BTreeMap;

use pando_fakecluster::sim::Sim;
use pando_fakecluster::{FakeCluster, FakeConfig, FakeStorageClass};
use serde_json::Value;

use crate::bed::Bed;

/// Steps whose answers differ in nothing but their words, and why that is accepted.
const TOLERATED: &[(&str, &str)] = &[
    ("privileged no escalation", STRUCT),
    ("pod string for spec", DECODER),
    ("pod number for name", DECODER),
    ("pod is service", DECODER),
    ("pod other version", DECODER),
    ("pod list", DECODER),
    ("u type", DECODER),
    ("secret 6", DECODER),
    ("secret 8", DECODER),
    ("sec change 4", DECODER),
    ("policy INV-01", POLICY),
    ("policy INV-03", POLICY),
    ("policy INV-09", POLICY),
    ("policy INV-21", POLICY),
    ("policy INV-22", POLICY),
];

/// As [`TOLERATED`], of the recording about storage and files.
const TOLERATED_STORAGE: &[(&str, &str)] = &[];

const STRUCT: &str = "Kubernetes prints a struct of its own with all its fields";
const DECODER: &str = "the words are those of Go's decoders, the object's managed fields among them";
const POLICY: &str = "the field is the same, the rule is worded otherwise";

#[test]
fn a_real_api_servers_answers_are_the_fakes() {
    compare(include_str!("../data/recorded-1.34.json"), vec![], TOLERATED);
}

/// Recorded on a cluster made by kind, which has a default class.
#[test]
fn a_real_api_servers_answers_about_storage_and_files_are_the_fakes() {
    compare(include_str!("../data/recorded-storage-1.34.json"), vec![FakeStorageClass::standard()], TOLERATED_STORAGE);
}

fn compare(recording: &str, storage_classes: Vec<FakeStorageClass>, tolerated: &[(&str, &str)]) {
    let sim = Sim::new(1);
    let cluster = FakeCluster::new(sim.env(), FakeConfig { nodes: vec![], storage_classes, ..FakeConfig::default() });
    let bed = Bed { sim, cluster };
    let steps: Value = serde_json::from_str(recording).expect("a recording");
    let steps = steps.as_array().expect("a list");
    let mut tolerated: BTreeMap<_, _> = tolerated.iter().copied().collect();
    let mut differences = Vec::new();
    // Watches go on from the version of the first object.
    let mut start: Option<String> = None;
    for step in steps {
        let text = |field: &str| step[field].as_str().expect(field);
        let path = text("path").replace("{start}", start.as_deref().unwrap_or_default());
        let answer = bed.ask(text("method"), &path, &step["body"]);
        let version = answer.body["metadata"]["resourceVersion"].as_str();
        start = start.or_else(|| version.map(str::to_owned));
        bed.sim.settle();
        let mut real = essence(text("method"), &step["code"], &step["answer"]);
        let mut fake = essence(text("method"), &answer.code.into(), &answer.body);
        if real != fake && tolerated.remove(text("id")).is_some() {
            without_words(&mut real);
            without_words(&mut fake);
        }
        if real != fake {
            differences.push(format!("{}\n  real: {real}\n  fake: {fake}", text("id")));
        }
    }
    let (count, all) = (differences.len(), differences.join("\n"));
    assert!(differences.is_empty(), "{count} of {} answers differ:\n{all}", steps.len());
    assert!(tolerated.is_empty(), "no difference any more: {tolerated:?}");
}

/// What of an answer two servers must share.
fn essence(method: &str, code: &Value, answer: &Value) -> Value {
    let mut answer = answer.clone();
    // What controllers make of an object is their own tests' business.
    if method != "POST" {
        match &mut answer {
            Value::Array(events) => events.iter_mut().for_each(|event| without_status(&mut event["object"])),
            answer => without_status(answer),
        }
    }
    mask("", &mut answer);
    serde_json::json!({"code": code, "answer": answer})
}

fn without_status(object: &mut Value) {
    if object["kind"] != "Status"
        && let Some(members) = object.as_object_mut()
    {
        members.remove("status");
    }
}

/// Takes the sentences out of a `Status`; code, reason, kind, name and fields stay.
fn without_words(answer: &mut Value) {
    match answer {
        Value::Object(members) => {
            members.remove("message");
            if members.contains_key("field") {
                members.remove("reason");
            }
            members.values_mut().for_each(without_words);
        }
        Value::Array(items) => items.iter_mut().for_each(without_words),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn mask(name: &str, value: &mut Value) {
    match value {
        // Kubernetes checks metadata twice on an update, and so names a cause twice.
        Value::Array(causes) if name == "causes" => {
            for cause in causes.iter_mut() {
                mask("", cause);
            }
            causes.dedup();
        }
        Value::Object(members) => members.iter_mut().for_each(|(name, member)| mask(name, member)),
        Value::Array(items) => items.iter_mut().for_each(|item| mask(name, item)),
        Value::Number(_) if name == "nodePort" => *value = "a port".into(),
        Value::String(text) => *text = masked(name, text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn masked(name: &str, text: &str) -> String {
    match name {
        "resourceVersion" => "a version".to_owned(),
        "uid" => "a uid".to_owned(),
        _ if name.ends_with("Timestamp") || name.ends_with("Time") => "a date".to_owned(),
        "clusterIP" | "clusterIPs" if text.starts_with("10.96.") => "an address".to_owned(),
        _ if text.starts_with("kube-api-access-") => "kube-api-access-…".to_owned(),
        "message" => without_identities(text),
        _ => text.to_owned(),
    }
}

/// A message without the uids and versions in it.
fn without_identities(message: &str) -> String {
    let is_uid = |word: &str| word.len() == 36 && word.bytes().filter(|c| *c == b'-').count() == 4;
    let is_number = |word: &str| word.len() > 1 && word.bytes().all(|c| c.is_ascii_digit());
    let about_identity = message.contains("recondition") || message.contains("too old");
    // Behind the sentence Kubernetes shows what changed in its own structs.
    let message = message.split("\n@@").next().unwrap_or(message);
    let mut out = String::new();
    for piece in message.split_inclusive([' ', '(', ')', '.', ',']) {
        let word = piece.trim_end_matches([' ', '(', ')', '.', ',']);
        let hide = is_uid(word) || (about_identity && is_number(word));
        out.push_str(if hide { "…" } else { word });
        out.push_str(&piece[word.len()..]);
    }
    out
}
