//! Two digests of a pod (S-33): what the plan says of its workload, and what the platform adds.
//!
//! The first decides whether a pod is replaced. The second is only reported as drift, so neither an upgrade of
//! this library nor two versions of it at once restart anybody's app. Environment values enter as an HMAC
//! under a random key that stays with them in their Secret, so that nobody can guess them from the digest.

use std::fmt;

use data_encoding::{BASE64, HEXLOWER};
use hmac::{Hmac, Mac};
use pando_cluster::Env;
use sha2::{Digest as _, Sha256};

use crate::config::Settings;
use crate::plan::{Probe, Workload};

/// The form of pods that this version makes. Raise it with any change to the template that a running pod
/// should in time be replaced for.
const TEMPLATE_VERSION: &str = "1";

/// The form of the plan's digest; digests of other forms never compare as equal.
const PLAN_FORM: &str = "v1";

/// What the plan says of a workload, without any value of its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlanDigest {
    plain: String,
    env: String,
}

impl PlanDigest {
    /// The digest of `workload` under the environment's key.
    pub(crate) fn of(workload: &Workload, key: &EnvKey) -> Self {
        Self { plain: HEXLOWER.encode(&plain(workload)), env: HEXLOWER.encode(&key.digest(workload)) }
    }

    /// Reads the digest that an annotation holds; `None` for one of another form.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(PLAN_FORM), Some(plain), Some(env), None) => {
                Some(Self { plain: plain.to_owned(), env: env.to_owned() })
            }
            _ => None,
        }
    }

    /// Whether the two agree in the environment and what the files say; only digests under one key can.
    pub(crate) fn agrees_on_env(&self, other: &Self) -> bool {
        self.env == other.env
    }

    /// Whether the two agree in all but the environment, which cannot be compared once its key is lost.
    pub(crate) fn agrees_but_for_env(&self, other: &Self) -> bool {
        self.plain == other.plain
    }
}

impl fmt::Display for PlanDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PLAN_FORM}.{}.{}", self.plain, self.env)
    }
}

/// The random key of an environment's digest.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct EnvKey([u8; 32]);

impl EnvKey {
    /// A fresh key.
    pub(crate) fn random(env: &Env) -> Self {
        let mut key = [0; 32];
        env.random.fill(&mut key);
        Self(key)
    }

    /// One that protects nothing, for what is only shown.
    pub(crate) const fn blank() -> Self {
        Self([0; 32])
    }

    /// Reads the key from its annotation; `None` when it is not one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        BASE64.decode(text.as_bytes()).ok()?.try_into().ok().map(Self)
    }

    /// The key as its annotation holds it.
    pub(crate) fn encode(&self) -> String {
        BASE64.encode(&self.0)
    }

    fn digest(&self, workload: &Workload) -> [u8; 32] {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else {
            unreachable!("HMAC takes a key of any length")
        };
        for (key, value) in &workload.env {
            for part in [key.as_str(), value.expose()] {
                mac.update(&(part.len() as u64).to_be_bytes());
                mac.update(part.as_bytes());
            }
        }
        // Names of variables hold no `/`, paths begin with one: the two cannot be taken for each other.
        for file in &workload.files {
            for part in [file.path.as_str(), file.content.as_str()] {
                mac.update(&(part.len() as u64).to_be_bytes());
                mac.update(part.as_bytes());
            }
        }
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for EnvKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EnvKey([redacted])")
    }
}

/// The digest of what the platform adds to a pod.
pub(crate) fn template_digest(settings: &Settings) -> String {
    let mut canon = Canon::default();
    canon.text("version", TEMPLATE_VERSION);
    canon.text("gate", if settings.isolation_gate.is_some() { &settings.helper_image } else { "" });
    for (key, value) in &settings.node_selector {
        canon.text("node_selector", key).text("=", value);
    }
    for toleration in &settings.tolerations {
        canon.text("toleration", &serde_json::to_string(toleration).unwrap_or_default());
    }
    canon.text("runtime_class", settings.runtime_class.as_deref().unwrap_or_default());
    canon.text("priority_class", settings.priority_class.as_deref().unwrap_or_default());
    HEXLOWER.encode(&canon.finish()[..16])
}

fn plain(workload: &Workload) -> [u8; 32] {
    // Named fields, so that a field added later must say whether it counts.
    let Workload {
        name,
        image,
        entrypoint,
        command,
        working_dir,
        env: _,
        // A credential is short-lived, and what waits for whom matters at a start only.
        credential: _,
        depends_on: _,
        mounts,
        files,
        ports,
        health,
        resources,
        settings,
    } = workload;
    let mut canon = Canon::default();
    canon.text("name", name).text("image", image.as_str()).list("entrypoint", entrypoint).list("command", command);
    canon.text("working_dir", working_dir.as_deref().unwrap_or_default());
    for mount in mounts {
        canon.text("mount", &mount.path).text("claim", &mount.claim).number("read_only", mount.read_only.into());
    }
    for file in files {
        canon.text("file", &file.path).number("mode", u64::from(file.mode.unsigned_abs()));
    }
    for port in ports {
        canon.number("port", u64::from(port.number)).text("protocol", port.protocol.as_str());
    }
    if let Some(health) = health {
        match &health.probe {
            Probe::Command(command) => canon.list("health.command", command),
            Probe::Http { path, port } => canon.text("health.path", path).number("health.port", u64::from(*port)),
            Probe::Tcp { port } => canon.number("health.port", u64::from(*port)),
        };
        for (name, value) in
            [("interval", health.interval_seconds), ("timeout", health.timeout_seconds), ("retries", health.retries)]
        {
            canon.number(name, u64::from(value.unsigned_abs()));
        }
    }
    for (name, value) in
        [("cpu", resources.cpu_millis), ("memory", resources.memory_bytes), ("ephemeral", resources.ephemeral_bytes)]
    {
        canon.number(name, value.map_or(0, Into::into));
    }
    let ids = [("user", settings.run_as_user), ("group", settings.run_as_group), ("fs_group", settings.fs_group)];
    for (name, value) in ids.into_iter().chain([("grace", settings.stop_grace_seconds)]) {
        canon.optional(name, value.map(u64::from));
    }
    canon.optional("shm", settings.shm_bytes);
    canon.number("escalation", settings.allow_privilege_escalation.into());
    canon.finish()
}

/// Hashes named values so that no two different sequences of them look alike: everything is length-prefixed.
#[derive(Default)]
struct Canon(Sha256);

impl Canon {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
        self
    }

    fn text(&mut self, name: &str, value: &str) -> &mut Self {
        self.bytes(name.as_bytes()).bytes(value.as_bytes())
    }

    fn number(&mut self, name: &str, value: u64) -> &mut Self {
        self.bytes(name.as_bytes()).bytes(&value.to_be_bytes())
    }

    fn optional(&mut self, name: &str, value: Option<u64>) -> &mut Self {
        match value {
            Some(value) => self.number(name, value),
            None => self.text(name, ""),
        }
    }

    fn list(&mut self, name: &str, values: &[String]) -> &mut Self {
        self.number(name, values.len() as u64);
        for value in values {
            self.bytes(value.as_bytes());
        }
        self
    }

    fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use pando_api::{BundlePlan, Secret};
    use serde_json::json;

    use super::*;
    use crate::check::check;

    fn workload(change: serde_json::Value) -> Workload {
        let mut plan = json!({"name": "web", "image": "nginx:1.22", "env": {"A": "hunter2"}, "ports": [{"number": 80}, {"number": 53, "protocol": "udp"}]});
        for (key, value) in change.as_object().expect("an object") {
            plan[key] = value.clone();
        }
        let volumes = json!([{"volume_id": "v", "name": "v"}, {"volume_id": "w", "name": "w"}]);
        let plan: BundlePlan =
            serde_json::from_value(json!({"bundle_id": "a", "volumes": volumes, "workloads": [plan]})).expect("a plan");
        check(&plan, &[]).expect("a right plan").workloads.remove(0)
    }

    fn digest(change: serde_json::Value) -> PlanDigest {
        PlanDigest::of(&workload(change), &EnvKey([7; 32]))
    }

    #[test]
    fn what_the_plan_says_changes_the_digest() {
        let base = digest(json!({}));
        let mut seen = std::collections::BTreeSet::new();
        for change in [
            json!({"image": "nginx:1.23"}),
            json!({"entrypoint": ["a", "b"]}),
            json!({"entrypoint": ["ab"]}),
            json!({"command": ["a", "b"]}),
            json!({"working_dir": "/srv"}),
            json!({"env": {"A": "hunter3"}}),
            json!({"env": {"AH": "unter2"}}),
            json!({"ports": [{"number": 80}]}),
            json!({"health": {"port": 80}}),
            json!({"health": {"port": 80, "retries": 4}}),
            json!({"health": {"path": "/", "port": 80}}),
            json!({"health": {"command": ["true"]}}),
            json!({"resources": {"cpu_millis": 100}}),
            json!({"resources": {"memory_bytes": 64 << 20}}),
            json!({"mounts": [{"volume_id": "v", "path": "/v"}]}),
            json!({"mounts": [{"volume_id": "w", "path": "/v"}]}),
            json!({"mounts": [{"volume_id": "v", "path": "/w"}]}),
            json!({"mounts": [{"volume_id": "v", "path": "/v", "read_only": true}]}),
            json!({"files": [{"path": "/f", "content": "x"}]}),
            json!({"files": [{"path": "/f", "content": "y"}]}),
            json!({"files": [{"path": "/f", "content": "x", "mode": 0o600}]}),
            json!({"settings": {"run_as_user": 0}}),
            json!({"settings": {"run_as_group": 0}}),
            json!({"settings": {"stop_grace_seconds": 3}}),
            json!({"settings": {"shm_bytes": 100}}),
            json!({"settings": {"allow_privilege_escalation": true}}),
        ] {
            let digest = digest(change.clone());
            assert!(digest != base && seen.insert(digest.to_string()), "{change}");
        }
    }

    #[test]
    fn what_restarts_nobody_leaves_the_digest() {
        let base = digest(json!({}));
        for change in [
            json!({"exposed": true}),
            json!({"log_bytes": 7}),
            json!({"pull_auth": {"username": "u", "password": "p"}}),
            json!({"ports": [{"number": 53, "protocol": "udp"}, {"number": 80}]}),
        ] {
            assert_eq!(digest(change.clone()), base, "{change}");
        }
    }

    #[test]
    fn a_digest_survives_its_annotation_and_others_forms_do_not_compare() {
        let base = digest(json!({}));
        assert_eq!(PlanDigest::parse(&base.to_string()), Some(base));
        for other in ["", "0123456789abcdef0123456789abcdef", "v2.a.b", "v1.a", "v1.a.b.c"] {
            assert_eq!(PlanDigest::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_environments_part_hangs_on_its_key_alone() {
        let web = workload(json!({}));
        let (a, b) = (PlanDigest::of(&web, &EnvKey([1; 32])), PlanDigest::of(&web, &EnvKey([2; 32])));
        assert!(a != b && a.agrees_but_for_env(&b));
        let mut other = web;
        other.env.insert("A".to_owned(), Secret::new("other"));
        assert_ne!(PlanDigest::of(&other, &EnvKey([1; 32])), a);
    }

    #[test]
    fn a_key_survives_its_annotation_and_shows_itself_nowhere() {
        let key = EnvKey([7; 32]);
        assert_eq!(EnvKey::parse(&key.encode()), Some(key.clone()));
        assert_eq!((EnvKey::parse("AAAA"), EnvKey::parse("no base64")), (None, None));
        assert!(!format!("{key:?}").contains('7'));
    }
}
