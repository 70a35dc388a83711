//! The conformance suite on a real cluster, as Pando's own account and with no more than its rights.

use anyhow::{Context as _, Result};

use crate::cluster::{Cluster, ClusterArgs};
use crate::kubectl::Kubectl;
use crate::{rights, shell};

/// How long the token of Pando's account is good for, in hours: longer than any run.
const TOKEN_HOURS: u32 = 4;

/// What `cargo xtask e2e` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// How much to run: what every change must pass, or everything.
    #[arg(long, value_enum, default_value = "ci")]
    profile: Profile,
    /// Only cases whose name contains this.
    #[arg(long)]
    filter: Option<String>,
    /// The image of a small web server that cases run as an app. Cases that need it are skipped, and counted, on nodes without it.
    #[arg(long, default_value = "nginx:1.22")]
    app_image: String,
    /// The image of a PostgreSQL that cases run as an app's database. Cases that need it are skipped, and counted, on nodes without it.
    #[arg(long, default_value = "postgres:15")]
    db_image: String,
    /// A URL outside the cluster that its pods can reach. Cases that need one are skipped, and counted, without it.
    #[arg(long)]
    outside: Option<String>,
    /// Fails when more cases are skipped than this, beside those that only a cluster in memory can play: for a cluster of which it is
    /// known what it has.
    #[arg(long)]
    max_skipped: Option<u32>,
}

/// How much to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Profile {
    /// What every change must pass.
    Ci,
    /// Everything, the long cases included.
    Full,
}

/// Runs the suite and removes what it made, whatever its outcome.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut cluster = Cluster::obtain(&args.cluster, shell::own_folder("e2e"))?;
    let prefix = format!("pando-e2e-{}-", shell::run_id());
    let outcome = prove(args, &mut cluster, &prefix);
    let removed = cluster.give_back(&prefix);
    match (outcome, removed) {
        (Ok(()), removed) => removed.context("the suite passed, and what it made could not be removed"),
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(left)) => Err(error.context(format!("and what was made could not be removed: {left:#}"))),
    }
}

fn prove(args: &Args, cluster: &mut Cluster, prefix: &str) -> Result<()> {
    cluster.load_image(&args.app_image)?;
    cluster.load_image(&args.db_image)?;
    cluster.install()?;
    let account = cluster.kubectl().account(TOKEN_HOURS, cluster.folder().join("account.kubeconfig"))?;
    let audit = cluster.audit_log();
    let since = shell::epoch_seconds();
    suite(args, cluster, &account, audit.as_deref(), prefix)?;
    match (&args.filter, audit) {
        (None, Some(print)) => rights::check(cluster.kubectl(), &print, since),
        (Some(_), _) => Ok(()),
        (None, None) => {
            println!("no audit log within reach: whether every right is used was not looked at");
            Ok(())
        }
    }
}

fn suite(args: &Args, cluster: &Cluster, account: &Kubectl, audit: Option<&[String]>, prefix: &str) -> Result<()> {
    // Some cases run the command line as a process of its own, and kill it.
    shell::run(shell::cargo().args(["build", "--quiet", "--workspace", "--bin", "pando-k8s"]))?;
    let mut cargo = shell::cargo();
    // `--workspace` and not `--package`: the same features as `cargo xtask test`, so nothing is built twice.
    cargo.args(["test", "--workspace", "--test", "kind"]);
    cargo.arg("--").args(&args.filter);
    cargo.env("PANDO_E2E_KUBECONFIG", account.kubeconfig());
    cargo.env("PANDO_E2E_ADMIN_KUBECONFIG", cluster.kubectl().kubeconfig());
    cargo.env("PANDO_E2E_PREFIX", prefix);
    cargo.env(
        "PANDO_E2E_PROFILE",
        match args.profile {
            Profile::Ci => "ci",
            Profile::Full => "full",
        },
    );
    cargo.env("PANDO_E2E_APP_IMAGE", &args.app_image);
    cargo.env("PANDO_E2E_DB_IMAGE", &args.db_image);
    cargo.env("PANDO_E2E_PROGRAM", shell::built("pando-k8s"));
    if let Some(most) = args.max_skipped {
        cargo.env("PANDO_E2E_MAX_SKIPPED", most.to_string());
    }
    if let Some(outside) = &args.outside {
        cargo.env("PANDO_E2E_OUTSIDE", outside);
    }
    if let Some(print) = audit {
        // The words hold no spaces: a node's name, a path.
        cargo.env("PANDO_E2E_AUDIT", print.join(" "));
    }
    shell::run(&mut cargo)
}
