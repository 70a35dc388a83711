//! DNS labels, the form of most names in Kubernetes.

use pando_cluster::names::MAX_LABEL;

/// The longest name of parts between dots.
const MAX_SUBDOMAIN: usize = 253;

/// Whether `text` is `^[a-z]([-a-z0-9]*[a-z0-9])?$` of at most 63 bytes.
pub(crate) fn is_valid(text: &str) -> bool {
    text.len() <= MAX_LABEL
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// Whether `text` is a name as most objects have it (RFC 1123): parts of a-z, 0-9 and -, between dots, at most 253 bytes in all.
pub(crate) fn is_subdomain(text: &str) -> bool {
    let end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_part = |part: &str| part.starts_with(end) && part.ends_with(end) && part.chars().all(|c| end(c) || c == '-');
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_part)
}

/// A valid label that is as much like `text` as can be, e.g. `my-db` for `My_DB`.
pub(crate) fn suggest(text: &str) -> String {
    let cleaned: String =
        text.chars().map(|c| c.to_ascii_lowercase()).map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let cleaned = cleaned.trim_matches('-');
    let cleaned =
        if cleaned.starts_with(|c: char| c.is_ascii_lowercase()) { cleaned.to_owned() } else { format!("w{cleaned}") };
    cleaned[..cleaned.len().min(MAX_LABEL)].trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_are_told_from_other_texts() {
        for (text, valid) in [
            ("web", true),
            ("a", true),
            ("a-1", true),
            ("", false),
            ("1a", false),
            ("a-", false),
            ("A", false),
            ("a.b", false),
            ("a_b", false),
        ] {
            assert_eq!(is_valid(text), valid, "{text:?}");
        }
        assert!(is_valid(&"a".repeat(63)) && !is_valid(&"a".repeat(64)));
        assert_eq!((suggest("My_DB").as_str(), suggest("9").as_str(), suggest("").as_str()), ("my-db", "w9", "w"));
    }

    #[test]
    fn subdomains_are_told_from_other_texts() {
        for text in ["a", "1a", "cluster.local", "a-1.b", "9"] {
            assert!(is_subdomain(text), "{text:?}");
        }
        for text in ["", ".", "a.", "a..b", "-a", "a-.b", "A", "a_b", "a b"] {
            assert!(!is_subdomain(text), "{text:?}");
        }
        assert!(is_subdomain(&"a".repeat(253)) && !is_subdomain(&"a".repeat(254)));
    }

    proptest! {
        #[test]
        fn every_suggestion_is_usable(text in any::<String>()) {
            prop_assert!(is_valid(&suggest(&text)), "{:?}", suggest(&text));
        }
    }
}
