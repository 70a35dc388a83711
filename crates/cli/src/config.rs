//! Where the configuration comes from, and which cluster it means.

use std::env;
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use pando_adapter::{Connection, Settings};
use pando_api::{Code, Error};
use pando_kubecluster::{ConnectError, ConnectOptions, Rate};
use serde_json::{Map, Value};

use crate::args::{Global, Setting};
use crate::document;

/// The settings that the flags, the file and the variables give; contacts nothing.
///
/// # Errors
///
/// [`Code::ValidInvalid`] for a file that cannot be read and for everything that is wrong with what it says.
pub(crate) fn load(global: &Global) -> Result<Settings, Error> {
    let named = env::var_os("PANDO_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    let written = match global.config.as_ref().or(named.as_ref()) {
        Some(path) => read(path)?,
        None => Value::Object(Map::new()),
    };
    Settings::from_json(&merged(written, global))
}

fn read(path: &Path) -> Result<Value, Error> {
    let refuse =
        |problem: String| Error::new(Code::ValidInvalid, format!("the configuration {} {problem}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| {
        refuse("cannot be read".to_owned()).remedy("check the path given by --config or PANDO_CONFIG").caused_by(error)
    })?;
    document::read(&text)
        .map_err(|error| refuse(format!("cannot be read: {error}")).remedy("write it as JSON or YAML, each key once"))
}

/// What was written, with what the command line says in its place.
fn merged(mut written: Value, global: &Global) -> Value {
    // Anything else is refused as a whole, with what a configuration looks like.
    if let Value::Object(map) = &mut written {
        for Setting { key, value } in &global.settings {
            map.insert(key.clone(), value.clone());
        }
        if let Some(path) = &global.kubeconfig {
            map.insert("kubeconfig".to_owned(), path.to_string_lossy().into());
        }
        if let Some(name) = &global.context {
            map.insert("context".to_owned(), name.as_str().into());
        }
    }
    written
}

/// How to reach the cluster that the settings mean, for a person: unlike a server, they may mean the cluster they last
/// looked at.
pub(crate) fn connection(settings: &Connection) -> ConnectOptions {
    let kubeconfig = settings.kubeconfig.as_ref().map(PathBuf::from);
    let kubeconfig = kubeconfig.or_else(|| kubectls_own(env::var_os("KUBECONFIG"), env::home_dir()));
    let rate = Rate::default();
    ConnectOptions {
        kubeconfig,
        context: settings.context.clone(),
        rate: Rate {
            qps: NonZeroU32::new(settings.qps).unwrap_or(rate.qps),
            burst: NonZeroU32::new(settings.burst).unwrap_or(rate.burst),
        },
    }
}

/// The file that `kubectl` uses by default, when it is there and no variable names others.
fn kubectls_own(variable: Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    if variable.is_some_and(|files| !files.is_empty()) {
        return None;
    }
    Some(home?.join(".kube/config")).filter(|path| path.is_file())
}

/// What a connection that cannot be had means to a person: a name to correct, or a cluster to mend.
pub(crate) fn unconnected(error: ConnectError) -> Error {
    let code = match &error {
        ConnectError::Unreadable { .. }
        | ConnectError::Malformed { .. }
        | ConnectError::NoContext { .. }
        | ConnectError::UnknownContext { .. }
        | ConnectError::Proxy(_) => Code::ValidInvalid,
        ConnectError::NoKubeconfig
        | ConnectError::Unusable(_)
        | ConnectError::InCluster(_)
        | ConnectError::NoToken { .. }
        | ConnectError::NoCredentials(_) => Code::AdapterUnavailable,
    };
    Error::new(code, error.to_string()).remedy(error.remedy()).caused_by(error)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::args::Cli;

    fn global(words: &[&str]) -> Global {
        Cli::parse_from([&["pando-k8s", "observe", "a"], words].concat()).global
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_a_flag_over_a_set() {
        let written = json!({"pod_cidr": "10.0.0.0/8", "api_qps": 7, "kubeconfig": "file", "context": "file"});
        let words = [
            "--set",
            "pod_cidr=10.1.0.0/16",
            "--set",
            "kubeconfig=set",
            "--kubeconfig",
            "flag",
            "--set",
            "context=set",
        ];
        assert_eq!(
            merged(written, &global(&words)),
            json!({"pod_cidr": "10.1.0.0/16", "api_qps": 7, "kubeconfig": "flag", "context": "set"})
        );
    }

    #[test]
    fn the_last_of_two_sets_counts() {
        let words = ["--set", "api_qps=1", "--set", "api_qps=2"];
        assert_eq!(merged(json!({}), &global(&words)), json!({"api_qps": 2}));
    }

    #[test]
    fn kubectls_own_file_is_used_when_it_is_there_and_no_variable_names_another() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join(".kube/config");
        let of = |variable: Option<&str>| kubectls_own(variable.map(OsString::from), Some(home.path().to_owned()));
        assert_eq!(of(None), None, "it is not there");
        std::fs::create_dir(home.path().join(".kube")).and_then(|()| std::fs::write(&path, "")).expect("written");
        assert_eq!((of(None), of(Some(""))), (Some(path.clone()), Some(path)));
        assert_eq!((of(Some("/other")), kubectls_own(None, None)), (None, None));
    }

    #[test]
    fn the_rate_is_the_settings() {
        let settings = Settings::from_json(&json!({"pod_cidr": "10.0.0.0/16", "service_cidr": "10.1.0.0/16", "kubeconfig": "/k", "api_qps": 3, "api_burst": 9}))
            .expect("a configuration");
        let options = connection(&settings.connection);
        assert_eq!((options.rate.qps.get(), options.rate.burst.get()), (3, 9));
        assert_eq!(options.kubeconfig, Some(PathBuf::from("/k")));
    }
}
