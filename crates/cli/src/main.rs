//! `pando-k8s`: Pando's runtime on Kubernetes, driven from a shell.
//!
//! The edge of the workspace: it reads flags, files and variables, chooses the cluster, and prints. What happens is
//! [`pando_api::RuntimeAdapter`]'s; nothing here decides anything about an app.
//!
//! - `args` is what a person types; `config` and `plan` turn files into settings and a plan, by `document`.
//! - `commands` is what each command does; `live` runs one against a cluster, with progress and Ctrl-C.
//! - `show` and `failure` turn facts and errors into text; `table`, `text` and `screen` are their means.
//! - `preview` shows what an apply would do; `schema` is the form of the documents that are read.
//! - `output` writes what a workload wrote, as it is.
//! - `exit` is the table of exit codes.

mod args;
mod commands;
mod config;
mod document;
mod exit;
mod failure;
mod live;
mod log;
mod output;
mod plan;
mod preview;
mod progress;
mod schema;
mod screen;
mod show;
mod table;
mod text;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use pando_api::Code;

use crate::args::Cli;
use crate::live::Stopped;
use crate::screen::Screen;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let screen = Arc::new(Screen::stderr());
    log::start(&screen, cli.global.verbose);
    match commands::run(&cli, &screen) {
        Ok(report) => match (print(&report.print(cli.global.output), &screen), report.failed) {
            (Ok(()), None) => ExitCode::SUCCESS,
            (Ok(()), Some(code)) | (Err(code), _) => exit::of(code).into(),
        },
        Err(Stopped::Failed(error)) => {
            screen.say(&failure::print(&error, cli.global.output, cli.global.verbose > 0));
            exit::of(error.code).into()
        }
        Err(Stopped::Interrupted { left }) => {
            screen.say(&format!("interrupted: {left}\n"));
            exit::INTERRUPTED.into()
        }
    }
}

fn print(text: &str, screen: &Screen) -> Result<(), Code> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever read our output, e.g. `head`, has seen enough of it.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            screen.say(&format!("error: the result cannot be written: {error}\n"));
            Err(Code::Internal)
        }
        _ => Ok(()),
    }
}
