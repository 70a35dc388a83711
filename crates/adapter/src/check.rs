//! A plan as written, turned into one that is right by construction, or refused whole before any write (S-21).

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use pando_api::{
    BundlePlan, Code, Error, HealthPlan, Problem, Protocol, ResourcePlan, Secret, WorkloadPlan, WorkloadSettings,
};
use pando_cluster::names::{AppNamespace, object};

use crate::dns_label;

/// The most bytes that a workload's environment may have, names and values together; a Secret holds 1 MiB.
const ENV_LIMIT: usize = 900 * 1024;

/// The largest user or group number that Kubernetes takes.
const MAX_ID: u32 = i32::MAX as u32;

/// A plan that can be carried out.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) app: AppNamespace,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) workload: Workload,
}

/// A workload that can be started.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) command: Vec<String>,
    pub(crate) working_dir: Option<String>,
    pub(crate) env: BTreeMap<String, Secret>,
    /// Sorted, without duplicates.
    pub(crate) ports: Vec<Port>,
    pub(crate) health: Option<Health>,
    pub(crate) resources: Resources,
    pub(crate) settings: WorkloadSettings,
}

/// A port to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Port {
    pub(crate) number: u16,
    pub(crate) protocol: Protocol,
}

/// A health check, with the one probe it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) probe: Probe,
    pub(crate) interval_seconds: i32,
    pub(crate) timeout_seconds: i32,
    pub(crate) retries: i32,
}

/// How health is probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    Command(Vec<String>),
    Http { path: String, port: u16 },
    Tcp { port: u16 },
}

/// Limits; none is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) cpu_millis: Option<NonZeroU64>,
    pub(crate) memory_bytes: Option<NonZeroU64>,
    pub(crate) ephemeral_bytes: Option<NonZeroU64>,
}

impl From<ResourcePlan> for Resources {
    fn from(plan: ResourcePlan) -> Self {
        Self {
            cpu_millis: NonZeroU64::new(plan.cpu_millis),
            memory_bytes: NonZeroU64::new(plan.memory_bytes),
            ephemeral_bytes: NonZeroU64::new(plan.ephemeral_bytes),
        }
    }
}

/// Checks the whole plan. `reserved` are Pando's own namespaces.
///
/// # Errors
///
/// [`Code::ValidInvalid`] with everything that is wrong, at once; [`Code::PlanCapabilityUnsupported`] when the
/// plan is right but asks for what this runtime cannot do.
pub(crate) fn check(plan: &BundlePlan, reserved: &[&str]) -> Result<Plan, Error> {
    let mut checker = Checker::default();
    let workload = checker.plan(plan);
    let what = format!("the plan of bundle {:?}", plan.bundle_id);
    if !checker.wrong.is_empty() {
        return Err(Error::invalid(Code::ValidInvalid, &what, &checker.wrong));
    }
    match workload {
        Some(workload) if checker.unsupported.is_empty() => {
            Ok(Plan { app: AppNamespace::of(&plan.bundle_id, reserved), labels: plan.labels.clone(), workload })
        }
        _ => Err(Error::invalid(Code::PlanCapabilityUnsupported, &what, &checker.unsupported)),
    }
}

/// Checks a workload's name, wherever one is given.
///
/// # Errors
///
/// The problem, with a name that would do.
pub(crate) fn workload_name(field: &str, name: &str) -> Result<(), Box<Problem>> {
    let problem = if !dns_label::is_valid(name) {
        "is not a workload's name (a-z, 0-9 and -, beginning with a letter, at most 63)"
    } else if name == object::EGRESS_GATEWAY || name == "localhost" {
        "is a name with a meaning of its own"
    } else {
        return Ok(());
    };
    let suggestion = match dns_label::suggest(name) {
        taken if taken == name => format!("{}-app", &taken[..taken.len().min(59)]),
        suggestion => suggestion,
    };
    Err(Box::new(Problem {
        field: field.to_owned(),
        value: name.to_owned(),
        problem: problem.to_owned(),
        remedy: format!("name it {suggestion:?}"),
    }))
}

#[derive(Default)]
struct Checker {
    wrong: Vec<Problem>,
    unsupported: Vec<Problem>,
}

impl Checker {
    fn wrong(&mut self, field: impl Into<String>, value: impl ToString, problem: &str, remedy: impl Into<String>) {
        self.wrong.push(Problem {
            field: field.into(),
            value: value.to_string(),
            problem: problem.to_owned(),
            remedy: remedy.into(),
        });
    }

    fn unsupported(
        &mut self,
        field: impl Into<String>,
        value: impl ToString,
        problem: &str,
        remedy: impl Into<String>,
    ) {
        self.unsupported.push(Problem {
            field: field.into(),
            value: value.to_string(),
            problem: problem.to_owned(),
            remedy: remedy.into(),
        });
    }

    fn plan(&mut self, plan: &BundlePlan) -> Option<Workload> {
        if !plan.network.private {
            self.wrong("network.private", false, "an app's network is always its own", "write true");
        }
        if plan.network.egress.restricts() {
            let remedy = "remove the egress rules, or set them to allow everything";
            self.unsupported(
                "network.egress",
                "restricting rules",
                "egress cannot be restricted without an egress gateway",
                remedy,
            );
        }
        self.labels(&plan.labels);
        if !plan.volumes.is_empty() {
            self.unsupported(
                "volumes",
                plan.volumes.len(),
                "volumes are not carried out yet",
                "remove the volumes and their mounts",
            );
        }
        let mut names = BTreeSet::new();
        let mut workloads = Vec::new();
        for (index, workload) in plan.workloads.iter().enumerate() {
            let at = format!("workloads[{index}]");
            if let Err(problem) = workload_name(&format!("{at}.name"), &workload.name) {
                self.wrong.push(*problem);
            } else if !names.insert(&workload.name) {
                self.wrong(
                    format!("{at}.name"),
                    &workload.name,
                    "is the name of another workload too",
                    "give each workload its own name",
                );
            }
            workloads.push(self.workload(&at, workload, plan));
        }
        if workloads.len() != 1 {
            let remedy = "give the bundle exactly one workload";
            self.unsupported("workloads", workloads.len(), "a bundle has one workload for now", remedy);
        }
        workloads.pop()
    }

    fn labels(&mut self, labels: &BTreeMap<String, String>) {
        for (key, value) in labels {
            let field = format!("labels[{key:?}]");
            let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
            let reserved = ["pando.dev", "kubernetes.io", "k8s.io"];
            if reserved.iter().any(|own| prefix == *own || prefix.ends_with(&format!(".{own}"))) {
                self.wrong(
                    field,
                    value,
                    "is a reserved key",
                    "choose a key outside pando.dev, kubernetes.io and k8s.io",
                );
            } else if !is_qualified_name(key) {
                self.wrong(field, value, "is not a label's key", "write a name such as pando.app, or example.com/name");
            }
        }
    }

    fn workload(&mut self, at: &str, plan: &WorkloadPlan, bundle: &BundlePlan) -> Workload {
        if plan.image.is_empty() || plan.image.contains(|c: char| c.is_whitespace() || c.is_control()) {
            self.wrong(format!("{at}.image"), &plan.image, "is not an image reference", "write one such as nginx:1.27");
        }
        for (list, words) in [("entrypoint", &plan.entrypoint), ("command", &plan.command)] {
            if let Some(index) = words.iter().position(|word| word.contains('\0')) {
                self.wrong(format!("{at}.{list}[{index}]"), "(a text with NUL)", "contains a NUL", "remove the NUL");
            }
        }
        if !plan.working_dir.is_empty() && (!plan.working_dir.starts_with('/') || plan.working_dir.contains('\0')) {
            self.wrong(format!("{at}.working_dir"), &plan.working_dir, "is not an absolute path", "begin it with /");
        }
        self.not_yet(at, plan, bundle);
        self.env(at, &plan.env);
        self.settings(at, plan.settings);
        self.resources(at, plan.resources);
        Workload {
            name: plan.name.clone(),
            image: plan.image.clone(),
            entrypoint: plan.entrypoint.clone(),
            command: plan.command.clone(),
            working_dir: (!plan.working_dir.is_empty()).then(|| plan.working_dir.clone()),
            env: plan.env.clone(),
            ports: self.ports(at, plan),
            health: plan.health.as_ref().and_then(|health| self.health(&format!("{at}.health"), health)),
            resources: plan.resources.into(),
            settings: plan.settings,
        }
    }

    /// What is right and will be carried out by a later version, and what of it is wrong already.
    fn not_yet(&mut self, at: &str, plan: &WorkloadPlan, bundle: &BundlePlan) {
        for (index, name) in plan.depends_on.iter().enumerate() {
            let field = format!("{at}.depends_on[{index}]");
            if *name == plan.name {
                self.wrong(field, name, "is the workload itself", "remove it");
            } else if !bundle.workloads.iter().any(|other| other.name == *name) {
                self.wrong(field, name, "is no workload of the bundle", "name one of the bundle's workloads");
            }
        }
        for (index, mount) in plan.mounts.iter().enumerate() {
            if !bundle.volumes.iter().any(|volume| volume.volume_id == mount.volume_id) {
                let field = format!("{at}.mounts[{index}].volume_id");
                self.wrong(
                    field,
                    &mount.volume_id,
                    "is no volume of the plan",
                    "add the volume to the plan, or remove the mount",
                );
            }
        }
        if !plan.files.is_empty() {
            self.unsupported(
                format!("{at}.files"),
                plan.files.len(),
                "carried files are not carried out yet",
                "put the files into the image",
            );
        }
        if plan.pull_auth.is_some() {
            let remedy = "use an image that can be pulled without credentials";
            self.unsupported(
                format!("{at}.pull_auth"),
                Secret::REDACTED,
                "pull credentials are not carried out yet",
                remedy,
            );
        }
    }

    fn env(&mut self, at: &str, env: &BTreeMap<String, Secret>) {
        for (key, value) in env {
            let field = format!("{at}.env[{key:?}]");
            let starts = key.starts_with(|c: char| c.is_ascii_alphabetic() || "-._".contains(c));
            if !starts
                || key.len() > 253
                || !key.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
                || key == "."
                || key.starts_with("..")
            {
                let problem =
                    "is not a variable's name (letters, digits, -, . and _, not beginning with a digit or ..)";
                self.wrong(&field, key, problem, "rename the variable");
            }
            if value.expose().contains('\0') {
                self.wrong(field, Secret::REDACTED, "contains a NUL", "remove the NUL: no process can be given it");
            }
        }
        let size: usize = env.iter().map(|(key, value)| key.len() + value.expose().len()).sum();
        if size > ENV_LIMIT {
            self.wrong(
                format!("{at}.env"),
                format!("{size} bytes"),
                "is larger than 900 KiB",
                "carry large texts as files",
            );
        }
    }

    fn ports(&mut self, at: &str, plan: &WorkloadPlan) -> Vec<Port> {
        let mut ports = BTreeSet::new();
        for (index, port) in plan.ports.iter().enumerate() {
            let field = format!("{at}.ports[{index}].number");
            match self.port(&field, port.number) {
                Some(number) if !ports.insert(Port { number, protocol: port.protocol }) => {
                    self.wrong(field, number, "is there twice with one protocol", "remove one of them");
                }
                _ => {}
            }
        }
        ports.into_iter().collect()
    }

    fn port(&mut self, field: &str, number: u32) -> Option<u16> {
        let port = u16::try_from(number).ok().filter(|port| *port != 0);
        if port.is_none() {
            self.wrong(field, number, "is not a port", "write a number from 1 to 65535");
        }
        port
    }

    fn health(&mut self, at: &str, health: &HealthPlan) -> Option<Health> {
        let seconds = |checker: &mut Self, name: &str, value: u32| match i32::try_from(value) {
            Ok(value) if (1..=86_400).contains(&value) => Some(value),
            _ => {
                checker.wrong(format!("{at}.{name}"), value, "is out of range", "write a whole number from 1 to 86400");
                None
            }
        };
        let interval_seconds = seconds(self, "interval_seconds", health.interval_seconds);
        let timeout_seconds = seconds(self, "timeout_seconds", health.timeout_seconds);
        let retries = seconds(self, "retries", health.retries);
        let port = health.port.map(|port| self.port(&format!("{at}.port"), port));
        let probe = if !health.command.is_empty() {
            Some(Probe::Command(health.command.clone()))
        } else if !health.path.is_empty() {
            if !health.path.starts_with('/') {
                self.wrong(format!("{at}.path"), &health.path, "is not a path", "begin it with /");
            }
            if port.is_none() {
                self.wrong(format!("{at}.port"), "", "is missing", "name the port that serves the path");
            }
            port.flatten().map(|port| Probe::Http { path: health.path.clone(), port })
        } else {
            if port.is_none() {
                self.wrong(at, "{}", "checks nothing", "give it a command, a path with a port, or a port");
            }
            port.flatten().map(|port| Probe::Tcp { port })
        };
        Some(Health {
            probe: probe?,
            interval_seconds: interval_seconds?,
            timeout_seconds: timeout_seconds?,
            retries: retries?,
        })
    }

    fn settings(&mut self, at: &str, settings: WorkloadSettings) {
        for (name, id) in [
            ("run_as_user", settings.run_as_user),
            ("run_as_group", settings.run_as_group),
            ("fs_group", settings.fs_group),
        ] {
            if let Some(id) = id.filter(|id| *id > MAX_ID) {
                self.wrong(
                    format!("{at}.settings.{name}"),
                    id,
                    "is too large",
                    format!("write a number from 0 to {MAX_ID}"),
                );
            }
        }
        if let Some(grace) = settings.stop_grace_seconds.filter(|grace| !(1..=3600).contains(grace)) {
            self.wrong(
                format!("{at}.settings.stop_grace_seconds"),
                grace,
                "is out of range",
                "write a whole number from 1 to 3600",
            );
        }
        if settings.shm_bytes == Some(0) {
            self.wrong(format!("{at}.settings.shm_bytes"), 0, "is no size", "leave it out for the default");
        }
    }

    fn resources(&mut self, at: &str, resources: ResourcePlan) {
        for (name, value) in [
            ("cpu_millis", resources.cpu_millis),
            ("memory_bytes", resources.memory_bytes),
            ("ephemeral_bytes", resources.ephemeral_bytes),
        ] {
            if i64::try_from(value).is_err() {
                self.wrong(
                    format!("{at}.resources.{name}"),
                    value,
                    "is too large",
                    "write a number below 2^63, or 0 for none",
                );
            }
        }
    }
}

/// A key of Kubernetes' labels: an optional DNS name and `/`, then up to 63 of letters, digits, `-`, `_` and `.`.
fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let prefix_fits = prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(dns_label::is_valid));
    prefix_fits && !name.is_empty() && is_label_value(name)
}

/// A value of Kubernetes' labels: empty, or up to 63 of letters, digits, `-`, `_` and `.` between letters or digits.
pub(crate) fn is_label_value(value: &str) -> bool {
    let end = |c: char| c.is_ascii_alphanumeric();
    value.is_empty()
        || value.len() <= 63
            && value.starts_with(end)
            && value.ends_with(end)
            && value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn plan(change: impl FnOnce(&mut Value)) -> BundlePlan {
        let mut plan = json!({"bundle_id": "app_01HQ8ABC", "workloads": [
            {"name": "web", "image": "nginx:1.22", "ports": [{"number": 80}], "env": {"A": "b"}, "health": {"port": 80}}]});
        change(&mut plan);
        serde_json::from_value(plan).expect("a plan as JSON")
    }

    #[test]
    fn a_right_plan_passes() {
        let plan = check(&plan(|_| {}), &["pando"]).expect("nothing is wrong with it");
        assert_eq!((plan.app.name().as_str(), plan.workload.name.as_str()), ("pando-app-01hq8abc", "web"));
        assert_eq!(plan.workload.ports, [Port { number: 80, protocol: Protocol::Tcp }]);
    }

    /// Each row: a change to a right plan, the field that is refused, and words of the remedy.
    #[test]
    fn wrong_plans_are_refused_with_field_and_remedy() {
        type Change = fn(&mut Value);
        let rows: &[(Change, &str, &str)] = &[
            (|plan| plan["network"] = json!({"private": false}), "network.private", "true"),
            (
                |plan| plan["labels"] = json!({"pando.dev/bundle": "x"}),
                r#"labels["pando.dev/bundle"]"#,
                "outside pando.dev",
            ),
            (
                |plan| plan["labels"] = json!({"app.kubernetes.io/managed-by": "x"}),
                r#"labels["app.kubernetes.io/managed-by"]"#,
                "outside",
            ),
            (|plan| plan["labels"] = json!({"a b": "x"}), r#"labels["a b"]"#, "pando.app"),
            (|plan| plan["workloads"][0]["name"] = json!("My_DB"), "workloads[0].name", "my-db"),
            (|plan| plan["workloads"][0]["name"] = json!("pando-egress"), "workloads[0].name", "pando-egress-app"),
            (|plan| plan["workloads"][0]["name"] = json!("localhost"), "workloads[0].name", "localhost-app"),
            (|plan| plan["workloads"][0]["image"] = json!(""), "workloads[0].image", "nginx"),
            (|plan| plan["workloads"][0]["command"] = json!(["a\0"]), "workloads[0].command[0]", "NUL"),
            (|plan| plan["workloads"][0]["working_dir"] = json!("srv"), "workloads[0].working_dir", "begin it with /"),
            (|plan| plan["workloads"][0]["env"] = json!({"1A": ""}), r#"workloads[0].env["1A"]"#, "rename"),
            (|plan| plan["workloads"][0]["env"] = json!({"..A": ""}), r#"workloads[0].env["..A"]"#, "rename"),
            (|plan| plan["workloads"][0]["env"] = json!({"A B": ""}), r#"workloads[0].env["A B"]"#, "rename"),
            (|plan| plan["workloads"][0]["env"] = json!({"A": "a\0b"}), r#"workloads[0].env["A"]"#, "NUL"),
            (|plan| plan["workloads"][0]["env"] = json!({"A": "x".repeat(ENV_LIMIT)}), "workloads[0].env", "files"),
            (|plan| plan["workloads"][0]["ports"] = json!([{"number": 0}]), "workloads[0].ports[0].number", "65535"),
            (
                |plan| plan["workloads"][0]["ports"] = json!([{"number": 65536}]),
                "workloads[0].ports[0].number",
                "65535",
            ),
            (
                |plan| plan["workloads"][0]["ports"] = json!([{"number": 80}, {"number": 80}]),
                "workloads[0].ports[1].number",
                "one of them",
            ),
            (|plan| plan["workloads"][0]["health"] = json!({}), "workloads[0].health", "a port"),
            (
                |plan| plan["workloads"][0]["health"] = json!({"path": "/"}),
                "workloads[0].health.port",
                "serves the path",
            ),
            (|plan| plan["workloads"][0]["health"] = json!({"path": "x", "port": 80}), "workloads[0].health.path", "/"),
            (
                |plan| plan["workloads"][0]["health"] = json!({"port": 80, "retries": 0}),
                "workloads[0].health.retries",
                "86400",
            ),
            (
                |plan| plan["workloads"][0]["settings"] = json!({"stop_grace_seconds": 0}),
                "workloads[0].settings.stop_grace_seconds",
                "3600",
            ),
            (
                |plan| plan["workloads"][0]["settings"] = json!({"run_as_user": 4_294_967_295_u32}),
                "workloads[0].settings.run_as_user",
                "2147483647",
            ),
            (
                |plan| plan["workloads"][0]["settings"] = json!({"shm_bytes": 0}),
                "workloads[0].settings.shm_bytes",
                "leave it out",
            ),
            (
                |plan| plan["workloads"][0]["resources"] = json!({"cpu_millis": u64::MAX}),
                "workloads[0].resources.cpu_millis",
                "2^63",
            ),
            (
                |plan| plan["workloads"][0]["depends_on"] = json!(["db"]),
                "workloads[0].depends_on[0]",
                "one of the bundle",
            ),
            (|plan| plan["workloads"][0]["depends_on"] = json!(["web"]), "workloads[0].depends_on[0]", "remove"),
            (
                |plan| plan["workloads"][0]["mounts"] = json!([{"volume_id": "v", "path": "/v"}]),
                "workloads[0].mounts[0].volume_id",
                "add the volume",
            ),
        ];
        for (change, field, words) in rows {
            let error = check(&plan(*change), &["pando"]).expect_err(field);
            let problem = error.details["problems"][0].clone();
            assert_eq!((error.code, problem["field"].as_str()), (Code::ValidInvalid, Some(*field)), "{error}");
            assert!(problem["remedy"].as_str().is_some_and(|remedy| remedy.contains(words)), "{problem}");
        }
    }

    #[test]
    fn what_is_not_carried_out_yet_is_refused_as_such() {
        type Change = fn(&mut Value);
        let rows: &[(Change, &str)] = &[
            (|plan| plan["workloads"] = json!([]), "workloads"),
            (
                |plan| plan["workloads"].as_array_mut().expect("a list").push(json!({"name": "db", "image": "x"})),
                "workloads",
            ),
            (|plan| plan["volumes"] = json!([{"volume_id": "v", "name": "data"}]), "volumes"),
            (|plan| plan["network"] = json!({"private": true, "egress": {"block_private": true}}), "network.egress"),
            (|plan| plan["workloads"][0]["files"] = json!([{"path": "/a", "content": ""}]), "workloads[0].files"),
            (|plan| plan["workloads"][0]["pull_auth"] = json!({"password": "hunter2"}), "workloads[0].pull_auth"),
        ];
        for (change, field) in rows {
            let error = check(&plan(*change), &["pando"]).expect_err(field);
            assert_eq!(
                (error.code, error.details["problems"][0]["field"].as_str()),
                (Code::PlanCapabilityUnsupported, Some(*field))
            );
            assert!(!format!("{error:?}").contains("hunter2"));
        }
    }

    #[test]
    fn a_refusal_never_shows_a_value_of_the_environment() {
        let error =
            check(&plan(|plan| plan["workloads"][0]["env"] = json!({"A": "hunter2\0"})), &[]).expect_err("a NUL");
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}
