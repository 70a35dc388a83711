//! Names, labels and annotations of what we make, and whose an object is.
//!
//! Every name here is an interface fact: other tools and earlier versions read them (S-17 – S-20).

use std::collections::BTreeMap;
use std::fmt;

use data_encoding::BASE32_NOPAD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest, Sha256};

/// Label keys.
pub mod label {
    /// Who made an object; ours carry [`super::MANAGER`].
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// The bundle's label form.
    pub const BUNDLE: &str = "pando.dev/bundle";
    /// The workload's name.
    pub const WORKLOAD: &str = "pando.dev/workload";
    /// The start of a workload that a pod belongs to; on a Service, the newest.
    pub const REVISION: &str = "pando.dev/revision";
    /// The volume's id in its label form.
    pub const VOLUME: &str = "pando.dev/volume";
    /// What an object that is no app's is for.
    pub const ROLE: &str = "pando.dev/role";
    /// Which pod security standard a namespace enforces.
    pub const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";
    /// A namespace's own name, set by Kubernetes and by nobody else.
    pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
}

/// Annotation keys.
pub mod annotation {
    /// The bundle's exact id.
    pub const BUNDLE_ID: &str = "pando.dev/bundle-id";
    /// Digest of what the plan says of a pod's workload.
    pub const PLAN_DIGEST: &str = "pando.dev/plan-digest";
    /// Digest of what the platform adds to a pod.
    pub const TEMPLATE_DIGEST: &str = "pando.dev/template-digest";
    /// The key of the environment's digest, on the environment's Secret.
    pub const ENV_DIGEST_KEY: &str = "pando.dev/env-digest-key";
    /// What the environment's Secret was before this adapter wrote to it: a pod of the adapter before runs by that.
    pub const ENV_BEFORE: &str = "pando.dev/env-before";
    /// The exact id of the volume that a claim is.
    pub const VOLUME_ID: &str = "pando.dev/volume-id";
    /// What people call the volume that a claim is.
    pub const VOLUME_NAME: &str = "pando.dev/volume-name";
    /// On a namespace: who wrote it last for no other reason than that its version moves. Whoever decides to delete it sets it to
    /// [`super::TO_BE_DELETED`] and deletes that very version; whoever has a use for it takes that off.
    pub const TOUCHED: &str = "pando.dev/touched";
    /// The request that wrote an object last.
    pub const REQUEST_ID: &str = "pando.dev/request-id";
    /// Whether an autoscaler may move the pod to empty a node.
    pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
}

/// Values of [`label::ROLE`].
pub mod role {
    /// Pulls an image, or holds the credentials for it.
    pub const PULL: &str = "pull";
    /// Finds out whether network policies are enforced, or is a namespace for that.
    pub const CANARY: &str = "canary";
}

/// The value of [`annotation::TOUCHED`] on a namespace that is about to be deleted.
pub const TO_BE_DELETED: &str = "to-be-deleted";

/// The value of [`label::MANAGED_BY`] on everything we make.
pub const MANAGER: &str = "pando";

/// The scheduling gate that keeps a pod from running until its start is settled.
pub const START_GATE: &str = "pando.dev/start";

/// Names of the objects that an app's namespace holds once.
pub mod object {
    /// Gives our account its rights in the namespace.
    pub const ROLE_BINDING: &str = "pando-app-manager";
    /// The account that the app's pods run as.
    pub const SERVICE_ACCOUNT: &str = "pando-app";
    /// The policy that selects every pod of the app.
    pub const DEFAULT_POLICY: &str = "pando-default";
    /// The quota.
    pub const QUOTA: &str = "pando-quota";
    /// The credentials that images are pulled with.
    pub const PULL_SECRET: &str = "pando-pull";
    /// The egress gateway's name; no workload may have it.
    pub const EGRESS_GATEWAY: &str = "pando-egress";
    /// In Pando's own namespace: what the cluster's isolation is held to be.
    pub const ISOLATION: &str = "pando-isolation";
}

/// The longest name of a namespace, of a Service and of a label's value.
pub const MAX_LABEL: usize = 63;

/// What each of our namespaces' names begins with.
pub const PREFIX: &str = "pando-";

/// What the labels of canaries' namespaces begin with.
const CANARY: &str = "canary-";

/// Length of the hash, with its hyphen, that keeps two ids apart.
const HASH: usize = 11;

const _: () = assert!(PREFIX.len() + HASH < MAX_LABEL, "a hashed id fits a namespace's name");

/// The namespace of one app, derived from its bundle's id.
///
/// Two ids never share one (S-17); ownership is decided by the id kept in [`annotation::BUNDLE_ID`] all the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppNamespace {
    bundle_id: String,
    label: String,
}

impl AppNamespace {
    /// The namespace of the bundle `bundle_id`, which is any text. `reserved` are the namespaces of Pando
    /// itself, which no app may get.
    pub fn of(bundle_id: &str, reserved: &[&str]) -> Self {
        let taken = |label: &str| {
            label == "edge"
                || label.starts_with(CANARY)
                || label.starts_with("trial-")
                || reserved.iter().any(|name| name.strip_prefix(PREFIX) == Some(label))
        };
        Self { bundle_id: bundle_id.to_owned(), label: label_of(bundle_id, MAX_LABEL - PREFIX.len(), taken) }
    }

    /// A namespace for a canary (S-13), which no bundle can get. `token` tells it from others: lower-case letters and digits.
    pub fn canary(token: &str) -> Self {
        Self { bundle_id: String::new(), label: format!("{CANARY}{token}") }
    }

    /// The namespace's name, `pando-<label>`.
    pub fn name(&self) -> String {
        format!("{PREFIX}{}", self.label)
    }

    /// The id as the value of [`label::BUNDLE`].
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The id exactly as core spells it.
    pub fn bundle_id(&self) -> &str {
        &self.bundle_id
    }

    /// Metadata of the object `name` that we make in this namespace.
    pub fn owned_meta(&self, name: impl Into<String>) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.into()),
            namespace: Some(self.name()),
            labels: Some(self.owned_labels()),
            ..ObjectMeta::default()
        }
    }

    /// The labels that everything of this app carries.
    pub fn owned_labels(&self) -> BTreeMap<String, String> {
        [(label::MANAGED_BY.to_owned(), MANAGER.to_owned()), (label::BUNDLE.to_owned(), self.label.clone())].into()
    }

    /// The app of a namespace, by its metadata; `None` for a namespace that is not an app's of ours.
    pub fn from_meta(meta: &ObjectMeta) -> Option<Self> {
        let label = meta.labels.as_ref()?.get(label::BUNDLE)?;
        let bundle_id = meta.annotations.as_ref()?.get(annotation::BUNDLE_ID)?;
        (is_ours(meta) && meta.name.as_deref().and_then(|name| name.strip_prefix(PREFIX)) == Some(label))
            .then(|| Self { bundle_id: bundle_id.clone(), label: label.clone() })
    }
}

impl fmt::Display for AppNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.label)
    }
}

/// A volume's id as the value of [`label::VOLUME`]; two ids never share one (S-17). It fits a claim's name behind `pando-`.
pub fn volume_label(volume_id: &str) -> String {
    label_of(volume_id, MAX_LABEL - PREFIX.len(), |_| false)
}

/// The name of a volume's claim.
pub fn claim_name(volume_id: &str) -> String {
    format!("{PREFIX}{}", volume_label(volume_id))
}

/// Whether we made the object, by its labels.
pub fn is_ours(meta: &ObjectMeta) -> bool {
    meta.labels.as_ref().and_then(|labels| labels.get(label::MANAGED_BY)).is_some_and(|manager| manager == MANAGER)
}

/// A label of the object.
pub fn label_value<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

/// An annotation of the object.
pub fn annotation_value<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Turns an id into a label of at most `limit` bytes; see S-17 for when a hash is appended.
fn label_of(id: &str, limit: usize, taken: impl Fn(&str) -> bool) -> String {
    let cleaned: String = id
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .collect();
    let cleaned = cleaned.trim_matches('-');
    let lossless = cleaned == id || is_core_form(id);
    let mistakable = !is_core_form(id) && is_image_of_core_form(cleaned);
    if lossless && !mistakable && !cleaned.is_empty() && cleaned.len() <= limit && !taken(cleaned) {
        return cleaned.to_owned();
    }
    let hash = BASE32_NOPAD.encode(&Sha256::digest(id.as_bytes())).to_ascii_lowercase();
    let kept = cleaned[..cleaned.len().min(limit - HASH)].trim_end_matches('-');
    let hash = &hash[..HASH - 1];
    if kept.is_empty() { format!("x-{hash}") } else { format!("{kept}-{hash}") }
}

/// `^[a-z][a-z0-9]*_[0-9A-HJKMNP-TV-Z]{8,26}$`
fn is_core_form(id: &str) -> bool {
    id.split_once('_').is_some_and(|(kind, rest)| is_kind(kind) && is_ulid_like(rest, |c| !c.is_ascii_lowercase()))
}

/// What a core form looks like as a label.
fn is_image_of_core_form(label: &str) -> bool {
    label.split_once('-').is_some_and(|(kind, rest)| is_kind(kind) && is_ulid_like(rest, |c| !c.is_ascii_uppercase()))
}

fn is_kind(kind: &str) -> bool {
    kind.starts_with(|c: char| c.is_ascii_lowercase())
        && kind.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
}

fn is_ulid_like(text: &str, right_case: impl Fn(char) -> bool) -> bool {
    (8..=26).contains(&text.len())
        && text.chars().all(|c| right_case(c) && c.is_ascii_alphanumeric() && !"ILOU".contains(c.to_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: &[&str] = &["pando", "pando-edge", "pando-system"];

    #[test]
    fn ids_become_namespaces() {
        for (id, namespace) in [
            ("app_01HQ8ABC", "pando-app-01hq8abc"),
            ("blog", "pando-blog"),
            ("my-app", "pando-my-app"),
            ("app_01HQ8ABCDEFGHJKMNPQRSTVWXY", "pando-app-01hq8abcdefghjkmnpqrstvwxy"),
        ] {
            assert_eq!(AppNamespace::of(id, OWN).name(), namespace);
        }
    }

    /// Each of these loses something, or would be mistaken for another's.
    #[test]
    fn ids_that_could_meet_another_get_a_hash() {
        let long = "a".repeat(58);
        for id in [
            "Blog",
            "my_app",
            "app-01hq8abc",
            "",
            "---",
            "edge",
            "canary-1",
            "trial-x",
            "system",
            "-a",
            "a-",
            "ä",
            &long,
        ] {
            let name = AppNamespace::of(id, OWN).name();
            let hash = name.rsplit('-').next().expect("rsplit yields at least one part");
            assert!(hash.len() == 10 && name.len() <= MAX_LABEL, "{id:?} became {name}");
        }
    }

    #[test]
    fn an_apps_namespace_is_known_by_its_metadata() {
        let app = AppNamespace::of("app_01HQ8ABC", OWN);
        let mut meta = app.owned_meta(app.name());
        assert_eq!(AppNamespace::from_meta(&meta), None, "without its id it is nobody's");
        meta.annotations = Some([(annotation::BUNDLE_ID.to_owned(), "app_01HQ8ABC".to_owned())].into());
        assert_eq!(AppNamespace::from_meta(&meta), Some(app));
        meta.name = Some("kube-system".to_owned());
        assert_eq!(AppNamespace::from_meta(&meta), None, "a label alone makes no namespace ours");
    }

    /// Ids that are alike: one character of difference, case, separators.
    fn alike() -> impl Strategy<Value = String> {
        prop_oneof![
            "[aA][-_.]?[bB1]{0,2}",
            "app[-_]0{6}[0-2aA]{2,3}",
            "[a-c]{56,60}",
            "(edge|canary-|trial-)[a-b]{0,2}",
            any::<String>()
        ]
    }

    proptest! {
        #[test]
        fn every_id_gets_a_valid_name(id in any::<String>()) {
            let name = AppNamespace::of(&id, OWN).name();
            prop_assert!(name.len() <= MAX_LABEL);
            prop_assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
            prop_assert!(name.ends_with(|c: char| c != '-'));
            prop_assert!(!OWN.contains(&name.as_str()));
        }

        #[test]
        fn two_ids_never_meet(a in alike(), b in alike()) {
            prop_assume!(a != b);
            prop_assert_ne!(AppNamespace::of(&a, OWN).name(), AppNamespace::of(&b, OWN).name());
        }
    }
}
