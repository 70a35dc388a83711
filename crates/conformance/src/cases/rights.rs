//! What Pando's account may do, by the roles in `deploy/kubernetes`, and what it may not.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use pando_cluster::names::object;
use pando_cluster::{Failure, Kind, ListRequest, Scope};

use super::fixture::{SOON, failure, key, meta, namespace, secret};
use crate::bed::{Bed, eventually};

/// Gives Pando's account `role` in `namespace`.
fn binding(namespace: &str, role: &str) -> RoleBinding {
    RoleBinding {
        metadata: meta(namespace, object::ROLE_BINDING),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "ClusterRole".to_owned(),
            name: role.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: "pando".to_owned(),
            namespace: Some("pando".to_owned()),
            api_group: None,
        }]),
    }
}

fn is_forbidden(failure: &Failure, verb: &str, resource: &str) -> bool {
    *failure == Failure::Forbidden { verb: verb.to_owned(), resource: resource.to_owned() }
}

pub(super) async fn what_no_role_allows_is_forbidden_by_name(bed: &dyn Bed) {
    let namespace = namespace(bed, "forbidden").await;
    let refused = failure(bed.cluster().get(&key(Kind::Secret, "kube-system", "a")).await);
    assert!(is_forbidden(&refused, "get", "secrets"), "{refused:?}");
    let refused = failure(bed.cluster().list(&ListRequest::of(Kind::Secret, Scope::All)).await);
    assert!(is_forbidden(&refused, "list", "secrets"), "{refused:?}");
    let refused = failure(bed.cluster().get(&key(Kind::NetworkPolicy, &namespace, "a")).await);
    assert!(is_forbidden(&refused, "get", "networkpolicies.networking.k8s.io"), "{refused:?}");
    let refused = failure(bed.cluster().make(&secret(&namespace, "a", &[])).await);
    assert!(is_forbidden(&refused, "create", "secrets"), "{refused:?}");
}

pub(super) async fn a_binding_gives_rights_in_its_namespace_only(bed: &dyn Bed) {
    let (bound, other) = (namespace(bed, "bound").await, namespace(bed, "unbound").await);
    bed.cluster().make(&binding(&bound, object::ROLE_BINDING)).await.expect("the account may bind its role");
    // Each API server learns of a binding in its own time.
    let cluster = bed.cluster();
    eventually(bed.env(), "the binding takes effect", SOON, || async {
        match cluster.make(&secret(&bound, "a", &[])).await {
            Ok(_) => Some(()),
            Err(error) if matches!(error.failure, Failure::Forbidden { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    })
    .await;
    let refused = failure(cluster.make(&secret(&other, "a", &[])).await);
    assert!(is_forbidden(&refused, "create", "secrets"), "{refused:?}");
}

pub(super) async fn only_the_role_for_apps_can_be_bound(bed: &dyn Bed) {
    let namespace = namespace(bed, "escalate").await;
    let refused = failure(bed.cluster().make(&binding(&namespace, "cluster-admin")).await);
    assert!(matches!(refused, Failure::Refused(_) | Failure::Forbidden { .. }), "{refused:?}");
    assert_eq!(bed.admin().get(&key(Kind::RoleBinding, &namespace, object::ROLE_BINDING)).await.expect("a read"), None);
}

pub(super) async fn the_addresses_of_the_api_server_can_be_read(bed: &dyn Bed) {
    let slice: Option<EndpointSlice> = bed.cluster().read(Some("default"), "kubernetes").await.expect("it may be read");
    let slice = slice.expect("every cluster has it");
    assert!(slice.endpoints.iter().any(|endpoint| !endpoint.addresses.is_empty()), "{slice:?}");
}
