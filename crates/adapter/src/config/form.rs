//! The keys as a form shows them, and as JSON Schema.

use pando_api::{AdapterInfo, FieldKind, FormField, ShownWhen};
use serde_json::{Map, Value, json};

use super::keys::{ALL, AnyKey, Flag, ISOLATION_GATE, ISOLATION_GATE_SECONDS, Key, Level, Number, Text};

/// What this runtime is, and the form of its configuration.
pub(super) fn info() -> AdapterInfo {
    AdapterInfo { label: "Kubernetes".to_owned(), fields: ALL.iter().copied().map(field).collect() }
}

fn field(key: AnyKey) -> FormField {
    match key {
        AnyKey::Text(key) => {
            let (default, example) = match key.form {
                Text::Default(default) => (Some(json!(default)), None),
                Text::Required(example) | Text::Optional(example) => (None, Some(example.to_owned())),
            };
            let required = matches!(key.form, Text::Required(_));
            FormField { default, example, required, ..bare(key, FieldKind::Text) }
        }
        AnyKey::Number(key) => {
            let Number { default, least: minimum, most: maximum } = key.form;
            FormField { default: Some(json!(default)), ..bare(key, FieldKind::Number { minimum, maximum }) }
        }
        AnyKey::Flag(key) => {
            let Flag { default } = key.form;
            FormField { default: Some(json!(default)), ..bare(key, FieldKind::Flag) }
        }
    }
}

fn bare<F>(key: &Key<F>, kind: FieldKind) -> FormField {
    let shown_when = (key.name == ISOLATION_GATE_SECONDS.name)
        .then(|| ShownWhen { key: ISOLATION_GATE.name.to_owned(), equals: json!(true) });
    FormField {
        key: key.name.to_owned(),
        label: key.label.to_owned(),
        help: key.help.to_owned(),
        kind,
        default: None,
        example: None,
        required: false,
        advanced: key.level == Level::Advanced,
        options: Vec::new(),
        shown_when,
    }
}

/// The JSON Schema of a configuration with these fields. One that is not required may be null.
pub(super) fn schema(fields: &[FormField]) -> Value {
    let required: Vec<_> = fields.iter().filter(|field| field.required).map(|field| &field.key).collect();
    let properties: Map<_, _> = fields.iter().map(|field| (field.key.clone(), property(field))).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration",
        "description": "What Pando's runtime on Kubernetes is told about an installation.",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn property(field: &FormField) -> Value {
    let name = match field.kind {
        FieldKind::Text => "string",
        FieldKind::Flag => "boolean",
        FieldKind::Number { .. } => "integer",
    };
    let mut property = json!({"title": field.label, "description": field.help});
    property["type"] = if field.required { json!(name) } else { json!([name, "null"]) };
    if let FieldKind::Number { minimum, maximum } = field.kind {
        (property["minimum"], property["maximum"]) = (json!(minimum), json!(maximum));
    }
    if let Some(default) = &field.default {
        property["default"] = default.clone();
    }
    if let Some(example) = &field.example {
        property["examples"] = json!([example]);
    }
    property
}
