//! What is measured.

use std::sync::Arc;
use std::time::Duration;

use pando_adapter::{KubernetesRuntime, Settings};
use pando_api::{
    BundlePlan, BundleRef, CallContext, DestroyOptions, Error, MountPlan, RegistryAuth, RuntimeAdapter as _,
    VolumePlan, WorkloadPlan,
};
use pando_cluster::{Cluster, Env};
use pando_conformance::bed::eventually;
use pando_fakecluster::behaviour::Behaviour;

use crate::record::{Figures, Recorder};

/// What the app does.
pub(crate) const PROGRAM: Behaviour = Behaviour::Run;

/// Longer than the watches of a process that lives on take to be opened, once everything is listed.
const WATCHED: Duration = Duration::from_secs(30);

/// One thing that is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Whether the process keeps a view of the cluster.
    warm: bool,
    /// What the workload has beside its image.
    with: With,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum With {
    Nothing,
    Credential,
    Volume,
}

/// The call that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    FirstApply,
    SatisfiedApply,
    ChangedImage,
    Observe,
}

const fn scenario(name: &'static str, warm: bool, with: With, what: What) -> Scenario {
    Scenario { name, warm, with, what }
}

/// All that is measured. Cold is a process that just began, warm one that lives on.
pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("first apply, cold", false, With::Nothing, What::FirstApply),
    scenario("first apply, warm", true, With::Nothing, What::FirstApply),
    scenario("first apply with credential, warm", true, With::Credential, What::FirstApply),
    scenario("first apply with volume, warm", true, With::Volume, What::FirstApply),
    scenario("satisfied apply, cold", false, With::Nothing, What::SatisfiedApply),
    scenario("satisfied apply, warm", true, With::Nothing, What::SatisfiedApply),
    scenario("changed image, warm", true, With::Nothing, What::ChangedImage),
    scenario("observe, cold", false, With::Nothing, What::Observe),
    scenario("observe, warm", true, With::Nothing, What::Observe),
];

/// What a scenario is measured on.
pub(crate) struct Ground {
    pub(crate) cluster: Arc<dyn Cluster>,
    pub(crate) env: Env,
    pub(crate) settings: Settings,
    /// The command line of [`PROGRAM`].
    pub(crate) command: Vec<String>,
    /// The id of a bundle that is not there.
    pub(crate) bundle: String,
}

impl Ground {
    /// Measures, and takes everything away again; what cannot be is told and spoils no figure.
    pub(crate) async fn measure(&self, scenario: &Scenario) -> Result<Figures, Error> {
        let measured = self.run(scenario).await;
        let (runtime, _) = self.process();
        let removed = runtime
            .destroy(&BundleRef::new(&*self.bundle), &DestroyOptions { keep_volumes: false }, &CallContext::default())
            .await;
        if let Err(error) = removed {
            eprintln!("{}: what was made for it is still there: {error}", scenario.name);
        }
        measured
    }

    async fn run(&self, scenario: &Scenario) -> Result<Figures, Error> {
        let (bundle, context) = (BundleRef::new(&*self.bundle), CallContext::new("bench"));
        let mut plan = self.plan(scenario.with);
        if scenario.what != What::FirstApply {
            // By another process: this one knows nothing of it.
            self.process().0.apply(&plan, &context).await?;
        }
        let (runtime, recorder) = self.process();
        if scenario.warm {
            runtime.warm().await?;
            let watches = || async { recorder.watches_what_it_lists().then_some(()) };
            eventually(&self.env, "what is listed is watched", WATCHED, watches).await;
        }
        if scenario.what == What::ChangedImage {
            // The same image by another name, so that no registry is measured.
            plan.workloads.iter_mut().for_each(|workload| workload.image.insert_str(0, "docker.io/library/"));
        }
        let began = self.env.now();
        match scenario.what {
            What::FirstApply | What::SatisfiedApply | What::ChangedImage => {
                runtime.apply(&plan, &context).await?;
            }
            What::Observe => {
                runtime.observe(&bundle, &context).await?;
            }
        }
        Ok(recorder.figures(began))
    }

    /// A process of its own, and what it asks.
    fn process(&self) -> (KubernetesRuntime, Arc<Recorder>) {
        let recorder = Arc::new(Recorder::new(Arc::clone(&self.cluster), self.env.clone()));
        let cluster = Arc::<Recorder>::clone(&recorder);
        (KubernetesRuntime::new(self.settings.clone(), cluster, self.env.clone()), recorder)
    }

    fn plan(&self, with: With) -> BundlePlan {
        let mut plan = BundlePlan { bundle_id: self.bundle.clone(), ..BundlePlan::default() };
        let mut workload = WorkloadPlan {
            name: "web".to_owned(),
            image: "busybox:1.37".to_owned(),
            entrypoint: self.command.clone(),
            ..WorkloadPlan::default()
        };
        match with {
            With::Nothing => {}
            With::Credential => {
                let auth =
                    RegistryAuth { username: "u".to_owned(), password: "bench".into(), ..RegistryAuth::default() };
                workload.pull_auth = Some(auth);
            }
            With::Volume => {
                let (volume_id, name) = ("vol_bench".to_owned(), "data".to_owned());
                workload.mounts =
                    vec![MountPlan { volume_id: volume_id.clone(), path: "/data".to_owned(), read_only: false }];
                plan.volumes = vec![VolumePlan { volume_id, name, size_bytes: 1 << 20 }];
            }
        }
        plan.workloads = vec![workload];
        plan
    }
}
