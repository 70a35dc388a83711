//! Quotas: what objects cost, the judgement at admission, and the controller that keeps a quota's status.
//!
//! Admission judges by the quota's **status**, so a limit that was just changed rules only once the controller
//! has copied it there, and what was freed counts only once it has noticed. That is how an API server on
//! Kubernetes 1.34 behaves: after widening a quota, an immediate create was refused in 5 of 8 tries.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{Either, select};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceQuota, ResourceRequirements, Service};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pando_cluster::env::Instant;
use pando_cluster::{Kind, Object, ObjectKey};
use serde_json::{Value, json};

use super::kinds::container_request;
use super::quantity::Amount;
use super::refusal::{Refusal, resource};
use crate::cluster::FakeCluster;
use crate::store::Store;

type Usage = BTreeMap<String, Amount>;

/// Limits on what containers may ask for: the quota's name for it, and where a container says it.
const COMPUTE: &[(&str, Side, &str)] = &[
    ("cpu", Side::Requests, "cpu"),
    ("limits.cpu", Side::Limits, "cpu"),
    ("limits.ephemeral-storage", Side::Limits, "ephemeral-storage"),
    ("limits.memory", Side::Limits, "memory"),
    ("memory", Side::Requests, "memory"),
    ("requests.cpu", Side::Requests, "cpu"),
    ("requests.ephemeral-storage", Side::Requests, "ephemeral-storage"),
    ("requests.memory", Side::Requests, "memory"),
];

/// The kinds of which limits by name are about what they hold; `count/…` is about any.
const COUNTED: &[Kind] =
    &[Kind::Pod, Kind::Service, Kind::PersistentVolumeClaim, Kind::Secret, Kind::ConfigMap, Kind::ResourceQuota];

#[derive(Clone, Copy)]
enum Side {
    Requests,
    Limits,
}

impl Side {
    fn of(self, resources: &ResourceRequirements) -> Option<&BTreeMap<String, Quantity>> {
        match self {
            Self::Requests => resources.requests.as_ref(),
            Self::Limits => resources.limits.as_ref(),
        }
    }
}

/// What a write will cost the quotas of its namespace, once it is allowed.
#[derive(Debug, Default)]
pub(crate) struct Charges(Vec<(ObjectKey, Usage)>);

/// Judges the step from `old` (nothing for a new object) to `new`.
pub(crate) fn judge(store: &Store, new: &Object, old: Option<&Object>) -> Result<Charges, Refusal> {
    let Some(namespace) = new.meta().namespace.as_deref() else { return Ok(Charges::default()) };
    let before = old.map(usage).unwrap_or_default();
    let mut added = usage(new);
    for (name, amount) in &mut added {
        *amount = before.get(name).map_or(*amount, |before| amount.minus(*before));
    }
    let mut charges = Charges::default();
    for quota in store.typed_within::<ResourceQuota>(namespace) {
        let name = quota.metadata.name.clone().unwrap_or_default();
        let refuse =
            |why: String| Err(Refusal::forbidden(new.kind(), new.meta().name.as_deref().unwrap_or_default(), why));
        let status = quota.status.clone().unwrap_or_default();
        let (hard, used) = (amounts(status.hard.as_ref()), amounts(status.used.as_ref()));
        if old.is_none()
            && let Some(missing) = unspecified(new, &hard)
        {
            return refuse(format!("failed quota: {name}: must specify {missing}"));
        }
        let cost: Usage = added
            .iter()
            .filter(|(it, cost)| hard.contains_key(*it) && !cost.is_zero())
            .map(|(it, cost)| (it.clone(), *cost))
            .collect();
        let unknown: Vec<_> = cost.keys().filter(|it| !used.contains_key(*it)).cloned().collect();
        if !unknown.is_empty() {
            return refuse(format!("status unknown for quota: {name}, resources: {}", unknown.join(",")));
        }
        let over: BTreeSet<_> = cost
            .iter()
            .filter(|(it, cost)| !cost.is_negative() && used[*it] + **cost > hard[*it])
            .map(|(it, _)| it.clone())
            .collect();
        if !over.is_empty() {
            let print =
                |amounts: &Usage| over.iter().map(|it| format!("{it}={}", amounts[it])).collect::<Vec<_>>().join(",");
            let (requested, used, limited) = (print(&cost), print(&used), print(&hard));
            return refuse(format!("exceeded quota: {name}, requested: {requested}, used: {used}, limited: {limited}"));
        }
        if !cost.is_empty() {
            charges.0.push((ObjectKey::namespaced(Kind::ResourceQuota, namespace, name), cost));
        }
    }
    Ok(charges)
}

impl Charges {
    /// Writes the cost into the quotas' status, as admission does before the object is stored.
    pub(crate) fn book(self, store: &mut Store) {
        for (key, cost) in self.0 {
            store.update(&key, |quota| {
                for (name, cost) in cost {
                    let used = quota["status"]["used"][&name].as_str().and_then(Amount::parse).unwrap_or_default();
                    quota["status"]["used"][&name] = (used + cost).to_string().into();
                }
            });
        }
    }
}

/// The containers that do not say what a quota must know, e.g. `limits.cpu for: gate; limits.memory for: gate`.
fn unspecified(object: &Object, hard: &Usage) -> Option<String> {
    let Object::Pod(pod) = object else { return None };
    let spec = pod.spec.clone().unwrap_or_default();
    let silent = |container: &Container, side: Side, name: &str| {
        let amounts = container.resources.as_ref().and_then(|resources| side.of(resources));
        amounts.is_none_or(|amounts| !amounts.contains_key(name))
    };
    let mut missing = Vec::new();
    for (limit, side, name) in COMPUTE.iter().filter(|(limit, ..)| hard.contains_key(*limit)) {
        let all = spec.init_containers.iter().flatten().chain(&spec.containers);
        let mut names: Vec<_> = all.filter(|it| silent(it, *side, name)).map(|it| it.name.clone()).collect();
        if !names.is_empty() {
            names.sort();
            missing.push(format!("{limit} for: {}", names.join(",")));
        }
    }
    (!missing.is_empty()).then(|| missing.join("; "))
}

/// What an object uses of everything that a quota can limit.
fn usage(object: &Object) -> Usage {
    let one = Amount::whole(1);
    let mut usage = Usage::from([(format!("count/{}", resource(object.kind())), one)]);
    match object {
        Object::Pod(pod) if !has_ended(pod) => {
            usage.insert("pods".to_owned(), one);
            let spec = pod.spec.clone().unwrap_or_default();
            let requests = container_request(&spec, |it| Side::Requests.of(it));
            let limits = container_request(&spec, |it| Side::Limits.of(it));
            for (limit, side, name) in COMPUTE {
                let sums = match side {
                    Side::Requests => &requests,
                    Side::Limits => &limits,
                };
                usage.insert((*limit).to_owned(), sums.get(*name).copied().unwrap_or_default());
            }
        }
        Object::Service(service) => usage.extend(service_usage(service)),
        Object::PersistentVolumeClaim(claim) => {
            usage.insert("persistentvolumeclaims".to_owned(), one);
            let asked = claim.spec.as_ref().and_then(|it| it.resources.as_ref()).and_then(|it| it.requests.as_ref());
            let size = asked.and_then(|it| it.get("storage")).and_then(|it| Amount::parse(&it.0));
            usage.insert("requests.storage".to_owned(), size.unwrap_or_default());
        }
        Object::Secret(_) => {
            usage.insert("secrets".to_owned(), one);
        }
        Object::ConfigMap(_) => {
            usage.insert("configmaps".to_owned(), one);
        }
        Object::ResourceQuota(_) => {
            usage.insert("resourcequotas".to_owned(), one);
        }
        Object::Pod(_)
        | Object::Namespace(_)
        | Object::Node(_)
        | Object::ServiceAccount(_)
        | Object::PersistentVolume(_)
        | Object::StorageClass(_)
        | Object::Event(_)
        | Object::NetworkPolicy(_)
        | Object::RoleBinding(_)
        | Object::EndpointSlice(_) => {}
    }
    usage
}

fn service_usage(service: &Service) -> Usage {
    let spec = service.spec.clone().unwrap_or_default();
    let balanced = spec.type_.as_deref() == Some("LoadBalancer");
    let on_nodes = spec.type_.as_deref() == Some("NodePort")
        || (balanced && spec.allocate_load_balancer_node_ports.unwrap_or(true));
    let ports = spec.ports.as_ref().map_or(0, Vec::len);
    let count = |it: usize| Amount::whole(i128::try_from(it).unwrap_or(i128::MAX));
    Usage::from([
        ("services".to_owned(), count(1)),
        ("services.nodeports".to_owned(), count(if on_nodes { ports } else { 0 })),
        ("services.loadbalancers".to_owned(), count(usize::from(balanced))),
    ])
}

/// Terminating pods count until they are gone, ended ones do not.
fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn amounts(quantities: Option<&BTreeMap<String, Quantity>>) -> Usage {
    let known = quantities.into_iter().flatten();
    known.filter_map(|(name, quantity)| Some((name.clone(), Amount::parse(&quantity.0)?))).collect()
}

/// Keeps the status of every quota: the limits as they are asked for, and what is really used.
pub(crate) async fn keep_status(cluster: FakeCluster) {
    let lag = cluster.config().quota_lag;
    let mut due: BTreeMap<ObjectKey, Instant> = BTreeMap::new();
    let mut used = Used::default();
    loop {
        let now = cluster.env().now();
        let seen = cluster.with(|store| {
            for namespace in used.follow(store) {
                for (key, _) in used.stale_quotas(store, &namespace) {
                    due.entry(key).or_insert(now.plus(lag));
                }
            }
            let ready: Vec<_> = due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
            for key in ready {
                due.remove(&key);
                let namespace = key.namespace.clone().unwrap_or_default();
                if let Some(status) = used.stale_quotas(store, &namespace).remove(&key) {
                    store.update(&key, |quota| quota["status"] = status);
                }
            }
            store.revision()
        });
        let changed = std::pin::pin!(cluster.changed(seen));
        match due.values().min() {
            None => {
                changed.await;
            }
            Some(next) => match select(changed, cluster.env().clock.sleep_until(*next)).await {
                Either::Left(_) | Either::Right(_) => {}
            },
        }
    }
}

/// What each object uses, kept from change to change: to read a whole namespace anew at each would be most of the work of a run.
#[derive(Debug, Default)]
struct Used {
    seen: u64,
    objects: BTreeMap<ObjectKey, Usage>,
}

impl Used {
    /// Takes in what changed since the last look; answers the namespaces where a quota may be behind.
    fn follow(&mut self, store: &Store) -> BTreeSet<String> {
        let mut touched = BTreeSet::new();
        if let Some(changes) = store.changes_after(self.seen) {
            for change in changes {
                let object = (!change.removed).then_some(&*change.after);
                if self.take(&change.key, object) || change.key.kind == Kind::ResourceQuota {
                    touched.extend(change.key.namespace.clone());
                }
            }
        } else {
            self.objects.clear();
            for (key, object) in Kind::ALL.iter().flat_map(|kind| store.all(*kind)) {
                self.take(key, Some(object));
            }
            touched.extend(store.all(Kind::ResourceQuota).filter_map(|(key, _)| key.namespace.clone()));
        }
        self.seen = store.revision();
        touched
    }

    /// Takes in one object as it is now, `None` for gone; answers whether more or less is used by that.
    fn take(&mut self, key: &ObjectKey, object: Option<&Value>) -> bool {
        if key.namespace.is_none() {
            return false;
        }
        let usage = object.and_then(|object| usage_of(key.kind, object));
        match usage {
            Some(usage) if self.objects.get(key) == Some(&usage) => false,
            Some(usage) => {
                self.objects.insert(key.clone(), usage);
                true
            }
            None => self.objects.remove(key).is_some(),
        }
    }

    /// The quotas of a namespace whose status is behind, with the status they should have.
    fn stale_quotas(&self, store: &Store, namespace: &str) -> BTreeMap<ObjectKey, Value> {
        let mut stale = BTreeMap::new();
        for quota in store.typed_within::<ResourceQuota>(namespace) {
            let wanted = quota.spec.and_then(|spec| spec.hard).unwrap_or_default();
            let used = self.within(namespace, wanted.keys().map(String::as_str));
            let status = quota.status.unwrap_or_default();
            if status.hard.as_ref() != Some(&wanted) || amounts(status.used.as_ref()) != used {
                let used: BTreeMap<_, _> = used.into_iter().map(|(name, amount)| (name, amount.to_string())).collect();
                let key =
                    ObjectKey::namespaced(Kind::ResourceQuota, namespace, quota.metadata.name.unwrap_or_default());
                stale.insert(key, json!({"hard": wanted, "used": used}));
            }
        }
        stale
    }

    /// How much of `limits` the objects of a namespace use together.
    fn within<'a>(&self, namespace: &str, limits: impl Iterator<Item = &'a str>) -> Usage {
        let mut used: Usage = limits.map(|limit| (limit.to_owned(), Amount::default())).collect();
        for kind in Kind::ALL {
            let first = ObjectKey::namespaced(*kind, namespace, "");
            let there = |key: &ObjectKey| key.kind == *kind && key.namespace.as_deref() == Some(namespace);
            for (_, usage) in self.objects.range(first..).take_while(|(key, _)| there(key)) {
                for (name, amount) in usage {
                    if let Some(sum) = used.get_mut(name) {
                        *sum = *sum + *amount;
                    }
                }
            }
        }
        used
    }
}

/// What an object uses; of most kinds it is only itself that counts, whatever it holds.
fn usage_of(kind: Kind, object: &Value) -> Option<Usage> {
    if COUNTED.contains(&kind) {
        return Object::from_json(kind, object.clone()).ok().map(|object| usage(&object));
    }
    Some(Usage::from([(format!("count/{}", resource(kind)), Amount::whole(1))]))
}
