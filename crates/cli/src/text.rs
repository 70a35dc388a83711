//! Words for people: times, and texts of strangers made harmless.

use std::borrow::Cow;
use std::time::Duration;

/// `text` on one line, without what could move a terminal's cursor: a cluster's messages and an app's log are not ours.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    clean(text, |_| false)
}

/// The same, with its line breaks and tabs.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    clean(text, |c| c == '\n' || c == '\t')
}

fn clean(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let harmless = |c: char| !c.is_control() || keep(c);
    if text.chars().all(harmless) {
        return Cow::Borrowed(text);
    }
    let replace = |c| match c {
        c if harmless(c) => c,
        '\n' | '\r' | '\t' => ' ',
        _ => char::REPLACEMENT_CHARACTER,
    };
    Cow::Owned(text.chars().map(replace).collect())
}

/// A time as people say it, in its two largest units: `0s`, `12s`, `3m05s`, `2h07m`, `5d03h`.
pub(crate) fn lasting(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    if days > 0 {
        format!("{days}d{:02}h", hours % 24)
    } else if hours > 0 {
        format!("{hours}h{:02}m", minutes % 60)
    } else if minutes > 0 {
        format!("{minutes}m{:02}s", seconds % 60)
    } else {
        format!("{seconds}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_two_units() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (60, "1m00s"), (185, "3m05s"), (7_620, "2h07m"), (442_800, "5d03h")]
        {
            assert_eq!(lasting(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn no_text_of_a_stranger_steers_the_terminal() {
        assert_eq!(line("red \u{1b}[31m\u{7}"), "red \u{fffd}[31m\u{fffd}");
        assert_eq!(line("one\ntwo\u{9b}31m"), "one two\u{fffd}31m");
        assert_eq!(lines("one\n\ttwo\r\u{1b}c"), "one\n\ttwo \u{fffd}c");
        assert!(matches!(line("plain"), Cow::Borrowed("plain")));
    }
}
