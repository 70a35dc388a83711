//! Label and field selectors, in the words of a query string.
//!
//! Grammar: <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors> and
//! <https://kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors/>.

use std::collections::BTreeSet;

use pando_cluster::Kind;
use serde_json::Value;

use super::names;

/// Which labels an object must have: every requirement holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Exists,
    Absent,
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Above(i64),
    Below(i64),
}

/// A selector that cannot be read, with what is wrong about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadSelector(String);

impl LabelSelector {
    /// Reads a selector such as `app=web,tier in (a,b),!old`; an empty one selects everything.
    ///
    /// # Errors
    ///
    /// [`BadSelector`] where Kubernetes refuses it too.
    pub fn parse(text: &str) -> Result<Self, BadSelector> {
        let mut tokens = Tokens::of(text)?;
        let mut requirements = Vec::new();
        if tokens.peek() == &Token::End {
            return Ok(Self(requirements));
        }
        loop {
            requirements.push(requirement(&mut tokens)?);
            match tokens.next() {
                Token::End => break,
                Token::Comma if matches!(tokens.peek(), Token::Word(_) | Token::Not) => {}
                Token::Comma => {
                    return Err(BadSelector(format!("found {}, expected: identifier after ','", tokens.peek())));
                }
                other => return Err(BadSelector(format!("found {other}, expected: ',' or end of string"))),
            }
        }
        Ok(Self(requirements))
    }

    /// Whether an object with these labels (a JSON object or nothing) is selected.
    pub fn matches(&self, labels: &Value) -> bool {
        self.0.iter().all(|requirement| requirement.rule.holds(labels.get(&requirement.key).and_then(Value::as_str)))
    }

    /// Whether it selects everything.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }
}

impl Rule {
    fn holds(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::Exists, value) => value.is_some(),
            (Self::Absent, value) => value.is_none(),
            (Self::In(values), Some(value)) => values.contains(value),
            (Self::NotIn(values), Some(value)) => !values.contains(value),
            (Self::NotIn(_), None) => true,
            (Self::Above(limit), Some(value)) => value.parse::<i64>().is_ok_and(|value| value > *limit),
            (Self::Below(limit), Some(value)) => value.parse::<i64>().is_ok_and(|value| value < *limit),
            (Self::In(_) | Self::Above(_) | Self::Below(_), None) => false,
        }
    }
}

fn requirement(tokens: &mut Tokens) -> Result<Requirement, BadSelector> {
    let absent = *tokens.peek() == Token::Not;
    if absent {
        tokens.next();
    }
    let Token::Word(key) = tokens.next() else {
        return Err(BadSelector("found no label key, expected: identifier".to_owned()));
    };
    if let Some(error) = names::qualified_name(&key).first() {
        return Err(BadSelector(format!("key: Invalid value: {key:?}: {error}")));
    }
    if absent {
        return Ok(Requirement { key, rule: Rule::Absent });
    }
    let rule = match tokens.peek().clone() {
        Token::Equal => Rule::In([tokens.value_after()?].into()),
        Token::NotEqual => Rule::NotIn([tokens.value_after()?].into()),
        Token::Above => Rule::Above(tokens.number_after()?),
        Token::Below => Rule::Below(tokens.number_after()?),
        Token::Word(word) if word == "in" => Rule::In(tokens.set_after()?),
        Token::Word(word) if word == "notin" => Rule::NotIn(tokens.set_after()?),
        _ => Rule::Exists,
    };
    if let Rule::In(values) | Rule::NotIn(values) = &rule
        && let Some(bad) = values.iter().find(|value| !names::label_value(value).is_empty())
    {
        return Err(BadSelector(format!("values: Invalid value: {bad:?}: {}", names::label_value(bad).join("; "))));
    }
    Ok(Requirement { key, rule })
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Not,
    Equal,
    NotEqual,
    Above,
    Below,
    Comma,
    Open,
    Close,
    End,
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            Self::Word(word) => word,
            Self::Not => "!",
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Above => ">",
            Self::Below => "<",
            Self::Comma => ",",
            Self::Open => "(",
            Self::Close => ")",
            Self::End => "",
        };
        write!(f, "'{text}'")
    }
}

/// The words and signs of a selector, the next one last.
struct Tokens(Vec<Token>);

impl Tokens {
    fn of(text: &str) -> Result<Self, BadSelector> {
        let mut tokens = vec![];
        let mut rest = text.trim_start_matches(is_blank);
        while let Some(first) = rest.chars().next() {
            let (token, length) = match first {
                ',' => (Token::Comma, 1),
                '(' => (Token::Open, 1),
                ')' => (Token::Close, 1),
                '>' => (Token::Above, 1),
                '<' => (Token::Below, 1),
                '=' => (Token::Equal, if rest.starts_with("==") { 2 } else { 1 }),
                '!' if rest.starts_with("!=") => (Token::NotEqual, 2),
                '!' => (Token::Not, 1),
                _ => {
                    let length = rest.find(|c| is_blank(c) || "=!(),><".contains(c)).unwrap_or(rest.len());
                    (Token::Word(rest[..length].to_owned()), length)
                }
            };
            if token == Token::Equal && rest[length..].starts_with('=') {
                return Err(BadSelector(format!("found '{}', expected: an operator", &rest[..=length])));
            }
            tokens.push(token);
            rest = rest[length..].trim_start_matches(is_blank);
        }
        tokens.push(Token::End);
        tokens.reverse();
        Ok(Self(tokens))
    }

    fn peek(&self) -> &Token {
        self.0.last().unwrap_or(&Token::End)
    }

    fn next(&mut self) -> Token {
        self.0.pop().unwrap_or(Token::End)
    }

    /// The value behind the operator that comes next; nothing is the empty value.
    fn value_after(&mut self) -> Result<String, BadSelector> {
        self.next();
        match self.peek().clone() {
            Token::Word(word) => {
                self.next();
                Ok(word)
            }
            Token::Comma | Token::End => Ok(String::new()),
            other => Err(BadSelector(format!("found {other}, expected: identifier"))),
        }
    }

    fn number_after(&mut self) -> Result<i64, BadSelector> {
        let value = self.value_after()?;
        value.parse().map_err(|_| {
            BadSelector(format!(
                "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
            ))
        })
    }

    /// The values in the brackets behind the operator that comes next.
    fn set_after(&mut self) -> Result<BTreeSet<String>, BadSelector> {
        self.next();
        if self.next() != Token::Open {
            return Err(BadSelector("found '' expected: '('".to_owned()));
        }
        let mut values = BTreeSet::new();
        loop {
            // A value may be missing: `()` and `(,a)` hold the empty one.
            let value = match self.peek().clone() {
                Token::Word(word) => {
                    self.next();
                    word
                }
                _ => String::new(),
            };
            values.insert(value);
            match self.next() {
                Token::Comma => {}
                Token::Close => return Ok(values),
                other => return Err(BadSelector(format!("found {other}, expected: ',', ')' or identifier"))),
            }
        }
    }
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Which fields an object must have: every term holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<FieldTerm>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldTerm {
    path: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Reads a selector such as `metadata.name=web-1,status.phase!=Failed` for objects of `kind`.
    ///
    /// # Errors
    ///
    /// [`BadSelector`] for a field that Kubernetes does not select this kind by, or a term without operator.
    pub fn parse(kind: Kind, text: &str) -> Result<Self, BadSelector> {
        let terms = text.split(',').filter(|term| !term.is_empty()).map(|term| field_term(kind, text, term));
        Ok(Self(terms.collect::<Result<_, _>>()?))
    }

    /// Whether `object` is selected.
    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|term| (field(object, &term.path) == term.value) == term.equal)
    }
}

fn field_term(kind: Kind, whole: &str, term: &str) -> Result<FieldTerm, BadSelector> {
    let (path, equal, value) = if let Some((path, value)) = term.split_once("!=") {
        (path, false, value)
    } else if let Some((path, value)) = term.split_once("==") {
        (path, true, value)
    } else if let Some((path, value)) = term.split_once('=') {
        (path, true, value)
    } else {
        return Err(BadSelector(format!("invalid selector: '{whole}'; can't understand '{term}'")));
    };
    let fields = fields_of(kind);
    if !fields.contains(&path) {
        // Kinds without fields of their own share one rule, which words it otherwise.
        let words = if fields == JUST_NAMES {
            format!("{path:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        } else {
            format!("field label not supported: {path}")
        };
        return Err(BadSelector(words));
    }
    Ok(FieldTerm { path: path.to_owned(), value: value.to_owned(), equal })
}

/// The fields of kinds that have none of their own.
const JUST_NAMES: &[&str] = &["metadata.name", "metadata.namespace"];

/// The fields Kubernetes 1.34 selects objects of `kind` by, besides name and namespace.
fn fields_of(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Pod => &[
            "metadata.name",
            "metadata.namespace",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        Kind::Node => &["metadata.name", "spec.unschedulable"],
        Kind::Namespace => &["metadata.name", "status.phase"],
        Kind::Secret => &["metadata.name", "metadata.namespace", "type"],
        Kind::Service => &["metadata.name", "metadata.namespace", "spec.clusterIP", "spec.type"],
        Kind::Event => &[
            "metadata.name",
            "metadata.namespace",
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        // The server knows a namespace even of volumes and classes; it is empty there.
        Kind::PersistentVolume
        | Kind::StorageClass
        | Kind::ServiceAccount
        | Kind::ConfigMap
        | Kind::PersistentVolumeClaim
        | Kind::ResourceQuota
        | Kind::NetworkPolicy
        | Kind::RoleBinding
        | Kind::EndpointSlice => JUST_NAMES,
    }
}

/// The field as selectors see it: text as it is, what is missing as its type's empty value.
fn field(object: &Value, path: &str) -> String {
    let value = path.split('.').try_fold(object, |value, step| value.get(step));
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Object(source)) => source.get("component").and_then(Value::as_str).unwrap_or_default().to_owned(),
        Some(Value::Null | Value::Array(_)) | None => match path {
            "spec.hostNetwork" | "spec.unschedulable" => "false".to_owned(),
            _ => String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Source: the answers of apimachinery v0.35 itself to generated selectors.
    #[test]
    fn label_selectors_agree_with_kubernetes_own_library() {
        let vectors: Value = serde_json::from_str(include_str!("../../tests/data/selectors.json")).expect("vectors");
        let vectors = vectors.as_array().expect("a list");
        assert_eq!(vectors.len(), 100);
        for vector in vectors {
            let text = vector["selector"].as_str().expect("a selector");
            let parsed = LabelSelector::parse(text);
            assert_eq!(parsed.is_ok(), vector["valid"].as_bool().expect("a verdict"), "{text:?}: {parsed:?}");
            let (Ok(selector), Some(cases)) = (parsed, vector["cases"].as_array()) else { continue };
            for case in cases {
                assert_eq!(selector.matches(&case["labels"]), case["match"], "{text:?} against {}", case["labels"]);
            }
        }
    }

    /// Source: Kubernetes 1.34, pods of all namespaces, tried.
    #[test]
    fn pods_are_selected_by_the_fields_kubernetes_knows() {
        for field in ["spec.nodeName", "status.phase", "spec.hostNetwork", "status.podIP", "metadata.name"] {
            assert!(FieldSelector::parse(Kind::Pod, &format!("{field}=x")).is_ok(), "{field}");
        }
        for field in ["metadata.uid", "status.reason", "metadata.deletionTimestamp"] {
            assert!(FieldSelector::parse(Kind::Pod, &format!("{field}=x")).is_err(), "{field}");
        }
        assert!(FieldSelector::parse(Kind::PersistentVolumeClaim, "status.phase=Bound").is_err());
    }

    #[test]
    fn a_missing_field_is_its_types_empty_value() {
        let pod = json!({"metadata": {"name": "a"}, "spec": {}});
        for (selector, expected) in [
            ("spec.nodeName=", true),
            ("spec.nodeName!=n", true),
            ("spec.nodeName==n", false),
            ("spec.hostNetwork=false", true),
            ("metadata.name=a,spec.nodeName=n", false),
            ("", true),
        ] {
            let parsed = FieldSelector::parse(Kind::Pod, selector).expect(selector);
            assert_eq!(parsed.matches(&pod), expected, "{selector}");
        }
    }
}
