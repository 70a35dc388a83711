//! What a person types.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// Runs Pando's bundles on a Kubernetes cluster.
///
/// A bundle is one app; a plan says what it consists of. Every command may be repeated after any failure.
#[derive(Debug, Parser)]
#[command(name = "pando-k8s", version, propagate_version = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// What goes with every command.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    a defect of this program
  2    what was given is not valid; nothing was changed
  3    what was named does not exist
  4    not possible as planned: a capability is missing, or there is no room
  5    the cluster cannot be reached or is not usable
  6    the change failed
  130  interrupted";

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The configuration, JSON or YAML [default: the file that `PANDO_CONFIG` names, else an empty one]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Sets one key of the configuration; repeatable. The value is JSON, or else a text
    #[arg(long = "set", global = true, value_name = "KEY=VALUE", value_parser = Setting::parse)]
    pub(crate) settings: Vec<Setting>,
    /// The kubeconfig [default: the configuration's, else `KUBECONFIG`, else ~/.kube/config, else the pod's account]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig [default: the configuration's, else the kubeconfig's current one]
    #[arg(long, global = true, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) context: Option<String>,
    /// How results and errors are written
    #[arg(short, long, global = true, value_name = "FORM", value_enum, default_value_t)]
    pub(crate) output: Output,
    /// Tells more on the error output: -v what happens, -vv each call, -vvv the connection. `RUST_LOG` overrides
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// How progress is told on the error output
    #[arg(long, global = true, value_name = "HOW", value_enum, default_value_t)]
    pub(crate) progress: ProgressMode,
    /// The id of this request in logs and on what it changes [default: `cli-` with a random number]
    #[arg(long, global = true, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) request_id: Option<String>,
    /// The most time the call may take, e.g. 90s or 5m [default: the runtime's own limits]
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
}

/// How results and errors are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Tables and sentences, for people
    #[default]
    Table,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// How progress is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressMode {
    /// Redrawn on a terminal; as lines with -v; otherwise not at all
    #[default]
    Auto,
    /// A line for each step
    Plain,
    /// Not at all
    None,
}

/// A key of the configuration and its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    /// The key.
    pub(crate) key: String,
    /// Its value; null takes the key away.
    pub(crate) value: Value,
}

impl Setting {
    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self {
                key: key.to_owned(),
                value: serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned())),
            }),
            _ => Err("write KEY=VALUE, e.g. pod_cidr=10.244.0.0/16".to_owned()),
        }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    let time = seconds.or_else(|| Duration::try_from(text.parse::<SignedDuration>().ok()?).ok());
    time.filter(|time| !time.is_zero()).ok_or_else(|| "write a time such as 90s, 5m or 1h30m".to_owned())
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Makes a bundle as its plan says, and waits until each workload runs
    #[command(after_help = APPLY)]
    Apply(ApplyArgs),
    /// Shows what is there of a bundle
    #[command(after_help = OBSERVE)]
    Observe(BundleArgs),
    /// Ends every workload of a bundle; all else stays
    #[command(after_help = STOP)]
    Stop(BundleArgs),
    /// Takes a bundle away; its volumes stay unless told otherwise
    #[command(after_help = DESTROY)]
    Destroy(DestroyArgs),
    /// Tells what is right and wrong with the installation, each with what to do about it
    #[command(after_help = DOCTOR)]
    Doctor(DoctorArgs),
    /// Writes what a workload wrote to the standard output
    #[command(after_help = LOGS)]
    Logs(LogsArgs),
    /// Prints where a port of a workload is reached; contacts nothing
    #[command(after_help = UPSTREAM)]
    Upstream(UpstreamArgs),
    /// Prints the objects that apply would make of a plan; contacts nothing and shows no secret
    #[command(after_help = RENDER)]
    Render(PlanArgs),
    /// Prints the JSON Schema of a document, for editors and checks; contacts nothing
    #[command(after_help = SCHEMA)]
    Schema {
        /// Of which document.
        #[arg(value_name = "DOCUMENT", value_enum, default_value_t)]
        document: Document,
    },
    /// Prints the completions for a shell
    #[command(after_help = COMPLETIONS)]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// What `apply` takes.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// The plan.
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    /// Only tells what would be created, changed, started and removed; changes nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// A document that this program reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Document {
    /// The plan of a bundle
    #[default]
    Plan,
    /// The configuration
    Config,
}

/// A command on a plan.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The plan, JSON or YAML; - reads the standard input
    #[arg(value_name = "PLAN")]
    pub(crate) plan: PathBuf,
}

/// A command on a bundle.
#[derive(Debug, Args)]
pub(crate) struct BundleArgs {
    /// The bundle's id, as its plan spells it
    #[arg(value_name = "BUNDLE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) bundle: String,
}

/// What `destroy` takes.
#[derive(Debug, Args)]
pub(crate) struct DestroyArgs {
    /// The bundle.
    #[command(flatten)]
    pub(crate) bundle: BundleArgs,
    /// Whether the volumes stay
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub(crate) keep_volumes: bool,
    /// Does not ask before data is destroyed
    #[arg(long)]
    pub(crate) yes: bool,
}

/// What `doctor` takes.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Has pods dial each other again, although it was found out before whether apps are kept from each other
    #[arg(long)]
    pub(crate) renew: bool,
}

/// What `logs` takes.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The bundle.
    #[command(flatten)]
    pub(crate) bundle: BundleArgs,
    /// The workload's name
    #[arg(value_name = "WORKLOAD")]
    pub(crate) workload: String,
    /// Goes on as the workload writes, and with its next start, until it has ended or is stopped
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only what was written since a time, e.g. 2026-01-31T12:00:00Z, or in the last while, e.g. 5m
    #[arg(long, value_name = "TIME", value_parser = Since::parse)]
    pub(crate) since: Option<Since>,
    /// Only so many of the last lines there are
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<u64>,
    /// Begins each line with its time
    #[arg(long)]
    pub(crate) timestamps: bool,
}

/// The beginning of what is wanted of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// A time.
    Time(Timestamp),
    /// So long ago.
    Ago(Duration),
}

impl Since {
    fn parse(text: &str) -> Result<Self, String> {
        if let Ok(time) = text.parse() {
            return Ok(Self::Time(time));
        }
        duration(text).map(Self::Ago).map_err(|_| {
            "write a time with its zone such as 2026-01-31T12:00:00Z, or how long ago, such as 90s, 5m or 1h30m"
                .to_owned()
        })
    }

    /// The time that is meant `now`; none that is before all times is the beginning.
    pub(crate) fn time(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Time(time) => Some(time),
            Self::Ago(ago) => now.checked_sub(ago).ok(),
        }
    }
}

/// What `upstream` takes.
#[derive(Debug, Args)]
pub(crate) struct UpstreamArgs {
    /// The bundle.
    #[command(flatten)]
    pub(crate) bundle: BundleArgs,
    /// The workload's name
    #[arg(value_name = "WORKLOAD")]
    pub(crate) workload: String,
    /// The port
    #[arg(value_name = "PORT")]
    pub(crate) port: u16,
}

const APPLY: &str = "\
A secret in a plan (a value of `env`, `pull_auth.password`, `pull_auth.identity_token`) is a text, {\"env\": \"NAME\"}
for a variable of this process, or {\"file\": \"PATH\"}. A file's path is relative to the plan's directory, or to the
current one for a plan from the standard input; one line break at its end is not part of the secret.

With --dry-run the exit code is 0 also when something would change: `satisfied` in -o json tells. Secrets are not shown.

Examples:
  pando-k8s --config examples/config.json apply examples/hello.json
  pando-k8s apply plan.yaml --dry-run
  pando-k8s apply plan.yaml --timeout 5m -o json
  BLOG_DB_PASSWORD=… pando-k8s apply - < blog.json";

const OBSERVE: &str = "\
A bundle that does not exist is an empty one, not a failure.

Examples:
  pando-k8s observe hello
  pando-k8s observe hello -o json | jq '.workloads[] | select(.running | not) | .name'";

const STOP: &str = "\
Stopping twice is a success. A stopped bundle starts again by apply.

Examples:
  pando-k8s stop hello";

const DESTROY: &str = "\
Destroying twice is a success. Data that is destroyed cannot be had back, so --keep-volumes=false asks first on a
terminal, and elsewhere needs --yes.

Examples:
  pando-k8s destroy hello
  pando-k8s destroy hello --keep-volumes=false --yes";

const DOCTOR: &str = "\
Whether apps are kept from each other is found out by pods in two namespaces of their own, which are taken away again; it takes
seconds, or a minute and more where something stays open. Beside the verdict nothing else is changed. The exit code is 5 where
something keeps the installation from running apps, or could not be looked at.

Examples:
  pando-k8s doctor
  pando-k8s doctor --renew -o json | jq '.checks[] | select(.state != \"passed\")'";

const LOGS: &str = "\
The log is that of the newest start, also of one that has ended, and is written as it is, whatever --output says.
Where lines may be missing, because the cluster threw them away, the error output tells so.

Examples:
  pando-k8s logs hello web
  pando-k8s logs hello web -f --since 10m --timestamps
  pando-k8s logs hello web --tail 100 | grep error";

const UPSTREAM: &str = "\
Examples:
  pando-k8s upstream hello web 8080";

const RENDER: &str = "\
Variables and files that a plan names for its secrets are not read, and no kubeconfig is needed.

Examples:
  pando-k8s render examples/hello.json
  pando-k8s render examples/hello.json -o json | jq '.items[] | select(.kind == \"NetworkPolicy\")'";

const SCHEMA: &str = "\
A schema tells the form. What only the runtime knows, e.g. that a mount's volume is one of the plan's, `render` checks.

Examples:
  pando-k8s schema plan > plan.schema.json
  pando-k8s schema config -o yaml";

const COMPLETIONS: &str = "\
Examples:
  source <(pando-k8s completions bash)
  pando-k8s completions zsh > \"${fpath[1]}/_pando-k8s\"";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_examples() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("pando-k8s {}", command.get_name())) || help.contains(command.get_name()));
            assert!(help.contains("Examples:"), "{}", command.get_name());
        }
    }

    #[test]
    fn a_settings_value_is_json_or_else_a_text() {
        for (text, key, value) in [
            ("api_qps=50", "api_qps", json!(50)),
            ("isolation_gate=false", "isolation_gate", json!(false)),
            ("pod_cidr=10.244.0.0/16", "pod_cidr", json!("10.244.0.0/16")),
            ("node_selector=a=b", "node_selector", json!("a=b")),
            ("context=\"7\"", "context", json!("7")),
            ("storage_class=", "storage_class", json!("")),
            ("context=null", "context", Value::Null),
        ] {
            assert_eq!(Setting::parse(text), Ok(Setting { key: key.to_owned(), value }), "{text}");
        }
        assert!(Setting::parse("api_qps").is_err() && Setting::parse("=1").is_err());
    }

    #[test]
    fn durations_are_written_as_people_do() {
        for (text, seconds) in [("90s", 90), ("5m", 300), ("1h30m", 5400), ("1h 30m", 5400), ("90", 90)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "0", "0s", "-5s", "soon", "5 parsecs"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_log_begins_at_a_time_or_some_while_ago() {
        let time: Timestamp = "2026-01-31T12:00:00.5Z".parse().expect("a time");
        assert_eq!(Since::parse("2026-01-31T13:00:00.5+01:00"), Ok(Since::Time(time)));
        let ago = Since::parse("1m30s").expect("a while");
        assert_eq!(ago.time(time), Some("2026-01-31T11:58:30.5Z".parse().expect("a time")));
        assert_eq!(Since::Ago(Duration::MAX).time(time), None, "before all times");
        for text in ["yesterday", "2026-01-31", "2026-01-31T12:00:00", "-5m"] {
            assert!(Since::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn volumes_stay_unless_told_otherwise() {
        for (words, keep) in [
            (vec!["destroy", "a"], true),
            (vec!["destroy", "a", "--keep-volumes"], true),
            (vec!["destroy", "a", "--keep-volumes=true"], true),
            (vec!["destroy", "a", "--keep-volumes=false"], false),
        ] {
            let cli = Cli::try_parse_from([vec!["pando-k8s"], words.clone()].concat()).expect("a command line");
            let Command::Destroy(args) = cli.command else { panic!("{words:?} is destroy") };
            assert_eq!(args.keep_volumes, keep, "{words:?}");
        }
    }
}
