//! What a call is doing, told to a person while it lasts.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use pando_api::{Progress, ProgressSink};
use pando_cluster::Env;

use crate::args::ProgressMode;
use crate::screen::Screen;
use crate::text;

/// How often what is drawn is drawn again.
const FRAME: Duration = Duration::from_millis(250);

/// How progress is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// A line a workload, redrawn in place.
    Drawn,
    /// A line for each step.
    Lines,
    /// Not at all.
    Silent,
}

impl Manner {
    /// The manner that was asked for, or the one that suits where the error output goes.
    pub(crate) fn of(mode: ProgressMode, on_terminal: bool, verbose: bool) -> Self {
        match mode {
            ProgressMode::Plain => Self::Lines,
            ProgressMode::Auto if verbose => Self::Lines,
            ProgressMode::Auto if on_terminal => Self::Drawn,
            ProgressMode::Auto | ProgressMode::None => Self::Silent,
        }
    }
}

/// Remembers the newest step of each workload, and shows it.
#[derive(Debug)]
pub(crate) struct Board {
    manner: Manner,
    screen: Arc<Screen>,
    /// By workload; the bundle as a whole is the empty name.
    newest: Mutex<BTreeMap<String, Progress>>,
}

impl Board {
    /// An empty board.
    pub(crate) fn new(manner: Manner, screen: Arc<Screen>) -> Self {
        Self { manner, screen, newest: Mutex::default() }
    }

    /// Draws what is newest, again and again, where that is the manner; ends with the call it is polled beside.
    pub(crate) async fn keep_drawn(&self, env: &Env) -> Infallible {
        loop {
            if self.manner == Manner::Drawn {
                self.screen.draw(&self.lines(env.wall.now()));
            }
            env.sleep(FRAME).await;
        }
    }

    fn lines(&self, now: Timestamp) -> Vec<String> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let width = newest.keys().map(|name| name.chars().count()).max().unwrap_or_default();
        let lasted = |since| text::lasting(Duration::try_from(now.duration_since(since)).unwrap_or_default());
        newest
            .values()
            .map(|progress| {
                format!("{:width$}  {:>6}  {}", text::line(&progress.workload), lasted(progress.since), told(progress))
            })
            .collect()
    }
}

impl ProgressSink for Board {
    fn tell(&self, mut progress: Progress) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let before = newest.get(&progress.workload);
        let is_news = before.is_none_or(|before| told(before) != told(&progress));
        // How long a step lasts does not begin anew when the cause of its waiting changes.
        if let Some(before) = before.filter(|before| before.step == progress.step) {
            progress.since = before.since;
        }
        if self.manner == Manner::Lines && is_news {
            let name = if progress.workload.is_empty() { String::new() } else { format!("{}: ", progress.workload) };
            self.screen.say(&format!("{}{}\n", text::line(&name), told(&progress)));
        }
        // The preparation is over when the first workload begins.
        if !progress.workload.is_empty() {
            newest.remove("");
        }
        newest.insert(progress.workload.clone(), progress);
    }
}

fn told(progress: &Progress) -> String {
    let step = text::line(&progress.step);
    if progress.waiting_for.is_empty() {
        step.into_owned()
    } else {
        format!("{step}: {}", text::line(&progress.waiting_for))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use pando_kubecluster::tokio_env;

    use super::*;
    use crate::screen::tests::Paper;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a second of our era")
    }

    fn progress(workload: &str, step: &str, waiting_for: &str, second: i64) -> Progress {
        let (workload, step, waiting_for) = (workload.to_owned(), step.to_owned(), waiting_for.to_owned());
        Progress { workload, step, waiting_for, since: at(second) }
    }

    #[test]
    fn the_manner_suits_where_it_is_told() {
        for (mode, on_terminal, verbose, manner) in [
            (ProgressMode::Auto, true, false, Manner::Drawn),
            (ProgressMode::Auto, true, true, Manner::Lines),
            (ProgressMode::Auto, false, true, Manner::Lines),
            (ProgressMode::Auto, false, false, Manner::Silent),
            (ProgressMode::Plain, false, false, Manner::Lines),
            (ProgressMode::None, true, true, Manner::Silent),
        ] {
            assert_eq!(Manner::of(mode, on_terminal, verbose), manner, "{mode:?} {on_terminal} {verbose}");
        }
    }

    #[test]
    fn each_step_is_told_once_as_a_line() {
        let paper = Paper::default();
        let board = Board::new(Manner::Lines, Arc::new(paper.screen()));
        board.tell(progress("", "preparing the namespace", "", 0));
        board.tell(progress("web", "pulling", "", 1));
        board.tell(progress("web", "pulling", "", 2));
        board.tell(progress("web", "pulling", "ErrImagePull:\nno such tag", 3));
        assert_eq!(paper.text(), "preparing the namespace\nweb: pulling\nweb: pulling: ErrImagePull: no such tag\n");
    }

    #[test]
    fn only_what_is_drawn_is_drawn_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        for (manner, draws) in [(Manner::Drawn, true), (Manner::Lines, false), (Manner::Silent, false)] {
            let paper = Paper::default();
            let board = Board::new(manner, Arc::new(paper.screen()));
            let _context = runtime.enter();
            assert!(board.keep_drawn(&tokio_env()).now_or_never().is_none(), "it has no end of its own");
            assert_eq!(!paper.text().is_empty(), draws, "{manner:?}");
        }
    }

    #[test]
    fn what_is_drawn_says_how_long_the_step_lasts() {
        let board = Board::new(Manner::Drawn, Arc::new(Paper::default().screen()));
        board.tell(progress("", "preparing the namespace", "", 0));
        assert_eq!(board.lines(at(2)), ["      2s  preparing the namespace"]);
        board.tell(progress("database", "starting", "", 2));
        board.tell(progress("web", "pulling", "", 10));
        board.tell(progress("web", "pulling", "no such tag", 60));
        assert_eq!(board.lines(at(70)), ["database   1m08s  starting", "web        1m00s  pulling: no such tag"]);
    }
}
