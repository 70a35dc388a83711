//! Apps of several parts: their plans, and what is there of each.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use pando_api::{
    ApplyResult, BundlePlan, FilePlan, HealthPlan, MountPlan, ObservedWorkload, PortPlan, Protocol, Secret, VolumePlan,
    WorkloadPlan, WorkloadResult,
};
use pando_cluster::names::{claim_name, label, label_value};
use pando_fakecluster::behaviour::{Behaviour, Target};

use super::{App, uid};

/// The mode of the file that [`App::blog`]'s web server carries.
pub(crate) const FILE_MODE: u32 = 0o640;

impl App<'_> {
    /// A workload of that name whose container does `behaviour`.
    pub(crate) fn part(&self, name: &str, behaviour: &Behaviour) -> WorkloadPlan {
        WorkloadPlan {
            name: name.to_owned(),
            image: self.bed.image().to_owned(),
            entrypoint: self.bed.command(behaviour),
            ports: ports_of(behaviour),
            ..WorkloadPlan::default()
        }
    }

    /// A workload of that name whose shell runs `script`. A cluster in memory runs no shell: there it runs until it is to end.
    pub(crate) fn scripted(&self, name: &str, script: &str) -> WorkloadPlan {
        WorkloadPlan {
            entrypoint: ["sh", "-c"].map(str::to_owned).into(),
            command: vec![script.to_owned()],
            ..self.part(name, &Behaviour::Run)
        }
    }

    /// A plan of these workloads, with every volume that they mount.
    pub(crate) fn whole(&self, workloads: impl Into<Vec<WorkloadPlan>>) -> BundlePlan {
        let workloads = workloads.into();
        let mounted: std::collections::BTreeSet<_> =
            workloads.iter().flat_map(|it| &it.mounts).map(|mount| mount.volume_id.clone()).collect();
        let volume = |volume_id: String| VolumePlan { name: volume_id.clone(), volume_id, size_bytes: 16 << 20 };
        BundlePlan {
            bundle_id: self.id.clone(),
            workloads,
            volumes: mounted.into_iter().map(volume).collect(),
            ..BundlePlan::default()
        }
    }

    /// A plan with everything in it: a web server that starts after its database, each with a volume, a secret and a health check,
    /// and a file that the web server carries.
    pub(crate) fn blog(&self) -> BundlePlan {
        let database = self.part("db", &Behaviour::Listen { ports: vec![5432] });
        let database = healthy_on(5432, with_volume(database, "vol_database", "/var/lib/db"));
        let web = self.part("web", &Behaviour::Listen { ports: vec![8080] });
        let web = healthy_on(8080, with_volume(web, "vol_uploads", "/srv/uploads"));
        let page =
            FilePlan { path: "/etc/blog/site.conf".to_owned(), content: "title = blog\n".to_owned(), mode: FILE_MODE };
        let secret = |mut workload: WorkloadPlan, key: &str| {
            workload.env.insert(key.to_owned(), Secret::new(format!("{key} of {}", self.id)));
            workload
        };
        let web = WorkloadPlan { files: vec![page], ..after("db", secret(web, "DATABASE_URL")) };
        self.whole([web, secret(database, "PASSWORD")])
    }

    /// How a workload of the app is dialled by another one.
    pub(crate) fn part_at(&self, workload: &str, port: u16) -> Target {
        Target::name(format!("{workload}.{}.svc.cluster.local", self.namespace), port)
    }

    /// The pods of a workload, by the labels they carry.
    pub(crate) async fn pods_of(&self, workload: &str) -> Vec<Pod> {
        let mut pods: Vec<Pod> = self.all().await;
        pods.retain(|pod| is_of(pod, workload));
        pods
    }

    /// The only pod of a workload.
    pub(crate) async fn pod_of(&self, workload: &str) -> Pod {
        let [pod]: [Pod; 1] =
            self.pods_of(workload).await.try_into().unwrap_or_else(|pods| panic!("one pod of {workload}: {pods:?}"));
        pod
    }

    /// The identities of the only pods of these workloads.
    pub(crate) async fn uids_of<const N: usize>(&self, workloads: [&str; N]) -> BTreeMap<String, String> {
        let mut uids = BTreeMap::new();
        for workload in workloads {
            uids.insert(workload.to_owned(), uid(&self.pod_of(workload).await));
        }
        uids
    }

    /// What is observed of a workload.
    pub(crate) async fn observed_of(&self, workload: &str) -> ObservedWorkload {
        let observed = self.observe().await;
        let found = observed.workloads.iter().find(|it| it.name == workload);
        found.unwrap_or_else(|| panic!("{workload} in {observed:?}")).clone()
    }

    /// A volume's claim.
    pub(crate) async fn claim(&self, volume_id: &str) -> PersistentVolumeClaim {
        self.read(&claim_name(volume_id)).await
    }

    /// What holds a volume's data; `None` while its claim is bound to nothing.
    pub(crate) async fn disk(&self, volume_id: &str) -> Option<PersistentVolume> {
        let claim = self.claim(volume_id).await;
        let name = claim.spec?.volume_name?;
        self.bed.admin().read::<PersistentVolume>(None, &name).await.expect("a read")
    }
}

fn ports_of(behaviour: &Behaviour) -> Vec<PortPlan> {
    let port = |port: &u16| PortPlan { number: (*port).into(), protocol: Protocol::Tcp };
    match behaviour {
        Behaviour::Listen { ports } => ports.iter().map(port).collect(),
        Behaviour::Dial { then, .. } | Behaviour::Print { then, .. } => ports_of(then),
        _ => Vec::new(),
    }
}

/// Whether the pod is one that runs a workload of that name.
pub(crate) fn is_of(pod: &Pod, workload: &str) -> bool {
    label_value(&pod.metadata, label::WORKLOAD) == Some(workload) && label_value(&pod.metadata, label::ROLE).is_none()
}

/// The workload with that volume mounted.
pub(crate) fn with_volume(mut workload: WorkloadPlan, volume_id: &str, path: &str) -> WorkloadPlan {
    workload.mounts.push(MountPlan { volume_id: volume_id.to_owned(), path: path.to_owned(), read_only: false });
    workload
}

/// The workload with a health check of that port.
pub(crate) fn healthy_on(port: u32, workload: WorkloadPlan) -> WorkloadPlan {
    let health =
        HealthPlan { port: Some(port), interval_seconds: 1, timeout_seconds: 1, retries: 2, ..HealthPlan::default() };
    WorkloadPlan { health: Some(health), ..workload }
}

/// The workload, to be started after another one.
pub(crate) fn after(dependency: &str, mut workload: WorkloadPlan) -> WorkloadPlan {
    workload.depends_on.push(dependency.to_owned());
    workload
}

/// The plan with one of its workloads changed.
pub(crate) fn changing(mut plan: BundlePlan, workload: &str, change: impl FnOnce(&mut WorkloadPlan)) -> BundlePlan {
    let found = plan.workloads.iter_mut().find(|it| it.name == workload);
    change(found.unwrap_or_else(|| panic!("the plan has a {workload}")));
    plan
}

/// The plan without one of its workloads and without the volumes that only it mounts.
pub(crate) fn without(mut plan: BundlePlan, workload: &str) -> BundlePlan {
    plan.workloads.retain(|it| it.name != workload);
    for other in &mut plan.workloads {
        other.depends_on.retain(|it| it != workload);
    }
    let mounted = |id: &String| plan.workloads.iter().flat_map(|it| &it.mounts).any(|mount| mount.volume_id == *id);
    plan.volumes.retain(|volume| mounted(&volume.volume_id));
    plan
}

/// What became of a workload.
pub(crate) fn result_of<'r>(result: &'r ApplyResult, workload: &str) -> &'r WorkloadResult {
    let found = result.workloads.iter().find(|it| it.workload == workload);
    found.unwrap_or_else(|| panic!("{workload} in {:?}", result.workloads))
}
