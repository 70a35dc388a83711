//! The form of the documents that this program reads, as JSON Schema.

use pando_adapter::Settings;
use pando_api::{BundlePlan, Error, Secret};
use serde_json::{Value, json};

use crate::args::Document;
use crate::document;
use crate::show::Report;

/// The schema of a document. For people it is JSON too: they give it to an editor.
///
/// # Errors
///
/// When it cannot be written as text, which is a defect.
pub(crate) fn of(document: Document) -> Result<Report, Error> {
    let tree = match document {
        Document::Plan => plan(),
        Document::Config => Settings::schema(),
    };
    Ok(Report::done(document::json(&tree)?, tree))
}

/// A plan as people write it: core's, but that a secret may be named instead of written.
fn plan() -> Value {
    let mut schema = BundlePlan::schema();
    let named = |key: &str, description: &str| {
        json!({"type": "object", "properties": {key: {"type": "string", "minLength": 1, "description": description}},
            "required": [key], "additionalProperties": false})
    };
    schema["$defs"]["Secret"] = json!({
        "description": "A confidential text, or where it is: a variable of the process or a file.",
        "anyOf": [
            {"type": "string"},
            named("env", "The name of a variable of this process."),
            named("file", "The path of a file, relative to the plan's directory."),
        ],
    });
    without_redacted_defaults(&mut schema);
    schema
}

/// The default of a secret is none, and prints as `[redacted]`.
fn without_redacted_defaults(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.retain(|name, value| name != "default" || *value != Secret::REDACTED);
            members.values_mut().for_each(without_redacted_defaults);
        }
        Value::Array(values) => values.iter_mut().for_each(without_redacted_defaults),
        _ => {}
    }
}
