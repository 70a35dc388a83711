//! How far a log was read, and what of a further answer is new: each line once, in order, whatever was cut.
//!
//! A node answers with its log from some second on, so an answer that goes on where another one was cut begins with lines that were
//! passed on before. They are told apart by the order in the file, not by time alone: two lines may have the same time, and a line
//! of the error output may stand before an older one of the standard output (26 of 24,793 did). So the times of the lines passed
//! on last are kept, and what comes before the very last of them, or is one of them, was seen.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use super::lines::Text;

/// Lines that stand in another order than their times are never further apart than this.
const DISORDER: SignedDuration = SignedDuration::from_millis(250);
/// So many different times are kept; of an app that writes more within [`DISORDER`] older ones count as seen.
const KEPT: usize = 16 * 1024;

/// How far a log was read.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Nothing that was written before is wanted.
    since: Option<Timestamp>,
    /// The times of the lines passed on last, in the order of the file, and how many in a row had each.
    recent: VecDeque<(Timestamp, u64)>,
    /// The newest time that is no longer kept.
    horizon: Option<Timestamp>,
    /// The newest time of all.
    newest: Option<Timestamp>,
    last: Option<Last>,
    /// A node's answer went back to this time.
    back: Option<Timestamp>,
    /// Lines that follow each other do have the same time here.
    coarse: bool,
}

/// The line passed on last.
#[derive(Clone, Copy, Debug)]
struct Last {
    time: Timestamp,
    /// How many of its bytes were passed on.
    given: u64,
    /// Its end was among them.
    whole: bool,
}

/// One answer, as far as it was read.
#[derive(Debug)]
pub(super) struct Answer {
    /// The lines passed on before that are still to come by here.
    seen: BTreeMap<Timestamp, u64>,
    /// The answer before this one went back to that time.
    back: Option<Timestamp>,
    at: At,
    line: Line,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Among lines that were passed on before.
    Before,
    /// Just past the last of them.
    Joined,
    /// Among new ones.
    After,
}

/// The line that an answer is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// It was passed on, or is not wanted.
    Old,
    /// So many of its bytes were.
    From(u64),
    /// The answer went back: what was seen begins anew.
    Back,
}

/// What a piece of an answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sorted {
    /// Nothing new.
    Old,
    /// This; where `gap` is the time of the line before, others that stood between may be lost.
    New { text: Text, gap: Option<Timestamp> },
    /// Nothing can be said before the node was asked again.
    Back,
}

impl Answer {
    /// Whether it went on from the line that was passed on last. Otherwise that line's file was thrown away, and with it whatever
    /// stood behind it there.
    pub(super) fn has_joined(&self) -> bool {
        self.at != At::Before
    }
}

impl Place {
    /// Nothing was read yet, and nothing from before `since` is wanted.
    pub(super) fn new(since: Option<Timestamp>) -> Self {
        Self { since, ..Self::default() }
    }

    /// From when on the node is to be asked; `None` for all there is.
    pub(super) fn ask_since(&self) -> Option<Timestamp> {
        let Some(last) = self.last else { return self.since };
        self.back.into_iter().chain(last.time.checked_sub(DISORDER).ok()).min()
    }

    /// The time of the line that was read last.
    pub(super) fn last(&self) -> Option<Timestamp> {
        self.last.map(|last| last.time)
    }

    /// Begins to read an answer to what [`Place::ask_since`] asked for.
    pub(super) fn answer(&mut self) -> Answer {
        let at = if self.last.is_some() { At::Before } else { At::After };
        let mut seen = BTreeMap::new();
        for (time, count) in &self.recent {
            *seen.entry(*time).or_default() += count;
        }
        Answer { seen, back: self.back.take(), at, line: Line::Old }
    }

    /// Tells what a piece of text is, and takes it as passed on if it is new.
    pub(super) fn sort(&mut self, answer: &mut Answer, text: Text) -> Sorted {
        let Text { time, offset, bytes } = text;
        let mut gap = None;
        if offset == 0 {
            (answer.line, gap) = self.judge(answer, time);
            if answer.line == Line::From(0) {
                self.begin(time);
            }
        }
        let given = match answer.line {
            Line::Old => return Sorted::Old,
            Line::Back => {
                self.back = Some(time);
                return Sorted::Back;
            }
            Line::From(given) => given,
        };
        let known = usize::try_from(given.saturating_sub(offset)).unwrap_or(usize::MAX).min(bytes.len());
        let new = bytes.slice(known..);
        if new.is_empty() {
            return Sorted::Old;
        }
        let end = offset + bytes.len() as u64;
        self.last = Some(Last { time, given: end, whole: new.ends_with(b"\n") });
        Sorted::New { text: Text { time, offset: offset + known as u64, bytes: new }, gap }
    }

    fn judge(&mut self, answer: &mut Answer, time: Timestamp) -> (Line, Option<Timestamp>) {
        let new = (Line::From(0), None);
        if self.since.is_some_and(|since| time < since) {
            return (Line::Old, None);
        }
        let Some(last) = self.last else { return new };
        match answer.at {
            At::Before => match answer.pass(time) {
                Some(more) if time == last.time && more == 0 => {
                    answer.at = At::Joined;
                    (if last.whole { Line::Old } else { Line::From(last.given) }, None)
                }
                Some(_) => (Line::Old, None),
                // It was not wanted, or stands where older lines were thrown away: then a gap is told at the next one.
                None if time < last.time => (Line::Old, None),
                // The last line is not there any more, and what stood between it and this one may not be either.
                None => {
                    answer.at = At::After;
                    (Line::From(0), Some(last.time))
                }
            },
            // It stands behind the last line in two answers: it is new, and the clock did what clocks should not.
            At::Joined if answer.back == Some(time) => {
                answer.at = At::After;
                self.coarse |= time == last.time;
                new
            }
            At::Joined | At::After if self.looks_old(last.time, time) => (Line::Back, None),
            At::Joined | At::After => {
                answer.at = At::After;
                new
            }
        }
    }

    /// Whether a line that follows the last one may be one that was passed on before.
    fn looks_old(&self, last: Timestamp, time: Timestamp) -> bool {
        if time == last {
            return !self.coarse;
        }
        let is_recent = || self.recent.iter().any(|(recent, _)| *recent == time);
        (time < last && self.is_past(time)) || (Some(time) <= self.newest && is_recent())
    }

    fn begin(&mut self, time: Timestamp) {
        self.newest = self.newest.max(Some(time));
        match self.recent.back_mut() {
            Some((last, count)) if *last == time => *count += 1,
            _ => self.recent.push_back((time, 1)),
        }
        while let Some((oldest, _)) = self.recent.front()
            && (self.recent.len() > KEPT || time.duration_since(*oldest) > DISORDER)
        {
            self.horizon = self.horizon.max(Some(*oldest));
            self.recent.pop_front();
        }
    }

    fn is_past(&self, time: Timestamp) -> bool {
        self.horizon.is_some_and(|horizon| time <= horizon)
    }
}

impl Answer {
    /// Crosses off a line that was passed on before; answers how many of its time are still to come, or `None` when it was not.
    fn pass(&mut self, time: Timestamp) -> Option<u64> {
        let left = self.seen.get_mut(&time)?;
        *left = left.checked_sub(1)?;
        Some(*left)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::super::lines::{Piece, Splitter};
    use super::*;

    /// A log as a node holds it.
    type Lines = [(Timestamp, Vec<u8>)];

    fn at(nanos: i64) -> Timestamp {
        Timestamp::from_nanosecond(1_800_000_000_000_000_000 + i128::from(nanos)).expect("a time of our era")
    }

    /// What a node answers: the lines of `since`'s second and later ones, with their times.
    fn render(log: &Lines, since: Option<Timestamp>) -> Vec<u8> {
        let since = since.map(|since| Timestamp::from_second(since.as_second()).expect("a second"));
        let mut answer = Vec::new();
        for (time, line) in log.iter().filter(|(time, _)| since.is_none_or(|since| *time >= since)) {
            answer.extend_from_slice(format!("{time:.9} ").as_bytes());
            answer.extend_from_slice(line);
        }
        answer
    }

    /// A reader of one log, and what it was told.
    #[derive(Default)]
    struct Reader {
        place: Place,
        bytes: Vec<u8>,
        /// The times of the lines.
        times: Vec<Timestamp>,
        /// The times of the lines before which something may be missing.
        gaps: Vec<Timestamp>,
    }

    impl Reader {
        /// Reads an answer to its end, or as far as it makes sense; answers whether the node is to be asked again.
        fn read(&mut self, answer: &[u8], finished: bool) -> bool {
            let (mut pieces, mut splitter) = (Vec::new(), Splitter::default());
            splitter.push(answer, |piece| pieces.push(piece));
            if finished {
                pieces.extend(splitter.finish());
            }
            let mut answer = self.place.answer();
            for piece in pieces {
                // Half a time, where an answer was cut.
                let Piece::Text(text) = piece else { continue };
                match self.place.sort(&mut answer, text) {
                    Sorted::Old => {}
                    Sorted::New { text: Text { time, bytes, .. }, gap } => {
                        self.times.push(time);
                        self.bytes.extend_from_slice(&bytes);
                        self.gaps.extend(gap);
                    }
                    Sorted::Back => return true,
                }
            }
            false
        }

        /// Asks until nothing more is to be asked.
        fn finish(&mut self, log: &Lines) {
            for _ in 0..=log.len() {
                if !self.read(&render(log, self.place.ask_since()), true) {
                    return;
                }
            }
            panic!("it goes back for ever");
        }
    }

    fn log(lines: &[(i64, &str)]) -> Vec<(Timestamp, Vec<u8>)> {
        lines.iter().map(|(nanos, line)| (at(*nanos), line.as_bytes().to_vec())).collect()
    }

    fn bytes(log: &Lines) -> Vec<u8> {
        log.iter().flat_map(|(_, line)| line.clone()).collect()
    }

    #[test]
    fn a_line_that_stands_before_an_older_one_is_neither_lost_nor_doubled() {
        let log = log(&[(0, "a\n"), (20, "b\n"), (10, "c\n"), (30, "d\n")]);
        for read in 0..=log.len() {
            let mut reader = Reader::default();
            reader.read(&render(&log[..read], None), false);
            reader.finish(&log);
            assert_eq!((reader.bytes, reader.gaps), (bytes(&log), vec![]), "after {read} lines");
        }
    }

    #[test]
    fn lines_of_one_time_are_counted() {
        let log = log(&[(7, "a\n"), (7, "a\n"), (7, "a\n"), (7, "b\n"), (8, "c\n")]);
        for read in 0..=log.len() {
            let mut reader = Reader::default();
            reader.read(&render(&log[..read], None), false);
            reader.finish(&log);
            assert_eq!((reader.bytes, reader.gaps), (bytes(&log), vec![]), "after {read} lines");
        }
    }

    #[test]
    fn only_what_is_wanted_is_new() {
        let log = log(&[(0, "a\n"), (1, "b\n"), (2, "c\n")]);
        let mut reader = Reader { place: Place::new(Some(at(1))), ..Reader::default() };
        assert_eq!(reader.place.ask_since(), Some(at(1)));
        reader.finish(&log);
        assert_eq!(reader.bytes, b"b\nc\n");
    }

    #[test]
    fn an_answer_has_joined_when_it_holds_the_last_line() {
        let text = |nanos: i64| Text { time: at(nanos), offset: 0, bytes: Bytes::from_static(b"x\n") };
        let mut place = Place::default();
        let mut first = place.answer();
        assert!(first.has_joined(), "there was no line before");
        place.sort(&mut first, text(1));
        place.sort(&mut first, text(2));
        let mut again = place.answer();
        assert!(!again.has_joined(), "a file that was begun anew has nothing to say of what followed");
        place.sort(&mut again, text(1));
        assert!(!again.has_joined());
        place.sort(&mut again, text(2));
        assert!(again.has_joined());
    }

    #[test]
    fn a_log_that_no_longer_holds_the_last_line_has_a_gap() {
        let whole = log(&[(0, "a\n"), (1_000_000, "b\n"), (2_000_000, "c\n"), (3_000_000, "d\n")]);
        let mut reader = Reader::default();
        reader.read(&render(&whole[..2], None), false);
        reader.finish(&whole[3..]);
        assert_eq!((&*reader.bytes, &*reader.gaps), (&b"a\nb\nd\n"[..], &[at(1_000_000)][..]));
    }

    #[test]
    fn a_node_that_begins_its_file_anew_is_asked_again() {
        let log = log(&[(0, "a\n"), (1_000_000_000, "b\n"), (2_000_000_000, "c\n"), (3_000_000_000, "d\n")]);
        let twice = [render(&log[..3], None), render(&log[1..], None)].concat();
        let mut reader = Reader::default();
        assert!(reader.read(&twice, false), "it goes back");
        assert_eq!(reader.bytes, b"a\nb\nc\n");
        reader.finish(&log);
        assert_eq!((reader.bytes, reader.gaps), (bytes(&log), vec![]));
    }

    #[test]
    fn a_clock_that_is_set_back_costs_no_line() {
        let log =
            log(&[(9_000_000_000, "a\n"), (9_500_000_000, "b\n"), (1_000_000_000, "c\n"), (1_000_000_001, "d\n")]);
        let mut reader = Reader::default();
        assert!(reader.read(&render(&log, None), false), "it goes back");
        reader.finish(&log);
        assert_eq!((reader.bytes, reader.gaps), (bytes(&log), vec![]));
    }

    #[test]
    fn a_line_cut_in_its_middle_goes_on_where_it_was_cut() {
        let mut place = Place::default();
        let text = |offset: u64, bytes: &[u8]| Text { time: at(0), offset, bytes: Bytes::copy_from_slice(bytes) };
        let new = |offset, bytes: &[u8]| Sorted::New { text: text(offset, bytes), gap: None };
        let mut answer = place.answer();
        assert_eq!(place.sort(&mut answer, text(0, b"abc")), new(0, b"abc"));
        let mut answer = place.answer();
        assert_eq!(place.sort(&mut answer, text(0, b"ab")), Sorted::Old);
        assert_eq!(place.sort(&mut answer, text(2, b"cde")), new(3, b"de"));
        assert_eq!(place.sort(&mut answer, text(5, b"\n")), new(5, b"\n"));
        let mut answer = place.answer();
        assert_eq!(place.sort(&mut answer, text(0, b"abcde\n")), Sorted::Old);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut reader = Reader::default();
        let log: Vec<_> = (0..3 * 16 * 1024).map(|nanos| (at(nanos), b"x\n".to_vec())).collect();
        reader.read(&render(&log[..40_000], None), false);
        assert!(reader.place.recent.len() <= KEPT);
        reader.finish(&log);
        assert_eq!((reader.bytes.len(), reader.gaps), (2 * log.len(), vec![]));
    }

    /// Logs with equal times, close ones, pauses, and lines in another order than their times.
    fn logs(least: i64) -> impl Strategy<Value = Vec<(Timestamp, Vec<u8>)>> {
        let step = prop_oneof![
            Just(least),
            Just(1),
            Just(1_000_000),
            Just(240_000_000),
            Just(900_000_000),
            Just(5_000_000_000)
        ];
        let line = proptest::collection::vec(any::<u8>().prop_filter("no break", |it| *it != b'\n'), 0..6);
        proptest::collection::vec((step, line, any::<bool>()), 1..30).prop_map(|lines| {
            let mut now = 0;
            let mut log = Vec::new();
            let mut swaps = Vec::new();
            for (step, mut line, swap) in lines {
                now += step;
                line.push(b'\n');
                log.push((at(now), line));
                swaps.push(swap && step < 1_000_001);
            }
            for first in 1..log.len() {
                if swaps[first] && !swaps[first - 1] {
                    log.swap(first - 1, first);
                }
            }
            log
        })
    }

    proptest! {
        /// Whatever is cut, wherever, and however the node goes back: every byte once, in order.
        #[test]
        fn any_number_of_cuts_gives_the_log(log in logs(0), cuts in proptest::collection::vec((0.0..1.0, 0.0..1.0, any::<bool>()), 0..12)) {
            let mut reader = Reader::default();
            let (mut end, mut twice) = (0, false);
            for (more, cut, again) in cuts {
                end += scale(log.len() - end, more);
                let written = &log[..end];
                let mut answer = render(written, reader.place.ask_since());
                // A file of nothing but lines of one time that begins anew looks as if more of them were written.
                let of_one_time = written.first().map(|(time, _)| time) == written.last().map(|(time, _)| time);
                // A node that does so twice at the same line is not told from a clock that was set back.
                twice = again && !twice && !of_one_time;
                if twice {
                    answer.extend(render(written, None));
                }
                reader.read(&answer[..scale(answer.len(), cut)], false);
            }
            reader.finish(&log);
            prop_assert_eq!(reader.bytes, bytes(&log));
            prop_assert_eq!(reader.gaps, vec![]);
        }

        /// Whatever the node throws away meanwhile: nothing twice, nothing out of order, nothing lost in between without a gap.
        /// (Of lines with the very same time it cannot be told which of them are gone.)
        #[test]
        fn what_is_thrown_away_is_told(log in logs(1), cuts in proptest::collection::vec((0.0..1.0, 0.0..1.0, 0.0..0.3), 0..12)) {
            let mut reader = Reader::default();
            let (mut first, mut end) = (0, 0);
            for (more, cut, gone) in cuts {
                end += scale(log.len() - end, more);
                first += scale(end - first, gone);
                let answer = render(&log[first..end], reader.place.ask_since());
                reader.read(&answer[..scale(answer.len(), cut)], false);
            }
            reader.finish(&log[first..]);
            let position = |time: &Timestamp| log.iter().position(|(other, _)| other == time).expect("a line of the log");
            let read: Vec<_> = reader.times.iter().map(position).collect();
            prop_assert!(read.is_sorted_by(|a, b| a < b), "{:?}", read);
            for pair in read.windows(2).filter(|pair| pair[0] + 1 != pair[1]) {
                prop_assert!(reader.gaps.contains(&log[pair[0]].0), "nothing is told between {:?}", pair);
            }
        }
    }

    fn scale(length: usize, part: f64) -> usize {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small and positive"
        )]
        let scaled = (length as f64 * part).round() as usize;
        scaled.min(length)
    }
}
