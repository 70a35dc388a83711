//! Writes a log to the standard output, byte by byte as it was written.

use std::io::{self, ErrorKind};

use futures::StreamExt;
use pando_api::{Code, Error, LogEvent, LogGap, LogLine, LogStream};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::screen::Screen;

/// So many lines are written together, where they are there.
const TOGETHER: usize = 256;

/// Writes the log to the standard output until it ends, or until nobody reads it any more.
///
/// Never blocks: who reads our output may stop to do so while a person interrupts us.
pub(crate) async fn write(log: LogStream, timestamps: bool, screen: &Screen) -> Result<(), Error> {
    write_to(tokio::io::stdout(), log, timestamps, screen).await
}

async fn write_to(
    mut out: impl AsyncWrite + Unpin,
    log: LogStream,
    timestamps: bool,
    screen: &Screen,
) -> Result<(), Error> {
    let mut pen = Pen { timestamps, in_line: false };
    let mut batches = log.ready_chunks(TOGETHER);
    while let Some(batch) = batches.next().await {
        let mut bytes = Vec::new();
        let mut failure = None;
        for event in batch {
            match event {
                Ok(LogEvent::Line(line)) => pen.line(&line, &mut bytes),
                Ok(LogEvent::Gap(gap)) => screen.say(&told(&gap)),
                Err(error) => failure = Some(error),
            }
        }
        match written(&mut out, &bytes).await {
            Ok(()) => {}
            // Whoever read our output, e.g. `head`, has seen enough of it.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Error::new(Code::Internal, "the log cannot be written").caused_by(error)),
        }
        if let Some(error) = failure {
            return Err(error);
        }
    }
    Ok(())
}

async fn written(out: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes).await?;
    out.flush().await
}

/// What is written of lines.
struct Pen {
    timestamps: bool,
    /// What was written last has no line break.
    in_line: bool,
}

impl Pen {
    fn line(&mut self, line: &LogLine, out: &mut Vec<u8>) {
        if line.begins {
            // A start may have ended in the middle of a line.
            if self.in_line {
                out.push(b'\n');
            }
            if self.timestamps {
                out.extend_from_slice(format!("{:.9} ", line.time).as_bytes());
            }
        }
        out.extend_from_slice(&line.bytes);
        self.in_line = !line.ends();
    }
}

fn told(gap: &LogGap) -> String {
    let before = gap.before.map_or_else(|| "the end".to_owned(), |before| before.to_string());
    format!(
        "lines between {} and {before} may be missing: the cluster threw them away before they were read\n",
        gap.after
    )
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures::{FutureExt, stream};

    use super::*;
    use crate::screen::tests::Paper;

    fn line(second: i64, begins: bool, bytes: &'static [u8]) -> LogEvent {
        let time = jiff::Timestamp::from_second(second).expect("a second of our era");
        LogEvent::Line(LogLine { time, begins, bytes: bytes.into() })
    }

    /// What is written of these events, on both outputs, and how that ends.
    fn written_of(events: Vec<Result<LogEvent, Error>>, timestamps: bool) -> (Vec<u8>, String, Result<(), Error>) {
        let paper = Paper::default();
        let screen = paper.screen();
        let mut out = Vec::new();
        let end = write_to(&mut out, stream::iter(events).boxed(), timestamps, &screen).now_or_never();
        (out, paper.text(), end.expect("there is nothing to wait for"))
    }

    #[test]
    fn bytes_come_out_as_they_were_written() {
        let events = || {
            vec![
                Ok(line(1, true, b"a\xff\x1b\r\n")),
                Ok(line(2, true, b"long ")),
                Ok(line(2, false, b"line\n")),
                Ok(line(3, true, b"x")),
            ]
        };
        assert_eq!(written_of(events(), false).0, b"a\xff\x1b\r\nlong line\nx");
        let stamped = b"1970-01-01T00:00:01.000000000Z a\xff\x1b\r\n1970-01-01T00:00:02.000000000Z long line\n1970-01-01T00:00:03.000000000Z x";
        assert_eq!(written_of(events(), true).0, stamped);
    }

    #[test]
    fn the_next_start_begins_a_line_of_its_own() {
        assert_eq!(written_of(vec![Ok(line(1, true, b"no end")), Ok(line(2, true, b"b\n"))], false).0, b"no end\nb\n");
    }

    #[test]
    fn what_was_read_before_a_failure_is_written_and_gaps_are_told_beside_it() {
        let (after, before) = (jiff::Timestamp::from_second(1).expect("a time"), None);
        let gap = Ok(LogEvent::Gap(LogGap { after, before }));
        let failure = Err(Error::new(Code::NotFound, "gone"));
        let (out, said, end) = written_of(vec![Ok(line(1, true, b"a\n")), gap, failure], false);
        assert_eq!(out, b"a\n");
        assert!(said.contains("lines between 1970-01-01T00:00:01Z and the end may be missing"), "{said}");
        assert_eq!(end.expect_err("it failed").code, Code::NotFound);
    }

    /// An output that nobody reads, or that is full.
    struct Refuses(ErrorKind);

    impl AsyncWrite for Refuses {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(self.0.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn an_output_that_nobody_reads_is_an_end_and_a_full_one_a_failure() {
        for (kind, ends) in [(ErrorKind::BrokenPipe, true), (ErrorKind::StorageFull, false)] {
            let log = stream::iter([Ok(line(1, true, b"a\n"))]).chain(stream::pending()).boxed();
            let screen = Paper::default().screen();
            let end = write_to(Refuses(kind), log, false, &screen).now_or_never().expect("it does not wait for more");
            assert_eq!(end.is_ok(), ends, "{kind}");
        }
    }
}
