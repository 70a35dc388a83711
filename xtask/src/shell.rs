//! Runs other programs, so that an interrupt ends them and never us before we have cleaned up.
//!
//! Every program gets a process group of its own: the terminal's Ctrl-C then reaches only this process, which
//! ends the program's whole group by itself. What cleans up is run to its end whatever the keyboard says.

use std::ffi::OsStr;
use std::fmt;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// How often a running program is looked at.
const LOOK: Duration = Duration::from_millis(25);
/// How long an interrupted program may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Remembers Ctrl-C, SIGTERM and SIGHUP instead of dying of them.
pub(crate) fn catch_interrupts() -> Result<()> {
    ctrlc::set_handler(|| {
        if !INTERRUPTED.swap(true, Ordering::SeqCst) {
            eprintln!("\ninterrupted: ending what runs, then removing what was made");
        }
    })
    .context("could not catch Ctrl-C")
}

/// Whether an interrupt has been asked for.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// The root of this repository.
pub(crate) fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_owned()
}

/// A folder under `target` for this process alone: two tasks may run side by side.
pub(crate) fn own_folder(task: &str) -> PathBuf {
    root().join(format!("target/{task}-{}", std::process::id()))
}

/// Where cargo puts a program of the workspace.
pub(crate) fn built(program: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join("debug").join(program)
}

/// The cargo that runs us.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    // `cargo run` sets these for us; a cargo of our own that saw them would rebuild what reads them.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Runs `command` with its output on ours; an interrupt ends it and is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = wait(spawn(command.stdin(Stdio::null()))?)?;
    succeeded(command, status)
}

/// Runs `command` to its end, interrupts or not: for cleaning up.
pub(crate) fn finish(command: &mut Command) -> Result<()> {
    let status = spawn(command.stdin(Stdio::null()))?.wait()?;
    succeeded(command, status)
}

/// What `command` prints, to its end, interrupts or not. What it says on standard error is in the error.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = spawn(command)?.wait_with_output()?;
    printed(command, output)
}

/// Whether `command` succeeds; nothing that it prints is shown.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    read(command).is_ok()
}

/// Writes a file that holds credentials: nobody but its owner may read it, from its first byte on.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let write = || {
        // One that is there keeps its mode, so it goes first.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())
    };
    write().with_context(|| format!("could not write {}", path.display()))
}

/// Measures how long something took.
#[derive(Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Begins to measure.
    #[expect(clippy::disallowed_methods, reason = "a task of a person takes a person's time")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since then.
    pub(crate) fn time(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "a task of a person takes a person's date")]
pub(crate) fn epoch_seconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// A short name for a run, different from one second to the next, fit for the name of a namespace.
pub(crate) fn run_id() -> String {
    in_base_36(epoch_seconds())
}

/// Waits a moment.
#[expect(clippy::disallowed_methods, reason = "waits for a program, which has no clock of ours")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// A command as one would type it.
struct Shown<'a>(&'a Command);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = Path::new(self.0.get_program()).file_name().unwrap_or(self.0.get_program());
        f.write_str(&program.to_string_lossy())?;
        self.0.get_args().map(OsStr::to_string_lossy).try_for_each(|argument| write!(f, " {argument}"))
    }
}

fn in_base_36(seconds: u64) -> String {
    let mut digits = Vec::new();
    let mut rest = seconds;
    while rest > 0 || digits.is_empty() {
        // A digit of base 36 is below 36.
        digits.push(char::from_digit(u32::try_from(rest % 36).unwrap_or(0), 36).unwrap_or('0'));
        rest /= 36;
    }
    digits.iter().rev().collect()
}

fn spawn(command: &mut Command) -> Result<Child> {
    command.process_group(0);
    command.spawn().with_context(|| format!("could not start `{}`", Shown(command)))
}

/// Waits for the end of `child`; an interrupt ends its process group.
fn wait(mut child: Child) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupted() {
            end_group(&mut child)?;
            bail!("interrupted");
        }
        pause(LOOK);
    }
}

/// Asks the group of `child` to end, and makes it end when it does not in time.
fn end_group(child: &mut Child) -> Result<()> {
    let group = Pid::from_raw(i32::try_from(child.id()).context("a process id does not fit")?);
    // The group may be gone already, which is what is wanted.
    let _ = killpg(group, Signal::SIGTERM);
    let asked = Stopwatch::start();
    while child.try_wait()?.is_none() {
        if asked.time() > PATIENCE {
            let _ = killpg(group, Signal::SIGKILL);
            child.wait()?;
            break;
        }
        pause(LOOK);
    }
    Ok(())
}

fn succeeded(command: &Command, status: ExitStatus) -> Result<()> {
    if status.success() { Ok(()) } else { Err(anyhow!("`{}` failed ({status})", Shown(command))) }
}

fn printed(command: &Command, output: Output) -> Result<String> {
    if output.status.success() {
        return String::from_utf8(output.stdout)
            .with_context(|| format!("`{}` printed something that is not text", Shown(command)));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("`{}` failed ({}): {}", Shown(command), output.status, said.trim());
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _};

    use super::*;

    #[test]
    fn a_run_has_a_short_name() {
        assert_eq!((in_base_36(0), in_base_36(35), in_base_36(36)), ("0".into(), "z".into(), "10".into()));
        assert_eq!(in_base_36(1_767_225_600), "t85s00");
    }

    #[test]
    fn what_a_failing_program_said_is_in_the_error() {
        let error = read(Command::new("sh").args(["-c", "echo no room >&2; exit 3"])).expect_err("it exits with 3");
        let error = error.to_string();
        assert!(error.contains("no room") && error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = read(&mut Command::new("no-such-program-here")).expect_err("there is none");
        assert!(error.to_string().contains("no-such-program-here"), "{error}");
    }

    #[test]
    fn an_ended_group_takes_its_grandchildren_along() {
        let mut child = spawn(
            Command::new("sh").args(["-c", "sleep 60 & echo ready; wait"]).stdin(Stdio::null()).stdout(Stdio::piped()),
        )
        .expect("sh works");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        output.read_line(&mut String::new()).expect("it says when the grandchild runs");
        let watch = Stopwatch::start();
        end_group(&mut child).expect("it ends");
        // The pipe is at its end once nobody holds it any more, the grandchild included.
        output.read_to_end(&mut Vec::new()).expect("it ends");
        assert!(watch.time() < Duration::from_secs(30), "the grandchild lived to its own end");
    }
}
