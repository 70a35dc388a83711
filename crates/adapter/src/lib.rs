//! Runs Pando's bundles on a Kubernetes cluster.
//!
//! [`KubernetesRuntime`] is what core holds, by [`RuntimeAdapter`]. It composes: pure decisions about objects, policies and
//! pods, and around them the few effects, all through the [`Cluster`] port and the [`Env`]. It knows no HTTP and no clock.
//!
//! - `check` turns a plan as written into one that is right by construction; `config` does so for the settings.
//! - `apply` carries a plan out, on a task of its own (`owned`) that undoes what it began when nobody waits for it any more.
//! - `ground` makes what an app's pods stand on; `objects`, `pull` and `pod` say what that is.
//! - `record` decides what to do about a workload, `start` does it, `wait` follows the pod and `sight` reads it; `fetch` has a new
//!   image pulled before the old version ends, `adopt` takes over what the adapter before this one made.
//! - `canary` finds out, by pods that dial each other, whether network policies are enforced; `isolation` keeps the verdict for every
//!   process, and lets no app be started without one.
//! - `doctor` tells an operator what is right and wrong with an installation; `nodes` knows which nodes take apps.
//! - `volumes` sees to it that data stays.
//! - `view` is a copy of what must be seen across the cluster; `follow` tells a waiting call what happens.
//! - `preview` tells what an apply would do, by reads alone.
//! - `observe` reports, with `drift`; `stop` ends and takes away; `logs` reads what was written.

mod adopt;
mod apply;
mod call;
mod canary;
mod check;
mod config;
mod digest;
mod dns_label;
mod doctor;
mod drift;
mod error;
mod fetch;
mod follow;
mod ground;
mod health;
mod image;
mod isolation;
mod known;
mod leftovers;
mod logs;
mod nodes;
mod objects;
mod observe;
mod owned;
mod plan;
mod pod;
mod preview;
mod pull;
mod record;
mod render;
mod sight;
mod start;
mod stop;
mod turns;
mod view;
mod volumes;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pando_api::{
    AdapterInfo, ApplyResult, BundlePlan, BundleRef, CallContext, Code, DestroyOptions, Diagnosis, Error, Health,
    LogOptions, LogStream, ObservedBundle, Preview, RuntimeAdapter, Upstream, WorkloadRef,
};
use pando_cluster::env::BoxFuture;
use pando_cluster::names::AppNamespace;
use pando_cluster::{Cluster, Env, Object, Resilient, budget};

pub use config::{Connection, Settings};

use crate::call::Call;
use crate::isolation::Isolation;
use crate::known::Facts;
use crate::owned::{GivenUp, GivenUpCalls, Leash};
use crate::plan::{Plan, Workload};
use crate::turns::{Turn, Turns};
use crate::view::{View, Viewed};

/// A runtime that runs bundles as bare pods, each bundle in a namespace of its own.
#[derive(Clone, Debug)]
pub struct KubernetesRuntime {
    shared: Arc<Shared>,
}

/// What calls share.
#[derive(Debug)]
struct Shared {
    cluster: Arc<dyn Cluster>,
    env: Env,
    settings: Settings,
    turns: Turns,
    facts: Facts,
    isolation: Isolation,
    viewed: Arc<Viewed>,
    given_up: GivenUpCalls,
}

impl KubernetesRuntime {
    /// A runtime on `cluster`. Contacts nothing. Deadlines and retries are added here, not by the caller.
    pub fn new(settings: Settings, cluster: Arc<dyn Cluster>, env: Env) -> Self {
        let viewed = Arc::new(Viewed::new(Arc::new(Resilient::new(cluster, env.clone()))));
        let cluster: Arc<dyn Cluster> = viewed.clone();
        let (turns, facts, given_up) = (Turns::default(), Facts::default(), GivenUpCalls::default());
        let isolation = Isolation::default();
        Self { shared: Arc::new(Shared { cluster, env, settings, turns, facts, isolation, viewed, given_up }) }
    }

    /// Begins to keep a view of the cluster, and waits until it is there. For a process that lives on: it then observes
    /// without a call, takes ended pods out of the endpoints as they end, and its first apply of an app makes four calls and
    /// one round trip less.
    ///
    /// # Errors
    ///
    /// [`Code::AdapterUnavailable`] when the cluster cannot be read or watched; calls work all the same once it can be read,
    /// and the view goes on trying.
    pub async fn warm(&self) -> Result<(), Error> {
        let Shared { cluster, env, facts, viewed, .. } = &*self.shared;
        let view = viewed.watch(env);
        let facts = async { facts.get(cluster, env).await.map_err(error::unread) };
        futures::try_join!(facts, self.shared.learn_isolation())?;
        view.listed(budget::TRYING).await
    }

    /// Finds out anew whether network policies are enforced, whatever was found out before, and keeps it for every process: for an
    /// operator who changed something. [`RuntimeAdapter::health_check`] does so when it is time.
    ///
    /// # Errors
    ///
    /// [`Code::AdapterUnavailable`] when they are not enforced, or when that could not be found out.
    pub async fn check_isolation(&self, context: &CallContext) -> Result<Health, Error> {
        self.shared.health_anew(context).await
    }

    /// Looks at the installation, each part of it by itself. Where `renew` is set, whether network policies are enforced is found out anew;
    /// otherwise it is answered as by [`RuntimeAdapter::health_check`].
    pub async fn diagnose(&self, context: &CallContext, renew: bool) -> Diagnosis {
        doctor::diagnose(&self.shared, context, renew).await
    }

    /// Waits until every apply and every canary in progress has come to its end, and answers what those said that nobody waits for any more, since
    /// their futures were dropped: what they were doing, and in the detail `undone` what they took away again. For a process that
    /// is about to end.
    pub async fn given_up(&self) -> Vec<Error> {
        self.shared.given_up.ends().await
    }

    /// What `apply` would make of a plan, in order, without contacting anything: no address of the cluster's own machines is
    /// in the policy, and neither the environment's values nor a credential's are shown.
    ///
    /// # Errors
    ///
    /// As [`RuntimeAdapter::apply`] refuses a plan.
    pub fn render(settings: &Settings, plan: &BundlePlan) -> Result<Vec<Object>, Error> {
        Ok(render::render(settings, &check::check(plan, &settings.reserved_namespaces())?))
    }

    /// What [`RuntimeAdapter::apply`] would do with a plan now, found out by reads alone. It waits for nobody's turn, and for
    /// nothing that the apply would wait for: whatever is done meanwhile it may have seen or not.
    ///
    /// A stranger's Secret or config map of a name that the apply needs is met by the apply alone, and so is a cluster that enforces no
    /// network policies: nothing is tried here.
    ///
    /// # Errors
    ///
    /// As the apply refuses a plan or what is there; [`Code::AdapterUnavailable`] when that could not be read, which in a namespace
    /// without our role binding takes an apply first.
    pub async fn preview(&self, plan: &BundlePlan, context: &CallContext) -> Result<Preview, Error> {
        let shared = &*self.shared;
        let plan = check::check(plan, &shared.settings.reserved_namespaces())?;
        let mut call = shared.call(context, &plan.app);
        call.hide(plan.workloads.iter().flat_map(Workload::secrets));
        let reading = async {
            let facts = shared.facts.get(&shared.cluster, &shared.env);
            let (facts, live) =
                futures::try_join!(async { facts.await.map_err(error::unread) }, preview::Live::read(&call, &plan))?;
            preview::preview(&call, &plan, &facts.addresses, &live)
        };
        match context.deadline {
            None => reading.await,
            Some(limit) => shared.env.timeout(limit, reading).await.unwrap_or_else(|elapsed| {
                let message = format!("{} could not be read within {:.1} s", plan.app, elapsed.limit.as_secs_f64());
                Err(Error::new(Code::AdapterUnavailable, message).remedy("call again, or with a later deadline"))
            }),
        }
    }

    /// [`RuntimeAdapter::upstream`] by the settings alone, for those who hold no cluster.
    ///
    /// # Errors
    ///
    /// [`Code::ValidInvalid`] for a bad name or port.
    pub fn upstream_by(settings: &Settings, workload: &WorkloadRef, port: u16) -> Result<Upstream, Error> {
        let named = check::workload_name("workload", &workload.workload);
        let numbered = (port != 0).then_some(()).ok_or_else(|| {
            Box::new(pando_api::Problem {
                field: "port".to_owned(),
                value: "0".to_owned(),
                problem: "is not a port".to_owned(),
                remedy: "write a number from 1 to 65535".to_owned(),
            })
        });
        let problems: Vec<_> = [named, numbered].into_iter().filter_map(Result::err).map(|problem| *problem).collect();
        if !problems.is_empty() {
            return Err(Error::invalid(Code::ValidInvalid, "the upstream", &problems));
        }
        let namespace = AppNamespace::of(&workload.bundle_id, &settings.reserved_namespaces()).name();
        let url = format!("http://{}.{namespace}.svc.{}:{port}", workload.workload, settings.cluster_domain);
        Ok(Upstream { url })
    }
}

impl Shared {
    fn app(&self, bundle: &str) -> AppNamespace {
        AppNamespace::of(bundle, &self.settings.reserved_namespaces())
    }

    fn is_absent(&self, app: &AppNamespace) -> bool {
        self.viewed.view().is_some_and(|view| view.is_absent(&app.name()))
    }

    fn call<'a>(&'a self, context: &'a CallContext, app: &'a AppNamespace) -> Call<'a> {
        Call::new(&self.cluster, &self.env, &self.settings, context, app, self.viewed.view())
    }

    /// Waits for the bundle's turn, as long as the call may.
    async fn turn(&self, call: &Call<'_>) -> Result<Turn, Error> {
        let namespace = call.namespace();
        let taking = self.turns.take(&namespace);
        let taken = match call.time_left() {
            Some(left) => self.env.timeout(left, taking).await,
            None => Ok(taking.await),
        };
        taken.map_err(|elapsed| {
            let message =
                format!("another call on {} was in progress for {:.1} s", call.app, elapsed.limit.as_secs_f64());
            Error::new(Code::AdapterUnavailable, message)
                .remedy("call again when it has ended, or with a later deadline")
        })
    }

    /// Carries out a plan, and undoes what was begun when it is given up.
    async fn apply(self: &Arc<Self>, plan: Plan, context: CallContext, mut leash: Leash) -> Result<ApplyResult, Error> {
        let mut call = self.call(&context, &plan.app);
        call.hide(plan.workloads.iter().flat_map(Workload::secrets));
        let _turn = self.turn(&call).await?;
        let work = async {
            let facts = async {
                match self.viewed.view().and_then(View::facts) {
                    Some(facts) => Ok(facts),
                    None => self.facts.get(&self.cluster, &self.env).await.map_err(error::unread),
                }
            };
            let looked = ground::look(&call, self.is_absent(&plan.app));
            let (facts, live, ()) = futures::try_join!(facts, looked, self.isolated(&call))?;
            apply::carry_out(&call, &plan, &facts, live).await
        };
        let result = match leash.hold(work).await {
            Ok(result) => result,
            Err(given_up) => Err(self.give_up(&call, given_up).await),
        };
        let written = call.take_written();
        match result {
            Ok(workloads) => {
                // By name only: an outcome may hold the end of an app's log.
                let names: Vec<_> = workloads.iter().map(|workload| &*workload.workload).collect();
                tracing::info!(app = %plan.app, request_id = context.request_id, written = written.len(), workloads = names.join(","), "bundle applied");
                Ok(ApplyResult { handle: plan.app.name(), workloads, written })
            }
            Err(error) => Err(error.detail("written", written)),
        }
    }

    /// Undoes what the call began, and says why.
    async fn give_up(&self, call: &Call<'_>, given_up: GivenUp) -> Error {
        let unfinished = call.unfinished();
        // The time to undo is not the caller's.
        let context = CallContext { deadline: None, ..call.context.clone() };
        let undoing = self.call(&context, call.app);
        let undone = apply::undo(&undoing, &unfinished).await;
        let (app, doing) = (call.app, call.told());
        let message = match given_up {
            GivenUp::Dropped => format!("the apply of {app} was given up by its caller while {doing}"),
            GivenUp::Overdue => format!("the apply of {app} was not done by its deadline; it was {doing}"),
        };
        tracing::info!(%app, request_id = context.request_id, ?given_up, ?unfinished, "apply given up");
        let error = Error::new(Code::AdapterFailed, message).remedy("apply again; what had been begun was taken away");
        match undone {
            Ok(()) => error.detail("undone", undoing.take_written()),
            Err(undone) => {
                tracing::warn!(%app, error = &undone as &dyn std::error::Error, "what an apply had begun was not taken away");
                error.remedy("apply or stop again: what had been begun is still there").caused_by(undone)
            }
        }
    }
}

fn cut(call: &str) -> Error {
    let message = format!("the {call} ended without an answer: the program is ending, or has a defect");
    Error::new(Code::Internal, message)
}

#[async_trait]
impl RuntimeAdapter for KubernetesRuntime {
    fn kind(&self) -> &'static str {
        "kubernetes"
    }

    fn info(&self) -> AdapterInfo {
        Settings::info()
    }

    async fn health_check(&self, context: &CallContext) -> Result<Health, Error> {
        self.shared.health(context).await
    }

    async fn apply(&self, plan: &BundlePlan, context: &CallContext) -> Result<ApplyResult, Error> {
        let plan = check::check(plan, &self.shared.settings.reserved_namespaces())?;
        let (shared, context) = (Arc::clone(&self.shared), context.clone());
        // A wait that ends at the deadline says what it waited for, once it has taken its pod away: that is given the time.
        let grace = Duration::from_secs(shared.settings.stop_grace_seconds.into());
        let limit = context.deadline.map(|deadline| deadline + grace + budget::STOP_SLACK);
        let task =
            |leash| -> BoxFuture<'static, _> { Box::pin(async move { shared.apply(plan, context, leash).await }) };
        let noted = self.shared.given_up.note();
        let unheard = |answer: Result<ApplyResult, Error>| {
            // Nobody may want to know what came of it.
            answer.err().map(|error| noted.send(error));
        };
        owned::run(&self.shared.env, "apply", limit, task, unheard).await.unwrap_or_else(|| Err(cut("apply")))
    }

    async fn observe(&self, bundle: &BundleRef, context: &CallContext) -> Result<ObservedBundle, Error> {
        let shared = &*self.shared;
        let app = shared.app(&bundle.bundle_id);
        observe::observe(&shared.call(context, &app), &shared.facts, shared.viewed.view()).await
    }

    async fn stop(&self, bundle: &BundleRef, context: &CallContext) -> Result<(), Error> {
        let shared = &*self.shared;
        let app = shared.app(&bundle.bundle_id);
        let call = shared.call(context, &app);
        let _turn = shared.turn(&call).await?;
        stop::stop(&call).await?;
        tracing::info!(%app, request_id = context.request_id, "bundle stopped");
        Ok(())
    }

    async fn destroy(&self, bundle: &BundleRef, options: &DestroyOptions, context: &CallContext) -> Result<(), Error> {
        let shared = &*self.shared;
        let app = shared.app(&bundle.bundle_id);
        let call = shared.call(context, &app);
        let _turn = shared.turn(&call).await?;
        stop::destroy(&call, options.keep_volumes).await?;
        tracing::info!(%app, request_id = context.request_id, keep_volumes = options.keep_volumes, "bundle destroyed");
        Ok(())
    }

    async fn logs(
        &self,
        workload: &WorkloadRef,
        options: &LogOptions,
        context: &CallContext,
    ) -> Result<LogStream, Error> {
        let shared = &*self.shared;
        let app = shared.app(&workload.bundle_id);
        logs::open(&shared.call(context, &app), &workload.workload, options).await
    }

    fn upstream(&self, workload: &WorkloadRef, port: u16) -> Result<Upstream, Error> {
        Self::upstream_by(&self.shared.settings, workload, port)
    }
}
