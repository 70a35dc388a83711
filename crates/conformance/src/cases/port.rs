//! Creating, reading, changing and deleting one object.

use futures::future::join;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_cluster::{DeleteOptions, Failure, Kind, MergePatch, ObjectKey, Resource, Uid};
use serde_json::json;

use super::fixture::{
    account, delete, failure, gone, hold, key, map, namespace, nowhere, patch, release, secret, service, uid, until,
    version,
};
use crate::bed::Bed;

pub(super) async fn what_was_created_is_what_is_read(bed: &dyn Bed) {
    let namespace = namespace(bed, "created").await;
    let made = bed.admin().make(&secret(&namespace, "a", &[("KEY", "value")])).await.expect("a Secret");
    assert!(Uid::of(&made.metadata).is_some() && made.metadata.resource_version.is_some(), "{:?}", made.metadata);
    assert!(made.metadata.creation_timestamp.is_some(), "{:?}", made.metadata);
    assert_eq!(made.type_.as_deref(), Some("Opaque"), "what was not said is filled in");
    let read: Secret = bed.admin().read(Some(&namespace), "a").await.expect("a read").expect("it is there");
    assert_eq!(read, made);
}

pub(super) async fn what_is_not_there_is_none(bed: &dyn Bed) {
    let namespace = namespace(bed, "none").await;
    let nowhere = nowhere(bed);
    for key in [
        key(Kind::Secret, &namespace, "a"),
        key(Kind::Secret, &nowhere, "a"),
        ObjectKey::cluster(Kind::Namespace, nowhere.clone()),
    ] {
        assert_eq!(bed.admin().get(&key).await.expect("absence is no error"), None, "{key}");
    }
    let none = DeleteOptions::of(Uid::new("00000000-0000-4000-8000-000000000000"));
    assert_eq!(failure(bed.admin().delete(&key(Kind::Secret, &namespace, "a"), &none).await), Failure::NotFound);
}

pub(super) async fn a_name_is_taken_once(bed: &dyn Bed) {
    let namespace = namespace(bed, "taken").await;
    let first = bed.admin().make(&secret(&namespace, "a", &[("KEY", "first")])).await.expect("the first");
    let second = bed.admin().make(&secret(&namespace, "a", &[("KEY", "second")])).await;
    assert_eq!(failure(second), Failure::AlreadyExists { being_deleted: false });
    let read: Option<Secret> = bed.admin().read(Some(&namespace), "a").await.expect("a read");
    assert_eq!(read, Some(first), "the first is as it was");
}

pub(super) async fn a_name_is_taken_while_its_holder_is_being_deleted(bed: &dyn Bed) {
    let namespace = namespace(bed, "dying").await;
    let key = key(Kind::Secret, &namespace, "a");
    let first = bed.admin().make(&secret(&namespace, "a", &[])).await.expect("the first");
    hold(bed, &key).await;
    delete(bed, &key).await;
    let held: Secret = bed.admin().read(Some(&namespace), "a").await.expect("a read").expect("its finalizer holds it");
    assert_eq!(uid(&held.metadata), uid(&first.metadata));
    assert!(held.metadata.deletion_timestamp.is_some(), "{:?}", held.metadata);
    let second = bed.admin().make(&secret(&namespace, "a", &[])).await;
    assert_eq!(failure(second), Failure::AlreadyExists { being_deleted: true });
    release(bed, &key).await;
    gone(bed, &key).await;
    bed.admin().make(&secret(&namespace, "a", &[])).await.expect("the name is free");
}

pub(super) async fn a_namespace_that_is_not_there_takes_nothing(bed: &dyn Bed) {
    let made = bed.admin().make(&secret(&nowhere(bed), "a", &[])).await;
    assert_eq!(failure(made), Failure::NotFound);
}

pub(super) async fn a_namespace_that_is_being_deleted_takes_nothing_new(bed: &dyn Bed) {
    let namespace = namespace(bed, "leaving").await;
    let held = key(Kind::Secret, &namespace, "held");
    bed.admin().make(&secret(&namespace, "held", &[])).await.expect("a Secret");
    hold(bed, &held).await;
    let itself = ObjectKey::cluster(Kind::Namespace, namespace.clone());
    delete(bed, &itself).await;
    let made = bed.admin().make(&secret(&namespace, "new", &[])).await;
    assert_eq!(failure(made), Failure::NamespaceTerminating);
    let again = Namespace {
        metadata: ObjectMeta { name: Some(namespace.clone()), ..ObjectMeta::default() },
        ..Namespace::default()
    };
    assert!(matches!(failure(bed.admin().make(&again).await), Failure::AlreadyExists { .. }));
    // It is held by what is in it, and by nothing else.
    until(bed, &held, "is being deleted", |secret: &Secret| secret.metadata.deletion_timestamp.as_ref().map(|_| ()))
        .await;
    release(bed, &held).await;
    gone(bed, &itself).await;
}

pub(super) async fn a_namespace_takes_everything_in_it_along(bed: &dyn Bed) {
    let namespace = namespace(bed, "along").await;
    bed.admin().make(&secret(&namespace, "a", &[])).await.expect("a Secret");
    bed.admin().make(&service(&namespace, "b", None)).await.expect("a Service");
    let itself = ObjectKey::cluster(Kind::Namespace, namespace.clone());
    delete(bed, &itself).await;
    gone(bed, &itself).await;
    for key in [key(Kind::Secret, &namespace, "a"), key(Kind::Service, &namespace, "b")] {
        assert_eq!(bed.admin().get(&key).await.expect("a read"), None, "{key}");
    }
}

pub(super) async fn a_patch_for_an_old_version_changes_nothing(bed: &dyn Bed) {
    let namespace = namespace(bed, "stale").await;
    let key = key(Kind::ServiceAccount, &namespace, "a");
    let first = bed.admin().make(&account(&namespace, "a")).await.expect("an account");
    let labels = |value: &str| json!({"metadata": {"labels": {"by": value}}});
    bed.admin()
        .patch(&key, &MergePatch::at(&version(&first.metadata), labels("one")))
        .await
        .expect("it is at that version");
    let late = bed.admin().patch(&key, &MergePatch::at(&version(&first.metadata), labels("late"))).await;
    assert!(matches!(failure(late), Failure::Conflict(_)));
    let read: ServiceAccount = bed.admin().read(Some(&namespace), "a").await.expect("a read").expect("it is there");
    assert_eq!(read.metadata.labels, Some(map(&[("by", "one")])));
}

pub(super) async fn a_patch_of_what_is_gone_finds_nothing(bed: &dyn Bed) {
    let namespace = namespace(bed, "gone").await;
    let key = key(Kind::ServiceAccount, &namespace, "a");
    let made = bed.admin().make(&account(&namespace, "a")).await.expect("an account");
    delete(bed, &key).await;
    gone(bed, &key).await;
    let late = bed.admin().patch(&key, &MergePatch::at(&version(&made.metadata), json!({}))).await;
    assert_eq!(failure(late), Failure::NotFound);
}

pub(super) async fn a_null_removes_a_member_and_the_rest_stays(bed: &dyn Bed) {
    let namespace = namespace(bed, "null").await;
    let key = key(Kind::Secret, &namespace, "a");
    bed.admin().make(&secret(&namespace, "a", &[("GOES", "1"), ("STAYS", "2")])).await.expect("a Secret");
    let changed = patch(bed, &key, json!({"data": {"GOES": null, "COMES": "Mw=="}})).await.expect("a patch");
    let changed = Secret::from_object(changed).expect("a Secret");
    let data = changed.data.unwrap_or_default();
    let values: Vec<_> = data.iter().map(|(key, value)| (key.as_str(), value.0.as_slice())).collect();
    assert_eq!(values, [("COMES", b"3".as_slice()), ("STAYS", b"2".as_slice())]);
}

pub(super) async fn a_patch_that_changes_nothing_leaves_the_version(bed: &dyn Bed) {
    let namespace = namespace(bed, "same").await;
    let key = key(Kind::Secret, &namespace, "a");
    let made = bed.admin().make(&secret(&namespace, "a", &[("KEY", "value")])).await.expect("a Secret");
    for body in [json!({}), json!({"data": {"KEY": "dmFsdWU="}}), json!({"data": {"ABSENT": null}})] {
        let patched =
            bed.admin().patch(&key, &MergePatch::at(&version(&made.metadata), body.clone())).await.expect("a patch");
        assert_eq!(version(patched.meta()), version(&made.metadata), "{body}");
    }
}

pub(super) async fn of_two_writers_at_one_version_one_wins(bed: &dyn Bed) {
    let namespace = namespace(bed, "race").await;
    let key = key(Kind::ServiceAccount, &namespace, "a");
    let made = bed.admin().make(&account(&namespace, "a")).await.expect("an account");
    let write = async |who: &str| {
        let body = json!({"metadata": {"labels": {"by": who}}});
        bed.admin().patch(&key, &MergePatch::at(&version(&made.metadata), body)).await
    };
    let (one, other) = join(write("one"), write("other")).await;
    let (winner, loser, name) = if one.is_ok() { (one, other, "one") } else { (other, one, "other") };
    let winner = winner.expect("one of them wins");
    assert!(matches!(failure(loser), Failure::Conflict(_)));
    assert_eq!(winner.meta().labels.as_ref().and_then(|labels| labels.get("by")).map(String::as_str), Some(name));
}

pub(super) async fn another_object_of_the_name_is_not_deleted(bed: &dyn Bed) {
    let namespace = namespace(bed, "uid").await;
    let key = key(Kind::Secret, &namespace, "a");
    let first = bed.admin().make(&secret(&namespace, "a", &[])).await.expect("the first");
    delete(bed, &key).await;
    gone(bed, &key).await;
    let second = bed.admin().make(&secret(&namespace, "a", &[])).await.expect("the second");
    assert_ne!(uid(&first.metadata), uid(&second.metadata));
    let late = bed.admin().delete(&key, &DeleteOptions::of(uid(&first.metadata))).await;
    assert!(matches!(failure(late), Failure::Conflict(_)));
    let read: Option<Secret> = bed.admin().read(Some(&namespace), "a").await.expect("a read");
    assert_eq!(read, Some(second));
}

pub(super) async fn an_object_at_a_newer_version_is_not_deleted(bed: &dyn Bed) {
    let namespace = namespace(bed, "newer").await;
    let key = key(Kind::ServiceAccount, &namespace, "a");
    let made = bed.admin().make(&account(&namespace, "a")).await.expect("an account");
    let exactly = DeleteOptions { version: Some(version(&made.metadata)), ..DeleteOptions::of(uid(&made.metadata)) };
    let moved = patch(bed, &key, json!({"metadata": {"labels": {"a": "b"}}})).await.expect("a patch");
    assert!(matches!(failure(bed.admin().delete(&key, &exactly).await), Failure::Conflict(_)));
    assert!(bed.admin().get(&key).await.expect("a read").is_some());
    let exactly = DeleteOptions { version: Some(version(moved.meta())), ..exactly };
    bed.admin().delete(&key, &exactly).await.expect("it is at that version");
    gone(bed, &key).await;
}

pub(super) async fn what_was_deleted_is_gone_and_its_name_free(bed: &dyn Bed) {
    let namespace = namespace(bed, "free").await;
    let key = key(Kind::Secret, &namespace, "a");
    bed.admin().make(&secret(&namespace, "a", &[])).await.expect("the first");
    delete(bed, &key).await;
    assert_eq!(bed.admin().get(&key).await.expect("a read"), None, "nothing held it");
    bed.admin().make(&secret(&namespace, "a", &[])).await.expect("the second");
}
