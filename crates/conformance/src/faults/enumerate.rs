//! Every schedule of one fault, of every scenario.

use std::fmt;

use super::fault::Fault;
use super::planted::Bug;
use super::play::{Played, Reference, Schedule, play};
use super::scenario::Scenario;

/// Where to find one telling again.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The scenario.
    pub scenario: &'static Scenario,
    /// The seed of everything else.
    pub seed: u64,
    /// What goes wrong.
    pub schedule: Schedule,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.scenario.name, self.seed, self.schedule)
    }
}

impl Place {
    /// Reads a place as it is printed.
    ///
    /// # Errors
    ///
    /// What of it is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<_> = text.split(':').collect();
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no number"));
        let place = |text: &str| number(text).and_then(|it| usize::try_from(it).map_err(|error| error.to_string()));
        let scenario = Scenario::named(parts[0]).ok_or_else(|| format!("{:?} is no scenario", parts[0]))?;
        let (seed, schedule) = match parts[1..] {
            [seed] | [seed, "undisturbed"] => (seed, Schedule::Undisturbed),
            [seed, caller, polls, "dropped"] => {
                (seed, Schedule::Dropped { caller: place(caller)?, polls: number(polls)? })
            }
            [seed, caller, polls, "killed"] => {
                (seed, Schedule::Killed { caller: place(caller)?, polls: number(polls)? })
            }
            [seed, caller, call, fault] => {
                (seed, Schedule::Fault { caller: place(caller)?, call: place(call)?, fault: fault.parse()? })
            }
            _ => return Err(format!("{text:?} is not SCENARIO:SEED[:CALLER:CALL:FAULT]")),
        };
        Ok(Self { scenario, seed: number(seed)?, schedule })
    }
}

/// A telling in which something was wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Which one.
    pub place: Place,
    /// The invariants that were broken, each a line.
    pub broken: Vec<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.broken {
            writeln!(f, "{line}")?;
        }
        write!(f, "  to run it again: PANDO_FAULT={} cargo test -p pando-conformance --test faults", self.place)
    }
}

/// What an enumeration came to.
#[derive(Debug, Default)]
pub struct Report {
    /// How many schedules were played.
    pub schedules: usize,
    /// In how many of them a call went wrong.
    pub faults: usize,
    /// In how many of them a caller let go of its call.
    pub dropped: usize,
    /// In how many of them a process was killed.
    pub killed: usize,
    /// How often the processes were polled while nothing was wrong.
    pub polls: u64,
    /// Those in which something was wrong.
    pub findings: Vec<Finding>,
}

/// Plays every schedule of `scenario` from each of `seeds`, and stops after `enough` findings.
///
/// Some are played twice: two runs of one seed must be one run.
pub fn enumerate(
    scenario: &'static Scenario,
    seeds: impl Iterator<Item = u64>,
    bug: Option<Bug>,
    enough: usize,
) -> Report {
    let mut run = Run { scenario, bug, enough, wanted: bug.map_or(&[], Bug::breaks), report: Report::default() };
    for seed in seeds {
        let undisturbed = run.play(seed, Schedule::Undisturbed, None);
        let reference = Some(Reference { calls: &undisturbed.calls, state: &undisturbed.state });
        for (caller, calls) in undisturbed.calls.iter().enumerate() {
            let points = undisturbed.points.get(caller).cloned().unwrap_or_default();
            run.report.polls += points.polls();
            for polls in points.to_drop() {
                run.play(seed, Schedule::Dropped { caller, polls }, reference);
                run.report.dropped += 1;
            }
            for polls in points.to_kill() {
                run.play(seed, Schedule::Killed { caller, polls }, reference);
                run.report.killed += 1;
            }
            for (call, asked) in calls.iter().enumerate() {
                for fault in Fault::of(*asked, scenario.faults) {
                    run.play(seed, Schedule::Fault { caller, call, fault }, reference);
                    run.report.faults += 1;
                }
            }
        }
    }
    run.report
}

/// Plays one schedule and prints its calls; answers what was wrong with it.
pub fn replay(place: Place) -> Option<Finding> {
    let Place { scenario, seed, schedule } = place;
    let undisturbed = play(scenario, seed, Schedule::Undisturbed, None, None);
    let reference = Reference { calls: &undisturbed.calls, state: &undisturbed.state };
    let reference = (schedule != Schedule::Undisturbed).then_some(reference);
    let Played { broken, story, .. } = play(scenario, seed, schedule, None, reference);
    println!("{}", story.join("\n"));
    (!broken.is_empty()).then_some(Finding { place, broken })
}

/// Plays, with `bug` planted, the scenarios that must catch it, from `seed`; answers after how many schedules, and how.
pub fn catch(bug: Bug, seed: u64) -> (usize, Option<Finding>) {
    let mut schedules = 0;
    for scenario in bug.scenarios().iter().filter_map(|name| Scenario::named(name)) {
        let mut report = enumerate(scenario, std::iter::once(seed), Some(bug), 1);
        schedules += report.schedules;
        if let Some(finding) = report.findings.pop() {
            return (schedules, Some(finding));
        }
    }
    (schedules, None)
}

struct Run {
    scenario: &'static Scenario,
    bug: Option<Bug>,
    /// The invariants of which one must be broken for a finding to count; none, and any counts.
    wanted: &'static [&'static str],
    enough: usize,
    report: Report,
}

/// One schedule of so many is played twice.
const TWICE: usize = 50;

impl Run {
    fn is_done(&self) -> bool {
        self.report.findings.len() >= self.enough
    }

    fn play(&mut self, seed: u64, schedule: Schedule, reference: Option<Reference<'_>>) -> Played {
        if self.is_done() {
            return Played::default();
        }
        let mut played = play(self.scenario, seed, schedule, self.bug, reference);
        let mut broken = std::mem::take(&mut played.broken);
        if self.report.schedules.is_multiple_of(TWICE) {
            let again = play(self.scenario, seed, schedule, self.bug, reference);
            if again.hash != played.hash {
                broken.push("two runs of this seed differ: something outside Env had a say".to_owned());
            }
        }
        self.report.schedules += 1;
        let is_wanted = |line: &String| self.wanted.is_empty() || self.wanted.iter().any(|it| line.starts_with(it));
        // The line that counts comes first.
        broken.sort_by_key(|line| !is_wanted(line));
        if broken.first().is_some_and(is_wanted) {
            let place = Place { scenario: self.scenario, seed, schedule };
            self.report.findings.push(Finding { place, broken });
        }
        played
    }
}
