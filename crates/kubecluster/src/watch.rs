//! The answer to a watch: lines of JSON, each one event.
//!
//! <https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>

use std::borrow::Cow;
use std::error::Error;

use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use pando_cluster::{ClusterError, Failure, Kind, Object, ResourceVersion, WatchEvent};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::answer;
use crate::call::About;
use crate::cluster::Skipped;

/// Longest line that is read. The API server itself stores no object above 1.5 MiB.
const LONGEST_LINE: usize = 8 << 20;

/// The events in `body`. After an error the stream is over.
pub(crate) fn events<B, E>(
    about: About,
    kind: Kind,
    body: B,
    skipped: Skipped,
) -> impl Stream<Item = Result<WatchEvent, ClusterError>> + Send + 'static
where
    B: Stream<Item = Result<Bytes, E>> + Send + Unpin + 'static,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    let reader = Reader { body, lines: Lines::new(LONGEST_LINE), decoder: Decoder { about, kind, skipped } };
    stream::unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        match reader.next().await? {
            Ok(event) => Some((Ok(event), Some(reader))),
            Err(error) => Some((Err(error), None)),
        }
    })
}

struct Reader<B> {
    body: B,
    lines: Lines,
    decoder: Decoder,
}

impl<B, E> Reader<B>
where
    B: Stream<Item = Result<Bytes, E>> + Unpin,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    async fn next(&mut self) -> Option<Result<WatchEvent, ClusterError>> {
        loop {
            match self.lines.next() {
                Ok(Some(line)) => match self.decoder.event(&line) {
                    Ok(None) => continue,
                    Ok(Some(event)) => return Some(Ok(event)),
                    Err(error) => return Some(Err(error)),
                },
                Ok(None) => {}
                Err(TooLong) => {
                    let what = format!("an event longer than {LONGEST_LINE} bytes");
                    return Some(Err(self.decoder.about.fails(Failure::Malformed(what))));
                }
            }
            match self.body.next().await {
                Some(Ok(chunk)) => self.lines.push(&chunk),
                Some(Err(error)) => return Some(Err(answer::broken_off(&self.decoder.about, error))),
                None if self.lines.is_between_lines() => return None,
                None => return Some(Err(answer::broken_off(&self.decoder.about, "it ended inside an event"))),
            }
        }
    }
}

#[derive(Deserialize)]
struct WireEvent<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct WireBookmark {
    metadata: WireBookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireBookmarkMeta {
    resource_version: String,
}

struct Decoder {
    about: About,
    kind: Kind,
    skipped: Skipped,
}

impl Decoder {
    /// The event in a line; `None` where it holds none for us.
    ///
    /// The type comes first: the Status of an ERROR would read as a Pod without fields (BR-16).
    fn event(&self, line: &[u8]) -> Result<Option<WatchEvent>, ClusterError> {
        let malformed = |what: String| self.about.fails(Failure::Malformed(what));
        let wire: WireEvent<'_> = serde_json::from_slice(line)
            .map_err(|error| malformed(format!("no event at {}", answer::position(&error))))?;
        let json = wire.object.get();
        Ok(match &*wire.kind {
            "ADDED" => self.object(json).map(WatchEvent::Added),
            "MODIFIED" => self.object(json).map(WatchEvent::Modified),
            "DELETED" => self.deleted(json).map(WatchEvent::Deleted),
            "BOOKMARK" => match serde_json::from_str::<WireBookmark>(json) {
                Ok(bookmark) => Some(WatchEvent::Bookmark(ResourceVersion::new(bookmark.metadata.resource_version))),
                Err(error) => {
                    tracing::warn!(kind = %self.kind, at = answer::position(&error), "left out a bookmark that cannot be read");
                    None
                }
            },
            "ERROR" => return Err(self.error(json)),
            other => {
                // At most a word: whatever it is, it comes from outside.
                let event: String = other.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
                tracing::warn!(kind = %self.kind, event, "left out an event of a type that is not known");
                None
            }
        })
    }

    /// An unreadable object is logged and left out, as in a list.
    fn object(&self, json: &str) -> Option<Object> {
        Object::from_json_str(self.kind, json)
            .inspect_err(|error| {
                self.skipped.add(1);
                answer::log_unreadable(&self.about, self.kind, json, error);
            })
            .ok()
    }

    /// The last state of an object that went, or of it what is needed to know that it went: were it left out,
    /// somebody who saw it earlier, while it was readable, would believe in it for ever.
    fn deleted(&self, json: &str) -> Option<Object> {
        #[derive(Deserialize)]
        struct Remains<'a> {
            #[serde(borrow)]
            metadata: &'a RawValue,
        }
        if let Ok(object) = Object::from_json_str(self.kind, json) {
            return Some(object);
        }
        let remains = serde_json::from_str::<Remains<'_>>(json).ok();
        let remains = remains.map(|remains| format!(r#"{{"metadata":{}}}"#, remains.metadata.get()));
        self.object(remains.as_deref().unwrap_or(json))
    }

    fn error(&self, json: &str) -> ClusterError {
        match serde_json::from_str::<Status>(json) {
            Ok(status) => ClusterError::from_status(self.about.verb, self.about.subject.clone(), &status, None),
            Err(_) => self.about.fails(Failure::Malformed("an error that is no status".to_owned())),
        }
    }
}

/// Cuts bytes, in whatever pieces they come, into lines of bounded length.
#[derive(Debug)]
struct Lines {
    buffer: BytesMut,
    /// So many bytes at the front are known to hold no line break.
    searched: usize,
    longest: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct TooLong;

impl Lines {
    fn new(longest: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, longest }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line that is not blank, without its end.
    fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        while let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
            let end = self.searched + at;
            self.searched = 0;
            let line = self.buffer.split_to(end);
            self.buffer.advance(1);
            if line.len() > self.longest {
                return Err(TooLong);
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line.freeze()));
            }
        }
        self.searched = self.buffer.len();
        if self.searched > self.longest { Err(TooLong) } else { Ok(None) }
    }

    /// Whether nothing but white space is left over.
    fn is_between_lines(&self) -> bool {
        self.buffer.trim_ascii().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use pando_cluster::Subject;

    use super::*;
    use crate::call::Effect;

    fn watched(kind: Kind, chunks: Vec<Result<Bytes, &'static str>>) -> (Vec<String>, u64) {
        let about = About { verb: "watch", subject: Subject::Many(kind.plural(), None), effect: Effect::Read };
        let skipped = Skipped::default();
        let events = events(about, kind, stream::iter(chunks), skipped.clone());
        let told = events.map(tell).collect::<Vec<_>>().now_or_never().expect("all bytes are there");
        (told, skipped.total())
    }

    fn tell(event: Result<WatchEvent, ClusterError>) -> String {
        let object = |word: &str, object: &Object| {
            format!("{word} {} {}", object.key(), object.meta().resource_version.as_deref().unwrap_or("-"))
        };
        match event {
            Ok(WatchEvent::Added(it)) => object("added", &it),
            Ok(WatchEvent::Modified(it)) => object("modified", &it),
            Ok(WatchEvent::Deleted(it)) => object("deleted", &it),
            Ok(WatchEvent::Bookmark(version)) => format!("bookmark {version}"),
            Err(error) => format!("{:?}", error.failure),
        }
    }

    fn whole(text: &str) -> Vec<Result<Bytes, &'static str>> {
        vec![Ok(Bytes::copy_from_slice(text.as_bytes()))]
    }

    const EVENTS: &str = concat!(
        r#"{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"a","name":"é","resourceVersion":"1"}}}"#,
        "\n\r\n",
        r#"{"object":{"metadata":{"namespace":"a","name":"é","resourceVersion":"2"}},"type":"MODIFIED"}"#,
        "\r\n",
        r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"3","creationTimestamp":null},"spec":{"containers":null},"status":{}}}"#,
        "\n",
        r#"{"type":"DELETED","object":{"metadata":{"namespace":"a","name":"é","resourceVersion":"4"}}}"#,
        "\n",
    );

    #[test]
    fn events_are_the_same_wherever_the_bytes_are_cut() {
        let expected = ["added Pod a/é 1", "modified Pod a/é 2", "bookmark 3", "deleted Pod a/é 4"];
        let bytes = Bytes::from_static(EVENTS.as_bytes());
        for cut in 0..=bytes.len() {
            let chunks = vec![Ok(bytes.slice(..cut)), Ok(bytes.slice(cut..))];
            assert_eq!(watched(Kind::Pod, chunks), (expected.map(str::to_owned).to_vec(), 0), "cut at {cut}");
        }
        let crumbs = (0..bytes.len()).map(|at| Ok(bytes.slice(at..=at))).collect();
        assert_eq!(watched(Kind::Pod, crumbs).0, expected, "byte by byte");
    }

    #[test]
    fn a_stream_that_ends_inside_an_event_is_a_broken_one() {
        let cut = EVENTS.trim_end().len() - 1;
        let (events, _) = watched(Kind::Pod, whole(&EVENTS[..cut]));
        assert_eq!(events.len(), 4);
        assert_eq!(events[3], r#"Unavailable("the connection broke")"#);
    }

    #[test]
    fn a_broken_connection_is_the_last_item() {
        let chunks =
            vec![Ok(Bytes::from_static(EVENTS.as_bytes())), Err("reset"), Ok(Bytes::from_static(EVENTS.as_bytes()))];
        let (events, _) = watched(Kind::Pod, chunks);
        assert_eq!(events.len(), 5);
        assert_eq!(events[4], r#"Unavailable("the connection broke")"#);
    }

    #[test]
    fn an_expired_version_is_told_although_the_answer_began_as_a_success() {
        let text = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: 1 (503)","reason":"Expired","code":410}}"#;
        let (events, _) = watched(Kind::Pod, whole(&format!("{text}\n{EVENTS}")));
        assert_eq!(events, [r#"Expired("too old resource version: 1 (503)")"#]);
    }

    #[test]
    fn what_is_no_event_ends_the_stream_without_being_quoted() {
        for line in ["<html>hunter2", r#"{"kind":"hunter2"}"#, "[]", r#"{"type":"ERROR","object":"hunter2"}"#] {
            let (events, _) = watched(Kind::Pod, whole(&format!("{line}\n{EVENTS}")));
            assert_eq!(events.len(), 1, "{line}: {events:?}");
            assert!(events[0].starts_with("Malformed(") && !events[0].contains("hunter2"), "{events:?}");
        }
    }

    #[test]
    fn odd_objects_and_unknown_types_are_left_out() {
        let odd = concat!(
            r#"{"type":"ADDED","object":{"metadata":{"namespace":"a","name":"odd"},"spec":7}}"#,
            "\n",
            r#"{"type":"MODIFIED","object":17}"#,
            "\n",
            r#"{"type":"NOVELTY","object":{}}"#,
            "\n",
            r#"{"type":"BOOKMARK","object":{"metadata":{}}}"#,
            "\n",
        );
        let (events, skipped) = watched(Kind::Pod, whole(&format!("{odd}{EVENTS}")));
        assert_eq!((events.len(), skipped), (4, 2), "{events:?}");
    }

    #[test]
    fn an_object_that_cannot_be_read_any_more_can_still_be_deleted() {
        let line = r#"{"type":"DELETED","object":{"metadata":{"namespace":"a","name":"odd","resourceVersion":"9"},"spec":7,"type":7,"data":7,"secrets":7,"rules":7,"roleRef":7,"endpoints":7,"involvedObject":7}}"#;
        for kind in Kind::ALL {
            let (events, skipped) = watched(*kind, whole(&format!("{line}\n")));
            assert_eq!(skipped, 0, "{kind}");
            assert!(events[0].starts_with("deleted ") && events[0].ends_with("odd 9"), "{kind}: {events:?}");
        }
    }

    #[test]
    fn a_line_has_a_longest_length() {
        let mut lines = Lines::new(4);
        lines.push(b"1234\n12345");
        assert_eq!(lines.next(), Ok(Some(Bytes::from_static(b"1234"))));
        assert_eq!(lines.next(), Err(TooLong), "without waiting for its end");
        let mut lines = Lines::new(4);
        lines.push(b"12345\n");
        assert_eq!(lines.next(), Err(TooLong));
    }

    #[test]
    fn an_endless_line_is_given_up() {
        let head = Bytes::from_static(br#"{"type":"ADDED","object":{"metadata":{"name":""#);
        let more = Bytes::from(vec![b'x'; 1 << 20]);
        let endless = std::iter::once(head).chain(std::iter::repeat_n(more, 100)).map(Ok).collect();
        let (events, _) = watched(Kind::Pod, endless);
        assert_eq!(events, ["Malformed(\"an event longer than 8388608 bytes\")"]);
    }
}
