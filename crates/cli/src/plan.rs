//! A plan as people write it: JSON or YAML, its secrets by value, by variable or by file.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use pando_api::{BundlePlan, Code, Error, Problem, Secret};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::document;

/// A file with more bytes than this is no secret: the environment of a workload holds less.
const FILE_LIMIT: u64 = 1024 * 1024;

/// Where the secrets of a plan come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrets {
    /// They are read from where the plan says.
    Resolved,
    /// They are not wanted: `[redacted]` stands for each, and nothing is read.
    Hidden,
}

/// Reads the plan at `path`, or from the standard input when that is `-`.
///
/// # Errors
///
/// [`Code::ValidInvalid`] when it cannot be read, with the place of what is wrong.
pub(crate) fn read(path: &Path, secrets: Secrets) -> Result<BundlePlan, Error> {
    let (name, text) = if path == Path::new("-") {
        let mut text = Zeroizing::new(String::new());
        let read = io::stdin().lock().read_to_string(&mut text);
        ("the plan from the standard input".to_owned(), read.map(|_| text))
    } else {
        (format!("the plan {}", path.display()), std::fs::read_to_string(path).map(Zeroizing::new))
    };
    let text = text.map_err(|error| {
        Error::new(Code::ValidInvalid, format!("{name} cannot be read"))
            .remedy("check that the file exists, is UTF-8 text and may be read; - reads the standard input")
            .caused_by(error)
    })?;
    let directory = path.parent().unwrap_or(Path::new("")).to_owned();
    let surroundings = Surroundings { directory, variable: |name| env::var_os(name) };
    parse(&name, &text, secrets, &surroundings)
}

/// What the words `env` and `file` refer to.
struct Surroundings {
    /// Where relative paths begin.
    directory: PathBuf,
    /// A variable's value.
    variable: fn(&str) -> Option<OsString>,
}

fn parse(name: &str, text: &str, secrets: Secrets, surroundings: &Surroundings) -> Result<BundlePlan, Error> {
    let mut tree = document::read(text).map_err(|error| {
        Error::new(Code::ValidInvalid, format!("{name} cannot be read: {error}"))
            .remedy("write it as JSON or YAML, each key once")
    })?;
    let mut problems = Vec::new();
    each_secret(&mut tree, &mut |field, value| {
        let resolved = match secrets {
            Secrets::Resolved => surroundings.resolve(value),
            Secrets::Hidden => Source::of(value).map(|_| Secret::REDACTED.to_owned()),
        };
        match resolved {
            // A plan with problems goes no further, and neither does what was there.
            Ok(secret) => *value = Value::String(secret),
            Err(fault) => {
                problems.push(fault.at(field));
                *value = Value::String(String::new());
            }
        }
    });
    let read = serde_path_to_error::deserialize(tree);
    match read {
        Ok(plan) if problems.is_empty() => return Ok(plan),
        Ok(_) => {}
        Err(error) => problems.push(misfit(&error.path().to_string(), &error.into_inner().to_string())),
    }
    Err(Error::invalid(Code::ValidInvalid, name, &problems))
}

/// A field that is none of a plan's, is missing, or has a value of another type.
fn misfit(path: &str, words: &str) -> Problem {
    let words = &*without_value(words);
    let remedy = if words.starts_with("unknown field") {
        "remove it or correct its spelling"
    } else if words.starts_with("missing field") {
        "add it"
    } else {
        "write a value of the kind that is expected"
    };
    let field = if path == "." { "(plan)" } else { path };
    Problem { field: field.to_owned(), value: String::new(), problem: words.to_owned(), remedy: remedy.to_owned() }
}

/// The parser's words without the value that they quote: where the form of a plan is wrong, a secret may stand anywhere.
fn without_value(words: &str) -> String {
    let quoting = words.split_once(": ").zip(words.rsplit_once(", expected "));
    match quoting.filter(|((what, _), _)| what.starts_with("invalid ")) {
        Some(((what, rest), (_, expected))) => {
            let kind = rest.split([' ', ',']).next().unwrap_or_default();
            format!("{what}: {kind}, expected {expected}")
        }
        None => words.to_owned(),
    }
}

/// Shows each place of a secret in a plan, as far as the plan has the form of one.
fn each_secret(plan: &mut Value, visit: &mut impl FnMut(String, &mut Value)) {
    let workloads = plan.get_mut("workloads").and_then(Value::as_array_mut);
    for (index, workload) in workloads.into_iter().flatten().enumerate() {
        let at = format!("workloads[{index}]");
        if let Some(env) = workload.get_mut("env").and_then(Value::as_object_mut) {
            for (name, value) in env {
                visit(format!("{at}.env[{name:?}]"), value);
            }
        }
        for field in ["password", "identity_token"] {
            if let Some(value) = workload.get_mut("pull_auth").and_then(|auth| auth.get_mut(field)) {
                visit(format!("{at}.pull_auth.{field}"), value);
            }
        }
    }
}

/// A secret as it is written.
#[derive(Debug, PartialEq, Eq)]
enum Source<'a> {
    Text(&'a str),
    Variable(&'a str),
    File(&'a str),
}

/// Why a secret cannot be had.
#[derive(Debug)]
struct Fault {
    /// What is written there, as far as it is no secret.
    value: String,
    problem: String,
    remedy: String,
}

impl Fault {
    fn at(self, field: String) -> Problem {
        Problem { field, value: self.value, problem: self.problem, remedy: self.remedy }
    }
}

impl<'a> Source<'a> {
    fn of(written: &'a Value) -> Result<Self, Fault> {
        let fault = || Fault {
            value: Secret::REDACTED.to_owned(),
            problem: "is not a secret".to_owned(),
            remedy: r#"write a text in quotes, {"env": "NAME"} or {"file": "PATH"}"#.to_owned(),
        };
        match written {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Object(map) if map.len() == 1 => {
                let named = |key| map.get(key).and_then(Value::as_str).filter(|name| !name.is_empty());
                let variable = named("env").map(Self::Variable);
                variable.or_else(|| named("file").map(Self::File)).ok_or_else(fault)
            }
            _ => Err(fault()),
        }
    }
}

impl Surroundings {
    fn resolve(&self, written: &Value) -> Result<String, Fault> {
        match Source::of(written)? {
            Source::Text(text) => Ok(text.to_owned()),
            Source::Variable(name) => self.variable(name),
            Source::File(path) => self.file(path),
        }
    }

    fn variable(&self, name: &str) -> Result<String, Fault> {
        let fault = |problem: &str, remedy: String| Fault {
            value: format!(r#"{{"env": {name:?}}}"#),
            problem: problem.to_owned(),
            remedy,
        };
        // A name with `=` or NUL is none that a variable can have.
        let value = if name.contains(['=', '\0']) { None } else { (self.variable)(name) };
        let value = value.ok_or_else(|| {
            fault("names a variable that is not set", format!("set the variable {name} before the command"))
        })?;
        value
            .into_string()
            .map_err(|_| fault("names a variable that is not UTF-8 text", format!("set the variable {name} to a text")))
    }

    fn file(&self, written: &str) -> Result<String, Fault> {
        let path = self.directory.join(written);
        let fault = |problem: String, remedy: &str| Fault {
            value: format!(r#"{{"file": {written:?}}}"#),
            problem,
            remedy: remedy.to_owned(),
        };
        let mut bytes = Zeroizing::new(Vec::new());
        std::fs::File::open(&path).and_then(|file| file.take(FILE_LIMIT + 1).read_to_end(&mut bytes)).map_err(
            |error| {
                let problem = format!("names the file {}, which cannot be read: {error}", path.display());
                fault(problem, "check that the file exists and that this process may read it")
            },
        )?;
        if bytes.len() as u64 > FILE_LIMIT {
            return Err(fault("names a file of more than 1 MiB".to_owned(), "name a file that holds one secret"));
        }
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| fault("names a file that is not UTF-8 text".to_owned(), "name a file of text"))?;
        Ok(without_line_break(text).to_owned())
    }
}

/// The text without one line break at its end, which editors and `echo` add and nobody means.
fn without_line_break(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed_in(directory: &Path, plan: &Value, secrets: Secrets) -> Result<BundlePlan, Error> {
        let variable = |name: &str| (name == "SET").then(|| "from a variable".into());
        let surroundings = Surroundings { directory: directory.to_owned(), variable };
        parse("the plan", &plan.to_string(), secrets, &surroundings)
    }

    fn parsed(plan: &Value, secrets: Secrets) -> Result<BundlePlan, Error> {
        parsed_in(Path::new("/nonexistent"), plan, secrets)
    }

    fn with_env(env: Value) -> Value {
        json!({"bundle_id": "app_1", "workloads": [{"name": "web", "image": "nginx:1.22", "env": env}]})
    }

    fn problems(error: &Error) -> Vec<Problem> {
        assert_eq!(error.code, Code::ValidInvalid);
        serde_json::from_value(error.details["problems"].clone()).expect("problems are told one by one")
    }

    #[test]
    fn a_value_in_the_wrong_place_is_not_quoted() {
        for (words, told) in [
            ("invalid type: string \"hunter2, expected it\", expected a map", "invalid type: string, expected a map"),
            ("invalid type: integer `777`, expected a string", "invalid type: integer, expected a string"),
            ("invalid type: map, expected a string", "invalid type: map, expected a string"),
            ("missing field `name`", "missing field `name`"),
        ] {
            assert_eq!(without_value(words), told);
        }
    }

    #[test]
    fn secrets_come_from_texts_variables_and_files() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("token"), "from a file\n").expect("written");
        let mut plan = with_env(json!({"A": "text", "B": {"env": "SET"}, "C": {"file": "token"}}));
        plan["workloads"][0]["pull_auth"] = json!({"username": "u", "password": {"env": "SET"}, "identity_token": {"file": directory.path().join("token")}});
        let plan = parsed_in(directory.path(), &plan, Secrets::Resolved).expect("all are there");
        let web = &plan.workloads[0];
        let values: Vec<_> = web.env.values().map(Secret::expose).collect();
        assert_eq!(values, ["text", "from a variable", "from a file"]);
        let auth = web.pull_auth.as_ref().expect("credentials were written");
        assert_eq!((auth.password.expose(), auth.identity_token.expose()), ("from a variable", "from a file"));
    }

    #[test]
    fn a_file_loses_one_line_break_at_its_end_and_nothing_else() {
        for (text, secret) in
            [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a \n", " a "), ("\n", ""), ("", "")]
        {
            assert_eq!(without_line_break(text), secret, "{text:?}");
        }
    }

    #[test]
    fn every_secret_that_cannot_be_had_is_told_by_its_field() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("binary"), [0xff, 0xfe]).expect("written");
        std::fs::write(directory.path().join("large"), vec![b'x'; 1024 * 1024 + 1]).expect("written");
        let plan = with_env(json!({
            "A": {"env": "UNSET"}, "B": {"file": "missing"}, "C": {"file": "binary"}, "D": {"file": "large"},
            "E": {"env": "SET", "file": "x"}, "F": {"env": ""}, "G": 4711, "H": {"vault": "x"}, "I": {"env": "A=B"}, "J": null}));
        let error = parsed_in(directory.path(), &plan, Secrets::Resolved).expect_err("none can be had");
        let told: Vec<_> = problems(&error).into_iter().map(|it| (it.field, it.problem)).collect();
        for (index, (key, words)) in [
            ("A", "not set"),
            ("B", "cannot be read"),
            ("C", "not UTF-8"),
            ("D", "1 MiB"),
            ("E", "not a secret"),
            ("F", "not a secret"),
            ("G", "not a secret"),
            ("H", "not a secret"),
            ("I", "not set"),
            ("J", "not a secret"),
        ]
        .into_iter()
        .enumerate()
        {
            let (field, problem) = &told[index];
            assert_eq!(*field, format!("workloads[0].env[{key:?}]"));
            assert!(problem.contains(words), "{field}: {problem}");
        }
        assert_eq!(told.len(), 10);
        assert!(!format!("{error:?}").contains("4711"), "a secret of the wrong type stays one");
    }

    #[test]
    fn hidden_secrets_are_not_read() {
        let plan = with_env(json!({"A": {"env": "UNSET"}, "B": {"file": "missing"}, "C": "hunter2"}));
        let plan = parsed(&plan, Secrets::Hidden).expect("nothing is read");
        assert!(plan.workloads[0].env.values().all(|value| value.expose() == Secret::REDACTED));
    }

    #[test]
    fn a_field_that_does_not_fit_is_told_by_its_path() {
        type Change = fn(&mut Value);
        let rows: [(Change, &str, &str); 5] = [
            (
                |plan| plan["workloads"][0]["ports"] = json!([{"nubmer": 80}]),
                "workloads[0].ports[0].nubmer",
                "`number`",
            ),
            (|plan| plan["workloads"][0]["ports"] = json!([{"number": "80"}]), "workloads[0].ports[0].number", "u32"),
            (|plan| plan["replicas"] = json!(3), "replicas", "unknown field"),
            (|plan| plan["workloads"] = json!({}), "workloads", "sequence"),
            (|plan| plan["bundle_id"] = Value::Null, "bundle_id", "string"),
        ];
        for (change, field, words) in rows {
            let mut plan = with_env(json!({}));
            change(&mut plan);
            let problem = problems(&parsed(&plan, Secrets::Resolved).expect_err(field)).remove(0);
            assert_eq!(problem.field, field);
            assert!(problem.problem.contains(words) && !problem.remedy.is_empty(), "{problem}");
        }
        let error = parsed(&json!({}), Secrets::Resolved).expect_err("no bundle");
        assert!(problems(&error)[0].problem.contains("bundle_id"), "{error}");
    }
}
