//! The manifests in `deploy/kubernetes`, as far as the cluster in memory needs them: an account under exactly
//! the rights that an operator gives it.

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, Subject};
use pando_cluster::{Object, Resource as _};
use pando_fakecluster::Access;
use serde_json::Value;

/// Who Pando is to the API server.
pub const ACCOUNT: &str = "system:serviceaccount:pando:pando";

const FILES: &[&str] = &[
    include_str!("../../../deploy/kubernetes/namespace.yaml"),
    include_str!("../../../deploy/kubernetes/account.yaml"),
    include_str!("../../../deploy/kubernetes/clusterrole.yaml"),
    include_str!("../../../deploy/kubernetes/app-role.yaml"),
    include_str!("../../../deploy/kubernetes/api-server-role.yaml"),
    include_str!("../../../deploy/kubernetes/isolation-role.yaml"),
];

/// What the manifests put into a cluster.
#[derive(Clone, Debug, Default)]
pub struct Manifests {
    /// Objects that the port knows, in an order in which they can be created.
    pub objects: Vec<Object>,
    /// The roles, and who has them.
    pub access: Access,
}

impl Manifests {
    /// Reads them.
    ///
    /// # Panics
    ///
    /// When a manifest is not as it must be: it is of a kind that nobody here understands.
    pub fn read() -> Self {
        let mut manifests = Self::default();
        for file in FILES {
            let documents: Vec<Value> = serde_saphyr::from_multiple(file).expect("the manifests are YAML");
            for document in documents {
                manifests.take(document);
            }
        }
        // The rights that every API server gives everybody, to look at itself, need no role here.
        manifests
    }

    fn take(&mut self, document: Value) {
        let kind = document["kind"].as_str().unwrap_or_default().to_owned();
        match kind.as_str() {
            "Namespace" => self.objects.push(typed::<Namespace>(document).into_object()),
            "ServiceAccount" => self.objects.push(typed::<ServiceAccount>(document).into_object()),
            "ClusterRole" => {
                let role: ClusterRole = typed(document);
                self.role(role.metadata.name, role.rules);
            }
            "Role" => {
                let role: Role = typed(document);
                self.role(role.metadata.name, role.rules);
            }
            "ClusterRoleBinding" => {
                let binding: ClusterRoleBinding = typed(document);
                let users = users(binding.subjects);
                self.access
                    .cluster_bindings
                    .extend(users.into_iter().map(|user| (user, binding.role_ref.name.clone())));
            }
            "RoleBinding" => {
                let binding: RoleBinding = typed(document);
                let namespace = binding.metadata.namespace.expect("a role binding has a namespace");
                let held = users(binding.subjects)
                    .into_iter()
                    .map(|user| (namespace.clone(), user, binding.role_ref.name.clone()));
                self.access.namespace_bindings.extend(held);
            }
            other => panic!("the manifests hold a {other}, which nothing here understands"),
        }
    }

    fn role(&mut self, name: Option<String>, rules: Option<Vec<PolicyRule>>) {
        let name = name.expect("a role has a name");
        let before = self.access.roles.insert(name.clone(), rules.unwrap_or_default());
        assert!(before.is_none(), "two roles are called {name}");
    }
}

fn typed<T: serde::de::DeserializeOwned>(document: Value) -> T {
    serde_json::from_value(document).expect("a manifest is a whole object")
}

fn users(subjects: Option<Vec<Subject>>) -> Vec<String> {
    let user = |subject: Subject| {
        assert_eq!(subject.kind, "ServiceAccount", "only accounts are given rights");
        format!("system:serviceaccount:{}:{}", subject.namespace.unwrap_or_default(), subject.name)
    };
    subjects.into_iter().flatten().map(user).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_holds_one_role_everywhere_and_may_bind_one_other() {
        let access = Manifests::read().access;
        assert_eq!(access.cluster_bindings, [(ACCOUNT.to_owned(), "pando".to_owned())]);
        let binds: Vec<_> =
            access.roles["pando"].iter().filter(|rule| rule.verbs.contains(&"bind".to_owned())).collect();
        assert_eq!(binds.len(), 1);
        assert_eq!(binds[0].resource_names, Some(vec!["pando-app-manager".to_owned()]));
    }

    #[test]
    fn no_right_is_given_by_a_wildcard() {
        for (name, rules) in Manifests::read().access.roles {
            for rule in rules {
                let words = [Some(rule.verbs), rule.resources, rule.api_groups, rule.non_resource_urls];
                assert!(!words.iter().flatten().flatten().any(|word| word.contains('*')), "{name}");
            }
        }
    }

    #[test]
    fn secrets_can_be_read_in_the_namespaces_of_apps_only() {
        let access = Manifests::read().access;
        let reads = |role: &str| {
            let rules = &access.roles[role];
            rules.iter().any(|rule| rule.resources.iter().flatten().any(|resource| resource == "secrets"))
        };
        assert!(reads("pando-app-manager") && !reads("pando") && !reads("pando-api-server"));
    }
}
