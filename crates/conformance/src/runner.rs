//! Runs the table of cases on a bed, as tests that cargo understands.

use std::any::Any;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::bed::Need;
use crate::cases::{CASES, Case, Profile};

/// A kind of bed, and how to run a case on a fresh one.
pub struct Plan {
    /// What its tests are called by: `fake`, `face`, `kind`.
    pub name: &'static str,
    /// How many cases it may skip for want of what they need, those not counted that only a cluster in memory can play; one more is a
    /// failure.
    pub ceiling: usize,
    /// How much is run.
    pub profile: Profile,
    /// How many cases run at once; `None` is as many as there are processors.
    pub threads: Option<usize>,
    /// Why the bed cannot meet a need; `None` when it can.
    pub lacks: Box<dyn Fn(Need) -> Option<String>>,
    /// Runs one case; a panic is its failure.
    pub run: Arc<dyn Fn(&Case) + Send + Sync>,
}

/// Runs every case, or those that the command line names.
pub fn run(plan: &Plan) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(plan.threads);
    let mut skipped = Vec::new();
    let mut trials = Vec::new();
    let (mut left_out, mut missed) = (0, 0);
    for case in CASES {
        if case.profile > plan.profile {
            left_out += 1;
            continue;
        }
        let name = format!("{}::{}", plan.name, case.name);
        let unmet: Vec<_> =
            case.needs.iter().filter_map(|need| (plan.lacks)(*need).map(|reason| (need, reason))).collect();
        if let Some((_, reason)) = unmet.first() {
            missed += usize::from(!unmet.iter().any(|(need, _)| need.is_of_memory()));
            trials.push(Trial::test(&name, || Ok(())).with_ignored_flag(true));
            skipped.push(format!("{name}: {reason}"));
            continue;
        }
        let run = Arc::clone(&plan.run);
        trials.push(Trial::test(name, move || {
            run(case);
            Ok(())
        }));
    }
    if !arguments.list {
        println!(
            "{}: {} cases, {} skipped, {left_out} left to the full profile",
            plan.name,
            trials.len(),
            skipped.len()
        );
        for skipped in &skipped {
            println!("  skipped {skipped}");
        }
    }
    let ceiling = plan.ceiling;
    trials.push(Trial::test(format!("{}::no_more_is_skipped_than_allowed", plan.name), move || {
        if missed <= ceiling {
            Ok(())
        } else {
            Err(Failed::from(format!(
                "{missed} skipped beside what only a cluster in memory can play, {ceiling} allowed"
            )))
        }
    }));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The answer where there is no bed to run on: nothing runs, and `reason` says how to change that.
pub fn nothing(reason: &str) -> ExitCode {
    let arguments = Arguments::from_args();
    if !arguments.list {
        println!("{reason}");
    }
    libtest_mimic::run(&arguments, Vec::new()).exit_code()
}

/// The seed to run, where `PANDO_SEED` names one.
///
/// # Panics
///
/// When it is no number.
pub fn seed_from_environment() -> Option<u64> {
    let text = std::env::var("PANDO_SEED").ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("PANDO_SEED is {text:?}, which is no number")))
}

/// What a panic said.
pub fn words_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}
