//! The configuration: JSON as an operator writes it, checked whole, into settings that are right by construction.
//!
//! `keys` is the one table of keys. `reader` takes them by it, `values` reads texts, `checks` judges what keys say together,
//! `suggest` guesses what a misspelt key was meant to be, and `form` shows the table to people and editors.

mod checks;
mod form;
mod keys;
mod reader;
mod suggest;
mod values;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Toleration;
use pando_api::{AdapterInfo, Code, Error, Problem};
use pando_network::{Dns, NetworkConfig, Proxy};
use pando_storage::Storage;
use serde_json::Value;

use keys::Key;
use reader::Reader;

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
        let refuse = |problems: &[Problem]| Error::invalid(Code::ValidInvalid, "the configuration", problems);
        let Value::Object(map) = json else {
            return Err(refuse(&[Problem {
                field: "(configuration)".to_owned(),
                value: reader::shortened(&json.to_string()),
                problem: "is not a JSON object".to_owned(),
                remedy: r#"write {"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/12"}"#.to_owned(),
            }]));
        };
        let mut reader = Reader::of(map.clone());
        let settings = Self::read(&mut reader);
        let problems = reader.problems();
        if problems.is_empty() { Ok(settings) } else { Err(refuse(&problems)) }
    }

    /// What this runtime is, and every key of its configuration for a form (S-5). Known before there is a configuration.
    pub fn info() -> AdapterInfo {
        form::info()
    }

    /// The JSON Schema of the configuration: the form of every key, its default, and what it is for.
    pub fn schema() -> Value {
        form::schema(&form::info().fields)
    }

    /// Namespaces of Pando itself, which no app may get.
    pub fn reserved_namespaces(&self) -> [&str; 1] {
        [&self.pando_namespace]
    }

    /// The settings, as far as they can be read; they count only when the reader has no problem.
    fn read(reader: &mut Reader) -> Self {
        let connection = Connection::read(reader);
        let pando_namespace = reader.text(&keys::PANDO_NAMESPACE, values::label);
        let gate_limit = seconds(reader, &keys::ISOLATION_GATE_SECONDS);
        Self {
            network: network(reader, &pando_namespace),
            pando_namespace,
            service_account: reader.text(&keys::SERVICE_ACCOUNT, values::label),
            app_role: reader.text(&keys::APP_ROLE, values::role_name),
            cluster_domain: reader.text(&keys::CLUSTER_DOMAIN, values::domain),
            runtime_class: reader.optional(&keys::RUNTIME_CLASS, values::object_name),
            node_selector: reader.text(&keys::NODE_SELECTOR, values::labels),
            tolerations: reader.text(&keys::TOLERATIONS, values::tolerations),
            priority_class: reader.optional(&keys::PRIORITY_CLASS, values::object_name),
            storage: Storage {
                class: reader.optional(&keys::STORAGE_CLASS, values::object_name),
                default_size_bytes: reader.number(&keys::VOLUME_SIZE_BYTES),
            },
            helper_image: reader.text(&keys::HELPER_IMAGE, values::image),
            stop_grace_seconds: small(reader.number(&keys::STOP_GRACE_SECONDS)),
            start_timeout: seconds(reader, &keys::START_TIMEOUT_SECONDS),
            unschedulable: seconds(reader, &keys::UNSCHEDULABLE_SECONDS),
            isolation_gate: reader.flag(&keys::ISOLATION_GATE).then_some(gate_limit),
            connection,
        }
    }
}

impl Connection {
    fn read(reader: &mut Reader) -> Self {
        let qps = small(reader.number(&keys::API_QPS));
        let burst = match reader.given_number(&keys::API_BURST) {
            Some(burst) => small(burst),
            None => qps.max(small(keys::API_BURST.form.default)),
        };
        // A rate that could not be read has no burst that fits it.
        if !reader.has_refused(&keys::API_QPS) {
            reader.refuse(&keys::API_BURST, checks::burst_carries_rate(qps, burst));
        }
        Self {
            kubeconfig: reader.optional(&keys::KUBECONFIG, values::path),
            context: reader.optional(&keys::CONTEXT, values::any),
            qps,
            burst,
        }
    }
}

fn network(reader: &mut Reader, pando_namespace: &str) -> NetworkConfig {
    let pod_ranges = reader.text(&keys::POD_CIDR, values::some_ranges);
    let service_ranges = reader.text(&keys::SERVICE_CIDR, values::some_ranges);
    reader.refuse(&keys::SERVICE_CIDR, checks::ranges_apart(&pod_ranges, &service_ranges));
    reader.refuse(&keys::SERVICE_CIDR, checks::families_meet(&pod_ranges, &service_ranges));
    NetworkConfig {
        pod_ranges,
        service_ranges,
        node_ranges: reader.text(&keys::NODE_CIDR, values::ranges),
        closed_ranges: reader.text(&keys::EGRESS_EXCEPT, values::ranges),
        proxy: Proxy { namespace: pando_namespace.to_owned() },
        dns: Dns {
            namespace: reader.text(&keys::DNS_NAMESPACE, values::label),
            labels: reader.text(&keys::DNS_LABELS, values::some_labels),
            addresses: reader.text(&keys::DNS_ADDRESSES, values::addresses),
        },
    }
}

fn seconds(reader: &mut Reader, key: &Key<keys::Number>) -> Duration {
    Duration::from_secs(reader.number(key))
}

/// A number whose key bounds it to 32 bits.
fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
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

    #[test]
    fn a_high_rate_has_its_burst_by_itself() {
        let settings = Settings::from_json(&with("api_qps", json!(900))).expect("a configuration");
        assert_eq!((settings.connection.qps, settings.connection.burst), (900, 900));
    }

    #[test]
    fn the_value_of_an_unknown_key_is_not_shown() {
        let secret = json!({"registry": "r.example", "password": "hunter2"});
        for key in ["helper_pull_secret", "helper_pull_secrt", "helper_imge"] {
            let error = Settings::from_json(&with(key, secret.clone())).expect_err("not a key");
            assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");
        }
    }

    /// Every default and every bound of the table, given as it stands, and one beyond each bound.
    #[test]
    fn the_table_says_what_the_reader_takes() {
        for field in Settings::info().fields {
            let take = |value: &Value| Settings::from_json(&with(&field.key, value.clone()));
            for value in field.default.iter().cloned().chain(field.example.map(Value::from)) {
                take(&value).unwrap_or_else(|error| panic!("{} = {value}: {error:?}", field.key));
            }
            assert_eq!(take(&Value::Null).is_err(), field.required, "{} is required", field.key);
            if let pando_api::FieldKind::Number { minimum, maximum } = field.kind {
                // A burst is bounded by the rate too, which is 200 here; a rate brings its burst along.
                let minimum_taken = if field.key == keys::API_BURST.name { 200 } else { minimum };
                for (bound, beyond) in [(minimum_taken, minimum - 1), (maximum, maximum + 1)] {
                    take(&json!(bound)).unwrap_or_else(|error| panic!("{} = {bound}: {error:?}", field.key));
                    assert!(take(&json!(beyond)).is_err(), "{} = {beyond}", field.key);
                }
            }
        }
    }

    #[test]
    fn no_key_stands_in_the_table_twice_or_is_left_unread() {
        let names: Vec<_> = keys::ALL.iter().map(|key| key.name()).collect();
        let unique: std::collections::BTreeSet<_> = names.iter().chain(keys::NOT_BUILT).collect();
        assert_eq!(unique.len(), names.len() + keys::NOT_BUILT.len());
        // Read or not, a key is known by what it says of a list of lists, which no key takes.
        let wrong: serde_json::Map<_, _> = names.iter().map(|name| ((*name).to_owned(), json!([[]]))).collect();
        let error = Settings::from_json(&Value::Object(wrong)).expect_err("all are wrong");
        let told = error.details["problems"].to_string();
        assert!(!told.contains("not a key") && names.iter().all(|name| told.contains(name)), "{told}");
    }
}
