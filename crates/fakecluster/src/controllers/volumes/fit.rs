//! Which volume suits which claim, and which node suits a volume. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, ObjectReference, PersistentVolume, PersistentVolumeClaim,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::BIND_COMPLETED;
use crate::api::quantity::Amount;

/// The claim's class; empty for a claim that wants a volume of no class.
pub(in crate::controllers) fn class_of(claim: &PersistentVolumeClaim) -> &str {
    let old_way = annotation(&claim.metadata, "volume.beta.kubernetes.io/storage-class");
    old_way.or_else(|| claim.spec.as_ref()?.storage_class_name.as_deref()).unwrap_or_default()
}

/// The volume's class; empty for a volume of no class.
pub(super) fn class_of_volume(volume: &PersistentVolume) -> &str {
    volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default()
}

/// The name of the claim's volume; empty while it has none.
pub(in crate::controllers) fn volume_of(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default()
}

/// Whether the claim has its volume, and the volume has the claim.
pub(in crate::controllers) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    annotation(&claim.metadata, BIND_COMPLETED).is_some() && !volume_of(claim).is_empty()
}

/// The value of an annotation.
pub(in crate::controllers) fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The claim that the volume is for.
pub(super) fn claim_of(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// Whether the volume is for this claim: it names the claim, and no other claim of that name.
pub(super) fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_of(volume).is_some_and(|held| {
        let uid = held.uid.as_deref().unwrap_or_default();
        held.name == claim.metadata.name
            && held.namespace == claim.metadata.namespace
            && (uid.is_empty() || Some(uid) == claim.metadata.uid.as_deref())
    })
}

/// Whether the volume is what the claim asks for: size, class, mode and ways of access.
pub(super) fn satisfies(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let (has, wants) = (volume.spec.clone().unwrap_or_default(), claim.spec.clone().unwrap_or_default());
    let asked = wants.resources.as_ref().and_then(|it| it.requests.as_ref());
    let modes = has.access_modes.unwrap_or_default();
    size(has.capacity.as_ref()) >= size(asked)
        && class_of_volume(volume) == class_of(claim)
        && has.volume_mode == wants.volume_mode
        && wants.access_modes.iter().flatten().all(|mode| modes.contains(mode))
}

/// The volume for a claim that has none: one that was meant for it, else the smallest that is free.
///
/// Nobody is meant for a claim whose class waits for the first pod (`meant_only`) but who was meant for it.
pub(in crate::controllers) fn best<'a>(
    volumes: impl Iterator<Item = &'a PersistentVolume>,
    claim: &PersistentVolumeClaim,
    meant_only: bool,
) -> Option<&'a PersistentVolume> {
    let suitable = volumes
        .filter(|volume| volume.metadata.deletion_timestamp.is_none() && satisfies(volume, claim))
        .filter(|volume| is_for(volume, claim) || (!meant_only && is_available(volume) && claim_of(volume).is_none()));
    let room = |volume: &PersistentVolume| size(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()));
    suitable.min_by_key(|volume| (!is_for(volume, claim), room(volume)))
}

fn is_available(volume: &PersistentVolume) -> bool {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available")
}

/// The amount of storage; nothing for none.
pub(super) fn size(amounts: Option<&BTreeMap<String, Quantity>>) -> Amount {
    amounts.and_then(|all| all.get("storage")).and_then(|it| Amount::parse(&it.0)).unwrap_or_default()
}

/// Whether the volume can be used on a node with these labels.
///
/// <https://kubernetes.io/docs/concepts/storage/persistent-volumes/#node-affinity>
pub(in crate::controllers) fn is_within_reach(volume: &PersistentVolume, labels: &BTreeMap<String, String>) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else { return true };
    required.node_selector_terms.iter().any(|term| matches(term, labels))
}

fn matches(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    // A term without a word selects no node.
    !expressions.is_empty() && expressions.iter().all(|expression| holds(expression, labels))
}

fn holds(expression: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let NodeSelectorRequirement { key, operator, values } = expression;
    let (label, values) = (labels.get(key), values.as_deref().unwrap_or_default());
    let number = |text: &String| text.parse::<i64>().ok();
    let compare = || Some((number(label?)?, number(values.first()?)?));
    match operator.as_str() {
        "In" => label.is_some_and(|label| values.contains(label)),
        "NotIn" => label.is_none_or(|label| !values.contains(label)),
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        "Gt" => compare().is_some_and(|(label, bound)| label > bound),
        "Lt" => compare().is_some_and(|(label, bound)| label < bound),
        _ => false,
    }
}
