//! A command against a cluster: connected, watched by a person, interrupted by one.

use std::io::IsTerminal;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Either, select};
use pando_adapter::{KubernetesRuntime, Settings};
use pando_api::{CallContext, Code, Error, Written};
use pando_cluster::Env;
use pando_kubecluster::{KubeCluster, tokio_env};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::Global;
use crate::config;
use crate::progress::{Board, Manner};
use crate::screen::Screen;
use crate::show::Report;
use crate::text;

/// How long an interrupted call may take to undo what it began: a pod ends in its own time.
const UNDOING: Duration = Duration::from_mins(2);

/// Why a command has no result.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// It failed.
    Failed(Error),
    /// A person or the system ended it before its time.
    Interrupted {
        /// What that leaves, and how to go on.
        left: String,
    },
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Runs `work` on the cluster that the settings mean. `left` says what an interruption leaves.
///
/// # Errors
///
/// What `work` answers, a connection that cannot be had, or an interruption: then `work` is dropped where it is, and what the
/// runtime undoes of it is waited for.
pub(crate) fn run(
    global: &Global,
    settings: Settings,
    screen: &Arc<Screen>,
    left: &str,
    work: impl AsyncFnOnce(&KubernetesRuntime, &CallContext, &Env) -> Result<Report, Error>,
) -> Result<Report, Stopped> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unstarted)?;
    let result = runtime.block_on(async {
        let env = tokio_env();
        let manner = Manner::of(global.progress, is_terminal(), global.verbose > 0);
        let board = Arc::new(Board::new(manner, Arc::clone(screen)));
        let context = context(global, &env, Arc::clone(&board));
        let call = async {
            let mut interrupts = Interrupts::listen()?;
            let Some(adapter) = interrupts.or(connect(settings, &env)).await else {
                return Err(Stopped::Interrupted { left: left.to_owned() });
            };
            let adapter = adapter?;
            // Boxed, so that it is dropped, and its task begins to undo, before that is waited for.
            match interrupts.or(Box::pin(work(&adapter, &context, &env))).await {
                Some(result) => result.map_err(Stopped::Failed),
                None => Err(Stopped::Interrupted { left: undone(&adapter, &env, &mut interrupts, screen, left).await }),
            }
        };
        match select(pin!(call), pin!(board.keep_drawn(&env))).await {
            Either::Left((result, _)) => result,
            Either::Right((never, _)) => match never {},
        }
    });
    screen.clear();
    // A credential plugin may hang on a thread of its own; nobody waits for it any more.
    runtime.shutdown_background();
    result
}

/// Requests to end, from the keyboard or the system.
struct Interrupts {
    keyboard: Signal,
    system: Signal,
}

impl Interrupts {
    fn listen() -> Result<Self, Error> {
        let keyboard = signal(SignalKind::interrupt()).map_err(unstarted)?;
        let system = signal(SignalKind::terminate()).map_err(unstarted)?;
        Ok(Self { keyboard, system })
    }

    /// What `work` answers; `None` when it is to end before that, and then it is dropped.
    async fn or<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let (keyboard, system) = (pin!(self.keyboard.recv()), pin!(self.system.recv()));
        match select(pin!(work), select(keyboard, system)).await {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        }
    }
}

/// Waits until the runtime has undone what the call began, and tells what is left.
async fn undone(
    runtime: &KubernetesRuntime,
    env: &Env,
    interrupts: &mut Interrupts,
    screen: &Screen,
    left: &str,
) -> String {
    let mut ends = pin!(runtime.given_up());
    // Most calls have nothing to undo: then nothing is said of it.
    if let Some(answers) = ends.as_mut().now_or_never() {
        return told(&answers, left);
    }
    screen.say("taking back what was begun; interrupt again to end at once\n");
    match interrupts.or(env.timeout(UNDOING, ends)).await {
        Some(Ok(answers)) => told(&answers, left),
        Some(Err(elapsed)) => format!("not all that was begun was taken back ({elapsed}); {left}"),
        None => format!("not all that was begun was taken back; {left}"),
    }
}

/// What is left after calls that ended in this way.
fn told(answers: &[Error], left: &str) -> String {
    if answers.is_empty() {
        return left.to_owned();
    }
    let tell = |error: &Error| {
        let mut text = error.message.clone();
        let undone: Vec<Written> = error
            .details
            .get("undone")
            .and_then(|undone| serde_json::from_value(undone.clone()).ok())
            .unwrap_or_default();
        let names: Vec<_> = undone.iter().map(|object| format!("{} {}", object.kind, object.name)).collect();
        if !names.is_empty() {
            text = format!("{text}; taken back: {}", names.join(", "));
        }
        match &error.remedy {
            Some(remedy) => format!("{text}; {remedy}"),
            None => text,
        }
    };
    text::line(&answers.iter().map(tell).collect::<Vec<_>>().join("; ")).into_owned()
}

/// Whether the error output is a terminal whose cursor can be moved.
fn is_terminal() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn context(global: &Global, env: &Env, progress: Arc<Board>) -> CallContext {
    let request_id = global.request_id.clone().unwrap_or_else(|| format!("cli-{:016x}", env.random_u64()));
    let actor = std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "cli".to_owned());
    CallContext { request_id, actor, deadline: global.timeout, progress: Some(progress) }
}

async fn connect(settings: Settings, env: &Env) -> Result<KubernetesRuntime, Error> {
    let options = config::connection(&settings.connection);
    let cluster = KubeCluster::connect(&options, env.clone()).await.map_err(config::unconnected)?;
    Ok(KubernetesRuntime::new(settings, Arc::new(cluster), env.clone()))
}

fn unstarted(error: std::io::Error) -> Error {
    Error::new(Code::Internal, "the system gives this process no means to wait for calls").caused_by(error)
}
