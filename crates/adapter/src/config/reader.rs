//! Takes the keys out of what was written, and notes everything that is wrong with it.

use pando_api::Problem;
use serde_json::{Map, Value};

use super::checks;
use super::keys::{ALL, Flag, Key, NOT_BUILT, Number, Text};
use super::suggest;
use super::values::{Fault, Read};

/// The most of a value or a foreign key that a message shows, in characters.
const SHOWN: usize = 120;

/// The values not read yet, and the problems found so far.
pub(super) struct Reader {
    map: Map<String, Value>,
    problems: Vec<Problem>,
}

impl Reader {
    pub(super) fn of(map: Map<String, Value>) -> Self {
        Self { map, problems: Vec::new() }
    }

    /// Everything that is wrong, the keys that nothing asked for included.
    pub(super) fn problems(mut self) -> Vec<Problem> {
        for key in std::mem::take(&mut self.map).keys() {
            self.problems.push(unknown(key));
        }
        self.problems
    }

    /// Notes what is wrong with a key.
    pub(super) fn refuse<F>(&mut self, key: &Key<F>, faults: impl IntoIterator<Item = Fault>) {
        self.problems.extend(faults.into_iter().map(|Fault { value, problem, remedy }| Problem {
            field: key.name.to_owned(),
            value: shortened(&value),
            problem,
            remedy,
        }));
    }

    /// Whether something is wrong with what was written for a key.
    pub(super) fn has_refused<F>(&self, key: &Key<F>) -> bool {
        self.problems.iter().any(|problem| problem.field == key.name)
    }

    /// What was written for a key that may be left out, read by `read`.
    pub(super) fn optional<T>(&mut self, key: &Key<Text>, read: impl FnOnce(&str) -> Read<T>) -> Option<T> {
        let text = self.written(key)?;
        match read(&text) {
            Ok(value) => Some(value),
            Err(faults) => {
                self.refuse(key, faults);
                None
            }
        }
    }

    /// The same for a key that has a default or must be given. What cannot be had is `T`'s own default, and a problem is noted.
    pub(super) fn text<T: Default>(&mut self, key: &Key<Text>, read: impl FnOnce(&str) -> Read<T>) -> T {
        let text = match (self.written(key), &key.form) {
            (Some(text), _) => text,
            (None, Text::Default(default)) => (*default).to_owned(),
            (None, Text::Optional(_)) => return T::default(),
            (None, Text::Required(example)) => {
                if !self.has_refused(key) {
                    self.refuse(key, [missing(key.name, example)]);
                }
                return T::default();
            }
        };
        read(&text).unwrap_or_else(|faults| {
            self.refuse(key, faults);
            T::default()
        })
    }

    /// A number within the key's bounds.
    pub(super) fn number(&mut self, key: &Key<Number>) -> u64 {
        self.given_number(key).unwrap_or(key.form.default)
    }

    /// The same, when it was written.
    pub(super) fn given_number(&mut self, key: &Key<Number>) -> Option<u64> {
        let Number { least, most, .. } = key.form;
        let value = self.take(key)?;
        match value.as_u64() {
            Some(number) if (least..=most).contains(&number) => return Some(number),
            _ => self.refuse(key, [wrong_number(&value, least, most)]),
        }
        None
    }

    /// True or false.
    pub(super) fn flag(&mut self, key: &Key<Flag>) -> bool {
        let Some(value) = self.take(key) else { return key.form.default };
        value.as_bool().unwrap_or_else(|| {
            let remedy = "write true or false, without quotes".to_owned();
            let problem = "is neither true nor false".to_owned();
            self.refuse(key, [Fault { value: shown(&value), problem, remedy }]);
            key.form.default
        })
    }

    /// A text that was written and is not blank.
    fn written(&mut self, key: &Key<Text>) -> Option<String> {
        match self.take(key)? {
            Value::String(text) => (!text.trim().is_empty()).then_some(text),
            other => {
                let remedy = match &other {
                    Value::Array(parts) if parts.iter().all(Value::is_string) => {
                        "write one text in quotes, its parts comma-separated"
                    }
                    _ => "write it as a text in quotes",
                };
                let problem = "is not a text".to_owned();
                self.refuse(key, [Fault { value: shown(&other), problem, remedy: remedy.to_owned() }]);
                None
            }
        }
    }

    fn take<F>(&mut self, key: &Key<F>) -> Option<Value> {
        self.map.remove(key.name).filter(|value| !value.is_null())
    }
}

fn missing(key: &str, example: &str) -> Fault {
    let remedy = format!("write the cluster's own, e.g. {example:?}; {}", checks::hint(key));
    Fault { value: String::new(), problem: "is missing".to_owned(), remedy }
}

fn wrong_number(value: &Value, least: u64, most: u64) -> Fault {
    let quoted =
        value.as_str().and_then(|text| text.trim().parse().ok()).filter(|number| (least..=most).contains(number));
    let (problem, remedy) = match quoted {
        Some(number) => ("is a text, not a number", format!("write {number} without quotes")),
        None if value.is_number() && !value.is_f64() => {
            ("is out of range", format!("write a whole number from {least} to {most}"))
        }
        None => ("is not a whole number", format!("write a whole number from {least} to {most}")),
    };
    Fault { value: shown(value), problem: problem.to_owned(), remedy }
}

/// What is wrong with a key that is none. What was given there is not shown: it may be a secret whose key is misspelt.
fn unknown(key: &str) -> Problem {
    let (problem, remedy) = if NOT_BUILT.contains(&key) {
        ("belongs to a feature that is not built yet", "remove it for now".to_owned())
    } else {
        let names = || ALL.iter().map(|key| key.name());
        let remedy = match suggest::nearest(key, names()) {
            Some(meant) => format!("did you mean {meant}? If not, remove it"),
            None => format!("remove it, or use one of: {}", names().collect::<Vec<_>>().join(", ")),
        };
        ("is not a key of the configuration", remedy)
    };
    let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_graphic());
    let field = if plain { shortened(key) } else { format!("{:?}", shortened(key)) };
    Problem { field, value: String::new(), problem: problem.to_owned(), remedy }
}

/// A value of a wrong type as a message shows it. What lies deeper may be a secret: a kubeconfig in the place of its path is one.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(members) if !members.is_empty() => "{…}".to_owned(),
        Value::Array(parts) if !parts.is_empty() => "[…]".to_owned(),
        plain => plain.to_string(),
    }
}

/// A text that fits a message: a whole file pasted as a value does not bury what is wrong with it.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
