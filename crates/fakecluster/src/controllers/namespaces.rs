//! What happens to and in namespaces: their default account and certificate, and their end.

use std::collections::BTreeMap;

use futures::future::select;
use pando_cluster::env::{Instant, yield_now};
use pando_cluster::{Kind, ObjectKey, Scoped};
use serde_json::{Value, json};

use super::objects::{Condition, ask_to_end, is_being_deleted, set_condition};
use crate::FakeCluster;
use crate::store::Store;

/// What every namespace is given: the `default` account, and what pods check the API server's certificate by.
const FURNITURE: &[(Kind, &str)] = &[(Kind::ServiceAccount, "default"), (Kind::ConfigMap, "kube-root-ca.crt")];

/// Gives every namespace what it lacks of [`FURNITURE`], a little late, for ever.
pub(super) async fn furnish(fake: FakeCluster) {
    let mut seen = 0;
    let mut due: BTreeMap<ObjectKey, Instant> = BTreeMap::new();
    loop {
        let now = fake.env().now();
        fake.with(|store| {
            let matters = |kind| matches!(kind, Kind::Namespace | Kind::ServiceAccount | Kind::ConfigMap);
            if store.changes_after(seen).is_none_or(|mut all| all.any(|change| matters(change.key.kind))) {
                let lacking = lacking(store);
                due.retain(|key, _| lacking.contains(key));
                for key in lacking {
                    due.entry(key).or_insert(now.plus(fake.config().delays.service_account));
                }
            }
            for key in due.extract_if(.., |_, at| *at <= now).map(|(key, _)| key) {
                store.insert(key.kind, furniture(&key));
            }
            seen = store.revision();
        });
        let changed = std::pin::pin!(fake.changed(seen));
        match due.values().min() {
            Some(next) => drop(select(changed, fake.env().clock.sleep_until(*next)).await),
            None => drop(changed.await),
        }
    }
}

fn lacking(store: &Store) -> Vec<ObjectKey> {
    let alive = store.all(Kind::Namespace).filter(|(_, namespace)| !is_being_deleted(namespace));
    let wanted = alive.flat_map(|(namespace, _)| {
        FURNITURE.iter().map(|(kind, name)| ObjectKey::namespaced(*kind, &namespace.name, *name))
    });
    wanted.filter(|key| store.get(key).is_none()).collect()
}

fn furniture(key: &ObjectKey) -> Value {
    let mut object = json!({"metadata": {"name": key.name, "namespace": key.namespace}});
    if key.kind == Kind::ConfigMap {
        let about = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";
        object["metadata"]["annotations"] = json!({"kubernetes.io/description": about});
        // No connection of the fake is encrypted: there is no certificate to check.
        object["data"] = json!({"ca.crt": ""});
    }
    object
}

/// Empties namespaces that are being deleted and then lets them go, for ever.
pub(super) async fn end(fake: FakeCluster) {
    let mut seen = 0;
    loop {
        let (dying, revision) = fake.with(|store| {
            let dying = store.all(Kind::Namespace).filter(|(_, namespace)| is_being_deleted(namespace));
            (dying.map(|(key, _)| key.clone()).collect::<Vec<_>>(), store.revision())
        });
        seen = revision.max(seen);
        if !dying.is_empty() {
            let lag = fake.config().delays.namespace;
            if !lag.is_zero() {
                fake.env().sleep(lag).await;
            }
            for key in dying {
                empty(&fake, &key).await;
            }
        }
        fake.changed(seen).await;
    }
}

/// Asks everything in a namespace to go, kind by kind in an order of its own, and says what is left.
async fn empty(fake: &FakeCluster, namespace: &ObjectKey) {
    let mut kinds: Vec<_> = Kind::ALL.iter().copied().filter(|kind| kind.scoped() == Scoped::Namespace).collect();
    while !kinds.is_empty() {
        // Nobody may rely on the order, so it differs each time.
        let index = usize::try_from(fake.env().random_u64() % kinds.len() as u64).unwrap_or(0);
        let kind = kinds.swap_remove(index);
        let asked = fake.with(|store| {
            let inside: Vec<_> = store.within(kind, &namespace.name).map(|(key, _)| key.clone()).collect();
            for key in &inside {
                ask_to_end(store, fake.env(), key);
            }
            !inside.is_empty()
        });
        if asked {
            yield_now().await;
        }
    }
    fake.with(|store| finish(store, namespace));
}

/// Lets the namespace go when nothing is in it; else its conditions say what is.
fn finish(store: &mut Store, namespace: &ObjectKey) {
    let left = Left::inside(store, &namespace.name);
    if !left.kinds.is_empty() {
        let now = store.now_text();
        store.update(namespace, |it| left.describe(it, &now));
        return;
    }
    store.update(namespace, |it| it["spec"]["finalizers"] = json!([]));
    let any = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    if store.get(namespace).is_some_and(|it| !any(&it["metadata"]["finalizers"])) {
        store.remove(namespace);
    }
}

/// What is still in a namespace that is being deleted, counted.
#[derive(Default)]
struct Left {
    kinds: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
}

impl Left {
    fn inside(store: &Store, namespace: &str) -> Self {
        let mut left = Self::default();
        for kind in Kind::ALL.iter().copied().filter(|kind| kind.scoped() == Scoped::Namespace) {
            for (_, object) in store.within(kind, namespace) {
                *left.kinds.entry(resource(kind)).or_default() += 1;
                let held = object["metadata"]["finalizers"].as_array().into_iter().flatten();
                for finalizer in held.filter_map(Value::as_str) {
                    *left.finalizers.entry(finalizer.to_owned()).or_default() += 1;
                }
            }
        }
        left
    }

    fn describe(&self, namespace: &mut Value, now: &str) {
        let list = |counts: &BTreeMap<String, usize>, word: &str| {
            let counted: Vec<_> =
                counts.iter().map(|(name, count)| format!("{name} {word} {count} resource instances")).collect();
            counted.join(", ")
        };
        let remaining = format!("Some resources are remaining: {}", list(&self.kinds, "has"));
        let holding = list(&self.finalizers, "in");
        let holding = format!("Some content in the namespace has finalizers remaining: {holding}");
        let finalizers = if self.finalizers.is_empty() {
            ("False", "ContentHasNoFinalizers", "All content-preserving finalizers finished")
        } else {
            ("True", "SomeFinalizersRemain", holding.as_str())
        };
        let rows = [
            (
                "NamespaceDeletionDiscoveryFailure",
                ("False", "ResourcesDiscovered", "All resources successfully discovered"),
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                ("False", "ParsedGroupVersions", "All legacy kube types successfully parsed"),
            ),
            (
                "NamespaceDeletionContentFailure",
                ("False", "ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
            ),
            ("NamespaceContentRemaining", ("True", "SomeResourcesRemain", &remaining)),
            ("NamespaceFinalizersRemaining", finalizers),
        ];
        for (kind, (status, reason, message)) in rows {
            set_condition(namespace, now, &Condition { kind, status, reason, message });
        }
    }
}

fn resource(kind: Kind) -> String {
    match kind.group() {
        "" => format!("{}.", kind.plural()),
        group => format!("{}.{group}", kind.plural()),
    }
}
