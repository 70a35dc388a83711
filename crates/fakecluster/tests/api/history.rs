//! What versions promise: a list and a watch from its version are the present, from any past on.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use pando_cluster::{
    Cluster, Kind, ListRequest, Object, ObjectKey, ResourceVersion, Scope, Selector, WatchEvent, WatchRequest,
};
use proptest::prelude::*;
use serde_json::json;

use crate::bed::{Bed, NAMESPACE, secret};

const SECRETS: &str = "/api/v1/namespaces/pando-a/secrets";

#[derive(Clone, Copy, Debug)]
enum Step {
    Make(u8),
    Label(u8, u8),
    Touch(u8),
    Delete(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0..4_u8;
    let step = prop_oneof![
        name.clone().prop_map(Step::Make),
        (name.clone(), 0..3_u8).prop_map(|(name, label)| Step::Label(name, label)),
        name.clone().prop_map(Step::Touch),
        name.prop_map(Step::Delete),
    ];
    proptest::collection::vec(step, 1..25)
}

/// Carries out a step; one that does not apply is refused, and that is part of the history too.
fn carry_out(bed: &Bed, number: usize, step: Step) {
    let path = |name: u8| format!("{SECRETS}/s-{name}");
    match step {
        Step::Make(name) => bed.post(SECRETS, &secret(&format!("s-{name}"), &json!({}))),
        Step::Label(name, 0) => bed.patch(&path(name), &json!({"metadata": {"labels": {"app": null}}})),
        Step::Label(name, label) => {
            bed.patch(&path(name), &json!({"metadata": {"labels": {"app": label.to_string()}}}))
        }
        Step::Touch(name) => bed.patch(&path(name), &json!({"metadata": {"annotations": {"n": number.to_string()}}})),
        Step::Delete(name) => bed.delete(&path(name), &json!({})),
    };
}

type State = BTreeMap<ObjectKey, Object>;

fn list(bed: &Bed, labels: &Selector) -> (State, ResourceVersion) {
    let request = ListRequest::of(Kind::Secret, Scope::Namespace(NAMESPACE.to_owned())).labelled(labels.clone());
    let page = bed.sim.block_on(bed.cluster.list(&request)).expect("a list");
    (page.items.into_iter().map(|object| (object.key(), object)).collect(), page.version)
}

/// Plays a watch from `from` on into `state`, and checks that every event fits.
fn replay(bed: &Bed, mut state: State, from: ResourceVersion, labels: &Selector) -> State {
    let request = WatchRequest {
        kind: Kind::Secret,
        scope: Scope::Namespace(NAMESPACE.to_owned()),
        labels: labels.clone(),
        fields: Selector::everything(),
        from,
        timeout: Duration::from_secs(1),
    };
    let events: Vec<_> =
        bed.sim.block_on(async { bed.cluster.watch(&request).await.expect("a watch").collect().await });
    for event in events {
        match event.expect("an event") {
            WatchEvent::Added(object) => assert!(state.insert(object.key(), object).is_none(), "added twice"),
            WatchEvent::Modified(object) => assert!(state.insert(object.key(), object).is_some(), "never added"),
            WatchEvent::Deleted(object) => assert!(state.remove(&object.key()).is_some(), "deleted twice"),
            WatchEvent::Bookmark(_) => {}
        }
    }
    state
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// For every moment and selector: the list of then, brought up to date by a watch, is the list of now.
    #[test]
    fn a_list_and_a_watch_from_its_version_are_the_present(steps in steps()) {
        let bed = Bed::new();
        let selectors = [
            Selector::everything(),
            Selector::everything().equals("app", "1"),
            Selector::everything().exists("app"),
        ];
        let mut past = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            past.push(selectors.clone().map(|labels| list(&bed, &labels)));
            carry_out(&bed, number, step);
        }
        for (index, labels) in selectors.iter().enumerate() {
            let (present, _) = list(&bed, labels);
            for moment in &past {
                let (state, version) = moment[index].clone();
                prop_assert_eq!(&replay(&bed, state, version, labels), &present);
            }
        }
    }

    /// The store can say what was there at every version that it keeps.
    #[test]
    fn the_past_is_as_it_was(steps in steps()) {
        let bed = Bed::new();
        let mut past = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            past.push(bed.cluster.with(|store| (store.revision(), store.at(Kind::Secret, store.revision()))));
            carry_out(&bed, number, step);
        }
        for (revision, state) in past {
            prop_assert_eq!(bed.cluster.with(|store| store.at(Kind::Secret, revision)), state);
        }
    }
}
