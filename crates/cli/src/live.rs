//! A command against a cluster: connected, watched by a person, interrupted by one.

use std::io::IsTerminal;
use std::pin::pin;
use std::sync::Arc;

use futures::future::{Either, select};
use pando_adapter::{KubernetesRuntime, Settings};
use pando_api::{CallContext, Code, Error, RuntimeAdapter};
use pando_cluster::Env;
use pando_kubecluster::{KubeCluster, tokio_env};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Global;
use crate::config;
use crate::progress::{Board, Manner};
use crate::screen::Screen;
use crate::show::Report;

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
/// What `work` answers, a connection that cannot be had, or an interruption: then `work` is dropped where it is.
pub(crate) fn run(
    global: &Global,
    settings: Settings,
    screen: &Arc<Screen>,
    left: &str,
    work: impl AsyncFnOnce(&dyn RuntimeAdapter, &CallContext, &Env) -> Result<Report, Error>,
) -> Result<Report, Stopped> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unstarted)?;
    let result = runtime.block_on(async {
        let env = tokio_env();
        let manner = Manner::of(global.progress, is_terminal(), global.verbose > 0);
        let board = Arc::new(Board::new(manner, Arc::clone(screen)));
        let context = context(global, &env, Arc::clone(&board));
        let call = async {
            let adapter = connect(settings, &env).await?;
            Box::pin(work(&adapter, &context, &env)).await
        };
        let end = or_interrupted(call, left);
        match select(pin!(end), pin!(board.keep_drawn(&env))).await {
            Either::Left((result, _)) => result,
            Either::Right((never, _)) => match never {},
        }
    });
    screen.clear();
    // A credential plugin may hang on a thread of its own; nobody waits for it any more.
    runtime.shutdown_background();
    result
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

/// The call's end, or the first request to end before it.
async fn or_interrupted(call: impl Future<Output = Result<Report, Error>>, left: &str) -> Result<Report, Stopped> {
    let mut keyboard = signal(SignalKind::interrupt()).map_err(unstarted)?;
    let mut system = signal(SignalKind::terminate()).map_err(unstarted)?;
    let (keyboard, system) = (pin!(keyboard.recv()), pin!(system.recv()));
    match select(pin!(call), select(keyboard, system)).await {
        Either::Left((result, _)) => result.map_err(Stopped::Failed),
        Either::Right(_) => Err(Stopped::Interrupted { left: left.to_owned() }),
    }
}

fn unstarted(error: std::io::Error) -> Error {
    Error::new(Code::Internal, "the system gives this process no means to wait for calls").caused_by(error)
}
