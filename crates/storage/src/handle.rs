//! The handle of a volume: what core keeps of it.

use std::fmt;
use std::str::FromStr;

use pando_cluster::names::MAX_LABEL;

/// Where a volume's claim is, `<namespace>/<claim>`; core takes it for opaque.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    namespace: String,
    claim: String,
}

/// A text that is no handle of a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the handle of a volume: write <namespace>/<claim>, as it was told")]
pub struct BadHandle(String);

impl Handle {
    /// The handle of that claim.
    pub fn new(namespace: impl Into<String>, claim: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), claim: claim.into() }
    }

    /// The claim's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The claim's name.
    pub fn claim(&self) -> &str {
        &self.claim
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.claim)
    }
}

impl FromStr for Handle {
    type Err = BadHandle;

    fn from_str(text: &str) -> Result<Self, BadHandle> {
        let bad = || BadHandle(text.to_owned());
        let (namespace, claim) = text.split_once('/').ok_or_else(bad)?;
        if is_own_name(namespace) && is_own_name(claim) { Ok(Self::new(namespace, claim)) } else { Err(bad()) }
    }
}

/// Whether an object of an app could be called so.
fn is_own_name(name: &str) -> bool {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.starts_with("pando-") && name.len() <= MAX_LABEL && name.chars().all(inside) && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn handles_are_told_from_other_texts() {
        let handle: Handle = "pando-blog/pando-vol-1".parse().expect("a handle");
        assert_eq!((handle.namespace(), handle.claim()), ("pando-blog", "pando-vol-1"));
        for text in [
            "",
            "/",
            "pando-blog",
            "pando-blog/",
            "pando-blog/data",
            "kube-system/pando-x",
            "pando-a/pando-b/c",
            "pando-A/pando-b",
            "pando-a/pando-",
            " pando-a/pando-b",
            "pando-a/pando-b\n",
        ] {
            assert_eq!(text.parse::<Handle>(), Err(BadHandle(text.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn a_handle_survives_being_written(namespace in "pando-[a-z0-9]{1,20}", claim in "pando-[a-z0-9]{1,20}") {
            let handle = Handle::new(namespace, claim);
            prop_assert_eq!(handle.to_string().parse(), Ok(handle));
        }

        #[test]
        fn no_text_breaks_it(text in any::<String>()) {
            let _ = text.parse::<Handle>();
        }
    }
}
