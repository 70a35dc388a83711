//! How long a log may say nothing, and how often it is asked for.

use std::time::Duration;

use pando_cluster::Env;
use pando_cluster::env::Instant;
use pando_cluster::resilient::backoff;

/// A followed log that says nothing for so long may have been forgotten by its node: it is asked for again, and the container's
/// state beside it. Each time in vain the next silence may last twice as long…
const SILENCE: Duration = Duration::from_secs(5);
/// … up to this.
const LONGEST_SILENCE: Duration = Duration::from_mins(1);
/// A log that is not followed says something all the time.
const STALLED: Duration = Duration::from_secs(15);
/// How often a log is asked for that cannot be followed.
pub(super) const POLL: Duration = Duration::from_secs(1);
/// The wait before a log is asked for again whose reading came to nothing; it doubles with each time…
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// … up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// So long reading may come to nothing before that is told, when the log is followed…
const TROUBLE: Duration = Duration::from_mins(2);
/// … and when somebody waits for its end.
const BRIEF_TROUBLE: Duration = Duration::from_secs(30);

/// The pace at which one log is read.
#[derive(Debug)]
pub(super) struct Pace {
    follow: bool,
    /// Answers in a row that brought nothing.
    fruitless: u32,
    silence: Duration,
    trouble: Option<Instant>,
}

impl Pace {
    /// The pace of a fresh reading.
    pub(super) const fn new(follow: bool) -> Self {
        Self { follow, fruitless: 0, silence: SILENCE, trouble: None }
    }

    /// How long an answer may be silent.
    pub(super) const fn silence(&self, is_followed: bool) -> Duration {
        if is_followed { self.silence } else { STALLED }
    }

    /// A followed answer was silent.
    pub(super) fn was_silent(&mut self) {
        self.silence = (self.silence * 2).min(LONGEST_SILENCE);
    }

    /// An answer brought news, so long after it was asked for. What it brings at once, the silent one before it had kept back:
    /// this node forgets.
    pub(super) fn has_news(&mut self, after: Option<Duration>) {
        if after.is_some_and(|after| after < POLL) {
            self.silence = SILENCE;
        }
        self.fruitless = 0;
        self.trouble = None;
    }

    /// An answer brought nothing, and nothing was wrong with it.
    pub(super) const fn is_well(&mut self) {
        self.trouble = None;
    }

    /// Reading came to nothing; answers whether that was so for too long.
    pub(super) fn is_in_trouble(&mut self, now: Instant) -> bool {
        now.since(*self.trouble.get_or_insert(now)) >= self.patience()
    }

    /// How long reading may come to nothing.
    pub(super) const fn patience(&self) -> Duration {
        if self.follow { TROUBLE } else { BRIEF_TROUBLE }
    }

    /// Waits before the log is asked for again that brought nothing.
    pub(super) async fn pause(&mut self, env: &Env) {
        let longest = backoff(FIRST_PAUSE, LONGEST_PAUSE, self.fruitless);
        self.fruitless = self.fruitless.saturating_add(1);
        env.sleep(longest / 2 + env.jitter(longest / 2)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_quiet_app_costs_less_and_less_and_a_forgetful_node_is_watched() {
        let mut pace = Pace::new(true);
        let mut silences = Vec::new();
        for _ in 0..6 {
            silences.push(pace.silence(true).as_secs());
            pace.was_silent();
        }
        assert_eq!(silences, [5, 10, 20, 40, 60, 60]);
        pace.has_news(Some(Duration::from_secs(7)));
        pace.has_news(None);
        assert_eq!(pace.silence(true), LONGEST_SILENCE, "it just speaks seldom");
        pace.has_news(Some(Duration::from_millis(20)));
        assert_eq!(pace.silence(true), SILENCE);
        assert_eq!(pace.silence(false), STALLED);
    }

    #[test]
    fn trouble_is_told_when_it_lasts() {
        for (follow, patience) in [(true, 120), (false, 30)] {
            let mut pace = Pace::new(follow);
            assert!(!pace.is_in_trouble(at(1)) && !pace.is_in_trouble(at(patience)));
            assert!(pace.is_in_trouble(at(patience + 1)), "{follow}");
            pace.has_news(None);
            assert!(!pace.is_in_trouble(at(1000)), "it begins anew");
            pace.is_well();
            assert!(!pace.is_in_trouble(at(2000)));
        }
    }
}
