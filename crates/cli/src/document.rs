//! Text that people write, JSON or YAML, as a tree of values; and trees as text.

use std::fmt;

use pando_api::{Code, Error};
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A text that is neither JSON nor YAML. It quotes nothing of the text, since texts hold secrets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// What is wrong.
    pub(crate) problem: String,
    /// Line and column, counted from 1, where known.
    pub(crate) place: Option<(u64, u64)>,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)?;
        match self.place {
            Some((line, column)) => write!(f, " at line {line}, column {column}"),
            None => Ok(()),
        }
    }
}

/// Reads JSON, when the text begins as an object or a list does, or else YAML 1.2.
///
/// # Errors
///
/// [`Malformed`]; a key that is there twice is one, since only one of the two would be heard.
pub(crate) fn read(text: &str) -> Result<Value, Malformed> {
    if text.trim_start().starts_with(['{', '[']) {
        read_json(text).or_else(|error| flow(text, error))
    } else {
        read_yaml(text)
    }
}

/// YAML, too, may begin with a brace. What is wrong is told in JSON's terms all the same.
fn flow(text: &str, error: Malformed) -> Result<Value, Malformed> {
    read_yaml(text).map_err(|_| error)
}

fn read_json(text: &str) -> Result<Value, Malformed> {
    serde_json::from_str::<Tree>(text).map(|tree| tree.0).map_err(|error| {
        let place = u64::try_from(error.line()).ok().zip(u64::try_from(error.column()).ok());
        let problem = if error.is_data() { "a key is there twice" } else { "this is not JSON" };
        Malformed { problem: problem.to_owned(), place }
    })
}

fn read_yaml(text: &str) -> Result<Value, Malformed> {
    let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
    serde_saphyr::from_str_with_options::<Tree>(text, options).map(|tree| tree.0).map_err(|error| {
        let place = error.location().map(|location| (location.line(), location.column()));
        let twice = matches!(error, serde_saphyr::Error::DuplicateMappingKey { .. });
        let problem = if twice { "a key is there twice" } else { "this is neither JSON nor YAML" };
        Malformed { problem: problem.to_owned(), place }
    })
}

/// Trees as YAML, one document each.
///
/// # Errors
///
/// [`Code::Internal`], which for trees of JSON does not happen.
pub(crate) fn yaml<'a>(trees: impl IntoIterator<Item = &'a Value>) -> Result<String, Error> {
    // Long lines stay whole: a folded certificate is hard to copy.
    let options = serde_saphyr::ser_options! { folded_wrap_chars: 1 << 20 };
    let mut text = String::new();
    for tree in trees {
        if !text.is_empty() {
            text.push_str("---\n");
        }
        text.push_str(&serde_saphyr::to_string_with_options(tree, options.clone()).map_err(unwritten)?);
    }
    Ok(text)
}

/// A value as indented JSON, its last line ended.
///
/// # Errors
///
/// [`Code::Internal`], which for the values of this crate does not happen.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Error> {
    Ok(serde_json::to_string_pretty(value).map_err(unwritten)? + "\n")
}

fn unwritten(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Code::Internal, "a result cannot be written as text").caused_by(error)
}

/// A value read so that no key of a map is taken twice.
struct Tree(Value);

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor).map(Self)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Tree(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, Tree(value))) = entries.next_entry::<String, Tree>()? {
            if map.insert(key, value).is_some() {
                return Err(A::Error::custom("a key is there twice"));
            }
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_and_yaml_say_the_same() {
        let tree = json!({"a": [1, -2, 1.5, true, null, "yes"], "b": {"c": "é\u{1f600}"}});
        for text in [
            r#"{"a": [1, -2, 1.5, true, null, "yes"], "b": {"c": "\u00e9\ud83d\ude00"}}"#,
            "a: [1, -2, 1.5, true, null, yes]\nb:\n  c: é\u{1f600}\n",
            "{a: [1, -2, 1.5, true, null, yes], b: {c: é\u{1f600}}}",
        ] {
            assert_eq!(read(text).expect(text), tree, "{text}");
        }
        assert_eq!(read("{\n\t\"tab\": 1\n}").expect("JSON may be indented by tabs"), json!({"tab": 1}));
    }

    #[test]
    fn a_key_is_there_once() {
        for text in ["{\"a\": 1, \"a\": 2}", "a: 1\na: 2\n"] {
            let error = read(text).expect_err(text);
            assert!(error.problem.contains("twice") && error.place.is_some(), "{text}: {error}");
        }
    }

    #[test]
    fn a_malformed_text_is_located_and_not_quoted() {
        for (text, line) in [
            ("{\"env\": {\"KEY\": \"hunter2\" \"x\": 1}}", 1),
            ("env:\n  KEY: hunter2\n bad: 'hunter2\n", 3),
            ("env: &hunter2 [*hunter2x]\n", 1),
            ("env: \"hunter2\n", 1),
        ] {
            let error = read(text).expect_err(text);
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert!(error.place.is_some_and(|(at, _)| at >= line), "{text}: {error}");
        }
    }

    #[test]
    fn yaml_that_is_written_reads_back_the_same() {
        let tree = json!({"texts": ["yes", "no", "null", "~", "1", "1e3", "0x1f", "", " x", "a: b", "# no", "- x", "two\nlines\n",
            "*star", "&and", "!tag", "%pct", "@at", "`tick", "2024-01-01", "12:30:45", "tab\tin", "x".repeat(500), "word ".repeat(60)],
            "empty": [{}, []], "number": 8080, "nested": [{"a": [{"b": null}]}]});
        let text = yaml([&tree]).expect("trees can be written");
        assert_eq!(read(&text).expect("and read"), tree, "{text}");
    }
}
