//! Adopting what the adapter before this one made (S-81): it ran the same apps, by pods of another form.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, PodSpec, ResourceRequirements, VolumeMount};
use pando_cluster::converge::Quantity;

use crate::objects::{env_secret_name, protocol};
use crate::plan::Workload;
use crate::pod::{self, APP};
use crate::record::Adopts;

/// Compares pods of the adapter before this one with a workload of the plan.
#[derive(Debug)]
pub(crate) struct Adoption<'a> {
    pub(crate) workload: &'a Workload,
    /// The Secret with the environment held exactly what the plan has.
    pub(crate) same_env: bool,
}

impl Adopts for Adoption<'_> {
    /// Whether image, arguments, environment, mounts, ports and limits are the plan's. Its digest is its own and says nothing.
    fn adopts(&self, pod: &Pod) -> bool {
        let Some(spec) = &pod.spec else { return false };
        let [app] = &*spec.containers else { return false };
        let workload = self.workload;
        self.same_env
            && workload.files.is_empty()
            && spec.init_containers.as_ref().is_none_or(Vec::is_empty)
            && app.name == APP
            && app.image.as_deref() == Some(workload.image.as_str())
            && says(app.command.as_deref(), &workload.entrypoint)
            && says(app.args.as_deref(), &workload.command)
            && app.working_dir.as_deref().unwrap_or_default() == workload.working_dir.as_deref().unwrap_or_default()
            && has_only_its_secret(app, workload)
            && mounts(spec, app) == Some(wanted_mounts(workload))
            && ports(app) == wanted_ports(workload)
            && amounts(app.resources.as_ref()) == amounts(pod::resources(workload.resources).as_ref())
    }
}

/// Whether the container is given these words; the adapter before wrote only `$(` as `$$(`.
fn says(given: Option<&[String]>, words: &[String]) -> bool {
    let given = given.unwrap_or_default();
    given.len() == words.len()
        && given
            .iter()
            .zip(words)
            .all(|(given, word)| *given == pod::literal(word) || *given == word.replace("$(", "$$("))
}

fn has_only_its_secret(app: &Container, workload: &Workload) -> bool {
    let secret = |from: &k8s_openapi::api::core::v1::EnvFromSource| {
        from.prefix.is_none()
            && from.config_map_ref.is_none()
            && from.secret_ref.as_ref().is_some_and(|secret| secret.name == env_secret_name(&workload.name))
    };
    app.env.as_ref().is_none_or(Vec::is_empty)
        && match app.env_from.as_deref().unwrap_or_default() {
            [] => workload.env.is_empty(),
            [from] => secret(from),
            _ => false,
        }
}

/// Claim, path and whether it is read-only.
type Place = (String, String, bool);

/// What is mounted where; `None` when anything but claims is.
fn mounts(spec: &PodSpec, app: &Container) -> Option<BTreeSet<Place>> {
    let claims: BTreeMap<&str, &str> = spec
        .volumes
        .iter()
        .flatten()
        .filter_map(|volume| Some((&*volume.name, &*volume.persistent_volume_claim.as_ref()?.claim_name)))
        .collect();
    let place = |mount: &VolumeMount| {
        let claim = claims.get(&*mount.name).filter(|_| mount.sub_path.is_none())?;
        let path = mount.mount_path.trim_end_matches('/');
        Some(((*claim).to_owned(), path.to_owned(), mount.read_only == Some(true)))
    };
    app.volume_mounts.iter().flatten().map(place).collect()
}

fn wanted_mounts(workload: &Workload) -> BTreeSet<Place> {
    workload.mounts.iter().map(|mount| (mount.claim.clone(), mount.path.clone(), mount.read_only)).collect()
}

fn ports(app: &Container) -> BTreeSet<(i32, String)> {
    let port = |port: &ContainerPort| (port.container_port, port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()));
    app.ports.iter().flatten().map(port).collect()
}

fn wanted_ports(workload: &Workload) -> BTreeSet<(i32, String)> {
    workload.ports.iter().map(|port| (port.number.into(), protocol(port.protocol).to_owned())).collect()
}

/// Limits by value; requests follow from them.
fn amounts(resources: Option<&ResourceRequirements>) -> BTreeMap<String, Option<Quantity>> {
    let limits = resources.and_then(|resources| resources.limits.clone()).unwrap_or_default();
    limits.into_iter().map(|(resource, amount)| (resource, amount.0.parse().ok())).collect()
}

#[cfg(test)]
mod tests {
    use pando_api::BundlePlan;
    use serde_json::{Value, json};

    use super::*;
    use crate::check::check;

    /// The pod of the adapter before, as it is found in clusters.
    fn theirs() -> Value {
        json!({
            "metadata": {"name": "web-b4k2x"},
            "spec": {"restartPolicy": "Never", "hostname": "web", "containers": [{
                "name": "app", "image": "busybox:1.37", "imagePullPolicy": "IfNotPresent",
                "command": ["httpd"], "args": ["-f", "-p", "8080", "-h", "/data"],
                "envFrom": [{"secretRef": {"name": "pando-env-web"}}],
                "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                "resources": {"limits": {"cpu": "250m", "memory": "134217728"}, "requests": {"cpu": "250m", "memory": "134217728"}},
                "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 30},
                "volumeMounts": [{"name": "vol-vol-01hq8xyz", "mountPath": "/data"}]}],
                "volumes": [{"name": "vol-vol-01hq8xyz", "persistentVolumeClaim": {"claimName": "pando-vol-01hq8xyz"}}]}
        })
    }

    fn workload(change: &Value) -> Workload {
        let mut web = json!({"name": "web", "image": "busybox:1.37", "entrypoint": ["httpd"],
            "command": ["-f", "-p", "8080", "-h", "/data"], "env": {"GREETING": "hello"}, "ports": [{"number": 8080}],
            "health": {"port": 8080}, "resources": {"cpu_millis": 250, "memory_bytes": 134_217_728},
            "mounts": [{"volume_id": "vol_01HQ8XYZ", "path": "/data"}]});
        for (key, value) in change.as_object().expect("an object") {
            web[key] = value.clone();
        }
        let plan: BundlePlan = serde_json::from_value(json!({"bundle_id": "app_01HQ8ABC", "workloads": [web],
            "volumes": [{"volume_id": "vol_01HQ8XYZ", "name": "data"}]}))
        .expect("a plan");
        check(&plan, &[]).expect("a right plan").workloads.remove(0)
    }

    type Change = fn(&mut Value);

    fn adopts(pod: Value, change: &Value, same_env: bool) -> bool {
        let (workload, pod) = (workload(change), serde_json::from_value(pod).expect("a pod"));
        Adoption { workload: &workload, same_env }.adopts(&pod)
    }

    #[test]
    fn a_pod_as_planned_is_adopted_and_any_difference_counts() {
        assert!(adopts(theirs(), &json!({}), true) && !adopts(theirs(), &json!({}), false));
        for change in [
            json!({"image": "busybox:1.36"}),
            json!({"entrypoint": []}),
            json!({"command": ["-f", "-p", "8080"]}),
            json!({"working_dir": "/data"}),
            json!({"ports": [{"number": 8081}]}),
            json!({"ports": []}),
            json!({"mounts": []}),
            json!({"mounts": [{"volume_id": "vol_01HQ8XYZ", "path": "/data", "read_only": true}]}),
            json!({"mounts": [{"volume_id": "vol_01HQ8XYZ", "path": "/srv"}]}),
            json!({"resources": {"cpu_millis": 250}}),
            json!({"files": [{"path": "/f", "content": ""}]}),
        ] {
            assert!(!adopts(theirs(), &change, true), "{change}");
        }
        let rows: [(&str, Change); 5] = [
            ("a second container", |pod| {
                let app = pod["spec"]["containers"][0].clone();
                pod["spec"]["containers"].as_array_mut().expect("a list").push(app);
            }),
            ("a gate", |pod| pod["spec"]["initContainers"] = json!([{"name": "gate"}])),
            ("a variable beside the Secret", |pod| {
                pod["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
            }),
            ("no environment", |pod| pod["spec"]["containers"][0]["envFrom"] = json!([])),
            ("an emptyDir", |pod| pod["spec"]["volumes"] = json!([{"name": "vol-vol-01hq8xyz", "emptyDir": {}}])),
        ];
        for (name, change) in rows {
            let mut pod = theirs();
            change(&mut pod);
            assert!(!adopts(pod, &json!({}), true), "{name}");
        }
    }

    #[test]
    fn words_are_compared_as_the_process_gets_them() {
        let words = ["echo $(A) $B".to_owned()];
        for given in ["echo $$(A) $B", "echo $$(A) $$B"] {
            assert!(says(Some(&[given.to_owned()]), &words), "{given}");
        }
        assert!(!says(Some(&["echo $(A) $B".to_owned()]), &words) && !says(None, &words));
    }
}
