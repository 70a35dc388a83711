//! Takes the values out of Kubernetes' own sentences.
//!
//! A refused patch is quoted whole: `patch: Invalid value: "{…}": strict decoding error: unknown field "spec.x"`
//! holds the object as it would have become, a Secret's data included (seen on 1.34). The field and the reason
//! are what helps; the value is what we sent.

use std::borrow::Cow;

use crate::{Kind, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

/// Longest value that stays: a name or a number that helps to find the mistake.
const LONGEST: usize = 64;

/// What stands in place of a value.
const LEFT_OUT: &str = "[left out]";

/// Takes long values out of the sentences of `status`, which is about `subject`; all values if that is a Secret.
pub(crate) fn status(subject: &Subject, status: &mut Status) {
    let secret = match subject {
        Subject::Object(key) => key.kind == Kind::Secret,
        Subject::Many(plural, _) => *plural == Kind::Secret.plural(),
    };
    let longest = if secret { 0 } else { LONGEST };
    let causes = status.details.as_mut().and_then(|details| details.causes.as_mut()).into_iter().flatten();
    for text in causes.map(|cause| &mut cause.message).chain([&mut status.message]).flatten() {
        if let Cow::Owned(redacted) = sentence(text, longest) {
            *text = redacted;
        }
    }
}

/// `text` without the values longer than `longest` bytes.
fn sentence(text: &str, longest: usize) -> Cow<'_, str> {
    const MARK: &str = " value: ";
    let mut redacted = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let (before, value) = rest.split_at(at + MARK.len());
        redacted.push_str(before);
        // After `Required value: ` comes a sentence.
        let quotes = ["Invalid", "Unsupported", "Duplicate"].iter().any(|word| rest[..at].ends_with(word));
        let length = if quotes { value_length(value) } else { 0 };
        redacted.push_str(if length > longest { LEFT_OUT } else { &value[..length] });
        rest = &value[length..];
    }
    if redacted.is_empty() {
        return Cow::Borrowed(text);
    }
    redacted.push_str(rest);
    Cow::Owned(redacted)
}

/// How long the value at the beginning of `text` is: a string as Go quotes it, an object or list as JSON or as Go
/// prints it, or a word. An unfinished one reaches to the end.
fn value_length(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' if !skip_string(&mut chars) => return text.len(),
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' if depth > 0 => depth -= 1,
            ':' | ',' | ']' if depth == 0 => return at,
            _ => {}
        }
    }
    text.len()
}

/// Goes on to behind the closing quote; whether there was one.
fn skip_string(chars: &mut std::str::CharIndices<'_>) -> bool {
    while let Some((_, char)) = chars.next() {
        match char {
            '"' => return true,
            '\\' => {
                chars.next();
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};

    use super::*;
    use crate::ObjectKey;

    #[test]
    fn a_quoted_object_goes_and_the_reason_stays() {
        let object = r#""{\"kind\":\"Pod\",\"spec\":{\"env\":[{\"value\":\"hunter2, \\\"x\\\": y\"}]},\"tpyo\":1,\"padding\":\"xxxxxxxxxxxxxx\"}""#;
        let text = format!(
            r#" "" is invalid: patch: Invalid value: {object}: strict decoding error: unknown field "spec.tpyo""#
        );
        assert_eq!(
            sentence(&text, LONGEST),
            r#" "" is invalid: patch: Invalid value: [left out]: strict decoding error: unknown field "spec.tpyo""#
        );
    }

    #[test]
    fn short_values_stay_unless_they_are_a_secrets() {
        for (text, secret) in [
            (
                r#"Pod "a" is invalid: [spec.x: Invalid value: "B@d": must be a label, spec.y: Unsupported value: 3: no]"#,
                r#"Pod "a" is invalid: [spec.x: Invalid value: [left out]: must be a label, spec.y: Unsupported value: [left out]: no]"#,
            ),
            (r#"x: Duplicate value: {"name":"a","list":[1,"]"]}"#, "x: Duplicate value: [left out]"),
            (
                r#"[x: Duplicate value: "a", y: Required value: here]"#,
                "[x: Duplicate value: [left out], y: Required value: here]",
            ),
            ("nothing to see", "nothing to see"),
            ("", ""),
        ] {
            assert_eq!(sentence(text, LONGEST), text);
            assert_eq!(sentence(text, 0), secret);
        }
    }

    #[test]
    fn an_unfinished_value_goes_to_the_end() {
        let text = format!("Invalid value: \"{}", "é\\".repeat(100));
        assert_eq!(sentence(&text, LONGEST), "Invalid value: [left out]");
        let text = format!("Invalid value: {{{}", "[".repeat(100));
        assert_eq!(sentence(&text, LONGEST), "Invalid value: [left out]");
    }

    #[test]
    fn message_and_causes_of_a_secrets_status_hold_no_value() {
        let text = r#"data: Invalid value: "hunter2": no"#.to_owned();
        let mut refused = Status {
            message: Some(text.clone()),
            details: Some(StatusDetails {
                causes: Some(vec![StatusCause { message: Some(text), ..StatusCause::default() }]),
                ..StatusDetails::default()
            }),
            ..Status::default()
        };
        status(&ObjectKey::namespaced(Kind::Secret, "a", "b").into(), &mut refused);
        let printed = format!("{refused:?}");
        assert!(!printed.contains("hunter2") && printed.matches("left out").count() == 2, "{printed}");
    }
}
