//! Warnings that an API server sends beside an answer: a deprecated field, a pod that a stricter rule would refuse.
//!
//! They come as headers that are easily lost. Each is logged at `warn` the first time and at `debug` from then on.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use http::HeaderMap;
use http::header::WARNING;

use crate::call::About;

/// The warnings that were logged already.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<BTreeSet<String>>);

impl Warnings {
    /// So many different ones are remembered; later ones are only logged at `debug`.
    const REMEMBERED: usize = 1000;

    /// Logs the warnings in `headers`, which came with the answer to a call.
    pub(crate) fn log(&self, headers: &HeaderMap, about: &About) {
        for header in headers.get_all(WARNING) {
            for warning in texts(&String::from_utf8_lossy(header.as_bytes())) {
                if self.is_new(&warning) {
                    tracing::warn!(verb = about.verb, subject = %about.subject, warning, "warning from the API server");
                } else {
                    tracing::debug!(verb = about.verb, subject = %about.subject, warning, "warning from the API server, again");
                }
            }
        }
    }

    fn is_new(&self, warning: &str) -> bool {
        // A panic elsewhere cannot leave a set of strings half-changed.
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.len() < Self::REMEMBERED && seen.insert(warning.to_owned())
    }
}

/// The texts of a `Warning` header (RFC 7234, 5.5): `299 - "text"`, several separated by commas. Only code 299
/// is Kubernetes'; what does not read as such a header is left out.
fn texts(header: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let mut rest = header.trim();
    while let Some((code, after)) = rest.split_once(' ') {
        let Some((_agent, after)) = after.split_once(' ') else { break };
        let Some((text, after)) = quoted(after) else { break };
        if code == "299" {
            texts.push(text);
        }
        // A date may follow, in quotes as well.
        let after = quoted(after.trim_start()).map_or(after, |(_date, after)| after);
        let Some(next) = after.trim_start().strip_prefix(',') else { break };
        rest = next.trim_start();
    }
    texts
}

/// The quoted string at the beginning of `input`, its escapes undone, and what follows it.
fn quoted(input: &str) -> Option<(String, &str)> {
    let inner = input.strip_prefix('"')?;
    let mut text = String::new();
    let mut chars = inner.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((text, &inner[at + 1..])),
            '\\' => text.push(chars.next()?.1),
            // A line break would let a server forge log lines.
            other => text.push(if other.is_control() { ' ' } else { other }),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_read_as_kubernetes_writes_them() {
        for (header, expected) in [
            (
                r#"299 - "v1 ComponentStatus is deprecated in v1.19+""#,
                vec!["v1 ComponentStatus is deprecated in v1.19+"],
            ),
            (r#"299 - "a, \"b\" \\ c", 299 - "d""#, vec![r#"a, "b" \ c"#, "d"]),
            (r#"299 - "a" "Wed, 21 Oct 2015 07:28:00 GMT", 299 kube-apiserver "b""#, vec!["a", "b"]),
            (r#"110 - "stale", 299 - "kept""#, vec!["kept"]),
            (r#"299 - "never closed"#, vec![]),
            ("299", vec![]),
            ("", vec![]),
            ("299 - \"é\"", vec!["é"]),
        ] {
            assert_eq!(texts(header), expected, "{header}");
        }
    }

    #[test]
    fn a_warning_is_new_once() {
        let warnings = Warnings::default();
        assert!(warnings.is_new("a"));
        assert!(!warnings.is_new("a"));
        assert!(warnings.is_new("b"));
    }

    #[test]
    fn memory_for_warnings_is_bounded() {
        let warnings = Warnings::default();
        let new = (0..5000).filter(|number| warnings.is_new(&number.to_string())).count();
        assert_eq!(new, Warnings::REMEMBERED);
    }
}
