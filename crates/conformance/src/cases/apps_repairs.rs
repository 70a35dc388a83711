//! What was changed by hand: repaired by the next apply, or told.

use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicySpec};
use k8s_openapi::api::rbac::v1::RoleBinding;
use pando_api::{Change, Code, Outcome, Written};
use pando_cluster::names::{label, label_value};
use pando_cluster::{Kind, ObjectKey, Resource as _};
use pando_fakecluster::behaviour::Behaviour;
use serde_json::{Value, json};

use super::fixture::{delete, key, meta, patch, service, uid as identity, version};
use crate::apps::{App, WEB, of_web, uid, with_env};
use crate::bed::Bed;

/// What the adapter decides of an object: all but what changes with each write.
fn decided(object: &pando_cluster::Object) -> Value {
    let json = object.to_json().expect("objects are JSON");
    json!([
        json["spec"],
        json["data"],
        json["roleRef"],
        json["automountServiceAccountToken"],
        json["metadata"]["labels"]
    ])
}

/// Changes an object by hand and applies the plan again: it is as it was, that was told, and the app went on.
async fn is_repaired(app: &App<'_>, plan: &pando_api::BundlePlan, key: &ObjectKey, change: Value) {
    let read = async || app.bed.admin().get(key).await.expect("a read").expect("it is there");
    let (before, pod) = (decided(&read().await), uid(&app.pod().await));
    patch(app.bed, key, change.clone()).await.expect("an administrator may do anything");
    assert_ne!(decided(&read().await), before, "{key}: {change} changes something");
    let result = app.apply(plan).await;
    assert_eq!(of_web(&result).outcome, Outcome::Unchanged, "{key}: {change}");
    let [written] = &*result.written else { panic!("{key}: {change}: one write in {:?}", result.written) };
    let expected = (key.kind.name(), &*key.name, Change::Changed);
    assert_eq!((&*written.kind, &*written.name, written.change), expected, "{change}");
    assert!(!written.fields.is_empty(), "{key}: {change}: it is told what was different");
    assert_eq!(decided(&read().await), before, "{key}: {change}");
    assert_eq!(uid(&app.pod().await), pod, "{key}: {change}: the app runs on");
    assert_eq!(app.apply(plan).await.written, Vec::<Written>::new(), "{key}: {change}: once");
}

pub(super) async fn what_was_changed_by_hand_is_repaired_and_told(bed: &dyn Bed) {
    let app = App::new(bed, "repaired");
    let plan = with_env(app.plan(&Behaviour::Run), &[("A", "1")]);
    app.apply(&plan).await;
    let namespace = ObjectKey::cluster(Kind::Namespace, &*app.namespace);
    for (key, change) in [
        (app.key(Kind::NetworkPolicy, "pando-default"), json!({"spec": {"egress": []}})),
        (app.key(Kind::NetworkPolicy, "pando-default"), json!({"spec": {"ingress": [{}]}})),
        (app.key(Kind::NetworkPolicy, "pando-default"), json!({"spec": {"podSelector": {"matchLabels": {"a": "b"}}}})),
        (app.key(Kind::NetworkPolicy, "pando-default"), json!({"spec": {"policyTypes": ["Ingress"], "egress": null}})),
        (app.key(Kind::Service, WEB), json!({"spec": {"selector": {label::REVISION: "9"}}})),
        (app.key(Kind::Service, WEB), json!({"spec": {"selector": {"stray": "label"}}})),
        (app.key(Kind::Service, WEB), json!({"spec": {"publishNotReadyAddresses": false}})),
        (app.key(Kind::ResourceQuota, "pando-quota"), json!({"spec": {"hard": {"services.nodeports": "5"}}})),
        (app.key(Kind::ServiceAccount, "pando-app"), json!({"automountServiceAccountToken": true})),
        (app.key(Kind::Secret, "pando-env-web"), json!({"data": {"A": "Mg=="}})),
        (app.key(Kind::Secret, "pando-env-web"), json!({"data": {"B": "Mg=="}})),
        (namespace, json!({"metadata": {"labels": {label::POD_SECURITY: "privileged"}}})),
    ] {
        is_repaired(&app, &plan, &key, change).await;
    }
}

pub(super) async fn a_role_binding_to_another_role_is_replaced(bed: &dyn Bed) {
    let app = App::new(bed, "rebound");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    let pod = uid(&app.pod().await);
    let right: RoleBinding = app.read("pando-app-manager").await;
    let other = RoleBinding {
        metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            labels: right.metadata.labels.clone(),
            ..meta(&app.namespace, "pando-app-manager")
        },
        role_ref: k8s_openapi::api::rbac::v1::RoleRef { name: "view".to_owned(), ..right.role_ref.clone() },
        subjects: right.subjects.clone(),
    };
    let key = key(Kind::RoleBinding, &app.namespace, "pando-app-manager");
    delete(bed, &key).await;
    bed.admin().make(&other).await.expect("a role binding");
    let result = app.apply(&plan).await;
    assert_eq!(of_web(&result).outcome, Outcome::Unchanged);
    let told: Vec<_> = result.written.iter().map(|it| (&*it.kind, it.change)).collect();
    assert_eq!(told, [("RoleBinding", Change::Deleted), ("RoleBinding", Change::Created)]);
    let now: RoleBinding = app.read("pando-app-manager").await;
    assert_eq!((now.role_ref, now.subjects), (right.role_ref, right.subjects));
    assert_eq!(uid(&app.pod().await), pod);
}

pub(super) async fn a_strangers_policy_is_told_and_left_alone(bed: &dyn Bed) {
    let app = App::new(bed, "drift");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    assert_eq!(app.observe().await.drift, Vec::<String>::new());
    let open = NetworkPolicy {
        metadata: meta(&app.namespace, "opened-by-hand"),
        spec: Some(NetworkPolicySpec {
            ingress: Some(vec![NetworkPolicyIngressRule::default()]),
            ..NetworkPolicySpec::default()
        }),
    };
    let made = bed.admin().make(&open).await.expect("a policy");
    let told = |drift: &[String]| drift.len() == 1 && drift[0].contains("opened-by-hand");
    let drift = app.observe().await.drift;
    assert!(told(&drift), "{drift:?}");
    assert_eq!(app.apply(&plan).await.written, Vec::<Written>::new());
    let now: NetworkPolicy = app.read("opened-by-hand").await;
    assert_eq!(version(&now.metadata), version(&made.metadata), "whoever made it may need it");
    assert!(told(&app.observe().await.drift));
    delete(bed, &app.key(Kind::NetworkPolicy, "opened-by-hand")).await;
    assert_eq!(app.observe().await.drift, Vec::<String>::new());
}

pub(super) async fn what_was_deleted_by_hand_is_told_and_made_again(bed: &dyn Bed) {
    let app = App::new(bed, "deleted");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    let pod = uid(&app.pod().await);
    for (kind, name, drifts) in [
        (Kind::NetworkPolicy, "pando-default", true),
        (Kind::ResourceQuota, "pando-quota", false),
        (Kind::ServiceAccount, "pando-app", false),
    ] {
        delete(bed, &app.key(kind, name)).await;
        let drift = app.observe().await.drift;
        assert_eq!(drift.iter().any(|sentence| sentence.contains(name)), drifts, "{name}: {drift:?}");
        let result = app.apply(&plan).await;
        let told: Vec<_> = result.written.iter().map(|it| (&*it.kind, &*it.name, it.change)).collect();
        assert_eq!(told, [(kind.name(), name, Change::Created)]);
        assert_eq!(of_web(&result).outcome, Outcome::Unchanged, "{name}");
        assert_eq!(uid(&app.pod().await), pod, "{name}: the app runs on");
    }
}

pub(super) async fn a_lost_environment_is_made_again_and_the_app_runs_on(bed: &dyn Bed) {
    let app = App::new(bed, "lost");
    let plan = with_env(app.plan(&Behaviour::Run), &[("A", "1")]);
    app.apply(&plan).await;
    let pod = uid(&app.pod().await);
    delete(bed, &app.key(Kind::Secret, "pando-env-web")).await;
    let result = app.apply(&plan).await;
    assert_eq!(of_web(&result).outcome, Outcome::Unchanged);
    let told: Vec<_> = result.written.iter().map(|it| (&*it.kind, it.change)).collect();
    // Its digest is by a key that was lost with the Secret.
    assert_eq!(told, [("Secret", Change::Created), ("Pod", Change::Changed)]);
    assert_eq!(uid(&app.pod().await), pod);
    let secret: Secret = app.read("pando-env-web").await;
    assert_eq!(secret.data.unwrap_or_default()["A"].0, b"1");
    assert_eq!(app.apply(&plan).await.written, Vec::<Written>::new());
    let changed = app.apply(&with_env(plan, &[("A", "2")])).await;
    assert_eq!(of_web(&changed).outcome, Outcome::Replaced, "a change is known by the new key too");
}

pub(super) async fn a_lost_record_is_made_again_with_a_number_never_used(bed: &dyn Bed) {
    let app = App::new(bed, "record");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    delete(bed, &app.key(Kind::Service, WEB)).await;
    let drift = app.observe().await.drift;
    assert!(drift.iter().any(|sentence| sentence.contains("without its Service")), "{drift:?}");
    app.apply(&plan).await;
    let (record, pod): (Service, Pod) = (app.read(WEB).await, app.pod().await);
    assert_eq!(label_value(&record.metadata, label::REVISION), Some("2"));
    assert_eq!(label_value(&pod.metadata, label::REVISION), Some("2"));
    assert!(app.observed().await.running);
}

pub(super) async fn a_record_of_another_type_is_made_again(bed: &dyn Bed) {
    let app = App::new(bed, "typed");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    let right: Service = app.read(WEB).await;
    delete(bed, &app.key(Kind::Service, WEB)).await;
    let mut addressed = service(&app.namespace, WEB, Some("ClusterIP"));
    addressed.metadata.labels.clone_from(&right.metadata.labels);
    addressed.spec.get_or_insert_default().selector = right.spec.clone().and_then(|spec| spec.selector);
    let made = bed.admin().make(&addressed).await.expect("a Service");
    assert_ne!(made.spec.and_then(|spec| spec.cluster_ip).as_deref(), Some("None"), "it has an address of its own");
    app.apply(&plan).await;
    let now: Service = app.read(WEB).await;
    assert_ne!(identity(&now.metadata), identity(&made.metadata));
    assert_eq!(now.spec.and_then(|spec| spec.cluster_ip).as_deref(), Some("None"));
    assert!(app.observed().await.running);
    assert_eq!(app.apply(&plan).await.written, Vec::<Written>::new());
}

pub(super) async fn a_strangers_service_of_the_workloads_name_is_refused_and_untouched(bed: &dyn Bed) {
    let app = App::new(bed, "taken");
    let plan = app.plan(&Behaviour::Run);
    app.apply(&plan).await;
    app.stop().await;
    delete(bed, &app.key(Kind::Service, WEB)).await;
    let made = bed.admin().make(&service(&app.namespace, WEB, None)).await.expect("a Service");
    let error = app.refused(&plan).await;
    assert_eq!(error.code, Code::AdapterFailed);
    assert!(error.to_string().contains(&made.key().to_string()) && error.remedy.is_some(), "{error}");
    let now: Service = app.read(WEB).await;
    assert_eq!(version(&now.metadata), version(&made.metadata));
    assert_eq!(app.all::<Pod>().await, []);
}
