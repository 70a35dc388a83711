//! What core asks for: the resolved plan of one bundle.
//!
//! These types hold what was written; they do not check it. A runtime validates a plan whole before it
//! changes anything. `0` means "none" or "the default" where a field says so, as core spells it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Secret;

/// Names one bundle exactly as core spells it, e.g. `app_01HQ8ABC`. Case matters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleRef {
    /// The bundle's id, stable across deploys.
    pub bundle_id: String,
}

impl BundleRef {
    /// The bundle of this id.
    pub fn new(bundle_id: impl Into<String>) -> Self {
        Self { bundle_id: bundle_id.into() }
    }
}

/// Names one workload of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadRef {
    /// The bundle's id.
    pub bundle_id: String,
    /// The workload's name within it.
    pub workload: String,
}

/// One app, fully resolved: secrets filled in, egress rules merged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BundlePlan {
    /// The bundle's id, stable across deploys.
    pub bundle_id: String,
    /// Its parts, in core's order.
    #[serde(default)]
    pub workloads: Vec<WorkloadPlan>,
    /// Its volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumePlan>,
    /// Its private network.
    #[serde(default)]
    pub network: NetworkPlan,
    /// Core's own labels; never ours.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

#[cfg(feature = "schema")]
impl BundlePlan {
    /// The JSON Schema of a plan. A secret is `$defs/Secret` in it.
    pub fn schema() -> serde_json::Value {
        schemars::schema_for!(Self).to_value()
    }
}

/// One part of an app, e.g. its web server or its database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WorkloadPlan {
    /// A DNS label, unique in the bundle; other workloads reach it by this name.
    pub name: String,
    /// Image reference; a digest is allowed.
    pub image: String,
    /// Replaces the image's entrypoint when not empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// The entrypoint's arguments; replaces the image's command when not empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Where the process starts; empty for the image's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
    /// The environment, every value a secret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Secret>,
    /// How to pull the image, when it is private.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_auth: Option<RegistryAuth>,
    /// Where volumes appear.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountPlan>,
    /// Files carried in the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FilePlan>,
    /// The ports it listens on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortPlan>,
    /// Names of workloads that start first (R-096).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
    /// How to tell whether it is healthy; none means no signal, not unhealthy (R-221).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthPlan>,
    /// What it may use.
    #[serde(default)]
    pub resources: ResourcePlan,
    /// The size its log may reach in bytes; a runtime without a size cap leaves it aside.
    #[serde(default)]
    pub log_bytes: u64,
    /// Whether Pando's proxy may route to it.
    #[serde(default)]
    pub exposed: bool,
    /// Further settings.
    #[serde(default)]
    pub settings: WorkloadSettings,
}

/// A volume's place in a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MountPlan {
    /// The volume, one of the plan's.
    pub volume_id: String,
    /// An absolute path.
    pub path: String,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
}

/// A file carried in the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FilePlan {
    /// An absolute path.
    pub path: String,
    /// Its text.
    pub content: String,
    /// Its mode bits as a number, e.g. 420 for 0644; 0 means 0644.
    #[serde(default)]
    pub mode: u32,
}

/// A port a workload listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PortPlan {
    /// 1 to 65535; wider here so that a bad number is refused with its own message.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 65535)))]
    pub number: u32,
    /// TCP unless said otherwise.
    #[serde(default)]
    pub protocol: Protocol,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Connections.
    #[default]
    Tcp,
    /// Datagrams.
    Udp,
}

impl Protocol {
    /// The word in lower case, as in `tcp-80`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// A volume of the bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VolumePlan {
    /// The volume's id, stable across deploys.
    pub volume_id: String,
    /// What people call it.
    pub name: String,
    /// Its size in bytes; 0 means the configured default.
    #[serde(default)]
    pub size_bytes: u64,
}

/// How to tell whether a workload is healthy: the first of command, path with port, and port that is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HealthPlan {
    /// A command that ends with 0 when healthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// A path that answers with a status below 400 when healthy; needs `port`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// The port of the path, or one that accepts connections when healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u32>,
    /// Seconds between checks.
    #[serde(default = "HealthPlan::default_interval")]
    pub interval_seconds: u32,
    /// Seconds a check may take.
    #[serde(default = "HealthPlan::default_timeout")]
    pub timeout_seconds: u32,
    /// So many failures in a row make it unhealthy.
    #[serde(default = "HealthPlan::default_retries")]
    pub retries: u32,
}

impl HealthPlan {
    const fn default_interval() -> u32 {
        30
    }

    const fn default_timeout() -> u32 {
        5
    }

    const fn default_retries() -> u32 {
        3
    }
}

impl Default for HealthPlan {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            path: String::new(),
            port: None,
            interval_seconds: Self::default_interval(),
            timeout_seconds: Self::default_timeout(),
            retries: Self::default_retries(),
        }
    }
}

/// What a workload may use at most; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResourcePlan {
    /// Thousandths of a core.
    #[serde(default)]
    pub cpu_millis: u64,
    /// Bytes of memory.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Bytes of scratch disk.
    #[serde(default)]
    pub ephemeral_bytes: u64,
}

/// The bundle's network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NetworkPlan {
    /// Must be true: a bundle's network is its own (R-025).
    pub private: bool,
    /// What the bundle may reach outside.
    #[serde(default)]
    pub egress: EgressPlan,
}

impl Default for NetworkPlan {
    fn default() -> Self {
        Self { private: true, egress: EgressPlan::default() }
    }
}

/// Egress rules, merged by core; every layer must allow a destination.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EgressPlan {
    /// The rules of the install and of the app.
    #[serde(default)]
    pub layers: Vec<EgressLayer>,
    /// Whether private address ranges are closed too.
    #[serde(default)]
    pub block_private: bool,
}

impl EgressPlan {
    /// Whether these rules restrict anything: a private block, any allowlist, or a denylist with entries.
    pub fn restricts(&self) -> bool {
        self.block_private
            || self.layers.iter().any(|layer| layer.mode == EgressMode::Allowlist || !layer.list.is_empty())
    }
}

/// One layer of egress rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EgressLayer {
    /// What the list means.
    pub mode: EgressMode,
    /// Names, addresses and ranges, each with an optional port.
    #[serde(default)]
    pub list: Vec<String>,
    /// Whose rules these are.
    pub from: EgressSource,
}

/// What a list of destinations means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EgressMode {
    /// Only these.
    Allowlist,
    /// All but these.
    Denylist,
}

/// Who made a layer of egress rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EgressSource {
    /// The operator, for the whole install.
    Install,
    /// The app's owner.
    App,
}

/// Credentials of a registry; short-lived.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RegistryAuth {
    /// The registry's host; empty when the image's own name tells.
    #[serde(default)]
    pub registry: String,
    /// The user.
    #[serde(default)]
    pub username: String,
    /// The password.
    #[serde(default)]
    pub password: Secret,
    /// A token in place of the password.
    #[serde(default)]
    pub identity_token: Secret,
}

/// Further settings of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WorkloadSettings {
    /// Whether a process may gain privileges, e.g. by a set-uid program.
    #[serde(default)]
    pub allow_privilege_escalation: bool,
    /// The user the process runs as; the image's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<u32>,
    /// The group the process runs as; the image's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_group: Option<u32>,
    /// The group that owns mounted volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_group: Option<u32>,
    /// The size of `/dev/shm` in bytes; the runtime's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm_bytes: Option<u64>,
    /// Seconds to end after the request to; the configured default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_grace_seconds: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_as_people_write_it_is_read() {
        let plan: BundlePlan = serde_json::from_str(
            r#"{"bundle_id": "app_01HQ8ABC", "workloads": [{"name": "web", "image": "nginx:1.22", "ports": [{"number": 80}],
                "health": {"path": "/", "port": 80}, "env": {"A": "b"}}]}"#,
        )
        .expect("this is a plan");
        let web = &plan.workloads[0];
        assert_eq!((web.ports[0].protocol, plan.network.private), (Protocol::Tcp, true));
        let health = web.health.as_ref().expect("a health check was written");
        assert_eq!((health.interval_seconds, health.timeout_seconds, health.retries), (30, 5, 3));
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let error =
            serde_json::from_str::<BundlePlan>(r#"{"bundle_id": "a", "replicas": 3}"#).expect_err("no such field");
        assert!(error.to_string().contains("replicas"), "{error}");
    }

    #[test]
    fn an_empty_denylist_restricts_nothing_and_an_empty_allowlist_everything() {
        let layer = |mode, list: &[&str]| EgressPlan {
            layers: vec![EgressLayer {
                mode,
                list: list.iter().map(ToString::to_string).collect(),
                from: EgressSource::App,
            }],
            block_private: false,
        };
        for (rules, restricts) in [
            (EgressPlan::default(), false),
            (EgressPlan { block_private: true, ..EgressPlan::default() }, true),
            (layer(EgressMode::Denylist, &[]), false),
            (layer(EgressMode::Denylist, &["example.com"]), true),
            (layer(EgressMode::Allowlist, &[]), true),
        ] {
            assert_eq!(rules.restricts(), restricts, "{rules:?}");
        }
    }

    #[test]
    fn a_printed_plan_shows_no_secret() {
        let plan = BundlePlan {
            workloads: vec![WorkloadPlan {
                env: [("K".to_owned(), Secret::new("hunter2"))].into(),
                ..WorkloadPlan::default()
            }],
            ..BundlePlan::default()
        };
        let printed = format!("{plan:?} {}", serde_json::to_string(&plan).expect("plans are JSON"));
        assert!(!printed.contains("hunter2") && printed.contains(Secret::REDACTED), "{printed}");
    }
}
