//! The syntax of names, labels and annotations, with Kubernetes' words for what is wrong.
//!
//! Each function answers the rules that a text breaks; none when it is right.
//! <https://kubernetes.io/docs/concepts/overview/working-with-objects/names/>

use std::collections::BTreeMap;

use super::refusal::FieldError;

type Broken = Vec<String>;

const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// A DNS label as RFC 1123 has it: namespaces, containers, volumes, hostnames.
pub(crate) fn dns_label(text: &str) -> Broken {
    let form = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    // What would be a subdomain is told apart: then it must be the dots.
    let dotted = text.contains('.') && text.split('.').all(is_dns_label);
    broken(text, 63, is_dns_label(text), if dotted { "must not contain dots" } else { form })
}

/// A DNS label that begins with a letter, as RFC 1035 has it: Services.
pub(crate) fn dns_1035_label(text: &str) -> Broken {
    let form = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
    let letter_first = text.bytes().next().is_some_and(|first| first.is_ascii_lowercase());
    broken(text, 63, letter_first && is_dns_label(text), form)
}

/// DNS labels with dots between: most other names.
pub(crate) fn dns_subdomain(text: &str) -> Broken {
    let form = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    broken(text, 253, text.split('.').all(is_dns_label), form)
}

/// A name that becomes one segment of a path and has no other rule: role bindings.
pub(crate) fn path_segment(text: &str) -> Broken {
    if matches!(text, "." | "..") {
        return vec![format!("may not be '{text}'")];
    }
    let contained = ["/", "%"].into_iter().filter(|sign| text.contains(*sign));
    contained.map(|sign| format!("may not contain '{sign}'")).collect()
}

/// A key of labels and annotations: a name, after `prefix/` or not.
pub(crate) fn qualified_name(text: &str) -> Broken {
    let form = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let mut errors = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, rest)) if rest.contains('/') => {
            return vec!["a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')".to_owned()];
        }
        Some(("", name)) => {
            errors.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            errors.extend(dns_subdomain(prefix).into_iter().map(|error| format!("prefix part {error}")));
            name
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push("name part must be no more than 63 characters".to_owned());
    }
    if !is_label_text(name) {
        errors.push(form.to_owned());
    }
    errors
}

/// The value of a label.
pub(crate) fn label_value(text: &str) -> Broken {
    let form = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
    broken(text, 63, text.is_empty() || is_label_text(text), form)
}

/// The name of a port of a container.
pub(crate) fn port_name(text: &str) -> Broken {
    let mut errors = Vec::new();
    if text.len() > 15 {
        errors.push("must be no more than 15 characters".to_owned());
    }
    if !text.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-') {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !text.bytes().any(|c| c.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

/// The number of a port.
pub(crate) fn port_number(number: i32) -> Broken {
    if (1..=65535).contains(&number) { vec![] } else { vec!["must be between 1 and 65535, inclusive".to_owned()] }
}

/// A key of a Secret's data.
pub(crate) fn data_key(text: &str) -> Broken {
    let form = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-._".contains(&c);
    let mut errors = broken(text, 253, !text.is_empty() && text.bytes().all(plain), form);
    match text {
        "." => errors.push("must not be '.'".to_owned()),
        ".." => errors.push("must not be '..'".to_owned()),
        _ if text.starts_with("..") => errors.push("must not start with '..'".to_owned()),
        _ => {}
    }
    errors
}

/// The name of a variable of the environment; since 1.34 nearly anything goes.
pub(crate) fn variable(text: &str) -> Broken {
    let printable = text.bytes().all(|c| (0x20..0x7f).contains(&c) && c != b'=');
    let form = "a valid environment variable name must consist only of printable ASCII characters other than '='";
    if printable && !text.is_empty() { vec![] } else { vec![form.to_owned()] }
}

/// Labels at `path`.
pub(crate) fn labels(path: &str, labels: Option<&BTreeMap<String, String>>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in labels.into_iter().flatten() {
        errors.extend(qualified_name(key).iter().map(|why| FieldError::invalid(path, key.as_str(), why)));
        errors.extend(label_value(value).iter().map(|why| FieldError::invalid(path, value.as_str(), why)));
    }
    errors
}

/// Annotations at `path`.
pub(crate) fn annotations(path: &str, annotations: Option<&BTreeMap<String, String>>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in annotations.into_iter().flatten() {
        // Annotation keys are checked as if in lower case.
        errors
            .extend(qualified_name(&key.to_lowercase()).iter().map(|why| FieldError::invalid(path, key.as_str(), why)));
        size += key.len() + value.len();
    }
    if size > ANNOTATIONS_LIMIT {
        errors.push(FieldError::too_long(path, format!("may not be more than {ANNOTATIONS_LIMIT} bytes")));
    }
    errors
}

/// The rules `text` breaks, as errors of the field at `path`.
pub(crate) fn at(path: &str, text: &str, rule: impl FnOnce(&str) -> Broken) -> Vec<FieldError> {
    rule(text).iter().map(|why| FieldError::invalid(path, text, why)).collect()
}

fn broken(text: &str, limit: usize, formed: bool, form: &str) -> Broken {
    let mut errors = Vec::new();
    if text.len() > limit {
        errors.push(format!("must be no more than {limit} characters"));
    }
    if !formed {
        errors.push(form.to_owned());
    }
    errors
}

fn is_dns_label(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    !text.is_empty() && text.bytes().all(plain) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_label_text(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    let ends = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.bytes().all(inner) && ends(text.bytes().next()) && ends(text.bytes().next_back())
}
