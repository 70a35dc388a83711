//! What is right about one workload.

use std::collections::{BTreeMap, BTreeSet};

use pando_api::{HealthPlan, RegistryAuth, ResourcePlan, Secret, WorkloadPlan, WorkloadSettings};

use super::{Checker, Volumes};
use crate::image::Image;
use crate::plan::{Credential, Health, Port, Probe, Workload};

/// The most bytes that a workload's environment may have, names and values together; a Secret holds 1 MiB.
pub(super) const ENV_LIMIT: usize = 900 * 1024;

/// The most bytes that entrypoint, command and probe may have together. They stand in the pod, which stands in etcd, whose
/// requests hold 1.5 MiB; a process takes 2 MiB of arguments and environment.
pub(super) const WORDS_LIMIT: usize = 512 * 1024;

/// Less than this a container cannot be started with, as Docker too has it.
/// <https://docs.docker.com/engine/containers/resource_constraints/>
const LEAST_MEMORY: u64 = 6 << 20;

/// The largest user or group number that Kubernetes takes.
const MAX_ID: u32 = i32::MAX as u32;

impl Checker {
    /// Checks a workload; `None` when what is wrong with it leaves nothing that could be one.
    pub(super) fn workload(&mut self, at: &str, plan: &WorkloadPlan, volumes: &Volumes) -> Option<Workload> {
        let image = self.image(at, &plan.image);
        self.words(at, plan);
        if !plan.working_dir.is_empty() && (!plan.working_dir.starts_with('/') || plan.working_dir.contains('\0')) {
            self.wrong(format!("{at}.working_dir"), &plan.working_dir, "is not an absolute path", "begin it with /");
        }
        self.env(at, &plan.env);
        self.settings(at, plan.settings);
        self.resources(at, plan.resources);
        let mounts = self.mounts(at, plan, volumes);
        let files = self.files(at, plan, &mounts);
        let ports = self.ports(at, plan);
        let health = plan.health.as_ref().and_then(|health| self.health(&format!("{at}.health"), health));
        let credential = plan.pull_auth.as_ref().and_then(|auth| self.credential(at, auth, image.as_ref()));
        Some(Workload {
            name: plan.name.clone(),
            image: image?,
            entrypoint: plan.entrypoint.clone(),
            command: plan.command.clone(),
            working_dir: (!plan.working_dir.is_empty()).then(|| plan.working_dir.clone()),
            env: plan.env.clone(),
            credential,
            mounts,
            files,
            ports,
            depends_on: plan.depends_on.clone(),
            health,
            resources: plan.resources.into(),
            settings: plan.settings,
        })
    }

    fn image(&mut self, at: &str, reference: &str) -> Option<Image> {
        let image = Image::parse(reference);
        if image.is_none() {
            let remedy = "write one such as nginx:1.27 or registry.example/team/app@sha256:…, in lower case";
            self.wrong(format!("{at}.image"), reference, "is not an image reference", remedy);
        }
        image
    }

    /// What the processes are given to run.
    fn words(&mut self, at: &str, plan: &WorkloadPlan) {
        let probe = plan.health.as_ref().map_or(&[][..], |health| &health.command);
        let mut size = 0;
        for (list, words) in [("entrypoint", &*plan.entrypoint), ("command", &plan.command), ("health.command", probe)]
        {
            if let Some(index) = words.iter().position(|word| word.contains('\0')) {
                self.wrong(format!("{at}.{list}[{index}]"), "(a text with NUL)", "contains a NUL", "remove the NUL");
            }
            size += words.iter().map(String::len).sum::<usize>();
        }
        if size > WORDS_LIMIT {
            let (size, problem) =
                (format!("{size} bytes"), "is, with entrypoint and health check, larger than 512 KiB");
            self.wrong(format!("{at}.command"), size, problem, "carry large texts as files");
        }
    }

    fn credential(&mut self, at: &str, auth: &RegistryAuth, image: Option<&Image>) -> Option<Credential> {
        let has_password = !auth.username.is_empty() && !auth.password.is_empty();
        if auth.identity_token.is_empty() && !has_password {
            let remedy = "give a username with a password, or an identity token; leave it out for a public image";
            self.wrong(format!("{at}.pull_auth"), Secret::REDACTED, "is no credential", remedy);
        }
        if auth.username.contains(':') {
            let field = format!("{at}.pull_auth.username");
            self.wrong(field, Secret::REDACTED, "contains a colon", "a registry reads what comes after it as password");
        }
        if auth.registry.chars().any(|c| c.is_whitespace() || c.is_control()) {
            let field = format!("{at}.pull_auth.registry");
            self.wrong(field, &auth.registry, "is not a registry", "write its host, e.g. registry.example");
        }
        let registry = match auth.registry.as_str() {
            "" => image?.registry_key().to_owned(),
            registry => registry.to_owned(),
        };
        Some(Credential { registry, auth: auth.clone() })
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
        if (1..LEAST_MEMORY).contains(&resources.memory_bytes) {
            let field = format!("{at}.resources.memory_bytes");
            let remedy = format!("write {LEAST_MEMORY} or more, or 0 for none");
            self.wrong(field, resources.memory_bytes, "is too little for any container to start", remedy);
        }
    }
}
