//! Who may depend on whom: a check, since an edge that is only agreed on is crossed one day.
//!
//! [`rules`] holds the law and judges a graph, [`metadata`] reads the graph from cargo, [`unused`] finds
//! dependencies that nothing names.

mod metadata;
mod rules;
mod unused;

use anyhow::{Result, bail};

use crate::shell;
use metadata::Metadata;

/// What `cargo xtask layering` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Leaves out compiling each crate alone, which takes longer than all else.
    #[arg(long)]
    graph_only: bool,
}

/// Checks the graph, then every crate alone.
pub(crate) fn run(args: &Args) -> Result<()> {
    check()?;
    if args.graph_only { Ok(()) } else { check_alone() }
}

/// Checks the graph and that no dependency is unused.
pub(crate) fn check() -> Result<()> {
    let metadata = Metadata::of_workspace()?;
    let mut wrong: Vec<String> = rules::judge(&metadata.graph()).iter().map(ToString::to_string).collect();
    for package in metadata.members() {
        wrong.extend(unused::find(package)?.iter().map(ToString::to_string));
    }
    if wrong.is_empty() {
        println!("{} crates, every dependency in its direction and in use", metadata.members().count());
        return Ok(());
    }
    bail!("{} wrong:\n  {}", wrong.len(), wrong.join("\n  "));
}

/// Compiles each crate alone, so that no crate lives on a feature that another one switched on.
pub(crate) fn check_alone() -> Result<()> {
    for package in Metadata::of_workspace()?.members() {
        println!("{}", package.name);
        shell::run(shell::cargo().args(["check", "--quiet", "--package", &package.name]))?;
    }
    Ok(())
}
