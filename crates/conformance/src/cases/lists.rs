//! Reading many objects.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Namespace, Secret};
use pando_cluster::{Kind, ListRequest, Scope, Selector};

use super::fixture::{labelled, namespace, nowhere, secret};
use crate::bed::Bed;

fn secrets_in(namespace: &str) -> ListRequest {
    ListRequest::of(Kind::Secret, Scope::Namespace(namespace.to_owned()))
}

fn names(secrets: &[Secret]) -> Vec<&str> {
    secrets.iter().filter_map(|secret| secret.metadata.name.as_deref()).collect()
}

/// Makes seven Secrets, in no order.
async fn seven(bed: &dyn Bed, namespace: &str) {
    for name in ["d", "b", "a-1", "a", "g", "c", "f"] {
        bed.admin().make(&secret(namespace, name, &[])).await.expect("a Secret");
    }
}

pub(super) async fn pages_hold_every_object_once_in_order(bed: &dyn Bed) {
    let namespace = namespace(bed, "pages").await;
    seven(bed, &namespace).await;
    for limit in [1, 2, 3, 7, 8] {
        let request = ListRequest { limit: Some(limit), ..secrets_in(&namespace) };
        let (all, _) = bed.admin().list_all::<Secret>(&request).await.expect("a list");
        assert_eq!(names(&all), ["a", "a-1", "b", "c", "d", "f", "g"], "{limit} a page");
    }
}

pub(super) async fn all_pages_are_of_one_version(bed: &dyn Bed) {
    let namespace = namespace(bed, "version").await;
    seven(bed, &namespace).await;
    let request = ListRequest { limit: Some(4), ..secrets_in(&namespace) };
    let first = bed.admin().list(&request).await.expect("the first page");
    // What comes while a list is being read belongs to the next one.
    bed.admin().make(&secret(&namespace, "e", &[])).await.expect("one more");
    let rest = bed.admin().list(&ListRequest { after: first.next, ..request }).await.expect("the second page");
    assert_eq!((first.items.len(), rest.items.len(), rest.next), (4, 3, None));
    assert_eq!(rest.version, first.version);
}

pub(super) async fn a_list_of_nothing_is_empty(bed: &dyn Bed) {
    for namespace in [namespace(bed, "empty").await, nowhere(bed)] {
        let page = bed.admin().list(&secrets_in(&namespace)).await.expect("an empty list is no error");
        assert_eq!((page.items.len(), page.next), (0, None), "{namespace}");
        assert!(!page.version.as_str().is_empty(), "{namespace}: a watch can begin here");
    }
}

pub(super) async fn labels_choose(bed: &dyn Bed) {
    let namespace = namespace(bed, "labels").await;
    for (name, labels) in [
        ("both", [("tier", "web"), ("pando.dev/x", "1")].as_slice()),
        ("other", [("tier", "db"), ("pando.dev/x", "")].as_slice()),
        ("plain", [].as_slice()),
    ] {
        let secret = Secret { metadata: labelled(&namespace, name, labels), ..Secret::default() };
        bed.admin().make(&secret).await.expect("a Secret");
    }
    let any = Selector::everything;
    let rows = [
        (any(), ["both", "other", "plain"].as_slice()),
        (any().exists("tier"), &["both", "other"]),
        (any().equals("tier", "web"), &["both"]),
        (any().equals("pando.dev/x", ""), &["other"]),
        (any().equals("tier", "web").exists("pando.dev/x"), &["both"]),
        (any().equals("tier", "none"), &[]),
    ];
    for (selector, expected) in rows {
        let request = secrets_in(&namespace).labelled(selector.clone());
        let (found, _) = bed.admin().list_all::<Secret>(&request).await.expect("a list");
        assert_eq!(names(&found), expected, "{selector}");
    }
}

pub(super) async fn a_name_chooses(bed: &dyn Bed) {
    let namespace = namespace(bed, "fields").await;
    seven(bed, &namespace).await;
    let request = secrets_in(&namespace).with_fields(Selector::everything().equals("metadata.name", "a"));
    let (found, _) = bed.admin().list_all::<Secret>(&request).await.expect("a list");
    assert_eq!(names(&found), ["a"]);
}

pub(super) async fn a_list_of_everything_spans_namespaces(bed: &dyn Bed) {
    let (one, other) = (namespace(bed, "one").await, namespace(bed, "other").await);
    for namespace in [&one, &other] {
        bed.admin().make(&secret(namespace, "a", &[])).await.expect("a Secret");
    }
    let (found, _) = bed.admin().list_all::<Secret>(&ListRequest::of(Kind::Secret, Scope::All)).await.expect("a list");
    let places: BTreeSet<_> = found.iter().filter_map(|secret| secret.metadata.namespace.as_deref()).collect();
    assert!(places.contains(one.as_str()) && places.contains(other.as_str()), "{places:?}");
    let (all, _) =
        bed.admin().list_all::<Namespace>(&ListRequest::of(Kind::Namespace, Scope::All)).await.expect("a list");
    let names: BTreeSet<_> = all.iter().filter_map(|namespace| namespace.metadata.name.as_deref()).collect();
    for expected in [one.as_str(), other.as_str(), "default", "kube-system", "pando"] {
        assert!(names.contains(expected), "{expected} in {names:?}");
    }
}
