//! Runs Pando's bundles on a Kubernetes cluster.
//!
//! [`KubernetesRuntime`] is what core holds, by [`RuntimeAdapter`]. It composes: pure decisions about objects, policies and
//! pods, and around them the few effects, all through the [`Cluster`] port and the [`Env`]. It knows no HTTP and no clock.
//!
//! - `check` turns a plan as written into one that is right by construction; `config` does so for the settings.
//! - `ground` makes what an app's pods stand on; `objects` and `pod` say what that is.
//! - `record` decides what to do about a workload, `start` does it, `wait` follows the pod and `sight` reads it.
//! - `observe` reports; `stop` ends and takes away.

mod call;
mod check;
mod config;
mod digest;
mod dns_label;
mod error;
mod follow;
mod ground;
mod known;
mod objects;
mod observe;
mod pod;
mod record;
mod sight;
mod start;
mod stop;
mod turns;
mod wait;

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use pando_api::{
    ApplyResult, BundlePlan, BundleRef, CallContext, Code, DestroyOptions, Error, ObservedBundle, RuntimeAdapter,
    Upstream, WorkloadRef, WorkloadResult,
};
use pando_cluster::names::{self, AppNamespace};
use pando_cluster::{Cluster, Env, Object, Resilient, Resource};
use pando_network::{Egress, default_policy};

pub use config::{Connection, Settings};

use crate::call::Call;
use crate::check::Plan;
use crate::digest::{EnvKey, PlanDigest};
use crate::known::{Facts, Namespaces};
use crate::record::Revision;
use crate::turns::Turns;

/// A runtime that runs bundles as bare pods, each bundle in a namespace of its own.
#[derive(Debug)]
pub struct KubernetesRuntime {
    cluster: Arc<dyn Cluster>,
    env: Env,
    settings: Settings,
    turns: Turns,
    facts: Facts,
    namespaces: OnceLock<Namespaces>,
}

impl KubernetesRuntime {
    /// A runtime on `cluster`. Contacts nothing. Deadlines and retries are added here, not by the caller.
    pub fn new(settings: Settings, cluster: Arc<dyn Cluster>, env: Env) -> Self {
        let cluster: Arc<dyn Cluster> = Arc::new(Resilient::new(cluster, env.clone()));
        Self { cluster, env, settings, turns: Turns::default(), facts: Facts::default(), namespaces: OnceLock::new() }
    }

    /// Begins to watch the managed namespaces, and reads what of the cluster calls need. For a process that lives on: its
    /// first apply of an app then makes three calls and one round trip less.
    ///
    /// # Errors
    ///
    /// [`Code::AdapterUnavailable`] when the cluster cannot be read; calls work all the same once it can.
    pub async fn warm(&self) -> Result<(), Error> {
        self.namespaces.get_or_init(|| Namespaces::start(&self.cluster, &self.env));
        self.facts.get(&self.cluster, &self.env).await.map_err(error::unread)?;
        Ok(())
    }

    /// What `apply` would make of a plan, in order, without contacting anything: no address of the cluster's own machines is
    /// in the policy, and the environment's values are `[redacted]`.
    ///
    /// # Errors
    ///
    /// As [`RuntimeAdapter::apply`] refuses a plan.
    pub fn render(settings: &Settings, plan: &BundlePlan) -> Result<Vec<Object>, Error> {
        let mut plan = check::check(plan, &settings.reserved_namespaces())?;
        for value in plan.workload.env.values_mut() {
            *value = pando_api::Secret::new(pando_api::Secret::REDACTED);
        }
        let (app, addresses) = (&plan.app, pando_network::ClusterAddresses::default());
        let key = EnvKey::parse(&data_encoding::BASE64.encode(&[0; 32]))
            .ok_or_else(|| Error::new(Code::Internal, "no key"))?;
        let revision = Revision::default().next();
        let digest = PlanDigest::of(&plan.workload, &key);
        let (mut secret, mut pod) =
            (objects::env_secret(app, &plan.workload, &key), pod::pod(&plan, settings, &addresses, revision, &digest));
        // Drawn and computed when the plan is applied.
        for (meta, annotation) in [
            (&mut secret.metadata, names::annotation::ENV_DIGEST_KEY),
            (&mut pod.metadata, names::annotation::PLAN_DIGEST),
        ] {
            meta.annotations.get_or_insert_default().remove(annotation);
        }
        Ok(vec![
            objects::namespace(&plan).into_object(),
            objects::role_binding(app, settings).into_object(),
            objects::service_account(app).into_object(),
            default_policy(app, &settings.network, &addresses, Egress::Open).into_object(),
            objects::quota(app, &[plan.workload.resources]).into_object(),
            secret.into_object(),
            objects::service(app, &plan.workload, revision).into_object(),
            pod.into_object(),
        ])
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

    fn app(&self, bundle: &str) -> AppNamespace {
        AppNamespace::of(bundle, &self.settings.reserved_namespaces())
    }

    fn is_absent(&self, app: &AppNamespace) -> bool {
        self.namespaces.get().is_some_and(|namespaces| namespaces.is_absent(&app.name(), self.env.now()))
    }

    async fn carry_out(&self, call: &Call<'_>, plan: &Plan) -> Result<WorkloadResult, Error> {
        let facts = async { self.facts.get(&self.cluster, &self.env).await.map_err(error::unread) };
        let (facts, live) = futures::try_join!(facts, ground::look(call, self.is_absent(&plan.app)))?;
        let ground = Box::pin(ground::prepare(call, plan, live, &facts.addresses)).await?;
        start::remove_leftovers(call, plan, &ground).await?;
        let quota_is_wide = ground.quota_is_wide;
        let result = Box::pin(start::settle(call, plan, ground, &facts)).await?;
        if quota_is_wide && let Err(error) = ground::narrow_quota(call, plan).await {
            // The workload is as it should be; the next apply narrows the quota.
            tracing::warn!(app = %plan.app, error = &error as &dyn std::error::Error, "quota not narrowed");
        }
        Ok(result)
    }

    fn call<'a>(&'a self, context: &'a CallContext, app: &'a AppNamespace) -> Call<'a> {
        Call::new(&self.cluster, &self.env, &self.settings, context, app)
    }
}

#[async_trait]
impl RuntimeAdapter for KubernetesRuntime {
    fn kind(&self) -> &'static str {
        "kubernetes"
    }

    async fn apply(&self, plan: &BundlePlan, context: &CallContext) -> Result<ApplyResult, Error> {
        let plan = check::check(plan, &self.settings.reserved_namespaces())?;
        let _turn = self.turns.take(&plan.app.name()).await;
        let mut call = self.call(context, &plan.app);
        call.hide(plan.workload.env.values());
        let result = self.carry_out(&call, &plan).await;
        let written = call.take_written();
        match result {
            Ok(result) => {
                tracing::info!(app = %plan.app, request_id = context.request_id, written = written.len(), outcome = ?result.outcome, "bundle applied");
                Ok(ApplyResult { handle: plan.app.name(), workloads: vec![result], written })
            }
            Err(error) => Err(error.detail("written", written)),
        }
    }

    async fn observe(&self, bundle: &BundleRef, context: &CallContext) -> Result<ObservedBundle, Error> {
        let app = self.app(&bundle.bundle_id);
        observe::observe(&self.call(context, &app), &self.facts).await
    }

    async fn stop(&self, bundle: &BundleRef, context: &CallContext) -> Result<(), Error> {
        let app = self.app(&bundle.bundle_id);
        let _turn = self.turns.take(&app.name()).await;
        stop::stop(&self.call(context, &app)).await?;
        tracing::info!(%app, request_id = context.request_id, "bundle stopped");
        Ok(())
    }

    async fn destroy(&self, bundle: &BundleRef, options: &DestroyOptions, context: &CallContext) -> Result<(), Error> {
        let app = self.app(&bundle.bundle_id);
        let _turn = self.turns.take(&app.name()).await;
        stop::destroy(&self.call(context, &app), options.keep_volumes).await?;
        tracing::info!(%app, request_id = context.request_id, keep_volumes = options.keep_volumes, "bundle destroyed");
        Ok(())
    }

    fn upstream(&self, workload: &WorkloadRef, port: u16) -> Result<Upstream, Error> {
        Self::upstream_by(&self.settings, workload, port)
    }
}
