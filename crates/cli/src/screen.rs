//! The terminal's error output: lines that stay, and below them lines that are redrawn.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Where progress, logs and errors go; one at a time, so that none of them tears another apart.
pub(crate) struct Screen(Mutex<Inner>);

struct Inner {
    out: Box<dyn Write + Send>,
    /// The terminal's columns and rows now; `None` where they are not known.
    size: fn() -> Option<(usize, usize)>,
    /// How many rows below the last line that stays are to be redrawn.
    drawn: usize,
}

const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

/// The lines as rows of a terminal of this size.
fn rows(lines: &[String], size: Option<(usize, usize)>) -> Vec<String> {
    let Some((columns, height)) = size.filter(|(columns, height)| *columns > 0 && *height > 1) else {
        return lines.to_vec();
    };
    let mut rows = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let folded = folded(line, columns);
        // The cursor stands in a row of its own, below; and unless this is the last line, one row is for what is left.
        let rest = usize::from(index + 1 < lines.len());
        if rows.len() + folded.len() + rest >= height {
            let more = format!("and {} more", lines.len() - index);
            rows.push(more.chars().take(columns).collect());
            break;
        }
        rows.extend(folded);
    }
    rows
}

/// The line in rows of so many columns; a row that goes on is indented, where that leaves it half the width.
fn folded(line: &str, columns: usize) -> Vec<String> {
    const INDENT: &str = "    ";
    let indent = if columns >= 2 * INDENT.len() { INDENT } else { "" };
    let mut rows = vec![String::new()];
    let mut taken = 0;
    for character in line.chars() {
        if taken == columns {
            rows.push(indent.to_owned());
            taken = indent.len();
        }
        if let Some(row) = rows.last_mut() {
            row.push(character);
        }
        taken += 1;
    }
    rows
}

impl Screen {
    /// The process' error output.
    pub(crate) fn stderr() -> Self {
        let size = || {
            let size = rustix::termios::tcgetwinsize(io::stderr()).ok()?;
            Some((usize::from(size.ws_col), usize::from(size.ws_row)))
        };
        Self::on(io::stderr(), size)
    }

    fn on(out: impl Write + Send + 'static, size: fn() -> Option<(usize, usize)>) -> Self {
        Self(Mutex::new(Inner { out: Box::new(out), size, drawn: 0 }))
    }

    /// Writes text that stays, in place of what was drawn.
    pub(crate) fn say(&self, text: &str) {
        self.with(|inner| {
            inner.clear()?;
            inner.out.write_all(text.as_bytes())
        });
    }

    /// Draws these lines in place of what was drawn. A line that is wider than the terminal goes on in its next row, so that nothing
    /// of it is lost; where there are more rows than the terminal has, the last line tells how many lines are not shown.
    pub(crate) fn draw(&self, lines: &[String]) {
        self.with(|inner| {
            inner.clear()?;
            let rows = rows(lines, (inner.size)());
            inner.drawn = rows.len();
            // A terminal that was made narrower meanwhile must not wrap rows of its own: they are counted.
            inner.out.write_all(NO_WRAP.as_bytes())?;
            for row in &rows {
                writeln!(inner.out, "{row}")?;
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
            Screen::on(self.clone(), || None)
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

    #[test]
    fn nothing_of_a_line_is_lost_in_a_narrow_terminal() {
        let lines = ["web  3s  pulling: no such tag".to_owned(), "db   1s  starting".to_owned()];
        assert_eq!(rows(&lines, None), lines);
        assert_eq!(rows(&lines, Some((80, 24))), lines);
        let narrow = ["web  3s  pulling", "    : no such ta", "    g", "db   1s  startin", "    g"];
        assert_eq!(rows(&lines, Some((16, 24))), narrow);
        for columns in 1..40 {
            let rows = rows(&lines, Some((columns, 1000)));
            assert!(rows.iter().all(|row| row.chars().count() <= columns), "{columns}: {rows:?}");
            let letters = |text: String| text.chars().filter(|letter| *letter != ' ').collect::<String>();
            assert_eq!(letters(rows.concat()), letters(lines.concat()), "{columns}");
        }
    }

    #[test]
    fn a_low_terminal_tells_how_many_lines_it_does_not_show() {
        let lines: Vec<String> = (1..=5).map(|number| format!("w{number}")).collect();
        assert_eq!(rows(&lines, Some((20, 6))), lines);
        assert_eq!(rows(&lines, Some((20, 5))), ["w1", "w2", "w3", "and 2 more"]);
        assert_eq!(rows(&lines, Some((20, 2))), ["and 5 more"]);
    }

    #[test]
    fn what_is_drawn_again_takes_the_place_of_every_row_of_it() {
        let paper = Paper::default();
        let screen = Screen::on(paper.clone(), || Some((10, 10)));
        screen.draw(&["0123456789ab".to_owned()]);
        screen.draw(&["short".to_owned()]);
        assert_eq!(paper.text(), format!("{NO_WRAP}0123456789\n    ab\n{WRAP}\x1b[2A\r\x1b[J{NO_WRAP}short\n{WRAP}"));
    }
}
