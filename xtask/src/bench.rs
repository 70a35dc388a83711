//! How long calls of the adapter take. Figures, for people to compare; no number is asserted.

use std::path::PathBuf;

use anyhow::Result;

use crate::shell;

/// What `cargo xtask bench` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also on the cluster of this kubeconfig, as whomever it names: apps are made there and taken away again.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// How often each is run on that cluster.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Does not optimise: built sooner, and our own share of the time is larger.
    #[arg(long)]
    quick: bool,
}

/// Prints where and of what the figures are, and then the figures.
pub(crate) fn run(args: &Args) -> Result<()> {
    println!("commit   {}", commit()?);
    println!("machine  {}", machine());
    shell::run(&mut example(args.quick))?;
    if let Some(kubeconfig) = &args.kubeconfig {
        let kubeconfig = std::path::absolute(kubeconfig)?;
        shell::run(example(args.quick).arg(kubeconfig).arg(args.runs.to_string()))?;
    }
    Ok(())
}

fn example(quick: bool) -> std::process::Command {
    let mut cargo = shell::cargo();
    cargo.args(["run", "--quiet", "--package", "pando-conformance", "--example", "bench"]);
    if !quick {
        cargo.arg("--release");
    }
    cargo.arg("--");
    cargo
}

fn commit() -> Result<String> {
    let git = |words: &[&str]| shell::read(std::process::Command::new("git").current_dir(shell::root()).args(words));
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let changed = !git(&["status", "--porcelain"])?.trim().is_empty();
    Ok(format!("{}{}", commit.trim(), if changed { ", with changes" } else { "" }))
}

/// The processor, where the system tells, and how many of it.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or(std::env::consts::ARCH, |(_, model)| model.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} x {model}, {}", std::env::consts::OS)
}
