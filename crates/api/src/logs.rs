//! What a workload wrote: what may be asked of it, and what comes.

use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Which part of a workload's output is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogOptions {
    /// Whether to go on as the workload writes, and with its next start when it is replaced.
    pub follow: bool,
    /// Only what was written at that time or later, to the nanosecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Only so many of the last lines there are; later ones come all the same when the log is followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<u64>,
}

/// A workload's output, in the order in which it was written. It is read as fast as it is polled.
///
/// After an error the stream is over.
pub type LogStream = BoxStream<'static, Result<LogEvent, Error>>;

/// What comes next in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// Something that was written.
    Line(LogLine),
    /// Something may be missing here.
    Gap(LogGap),
}

/// A line, or a part of a very long one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When the line was begun.
    pub time: Timestamp,
    /// Whether this begins a line; if not, it goes on with the one before.
    pub begins: bool,
    /// What was written, whatever bytes those are; a line break is at the end of it or nowhere.
    pub bytes: Bytes,
}

impl LogLine {
    /// Whether the line is over. The last one of all may have no line break.
    pub fn ends(&self) -> bool {
        self.bytes.ends_with(b"\n")
    }
}

/// A place in a log where lines may be missing: they were there and could no longer be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogGap {
    /// The time of the last line before it.
    pub after: Timestamp,
    /// The time of the first line after it; none when there is no such line.
    pub before: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_that_are_not_given_ask_for_all_there_is() {
        let read = |json| serde_json::from_value::<LogOptions>(json);
        assert_eq!(read(json!({})).expect("options"), LogOptions::default());
        let all = json!({"follow": true, "since": "2026-01-02T03:04:05.000000006Z", "tail": 7});
        assert_eq!(json!(read(all.clone()).expect("options")), all);
        assert!(read(json!({"tial": 7})).is_err());
    }
}
