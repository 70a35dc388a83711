//! The terminal's error output: lines that stay, and below them lines that are redrawn.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Where progress, logs and errors go; one at a time, so that none of them tears another apart.
pub(crate) struct Screen(Mutex<Inner>);

struct Inner {
    out: Box<dyn Write + Send>,
    /// How many lines below the last one that stays are to be redrawn.
    drawn: usize,
}

impl Screen {
    /// The process' error output.
    pub(crate) fn stderr() -> Self {
        Self::on(io::stderr())
    }

    fn on(out: impl Write + Send + 'static) -> Self {
        Self(Mutex::new(Inner { out: Box::new(out), drawn: 0 }))
    }

    /// Writes text that stays, in place of what was drawn.
    pub(crate) fn say(&self, text: &str) {
        self.with(|inner| {
            inner.clear()?;
            inner.out.write_all(text.as_bytes())
        });
    }

    /// Draws these lines in place of what was drawn. Lines wider than the terminal are cut at its edge.
    pub(crate) fn draw(&self, lines: &[String]) {
        // Without wrapping, each line takes exactly one row, whatever the terminal's width.
        const NO_WRAP: &str = "\x1b[?7l";
        const WRAP: &str = "\x1b[?7h";
        self.with(|inner| {
            inner.clear()?;
            inner.drawn = lines.len();
            inner.out.write_all(NO_WRAP.as_bytes())?;
            for line in lines {
                writeln!(inner.out, "{line}")?;
            }
            inner.out.write_all(WRAP.as_bytes())
        });
    }

    /// Takes away what was drawn.
    pub(crate) fn clear(&self) {
        self.with(Inner::clear);
    }

    fn with(&self, write: impl FnOnce(&mut Inner) -> io::Result<()>) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Where errors cannot be written, that cannot be told either.
        let _ = write(&mut inner).and_then(|()| inner.out.flush());
    }
}

impl Inner {
    fn clear(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.drawn) {
            0 => Ok(()),
            lines => write!(self.out, "\x1b[{lines}A\r\x1b[J"),
        }
    }
}

impl fmt::Debug for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Screen").finish_non_exhaustive()
    }
}

/// Lets a log be written above what is drawn.
#[derive(Debug)]
pub(crate) struct LogWriter(pub(crate) Arc<Screen>);

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.say(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Remembers what was written.
    #[derive(Clone, Default)]
    pub(crate) struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Paper {
        pub(crate) fn screen(&self) -> Screen {
            Screen::on(self.clone())
        }

        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().expect("no writer panicked").clone()).expect("only text is written")
        }
    }

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no writer panicked").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_was_drawn_gives_way_to_what_stays() {
        let paper = Paper::default();
        let screen = paper.screen();
        screen.draw(&["one".to_owned(), "two".to_owned()]);
        screen.say("stays\n");
        screen.say("stays too\n");
        assert_eq!(paper.text(), "\x1b[?7lone\ntwo\n\x1b[?7h\x1b[2A\r\x1b[Jstays\nstays too\n");
    }
}
