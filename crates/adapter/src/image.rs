//! Image references, as registries and the kubelet read them.
//!
//! <https://github.com/distribution/reference> has the grammar: `[registry/]path[:tag][@digest]`.

use std::fmt;

/// The key of Docker Hub in a pull Secret.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// The longest name before tag and digest.
const MAX_NAME: usize = 255;

/// A reference of the right form. Whether there is such an image only its registry knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image(String);

impl Image {
    /// Reads a reference; `None` when no registry or kubelet would take it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (named, digest) = text.split_once('@').map_or((text, None), |(named, digest)| (named, Some(digest)));
        let (registry, rest) = split_registry(named);
        let (path, tag) = rest.rsplit_once(':').map_or((rest, None), |(path, tag)| (path, Some(tag)));
        let fits = registry.is_none_or(is_registry)
            && path.split('/').all(is_component)
            && registry.map_or(0, |registry| registry.len() + 1) + path.len() <= MAX_NAME
            && tag.is_none_or(is_tag)
            && digest.is_none_or(is_digest);
        fits.then(|| Self(text.to_owned()))
    }

    /// The reference as it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it names exact bytes, so that a node that has it has the right one.
    pub(crate) fn has_digest(&self) -> bool {
        self.0.contains('@')
    }

    /// The key of its registry in a pull Secret (S-28).
    pub(crate) fn registry_key(&self) -> &str {
        split_registry(&self.0).0.unwrap_or(DOCKER_HUB)
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The registry, if the first segment is one, and the rest.
fn split_registry(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (Some(first), rest),
        _ => (None, name),
    }
}

/// A host, by name or by address, with an optional port.
fn is_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((v6, after)) => {
            return v6.parse::<std::net::Ipv6Addr>().is_ok()
                && (after.is_empty() || after.strip_prefix(':').is_some_and(is_port));
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let is_name = |part: &str| {
        let inside = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !part.is_empty() && part.chars().all(inside) && !part.starts_with('-') && !part.ends_with('-')
    };
    host.split('.').all(is_name) && port.is_none_or(is_port)
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Letters and digits, with single `.`, one or two `_`, or any number of `-` between them.
fn is_component(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let separators = text.split(is_word).filter(|separator| !separator.is_empty());
    text.starts_with(is_word)
        && text.ends_with(is_word)
        && separators.into_iter().all(|it| matches!(it, "." | "_" | "__") || it.chars().all(|c| c == '-'))
}

fn is_tag(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.len() <= 128 && text.starts_with(first) && text.chars().all(|c| first(c) || c == '.' || c == '-')
}

/// Of the digests that registries use, the two of a known length; others by their form.
fn is_digest(text: &str) -> bool {
    let Some((algorithm, hex)) = text.split_once(':') else { return false };
    let word = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let long_enough = match algorithm {
        "sha256" => hex.len() == 64,
        "sha512" => hex.len() == 128,
        _ => hex.len() >= 32,
    };
    algorithm.split(['+', '.', '_', '-']).all(word)
        && long_enough
        && hex.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_told_from_other_texts() {
        let digest = format!("nginx@sha256:{}", "a".repeat(64));
        for (text, registry, exact) in [
            ("nginx", DOCKER_HUB, false),
            ("library/nginx:1.22", DOCKER_HUB, false),
            ("localhost/x:y", "localhost", false),
            ("registry.example:5000/a/b__c-d:v1.0_x", "registry.example:5000", false),
            ("[2001:db8::1]:5000/a", "[2001:db8::1]:5000", false),
            ("a--b/c.d", DOCKER_HUB, false),
            (&digest, DOCKER_HUB, true),
        ] {
            let image = Image::parse(text).unwrap_or_else(|| panic!("{text} is a reference"));
            assert_eq!((image.registry_key(), image.has_digest(), image.as_str()), (registry, exact, text));
        }
    }

    #[test]
    fn what_a_kubelet_calls_an_invalid_name_is_none() {
        let long = "a".repeat(256);
        for text in [
            "",
            " ",
            "a b",
            "Nginx",
            "nginx:",
            "nginx:ta g",
            "nginx:-x",
            "/nginx",
            "nginx/",
            "a//b",
            "a..b",
            "a___b",
            "-a",
            "a@",
            "a@sha256:xyz",
            "a@sha256:abc",
            "a:b@",
            "http://x.y/z",
            "reg.example:port/a",
            "ä",
            "a\0",
            &long,
        ] {
            assert_eq!(Image::parse(text), None, "{text:?}");
        }
    }
}
