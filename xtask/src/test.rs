//! Every check and test that needs no cluster, in the order that fails soonest.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::{layering, shell, tools};

/// What `cargo xtask test` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Goes on after a step that failed; the summary names them all.
    #[arg(long)]
    keep_going: bool,
    /// Given to `cargo test`, e.g. `-- isolation --nocapture`.
    #[arg(last = true)]
    extra: Vec<String>,
}

struct Step {
    name: &'static str,
    run: fn(&Args) -> Result<()>,
}

const STEPS: &[Step] = &[
    Step { name: "format", run: |_| shell::run(shell::cargo().args(["fmt", "--all", "--check"])) },
    Step { name: "layering", run: |_| layering::check() },
    Step { name: "dependencies", run: |_| deny() },
    Step {
        name: "lints",
        run: |_| {
            shell::run(shell::cargo().args([
                "clippy",
                "--workspace",
                "--all-targets",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ]))
        },
    },
    Step { name: "each crate alone", run: |_| layering::check_alone() },
    Step { name: "documentation", run: |_| document() },
    Step { name: "tests", run: test },
];

/// Runs the steps; stops at the first that fails unless told to go on.
pub(crate) fn run(args: &Args) -> Result<()> {
    let whole = shell::Stopwatch::start();
    let mut done: Vec<(&str, Duration, bool)> = Vec::new();
    for step in STEPS {
        println!("\n== {}", step.name);
        let watch = shell::Stopwatch::start();
        let outcome = (step.run)(args);
        done.push((step.name, watch.time(), outcome.is_ok()));
        println!("-- {}: {:.1} s", step.name, watch.time().as_secs_f64());
        match outcome {
            Ok(()) => {}
            Err(error) if args.keep_going && !shell::interrupted() => eprintln!("error: {error:#}"),
            Err(error) => {
                summarize(&done);
                return Err(error);
            }
        }
    }
    summarize(&done);
    println!("{:>8.1} s  in all", whole.time().as_secs_f64());
    let failed: Vec<_> = done.iter().filter(|(.., passed)| !passed).map(|(name, ..)| *name).collect();
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

fn summarize(done: &[(&str, Duration, bool)]) {
    println!("\n== summary");
    for (name, time, passed) in done {
        println!("{:>8.1} s  {} {name}", time.as_secs_f64(), if *passed { "passed" } else { "FAILED" });
    }
}

fn deny() -> Result<()> {
    let mut deny = Command::new(tools::cargo_deny()?);
    // The advisory database lives on the network; this step answers from the lock file alone.
    shell::run(deny.current_dir(shell::root()).args(["--locked", "check", "bans", "licenses", "sources"]))
}

fn document() -> Result<()> {
    shell::run(shell::cargo().args(["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings"))
}

fn test(args: &Args) -> Result<()> {
    shell::run(shell::cargo().args(["test", "--workspace"]).args(&args.extra))
}
