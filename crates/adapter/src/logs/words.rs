//! What a node says in place of a log: with status 200, in the body, without a time.

/// What lines without a time mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// The node cannot tell when the log grows: it can only be asked again and again.
    CannotFollow,
    /// The log cannot be had.
    NoLog,
    /// Nothing that a node is known to say.
    Unknown,
}

/// How nodes begin what they say. Paths of theirs follow, which are nobody's business.
const KNOWN: &[&str] = &[
    "unable to retrieve container logs for ",
    "failed to ",
    "unable to ",
    "rpc error: ",
    "unsupported log format",
    "context canceled",
];

impl Words {
    /// Reads a line without a time.
    pub(super) fn read(line: &str) -> Self {
        let says = |word: &str| line.contains(word);
        if !KNOWN.iter().any(|words| line.starts_with(words)) {
            Self::Unknown
        } else if says("fsnotify") || says("inotify") || says("too many open files") || says("watch directory") {
            Self::CannotFollow
        } else {
            Self::NoLog
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nodes_say_is_understood() {
        for (line, words) in [
            ("unable to retrieve container logs for containerd://0123abcd", Words::NoLog),
            (r#"failed to try resolving symlinks in path "/var/log/pods/a_b_c/app/0.log": no such file"#, Words::NoLog),
            ("failed to create fsnotify watcher: too many open files", Words::CannotFollow),
            (r#"failed to watch directory "/var/log/pods/a_b_c/app": no space left on device"#, Words::CannotFollow),
            ("xxxxxxxx", Words::Unknown),
            ("", Words::Unknown),
        ] {
            assert_eq!(Words::read(line), words, "{line}");
        }
    }
}
