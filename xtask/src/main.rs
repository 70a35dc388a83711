//! `cargo xtask`: what a person types in this repository.
//!
//! `test` is every check that needs no cluster, `layering` the part of it about who may use whom, `e2e` the
//! conformance suite on a real cluster, `demo` one app brought up and taken away again before your eyes,
//! `bench` how long calls take.
//!
//! This is an edge: it runs programs, reads the environment and looks at the clock. Nothing depends on it,
//! and it depends on none of the crates it builds, so that it runs while they do not compile.

mod bench;
mod cluster;
mod demo;
mod e2e;
mod kubectl;
mod layering;
mod rights;
mod shell;
mod test;
mod tools;

use std::process::ExitCode;

use clap::Parser;

/// The tasks of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, about)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, clap::Subcommand)]
enum Task {
    /// Every check and test that needs no cluster.
    Test(test::Args),
    /// Who may depend on whom, that each crate compiles alone, and that no dependency is unused.
    Layering(layering::Args),
    /// The conformance suite on a real cluster, as Pando's own account.
    E2e(e2e::Args),
    /// Runs an example app on a real cluster, shows that it is isolated, and takes it away again.
    Demo(demo::Args),
    /// How long calls take, in memory and, where told, on a real cluster. Figures; none is asserted.
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = shell::catch_interrupts().and_then(|()| match arguments.task {
        Task::Test(args) => test::run(&args),
        Task::Layering(args) => layering::run(&args),
        Task::E2e(args) => e2e::run(&args),
        Task::Demo(args) => demo::run(&args),
        Task::Bench(args) => bench::run(&args),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::from(if shell::interrupted() { 130 } else { 1 })
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        Arguments::command().debug_assert();
    }
}
