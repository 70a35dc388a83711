//! Every scenario under every fault at every call, on the cluster in memory, on virtual time.
//!
//! `PANDO_FAULT=changed_plan:3:0:7:answer-lost` runs that one schedule: scenario, seed, caller, call and fault.
//! `PANDO_SEEDS=20` runs twenty seeds of each scenario.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use pando_conformance::faults::{self, Bug, Finding, Place, SCENARIOS, Scenario, catch, enumerate, replay};

/// How many seeds of each scenario are run. The second caller comes at another point in each.
const SEEDS: u64 = 1;

/// So many findings of one scenario are enough to know.
const ENOUGH: usize = 5;

/// Plays every schedule of the scenario that is number `index`. Each begins at a seed of its own: the second caller comes
/// at another point of the first one's work, and calls take another time.
fn scenario(index: u64, scenario: &'static Scenario) -> Result<(), Failed> {
    let seeds = std::env::var("PANDO_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let report = enumerate(scenario, index..index + seeds, None, ENOUGH);
    let faults::Report { schedules, faults, dropped, killed, polls, .. } = &report;
    println!(
        "faults::{}: {schedules} schedules of {seeds} seeds: {faults} faults of calls, {dropped} drops and {killed} kills in {polls} polls",
        scenario.name
    );
    if report.findings.is_empty() {
        return Ok(());
    }
    let findings: Vec<_> = report.findings.iter().map(Finding::to_string).collect();
    Err(Failed::from(findings.join("\n")))
}

fn bug(bug: Bug) -> Result<(), Failed> {
    let (schedules, finding) = catch(bug, 0);
    let finding = finding.ok_or_else(|| format!("{bug:?} was not caught in {schedules} schedules"))?;
    println!("faults::{bug:?}: caught after {schedules} schedules, at {}: {}", finding.place, finding.broken[0]);
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let trials = if let Ok(place) = std::env::var("PANDO_FAULT") {
        vec![Trial::test(format!("faults::{place}"), move || match replay(Place::parse(&place)?) {
            Some(finding) => Err(Failed::from(finding.to_string())),
            None => Ok(()),
        })]
    } else {
        let scenarios = (0..).zip(SCENARIOS);
        let scenarios =
            scenarios.map(|(index, it)| Trial::test(format!("faults::{}", it.name), move || scenario(index, it)));
        let bugs = Bug::ALL.iter().map(|it| Trial::test(format!("faults::{it:?}_is_caught"), move || bug(*it)));
        scenarios.chain(bugs).collect()
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}
