//! What each command does.

use std::io::{self, BufRead, IsTerminal};
use std::sync::Arc;

use clap::CommandFactory;
use pando_adapter::KubernetesRuntime;
use pando_api::{BundleRef, CallContext, Code, DestroyOptions, Error, LogOptions, RuntimeAdapter, Secret, WorkloadRef};
use pando_cluster::{Env, Object};
use serde_json::{Value, json};

use crate::args::{
    ApplyArgs, BundleArgs, Cli, Command, DestroyArgs, DoctorArgs, Global, LogsArgs, PlanArgs, UpstreamArgs,
};
use crate::config;
use crate::document;
use crate::live::{self, Stopped};
use crate::output;
use crate::plan::{self, Secrets};
use crate::preview::{self, Paint};
use crate::schema;
use crate::screen::Screen;
use crate::show::{self, Report};

/// Carries out what was typed.
///
/// # Errors
///
/// Why there is no result.
pub(crate) fn run(cli: &Cli, screen: &Arc<Screen>) -> Result<Report, Stopped> {
    let global = &cli.global;
    match &cli.command {
        Command::Apply(args) => apply(global, args, screen),
        Command::Observe(args) => observe(global, args, screen),
        Command::Stop(args) => stop(global, args, screen),
        Command::Destroy(args) => destroy(global, args, screen),
        Command::Doctor(args) => doctor(global, args, screen),
        Command::Logs(args) => logs(global, args, screen),
        Command::Upstream(args) => Ok(upstream(global, args)?),
        Command::Render(args) => Ok(render(global, args)?),
        Command::Schema { document } => Ok(schema::of(*document)?),
        Command::Completions { shell } => Ok(completions(*shell)),
    }
}

fn apply(global: &Global, args: &ApplyArgs, screen: &Arc<Screen>) -> Result<Report, Stopped> {
    let settings = config::load(global)?;
    let plan = plan::read(&args.plan.plan, Secrets::Resolved)?;
    if args.dry_run {
        let left = "nothing was being changed";
        let work = async |runtime: &KubernetesRuntime, context: &CallContext, _: &Env| {
            Ok(preview::told(&runtime.preview(&plan, context).await?, Paint::for_output()))
        };
        return live::run(global, settings, screen, left, work);
    }
    let left = format!(
        "what was begun of bundle {0:?} is still there; the same apply goes on with it, `pando-k8s stop {0}` ends it",
        plan.bundle_id
    );
    live::run(global, settings, screen, &left, async |runtime: &KubernetesRuntime, context: &CallContext, _: &Env| {
        Ok(show::applied(&runtime.apply(&plan, context).await?))
    })
}

fn observe(global: &Global, args: &BundleArgs, screen: &Arc<Screen>) -> Result<Report, Stopped> {
    let settings = config::load(global)?;
    let bundle = BundleRef::new(&args.bundle);
    let left = "nothing was being changed";
    live::run(global, settings, screen, left, async |runtime: &KubernetesRuntime, context: &CallContext, env: &Env| {
        let observed = runtime.observe(&bundle, context).await?;
        Ok(show::observed(&bundle.bundle_id, &observed, env.wall.now()))
    })
}

fn stop(global: &Global, args: &BundleArgs, screen: &Arc<Screen>) -> Result<Report, Stopped> {
    let settings = config::load(global)?;
    let bundle = BundleRef::new(&args.bundle);
    let left = format!("bundle {:?} may not have ended yet; the same stop goes on with it", bundle.bundle_id);
    live::run(global, settings, screen, &left, async |runtime: &KubernetesRuntime, context: &CallContext, _: &Env| {
        runtime.stop(&bundle, context).await?;
        Ok(done(&bundle, "stopped"))
    })
}

fn destroy(global: &Global, args: &DestroyArgs, screen: &Arc<Screen>) -> Result<Report, Stopped> {
    let settings = config::load(global)?;
    let bundle = BundleRef::new(&args.bundle.bundle);
    let options = DestroyOptions { keep_volumes: args.keep_volumes };
    if !options.keep_volumes && !args.yes {
        confirm(&bundle, screen)?;
    }
    let left = format!("bundle {:?} is partly there; the same destroy goes on with it", bundle.bundle_id);
    live::run(global, settings, screen, &left, async |runtime: &KubernetesRuntime, context: &CallContext, _: &Env| {
        runtime.destroy(&bundle, &options, context).await?;
        Ok(done(&bundle, "destroyed"))
    })
}

/// Has a person repeat the bundle's id before data is destroyed.
fn confirm(bundle: &BundleRef, screen: &Screen) -> Result<(), Error> {
    let id = &bundle.bundle_id;
    let refuse = |message: &str| Error::new(Code::ValidInvalid, format!("{message}; nothing was changed"));
    let mut input = io::stdin().lock();
    if !input.is_terminal() {
        let error = refuse("destroying the volumes of a bundle needs to be confirmed");
        return Err(error.remedy("add --yes, or keep the volumes with --keep-volumes=true"));
    }
    screen.say(&format!("This destroys bundle {id:?} and all its data. Type its id to go on: "));
    let mut answer = String::new();
    let read = input.read_line(&mut answer);
    if read.is_ok() && answer.trim() == id { Ok(()) } else { Err(refuse("this was not confirmed")) }
}

fn done(bundle: &BundleRef, word: &str) -> Report {
    let id = &bundle.bundle_id;
    Report::done(format!("Bundle {id:?} is {word}.\n"), json!({"bundle_id": id, "state": word}))
}

fn doctor(global: &Global, args: &DoctorArgs, screen: &Arc<Screen>) -> Result<Report, Stopped> {
    let settings = config::load(global)?;
    let left = "nothing but a canary was being made, which goes by itself";
    live::run(global, settings, screen, left, async |runtime: &KubernetesRuntime, context: &CallContext, _: &Env| {
        Ok(show::diagnosed(&runtime.diagnose(context, args.renew).await))
    })
}

fn logs(global: &Global, args: &LogsArgs, screen: &Arc<Screen>) -> Result<Report, Stopped> {
    let settings = config::load(global)?;
    let workload = WorkloadRef { bundle_id: args.bundle.bundle.clone(), workload: args.workload.clone() };
    let left = "the log was read up to here";
    live::run(global, settings, screen, left, async |runtime: &KubernetesRuntime, context: &CallContext, env: &Env| {
        let since = args.since.and_then(|since| since.time(env.wall.now()));
        let options = LogOptions { follow: args.follow, since, tail: args.tail };
        let read = async {
            let log = runtime.logs(&workload, &options, context).await?;
            output::write(log, args.timestamps, screen).await
        };
        match global.timeout {
            None => read.await?,
            Some(limit) => env.timeout(limit, read).await.map_err(|elapsed| {
                let message = format!("the log did not end within {limit:?}");
                Error::new(Code::AdapterUnavailable, message).caused_by(elapsed)
            })??,
        }
        Ok(Report::default())
    })
}

fn upstream(global: &Global, args: &UpstreamArgs) -> Result<Report, Error> {
    let settings = config::load(global)?;
    let workload = WorkloadRef { bundle_id: args.bundle.bundle.clone(), workload: args.workload.clone() };
    let upstream = KubernetesRuntime::upstream_by(&settings, &workload, args.port)?;
    Ok(Report::done(format!("{}\n", upstream.url), json!(upstream)))
}

fn render(global: &Global, args: &PlanArgs) -> Result<Report, Error> {
    let settings = config::load(global)?;
    let plan = plan::read(&args.plan, Secrets::Hidden)?;
    let objects = KubernetesRuntime::render(&settings, &plan)?;
    let trees = objects.iter().map(shown).collect::<Result<Vec<_>, _>>()?;
    let text = document::yaml(&trees)?;
    Ok(Report::done(text, json!({"apiVersion": "v1", "kind": "List", "items": trees})))
}

/// An object as it may be shown: of a Secret, the names of what it holds and no byte of it.
fn shown(object: &Object) -> Result<Value, Error> {
    let mut tree = object.to_json().map_err(|error| {
        Error::new(Code::Internal, format!("{} cannot be written as JSON", object.key())).caused_by(error)
    })?;
    if let (Object::Secret(_), Some(tree)) = (object, tree.as_object_mut()) {
        let data = tree.remove("data").into_iter().chain(tree.remove("stringData"));
        let keys = data.filter_map(|data| data.as_object().map(|data| data.keys().cloned().collect::<Vec<_>>()));
        let hidden = keys.flatten().map(|key| (key, Value::from(Secret::REDACTED)));
        tree.insert("stringData".to_owned(), Value::Object(hidden.collect()));
    }
    Ok(tree)
}

fn completions(shell: clap_complete::Shell) -> Report {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pando-k8s", &mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    Report::done(text.clone(), json!(text))
}
