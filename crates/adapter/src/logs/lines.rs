//! Cuts the bytes of an answer into lines and their times, however they arrive.

use bytes::Bytes;
use jiff::Timestamp;

/// A line is passed on whole up to this length, and beyond it in parts: an app may write a gigabyte without a line break.
const WHOLE: usize = 64 * 1024;
/// A time is shorter than that: `2026-01-02T03:04:05.123456789+00:00` and a blank.
const STAMP: usize = 40;
/// So much of a text that is not the app's is kept.
const FOREIGN: usize = 1024;

/// What an answer consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// What the app wrote.
    Text(Text),
    /// The beginning of a line without a time: the app did not write it, or not here.
    Foreign(String),
}

/// A line, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text {
    /// The line's time.
    pub(super) time: Timestamp,
    /// How many bytes of the line came before.
    pub(super) offset: u64,
    /// What was written; ends with a line break where the line does. Never empty.
    pub(super) bytes: Bytes,
}

/// Reads one answer; the next one needs another.
#[derive(Debug)]
pub(super) struct Splitter(State);

#[derive(Debug)]
enum State {
    /// In the time at the beginning of a line.
    Stamp(Vec<u8>),
    /// In the line itself, of which `offset` bytes were passed on.
    Text { time: Timestamp, offset: u64, bytes: Vec<u8> },
    /// In a line without a time.
    Foreign(Vec<u8>),
}

impl Default for Splitter {
    fn default() -> Self {
        Self(State::Stamp(Vec::new()))
    }
}

impl Splitter {
    /// Takes in what arrived next; `tell` gets what is complete.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut tell: impl FnMut(Piece)) {
        while !bytes.is_empty() {
            bytes = match &mut self.0 {
                State::Stamp(_) => self.stamp(bytes),
                State::Text { .. } => self.text(bytes, &mut tell),
                State::Foreign(_) => self.foreign(bytes, &mut tell),
            };
        }
    }

    /// What is left when the answer is over: a line that has no end yet.
    pub(super) fn finish(self) -> Option<Piece> {
        match self.0 {
            State::Stamp(begun) | State::Foreign(begun) => (!begun.is_empty()).then(|| foreign(&begun)),
            State::Text { bytes, .. } if bytes.is_empty() => None,
            State::Text { time, offset, bytes } => Some(Piece::Text(Text { time, offset, bytes: bytes.into() })),
        }
    }

    fn stamp<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let State::Stamp(begun) = &mut self.0 else { return bytes };
        let end = bytes.iter().position(|byte| matches!(byte, b' ' | b'\n'));
        let taken = end.unwrap_or(bytes.len()).min(STAMP);
        begun.extend_from_slice(&bytes[..taken]);
        let rest = &bytes[taken..];
        if let Some((b' ', rest)) = rest.split_first()
            && let Some(time) = parse(begun)
        {
            self.0 = State::Text { time, offset: 0, bytes: Vec::new() };
            return rest;
        }
        if !rest.is_empty() || begun.len() >= STAMP {
            self.0 = State::Foreign(std::mem::take(begun));
        }
        rest
    }

    fn text<'a>(&mut self, bytes: &'a [u8], tell: &mut impl FnMut(Piece)) -> &'a [u8] {
        let State::Text { time, offset, bytes: kept } = &mut self.0 else { return bytes };
        let room = &bytes[..bytes.len().min(WHOLE - kept.len())];
        let end = room.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(room.len(), |at| at + 1);
        kept.extend_from_slice(&bytes[..taken]);
        if end.is_some() || kept.len() == WHOLE {
            let bytes = Bytes::from(std::mem::take(kept));
            let before = *offset;
            *offset += bytes.len() as u64;
            tell(Piece::Text(Text { time: *time, offset: before, bytes }));
        }
        if end.is_some() {
            self.0 = State::Stamp(Vec::new());
        }
        &bytes[taken..]
    }

    fn foreign<'a>(&mut self, bytes: &'a [u8], tell: &mut impl FnMut(Piece)) -> &'a [u8] {
        let State::Foreign(kept) = &mut self.0 else { return bytes };
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let taken = &bytes[..end.unwrap_or(bytes.len())];
        kept.extend_from_slice(&taken[..taken.len().min(FOREIGN.saturating_sub(kept.len()))]);
        let Some(end) = end else { return &[] };
        tell(foreign(kept));
        self.0 = State::Stamp(Vec::new());
        &bytes[end + 1..]
    }
}

fn foreign(bytes: &[u8]) -> Piece {
    Piece::Foreign(String::from_utf8_lossy(bytes).into_owned())
}

fn parse(stamp: &[u8]) -> Option<Timestamp> {
    std::str::from_utf8(stamp).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads an answer that arrives in pieces of these lengths, one after the other and over again.
    fn read(answer: &[u8], lengths: &[usize]) -> Vec<Piece> {
        let (mut splitter, mut pieces, mut rest) = (Splitter::default(), Vec::new(), answer);
        for length in lengths.iter().cycle() {
            let (now, later) = rest.split_at(rest.len().min(*length));
            splitter.push(now, |piece| pieces.push(piece));
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        pieces.extend(splitter.finish());
        pieces
    }

    fn text(time: &str, offset: u64, bytes: &[u8]) -> Piece {
        Piece::Text(Text { time: time.parse().expect("a time"), offset, bytes: Bytes::copy_from_slice(bytes) })
    }

    const TIME: &str = "2026-01-02T03:04:05.000000006Z";

    #[test]
    fn lines_are_told_with_their_times_however_they_arrive() {
        let answer = b"2026-01-02T03:04:05.000000006Z one\n2026-01-02T04:04:06+01:00 \nfailed to look\n2026-01-02T03:04:07Z a\xff\r b";
        let expected = vec![
            text(TIME, 0, b"one\n"),
            text("2026-01-02T03:04:06Z", 0, b"\n"),
            Piece::Foreign("failed to look".to_owned()),
            text("2026-01-02T03:04:07Z", 0, b"a\xff\r b"),
        ];
        for length in 1..answer.len() {
            assert_eq!(read(answer, &[length]), expected, "in pieces of {length}");
        }
    }

    #[test]
    fn what_has_no_time_is_not_the_apps() {
        let long = "x".repeat(3000);
        for (answer, words) in [
            ("word", "word"),
            ("word\n", "word"),
            ("\n", ""),
            ("2026-01-02 03:04:05 x\n", "2026-01-02 03:04:05 x"),
            (TIME, TIME),
            (&*long, &long[..FOREIGN]),
        ] {
            assert_eq!(read(answer.as_bytes(), &[7]), [Piece::Foreign(words.to_owned())], "{answer:?}");
        }
    }

    #[test]
    fn a_very_long_line_comes_in_parts_and_is_never_held_whole() {
        let line = vec![b'x'; 2 * WHOLE + 10];
        let answer = [TIME.as_bytes(), b" ", &line, b"\n"].concat();
        let parts = [
            text(TIME, 0, &line[..WHOLE]),
            text(TIME, WHOLE as u64, &line[WHOLE..2 * WHOLE]),
            text(TIME, 2 * WHOLE as u64, b"xxxxxxxxxx\n"),
        ];
        for length in [1000, WHOLE, answer.len()] {
            assert_eq!(read(&answer, &[length]), parts);
        }
    }

    proptest! {
        /// Whatever an app writes and however it arrives, its bytes come out as they went in.
        #[test]
        fn no_byte_is_changed_by_how_it_arrives(
            lines in proptest::collection::vec(proptest::collection::vec(any::<u8>().prop_filter("no break", |it| *it != b'\n'), 0..60), 0..20),
            lengths in proptest::collection::vec(1_usize..50, 1..10),
        ) {
            let mut answer = Vec::new();
            let mut expected = Vec::new();
            for line in &lines {
                answer.extend([TIME.as_bytes(), b" ", line, b"\n"].concat());
                expected.push(text(TIME, 0, &[line, &b"\n"[..]].concat()));
            }
            prop_assert_eq!(read(&answer, &lengths), expected);
        }
    }
}
