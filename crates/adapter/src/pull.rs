//! Credentials that images are pulled with, as Secrets of the kind that kubelets read (S-27).
//!
//! <https://kubernetes.io/docs/tasks/configure-pod-container/pull-image-private-registry/>

use std::collections::BTreeMap;

use data_encoding::BASE64;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use pando_api::RegistryAuth;
use pando_cluster::names::{AppNamespace, label, object, role};
use serde_json::{Map, Value, json};

use crate::plan::{Credential, Workload};

/// The pull Secrets of a plan, by name: an entry for each registry.
#[derive(Debug, Default)]
pub(crate) struct Pulls<'a> {
    secrets: BTreeMap<String, BTreeMap<&'a str, &'a RegistryAuth>>,
}

impl<'a> Pulls<'a> {
    /// One Secret for all; a workload whose credential for a registry is not the others' gets one of its own.
    pub(crate) fn of(workloads: &'a [Workload]) -> Self {
        let mut pulls = Self::default();
        for workload in workloads {
            let Some(Credential { registry, auth }) = &workload.credential else { continue };
            let shared = pulls.secrets.entry(object::PULL_SECRET.to_owned()).or_default();
            if *shared.entry(registry).or_insert(auth) != auth {
                pulls.secrets.entry(own(workload)).or_default().insert(registry, auth);
            }
        }
        pulls
    }

    /// The name of the Secret that the workload's pods pull with.
    pub(crate) fn name_for(&self, workload: &Workload) -> Option<String> {
        workload.credential.as_ref()?;
        let own = own(workload);
        Some(if self.secrets.contains_key(&own) { own } else { object::PULL_SECRET.to_owned() })
    }

    /// The Secrets.
    pub(crate) fn secrets(&self, app: &AppNamespace) -> Vec<Secret> {
        self.secrets.iter().map(|(name, entries)| secret(app, name, entries)).collect()
    }
}

fn own(workload: &Workload) -> String {
    format!("{}-{}", object::PULL_SECRET, workload.name)
}

fn secret(app: &AppNamespace, name: &str, entries: &BTreeMap<&str, &RegistryAuth>) -> Secret {
    let auths: Map<String, Value> =
        entries.iter().map(|(registry, auth)| ((*registry).to_owned(), entry(auth))).collect();
    let config = json!({"auths": auths}).to_string();
    let mut metadata = app.owned_meta(name);
    metadata.labels.get_or_insert_default().insert(label::ROLE.to_owned(), role::PULL.to_owned());
    Secret {
        metadata,
        data: Some([(".dockerconfigjson".to_owned(), ByteString(config.into_bytes()))].into()),
        type_: Some("kubernetes.io/dockerconfigjson".to_owned()),
        ..Secret::default()
    }
}

/// What a kubelet reads of a registry: `auth` is what counts, the rest is what Docker writes beside it.
fn entry(auth: &RegistryAuth) -> Value {
    let (username, password) = (&auth.username, auth.password.expose());
    let mut entry = json!({"auth": BASE64.encode(format!("{username}:{password}").as_bytes())});
    if !username.is_empty() {
        entry["username"] = username.as_str().into();
    }
    if !password.is_empty() {
        entry["password"] = password.into();
    }
    if !auth.identity_token.is_empty() {
        entry["identitytoken"] = auth.identity_token.expose().into();
    }
    entry
}

#[cfg(test)]
mod tests {
    use pando_api::BundlePlan;

    use super::*;
    use crate::check::check;

    fn workloads(pull: &[(&str, &str, Value)]) -> Vec<Workload> {
        let workload =
            |(name, image, auth): &(&str, &str, Value)| json!({"name": name, "image": image, "pull_auth": auth});
        let list: Vec<Value> = pull.iter().map(workload).collect();
        let plan: BundlePlan = serde_json::from_value(json!({"bundle_id": "a", "workloads": list})).expect("a plan");
        check(&plan, &[]).expect("a right plan").workloads
    }

    fn login(password: &str) -> Value {
        json!({"username": "u", "password": password})
    }

    #[test]
    fn workloads_share_a_secret_unless_their_credentials_differ() {
        let workloads = workloads(&[
            ("a", "one.example/a", login("p")),
            ("b", "one.example/b", login("p")),
            ("c", "one.example/c", login("other")),
            ("d", "two.example/d", login("q")),
            ("e", "nginx", json!({"identity_token": "t"})),
            ("f", "nginx", Value::Null),
        ]);
        let pulls = Pulls::of(&workloads);
        let names: Vec<_> = workloads.iter().map(|workload| pulls.name_for(workload)).collect();
        let (shared, own) = (Some("pando-pull".to_owned()), Some("pando-pull-c".to_owned()));
        assert_eq!(names, [shared.clone(), shared.clone(), own, shared.clone(), shared, None]);
        let secrets = pulls.secrets(&AppNamespace::of("a", &[]));
        let keys: Vec<Vec<String>> = secrets
            .iter()
            .map(|secret| {
                let data = &secret.data.as_ref().expect("data")[".dockerconfigjson"].0;
                let config: Value = serde_json::from_slice(data).expect("JSON");
                config["auths"].as_object().expect("an object").keys().cloned().collect()
            })
            .collect();
        assert_eq!(keys, [vec!["https://index.docker.io/v1/", "one.example", "two.example"], vec!["one.example"]]);
    }

    #[test]
    fn an_entry_is_what_a_kubelet_reads() {
        let auth = RegistryAuth { username: "u".to_owned(), password: "p:w".into(), ..RegistryAuth::default() };
        assert_eq!(entry(&auth), json!({"auth": BASE64.encode(b"u:p:w"), "username": "u", "password": "p:w"}));
    }
}
