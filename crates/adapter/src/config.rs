//! The configuration: JSON as an operator writes it, checked whole, into settings that are right by construction.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Toleration;
use pando_api::{Code, Error, Problem};
use pando_network::{Dns, NetworkConfig, Proxy};
use pando_storage::Storage;
use serde_json::{Map, Value, json};

use crate::dns_label;
use crate::image::Image;
use crate::schema;

/// What an adapter is told about the installation, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How the cluster is reached.
    pub connection: Connection,
    /// What apps may reach.
    pub network: NetworkConfig,
    /// The namespace of Pando itself.
    pub pando_namespace: String,
    /// The account this runs as, in Pando's namespace.
    pub service_account: String,
    /// The role it gets in every app's namespace.
    pub app_role: String,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
    /// The `RuntimeClass` of app pods; none for the cluster's default.
    pub runtime_class: Option<String>,
    /// Labels of the nodes that apps may run on; empty for every node.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that app pods tolerate.
    pub tolerations: Vec<Toleration>,
    /// The priority class of app pods; none for the cluster's default.
    pub priority_class: Option<String>,
    /// What claims of volumes are made by.
    pub storage: Storage,
    /// The image of helpers and gates.
    pub helper_image: String,
    /// Seconds a workload has to end; at least 1, since 0 proves nothing about the process.
    pub stop_grace_seconds: u32,
    /// How long a start may take, image included.
    pub start_timeout: Duration,
    /// How long no node may have room for a workload.
    pub unschedulable: Duration,
    /// How long a pod's network may stay open before its app starts; none switches the gate off.
    pub isolation_gate: Option<Duration>,
}

/// How the cluster is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Path of a kubeconfig; none inside the cluster.
    pub kubeconfig: Option<String>,
    /// A context of it; none for its current one.
    pub context: Option<String>,
    /// Calls a second, on average.
    pub qps: u32,
    /// Calls at once.
    pub burst: u32,
}

impl Settings {
    /// Reads and checks the configuration; contacts nothing.
    ///
    /// # Errors
    ///
    /// [`Code::ValidInvalid`] with every unknown key, wrong type and bad value at once, each with its key, its
    /// value and what to write instead (S-1).
    pub fn from_json(json: &Value) -> Result<Self, Error> {
        let Value::Object(map) = json else {
            let problem = Problem {
                field: "(configuration)".to_owned(),
                value: json.to_string(),
                problem: "is not a JSON object".to_owned(),
                remedy: r#"write {"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/12"}"#.to_owned(),
            };
            return Err(Error::invalid(Code::ValidInvalid, "the configuration", &[problem]));
        };
        let mut reader = Reader { map: map.clone(), ..Reader::default() };
        let settings = reader.settings();
        reader.refuse_unknown();
        if reader.problems.is_empty() {
            Ok(settings)
        } else {
            Err(Error::invalid(Code::ValidInvalid, "the configuration", &reader.problems))
        }
    }

    /// The JSON Schema of the configuration: the form of every key, its default, and what it is for.
    pub fn schema() -> Value {
        // What may be the most at once depends on the rate: here any rate may be meant.
        let map = Map::from_iter([("api_qps".to_owned(), Value::from(1))]);
        let mut reader = Reader { map, ..Reader::default() };
        reader.settings();
        schema::of(reader.forms)
    }

    /// Namespaces of Pando itself, which no app may get.
    pub fn reserved_namespaces(&self) -> [&str; 1] {
        [&self.pando_namespace]
    }
}

/// Keys of features to come.
const NOT_BUILT: &[&str] = &[
    "api_server_cidr",
    "edge_http_node_port",
    "edge_https_node_port",
    "edge_namespace",
    "edge_replicas",
    "edge_service_type",
    "egress_gateway_image",
    "helper_pull_secret",
    "pando_service",
    "proxy_port",
];

const RANGES: &str = "write one or several ranges, comma-separated, e.g. 10.244.0.0/16,fd00:10:244::/56";

/// Takes keys out of the configuration and notes what is wrong with them.
#[derive(Default)]
struct Reader {
    map: Map<String, Value>,
    known: Vec<&'static str>,
    problems: Vec<Problem>,
    /// The form of every key, as it is asked for.
    forms: BTreeMap<&'static str, Value>,
}

impl Reader {
    fn settings(&mut self) -> Settings {
        let pod_ranges =
            self.required_ranges("pod_cidr", "10.244.0.0/16", "kubectl cluster-info dump | grep -m1 cluster-cidr");
        let service_ranges = self.required_ranges(
            "service_cidr",
            "10.96.0.0/12",
            "kubectl cluster-info dump | grep -m1 service-cluster-ip-range",
        );
        let pando_namespace = self.label("pando_namespace", "pando");
        let qps = self.number("api_qps", 200, 1..=100_000);
        Settings {
            network: NetworkConfig {
                pod_ranges,
                service_ranges,
                node_ranges: self.ranges("node_cidr", ""),
                closed_ranges: self.ranges("egress_except", "169.254.0.0/16,fe80::/10,fd00:ec2::254/128"),
                proxy: Proxy { namespace: pando_namespace.clone() },
                dns: Dns {
                    namespace: self.label("dns_namespace", "kube-system"),
                    labels: self.pairs("dns_labels", "k8s-app=kube-dns"),
                    addresses: self.addresses("dns_addresses"),
                },
            },
            pando_namespace,
            service_account: self.label("service_account", "pando"),
            app_role: self.label("app_role", "pando-app-manager"),
            cluster_domain: self.domain("cluster_domain", "cluster.local"),
            runtime_class: self.optional_text("runtime_class"),
            node_selector: self.pairs("node_selector", ""),
            tolerations: self.tolerations("tolerations"),
            priority_class: self.optional_text("priority_class"),
            storage: Storage {
                class: self.optional_text("storage_class"),
                default_size_bytes: self.bytes("volume_size_bytes", 10 << 30),
            },
            helper_image: self.image("helper_image", "busybox:1.37"),
            stop_grace_seconds: self.number("stop_grace_seconds", 10, 1..=3600),
            start_timeout: self.seconds("start_timeout_seconds", 600, 1..=86_400),
            unschedulable: self.seconds("unschedulable_seconds", 60, 1..=86_400),
            isolation_gate: self.gate(),
            connection: Connection {
                kubeconfig: self.optional_text("kubeconfig"),
                context: self.optional_text("context"),
                qps,
                burst: self.number("api_burst", qps.max(400), qps..=1_000_000),
            },
        }
    }

    fn gate(&mut self) -> Option<Duration> {
        let limit = self.seconds("isolation_gate_seconds", 30, 5..=600);
        self.flag("isolation_gate", true).then_some(limit)
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.map.remove(key).filter(|value| !value.is_null())
    }

    fn refuse(&mut self, key: &str, value: &str, problem: &str, remedy: impl Into<String>) {
        self.problems.push(Problem {
            field: key.to_owned(),
            value: value.to_owned(),
            problem: problem.to_owned(),
            remedy: remedy.into(),
        });
    }

    fn refuse_unknown(&mut self) {
        let remedy = format!("remove it, or use one of: {}", self.known.join(", "));
        // What was given there is not shown: it may be a secret whose key is misspelt.
        for (key, _) in std::mem::take(&mut self.map) {
            if NOT_BUILT.contains(&key.as_str()) {
                self.refuse(&key, "", "belongs to a feature that is not built yet", "remove it for now");
            } else {
                self.refuse(&key, "", "is not a key of the configuration", remedy.clone());
            }
        }
    }

    fn optional_text(&mut self, key: &'static str) -> Option<String> {
        self.forms.insert(key, json!({"type": ["string", "null"]}));
        match self.take(key)? {
            Value::String(text) if !text.trim().is_empty() => Some(text),
            Value::String(_) => None,
            other => {
                self.refuse(key, &other.to_string(), "is not a text", "write it in quotes");
                None
            }
        }
    }

    fn text(&mut self, key: &'static str, default: &str) -> String {
        let text = self.optional_text(key).unwrap_or_else(|| default.to_owned());
        self.forms.insert(key, json!({"type": ["string", "null"], "default": default}));
        text
    }

    fn label(&mut self, key: &'static str, default: &str) -> String {
        let text = self.text(key, default);
        if !dns_label::is_valid(&text) {
            let remedy = format!("write {:?}", dns_label::suggest(&text));
            self.refuse(key, &text, "is not a DNS label (a-z, 0-9 and -, at most 63)", remedy);
        }
        text
    }

    fn domain(&mut self, key: &'static str, default: &str) -> String {
        let text = self.text(key, default);
        if text.len() > 253 || !text.split('.').all(dns_label::is_valid) {
            self.refuse(key, &text, "is not a DNS name", "write the cluster's domain, e.g. cluster.local");
        }
        text
    }

    fn image(&mut self, key: &'static str, default: &str) -> String {
        let text = self.text(key, default);
        if Image::parse(&text).is_none() {
            self.refuse(key, &text, "is not an image reference", "write one such as busybox:1.37");
        }
        text
    }

    fn flag(&mut self, key: &'static str, default: bool) -> bool {
        self.forms.insert(key, json!({"type": ["boolean", "null"], "default": default}));
        match self.take(key) {
            None => default,
            Some(Value::Bool(flag)) => flag,
            Some(other) => {
                self.refuse(
                    key,
                    &other.to_string(),
                    "is neither true nor false",
                    "write true or false, without quotes",
                );
                default
            }
        }
    }

    fn number(&mut self, key: &'static str, default: u32, allowed: RangeInclusive<u32>) -> u32 {
        let (least, most) = (allowed.start(), allowed.end());
        let form = json!({"type": ["integer", "null"], "minimum": least, "maximum": most, "default": default});
        self.forms.insert(key, form);
        let Some(value) = self.take(key) else { return default };
        match value.as_u64().and_then(|number| u32::try_from(number).ok()) {
            Some(number) if allowed.contains(&number) => number,
            _ => {
                let remedy = format!("write a whole number from {least} to {most}");
                self.refuse(key, &value.to_string(), "is out of range", remedy);
                default
            }
        }
    }

    fn bytes(&mut self, key: &'static str, default: u64) -> u64 {
        let form = json!({"type": ["integer", "null"], "minimum": 1, "maximum": i64::MAX, "default": default});
        self.forms.insert(key, form);
        let Some(value) = self.take(key) else { return default };
        let bytes = value.as_u64().filter(|bytes| *bytes > 0 && i64::try_from(*bytes).is_ok());
        bytes.unwrap_or_else(|| {
            let remedy = "write a number of bytes from 1 to 9223372036854775807";
            self.refuse(key, &value.to_string(), "is no size", remedy);
            default
        })
    }

    fn seconds(&mut self, key: &'static str, default: u32, allowed: RangeInclusive<u32>) -> Duration {
        Duration::from_secs(self.number(key, default, allowed).into())
    }

    fn required_ranges(&mut self, key: &'static str, example: &str, command: &str) -> Vec<IpNet> {
        if self.map.get(key).is_none_or(Value::is_null) {
            self.forms.insert(key, json!({"type": "string", "examples": [example]}));
            self.known.push(key);
            let remedy = format!("write the cluster's own, e.g. {example:?}; `{command}` shows it");
            self.refuse(key, "", "is missing", remedy);
            return Vec::new();
        }
        let ranges = self.ranges(key, "");
        if ranges.is_empty() && !self.problems.iter().any(|problem| problem.field == key) {
            self.refuse(key, "", "is empty", RANGES);
        }
        ranges
    }

    fn ranges(&mut self, key: &'static str, default: &str) -> Vec<IpNet> {
        let text = self.text(key, default);
        let mut ranges = Vec::new();
        for part in parts(&text) {
            match part.parse::<IpNet>() {
                // A range that is everything could not be left out of an outside rule.
                Ok(range) if range.prefix_len() > 0 => ranges.push(range.trunc()),
                Ok(_) => self.refuse(key, part, "covers every address", RANGES),
                Err(_) => self.refuse(key, part, "is not a range of addresses", RANGES),
            }
        }
        ranges
    }

    fn addresses(&mut self, key: &'static str) -> Vec<IpAddr> {
        let text = self.text(key, "");
        let mut addresses = Vec::new();
        for part in parts(&text) {
            match part.parse() {
                Ok(address) => addresses.push(address),
                Err(_) => {
                    self.refuse(key, part, "is not an address", "write addresses, comma-separated, e.g. 169.254.20.10");
                }
            }
        }
        addresses
    }

    fn pairs(&mut self, key: &'static str, default: &str) -> BTreeMap<String, String> {
        let text = self.text(key, default);
        let mut pairs = BTreeMap::new();
        for part in parts(&text) {
            match part.split_once('=') {
                Some((name, value)) if !name.trim().is_empty() => {
                    pairs.insert(name.trim().to_owned(), value.trim().to_owned());
                }
                _ => self.refuse(key, part, "is not a label with a value", "write key=value, comma-separated"),
            }
        }
        pairs
    }

    fn tolerations(&mut self, key: &'static str) -> Vec<Toleration> {
        let text = self.text(key, "");
        let mut tolerations = Vec::new();
        for part in parts(&text) {
            match toleration(part) {
                Some(toleration) => tolerations.push(toleration),
                None => self.refuse(
                    key,
                    part,
                    "is not a toleration",
                    "write key=value:Effect, key:Effect or :Effect, with NoSchedule, PreferNoSchedule or NoExecute as effect",
                ),
            }
        }
        tolerations
    }
}

/// The parts of a comma-separated list; blank ones are left out.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn toleration(text: &str) -> Option<Toleration> {
    let (matching, effect) = text.rsplit_once(':')?;
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return None;
    }
    let (key, value) = match matching.split_once('=') {
        Some((key, value)) => (key, Some(value.to_owned())),
        None => (matching, None),
    };
    if key.is_empty() && value.is_some() {
        return None;
    }
    Some(Toleration {
        key: (!key.is_empty()).then(|| key.to_owned()),
        operator: Some(if value.is_some() { "Equal" } else { "Exists" }.to_owned()),
        value,
        effect: Some(effect.to_owned()),
        ..Toleration::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(key: &str, value: Value) -> Value {
        let mut json = json!({"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/16"});
        json[key] = value;
        json
    }

    #[test]
    fn two_ranges_are_enough() {
        let settings = Settings::from_json(&with("kubeconfig", Value::Null)).expect("the required keys are there");
        assert_eq!((settings.connection.qps, settings.connection.burst), (200, 400));
        assert_eq!((settings.stop_grace_seconds, settings.isolation_gate), (10, Some(Duration::from_secs(30))));
        assert_eq!(settings.network.closed_ranges.len(), 3);
    }

    /// Each row: a key, a bad value, and words of the message it gets.
    #[test]
    fn bad_values_are_refused_with_key_value_and_remedy() {
        for (key, value, words) in [
            ("pod_cidr", json!("10.244.0.0"), "10.244.0.0/16,fd00"),
            ("pod_cidr", json!("0.0.0.0/0"), "covers every address"),
            ("pod_cidr", json!(" , "), "is empty"),
            ("service_cidr", Value::Null, "kubectl"),
            ("service_cidr", json!(7), "is not a text"),
            ("pando_namespace", json!("My_NS"), "\"my-ns\""),
            ("cluster_domain", json!("cluster..local"), "DNS name"),
            ("api_qps", json!(0), "from 1"),
            ("api_burst", json!(100), "from 200"),
            ("stop_grace_seconds", json!(0), "from 1 to 3600"),
            ("stop_grace_seconds", json!("10"), "from 1 to 3600"),
            ("isolation_gate", json!("yes"), "true or false"),
            ("isolation_gate_seconds", json!(4), "from 5 to 600"),
            ("node_selector", json!("disk"), "key=value"),
            ("node_selector", json!("=ssd"), "key=value"),
            ("tolerations", json!("gpu"), "key:Effect"),
            ("tolerations", json!("gpu:Never"), "NoExecute"),
            ("dns_addresses", json!("kube-dns"), "169.254.20.10"),
            ("helper_image", json!("busybox 1.37"), "image reference"),
            ("replicas", json!(3), "is not a key"),
            ("volume_size_bytes", json!(0), "9223372036854775807"),
            ("proxy_port", json!(8080), "not built yet"),
        ] {
            let error = Settings::from_json(&with(key, value.clone())).expect_err(key);
            assert_eq!(error.code, Code::ValidInvalid);
            let message = error.to_string();
            assert!(message.contains(key) && message.contains(words), "{key}={value}: {message}");
        }
    }

    #[test]
    fn everything_wrong_is_told_at_once() {
        let error = Settings::from_json(&json!({"api_qps": 0, "replicas": 3})).expect_err("four problems");
        assert_eq!(error.details["problems"].as_array().map(Vec::len), Some(4), "{error}");
        assert!(Settings::from_json(&json!([])).expect_err("not an object").to_string().contains("pod_cidr"));
    }

    #[test]
    fn the_value_of_an_unknown_key_is_not_shown() {
        let secret = json!({"registry": "r.example", "password": "hunter2"});
        let error = Settings::from_json(&with("helper_pull_secrt", secret)).expect_err("no such key");
        assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");
    }

    #[test]
    fn tolerations_are_read_in_their_three_forms() {
        let settings = Settings::from_json(&with("tolerations", json!("gpu=a:NoSchedule, gpu:NoExecute ,:NoSchedule")))
            .expect("fine");
        let forms: Vec<_> = settings
            .tolerations
            .iter()
            .map(|it| (it.key.as_deref(), it.operator.as_deref(), it.value.as_deref()))
            .collect();
        assert_eq!(
            forms,
            [
                (Some("gpu"), Some("Equal"), Some("a")),
                (Some("gpu"), Some("Exists"), None),
                (None, Some("Exists"), None)
            ]
        );
    }
}
