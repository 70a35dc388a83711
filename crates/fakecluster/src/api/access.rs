//! Access rules (RBAC): who may do what, where, and since when.
//!
//! <https://kubernetes.io/docs/reference/access-authn-authz/rbac/>

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleBinding};
use pando_cluster::{Kind, ObjectKey};

use super::refusal::{Refusal, resource};
use super::{Request, Server, User};
use crate::config::Access;

/// One thing that somebody wants to do.
pub(crate) struct Deed<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    /// The resource, with its part where one is meant: `pods/log`.
    pub(crate) resource: String,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: &'a str,
}

/// Refuses a request that the user has no right to, in Kubernetes' sentence.
pub(crate) fn authorise(server: &Server<'_>, user: &User, request: &Request) -> Result<(), Refusal> {
    let kind = request.kind();
    let part = request.subresource().map(|part| format!("/{part}")).unwrap_or_default();
    let resource = format!("{}{part}", kind.plural());
    let deed = Deed {
        verb: request.verb(),
        group: kind.group(),
        resource,
        namespace: request.namespace(),
        name: request.path_name(),
    };
    if may(server, user, &deed) {
        return Ok(());
    }
    let place = match request.namespace() {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let why = format!(
        "User {:?} cannot {} resource {:?} in API group {:?} {place}",
        user.to_string(),
        deed.verb,
        deed.resource,
        deed.group
    );
    Err(Refusal::forbidden(kind, request.path_name(), why))
}

/// Whether `user` has the right to `deed` now.
pub(crate) fn may(server: &Server<'_>, user: &User, deed: &Deed<'_>) -> bool {
    let (Some(access), User::Named(name)) = (&server.config.access, user) else { return true };
    held_roles(server, access, name, deed.namespace)
        .iter()
        .filter_map(|role| access.roles.get(role))
        .flatten()
        .any(|rule| covers(rule, deed))
}

/// Refuses a role binding that would give away more than its maker holds, unless they may bind that role.
pub(crate) fn refuse_escalation(server: &Server<'_>, user: &User, binding: &RoleBinding) -> Result<(), Refusal> {
    let Some(access) = &server.config.access else { return Ok(()) };
    let namespace = binding.metadata.namespace.as_deref();
    let role = binding.role_ref.name.as_str();
    let bind = Deed {
        verb: "bind",
        group: Kind::RoleBinding.group(),
        resource: if binding.role_ref.kind == "ClusterRole" { "clusterroles" } else { "roles" }.to_owned(),
        namespace,
        name: role,
    };
    if may(server, user, &bind) || access.roles.get(role).is_some_and(|rules| holds_all(server, user, namespace, rules))
    {
        return Ok(());
    }
    let name = binding.metadata.name.as_deref().unwrap_or_default();
    let why = format!("user {:?} is attempting to grant RBAC permissions not currently held", user.to_string());
    debug_assert_eq!(resource(Kind::RoleBinding), "rolebindings.rbac.authorization.k8s.io");
    Err(Refusal::forbidden(Kind::RoleBinding, name, why))
}

fn holds_all(server: &Server<'_>, user: &User, namespace: Option<&str>, rules: &[PolicyRule]) -> bool {
    let any = [String::new()];
    rules.iter().all(|rule| {
        let groups = rule.api_groups.as_deref().unwrap_or_default();
        let resources = rule.resources.as_deref().unwrap_or_default();
        let names = rule.resource_names.as_deref().filter(|names| !names.is_empty()).unwrap_or(&any);
        rule.non_resource_urls.as_ref().is_none_or(Vec::is_empty)
            && rule.verbs.iter().all(|verb| {
                groups.iter().all(|group| {
                    resources.iter().all(|resource| {
                        names.iter().all(|name| {
                            let resource = resource.clone();
                            may(server, user, &Deed { verb, group, resource, namespace, name })
                        })
                    })
                })
            })
    })
}

/// The cluster roles that `user` holds in `namespace`.
fn held_roles(server: &Server<'_>, access: &Access, user: &str, namespace: Option<&str>) -> Vec<String> {
    let everywhere = access.cluster_bindings.iter().filter(|(holder, _)| holder == user).map(|(_, role)| role.clone());
    let mut roles: Vec<_> = everywhere.collect();
    let Some(namespace) = namespace else { return roles };
    let here = access.namespace_bindings.iter().filter(|(place, holder, _)| place == namespace && holder == user);
    roles.extend(here.map(|(_, _, role)| role.clone()));
    for binding in server.store.typed_within::<RoleBinding>(namespace) {
        let name = binding.metadata.name.clone().unwrap_or_default();
        let key = ObjectKey::namespaced(Kind::RoleBinding, namespace, name);
        let age = server.store.written(&key).map(|written| server.env.now().since(written)).unwrap_or_default();
        let given = binding.role_ref.kind == "ClusterRole" && is_for(&binding, namespace, user);
        if given && age >= server.config.rbac_lag {
            roles.push(binding.role_ref.name.clone());
        }
    }
    roles
}

/// An account that is named without a namespace is one of the binding's own.
fn is_for(binding: &RoleBinding, home: &str, user: &str) -> bool {
    binding.subjects.iter().flatten().any(|subject| match subject.kind.as_str() {
        "User" => subject.name == user,
        "ServiceAccount" => {
            let namespace = subject.namespace.as_deref().filter(|it| !it.is_empty()).unwrap_or(home);
            user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'))
                == Some((namespace, &subject.name))
        }
        _ => false,
    })
}

fn covers(rule: &PolicyRule, deed: &Deed<'_>) -> bool {
    let has = |list: &[String], wanted: &str| list.iter().any(|it| it == "*" || it == wanted);
    let names = rule.resource_names.as_deref().unwrap_or_default();
    has(&rule.verbs, deed.verb)
        && has(rule.api_groups.as_deref().unwrap_or_default(), deed.group)
        && has(rule.resources.as_deref().unwrap_or_default(), &deed.resource)
        && (names.is_empty() || names.iter().any(|name| name == deed.name))
}
