//! What the view knows, told step by step.

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use pando_cluster::{Failure, Resource as _, Subject, budget};
use serde_json::{Value, json};

use super::prune::pruned;
use super::*;
use crate::sight;

const NAMESPACE: &str = "pando-a";

fn at(seconds: u64) -> pando_cluster::env::Instant {
    pando_cluster::env::Instant::from_start(Duration::from_secs(seconds))
}

fn object(kind: Kind, json: Value) -> Object {
    Object::from_json(kind, json).expect("an object")
}

/// A pod of ours at a version.
fn pod(name: &str, uid: &str, version: &str) -> Object {
    object(
        Kind::Pod,
        json!({"metadata": {"name": name, "namespace": NAMESPACE, "uid": uid, "resourceVersion": version,
            "labels": {"app.kubernetes.io/managed-by": "pando", "pando.dev/workload": "web", "pando.dev/revision": "1"}},
            "spec": {"containers": [{"name": "app"}]}, "status": {"phase": "Running"}}),
    )
}

fn ended(object: Object) -> Object {
    let Object::Pod(mut pod) = object else { panic!("a pod") };
    pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
    Object::Pod(pod)
}

fn going(mut object: Object) -> Object {
    let time = "2026-01-01T00:00:00Z".parse().expect("a time");
    object.meta_mut().deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
    object
}

fn heard(told: Told) -> Told<Heard> {
    match told {
        Told::Listing => Told::Listing,
        Told::All(objects) => Told::All(objects.into_iter().map(Heard::of).collect()),
        Told::Is(object) => Told::Is(Heard::of(object)),
        Told::Gone(object) => Told::Gone(Heard::of(object)),
        Told::Fresh => Told::Fresh,
        Told::Broken(error) => Told::Broken(error),
    }
}

fn broken() -> Told {
    Told::Broken(ClusterError::new("watch", Subject::Many("pods", None), Failure::Unavailable("cut".to_owned())))
}

/// A view that has listed everything: one namespace with `pods`.
fn listed(pods: Vec<Object>) -> State {
    let mut state = State::default();
    for kind in KINDS {
        let all = match kind {
            Kind::Pod => pods.clone(),
            Kind::Namespace => {
                let meta = json!({"name": NAMESPACE, "uid": "n", "resourceVersion": "1"});
                vec![object(kind, json!({"metadata": meta}))]
            }
            Kind::EndpointSlice => vec![object(
                kind,
                json!({"metadata": {"name": "kubernetes", "namespace": "default"}, "addressType": "IPv4",
                    "endpoints": [{"addresses": ["172.18.0.2"]}], "ports": [{"port": 6443}]}),
            )],
            _ => Vec::new(),
        };
        tell(&mut state, kind, Told::Listing, 0);
        tell(&mut state, kind, Told::All(all), 0);
    }
    state
}

fn tell(state: &mut State, kind: Kind, told: Told, second: u64) -> state::News {
    state.take(kind, heard(told), at(second))
}

fn stored(uid: &str, version: &str) -> Write {
    Write::Stored { uid: Some(Uid::new(uid)), version: ResourceVersion::new(version) }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced(Kind::Pod, NAMESPACE, name)
}

fn names(app: &AppView) -> Vec<&str> {
    app.pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect()
}

#[test]
fn it_speaks_only_once_everything_was_listed() {
    let mut state = State::default();
    for kind in KINDS {
        assert!(matches!(state.app(NAMESPACE, at(0)), Err(Stale::Watch(_))), "{kind} is missing");
        assert!(state.unlisted().iter().any(|(unlisted, _)| *unlisted == kind));
        tell(&mut state, kind, Told::Listing, 0);
        tell(&mut state, kind, Told::All(Vec::new()), 0);
    }
    assert_eq!(state.app(NAMESPACE, at(0)), Ok(AppView::default()));
    assert_eq!(state.unlisted(), []);
}

#[test]
fn a_watch_that_is_broken_silent_or_listing_is_not_relied_on() {
    let silent = at(budget::WATCH_SILENCE.as_secs() + 1);
    let state = listed(Vec::new());
    assert!(state.app(NAMESPACE, at(budget::WATCH_SILENCE.as_secs())).is_ok());
    assert!(matches!(state.app(NAMESPACE, silent), Err(Stale::Watch(_))));
    for kind in KINDS {
        for trouble in [broken(), Told::Listing] {
            let mut state = listed(Vec::new());
            tell(&mut state, kind, trouble, 1);
            assert_eq!(state.app(NAMESPACE, at(1)), Err(Stale::Watch(kind)));
            tell(&mut state, kind, Told::Fresh, 2);
            assert!(state.app(NAMESPACE, at(2)).is_ok(), "{kind} is back");
        }
    }
}

#[test]
fn an_outage_is_told_once_and_its_end_once() {
    let mut state = listed(Vec::new());
    let mut told = |told, second| {
        let news = tell(&mut state, Kind::Pod, told, second);
        (news.broke.is_some(), news.is_back)
    };
    assert_eq!(told(broken(), 1), (true, false));
    assert_eq!(told(broken(), 2), (false, false));
    assert_eq!(told(Told::Listing, 3), (false, false));
    assert_eq!(told(Told::All(Vec::new()), 4), (false, true));
    assert_eq!(told(Told::Fresh, 5), (false, false));
}

#[test]
fn it_knows_what_was_told_last() {
    let mut state = listed(vec![pod("web-1", "a", "1"), pod("web-2", "b", "2")]);
    tell(&mut state, Kind::Pod, Told::Is(pod("web-3", "c", "3")), 1);
    tell(&mut state, Kind::Pod, Told::Gone(pod("web-1", "a", "4")), 1);
    let app = state.app(NAMESPACE, at(1)).expect("it is fresh");
    assert_eq!(names(&app), ["web-2", "web-3"]);
    assert_eq!(app.pods[1].metadata.resource_version.as_deref(), Some("3"));
    assert_eq!(state.app("pando-ab", at(1)), Ok(AppView::default()), "a name that begins alike is another one");
    tell(&mut state, Kind::Pod, Told::Listing, 2);
    tell(&mut state, Kind::Pod, Told::All(vec![pod("web-9", "z", "9")]), 2);
    assert_eq!(names(&state.app(NAMESPACE, at(2)).expect("it is fresh")), ["web-9"], "a list says all");
}

/// What was told before the write's answer came, the write, and what is told afterwards until it is seen.
type Row = (&'static str, Vec<Told>, Write, Vec<(Told, bool)>);

#[test]
fn a_write_is_seen_when_its_version_its_objects_end_or_a_later_list_was_told() {
    let is = |version: &str| Told::Is(pod("web-1", "a", version));
    let deleted = || Write::Deleted { uid: Uid::new("a") };
    let rows: Vec<Row> = vec![
        ("its version", vec![], stored("a", "7"), vec![(is("6"), false), (is("7"), true)]),
        ("its version came first", vec![is("7")], stored("a", "7"), vec![(Told::Fresh, true)]),
        ("it was overtaken before its answer", vec![is("7"), is("8")], stored("a", "7"), vec![(Told::Fresh, true)]),
        ("another version says nothing", vec![], stored("a", "7"), vec![(is("700"), false), (Told::Fresh, false)]),
        ("its object's end", vec![], stored("a", "7"), vec![(Told::Gone(pod("web-1", "a", "9")), true)]),
        ("another object's end", vec![], stored("b", "7"), vec![(Told::Gone(pod("web-1", "a", "9")), false)]),
        (
            "a list that began later",
            vec![],
            stored("a", "7"),
            vec![(broken(), false), (Told::Listing, false), (Told::All(vec![]), true)],
        ),
        ("a list that began earlier", vec![Told::Listing], stored("a", "7"), vec![(Told::All(vec![]), false)]),
        (
            "a list that began earlier and holds it",
            vec![Told::Listing],
            stored("a", "7"),
            vec![(Told::All(vec![pod("web-1", "a", "7")]), true)],
        ),
        (
            "a deletion that takes its grace",
            vec![],
            deleted(),
            vec![(is("6"), false), (Told::Is(going(pod("web-1", "a", "7"))), true)],
        ),
        ("a deletion at once", vec![], deleted(), vec![(Told::Gone(pod("web-1", "a", "7")), true)]),
        (
            "a deletion that was told first",
            vec![Told::Gone(pod("web-1", "a", "7"))],
            deleted(),
            vec![(Told::Fresh, true)],
        ),
        (
            "an end that was seen elsewhere",
            vec![],
            Write::Gone { uid: Uid::new("a") },
            vec![(Told::Is(going(pod("web-1", "a", "7"))), false), (Told::Gone(pod("web-1", "a", "8")), true)],
        ),
        (
            "a lost answer",
            vec![],
            Write::Doubtful,
            vec![
                (is("7"), false),
                (Told::Gone(pod("web-1", "a", "9")), false),
                (Told::Listing, false),
                (Told::All(vec![]), true),
            ],
        ),
    ];
    for (what, before, write, after) in rows {
        let mut state = listed(vec![pod("web-1", "a", "5")]);
        for told in before {
            tell(&mut state, Kind::Pod, told, 1);
        }
        state.await_write(key("web-1"), write, at(1));
        for (number, (told, seen)) in after.into_iter().enumerate() {
            tell(&mut state, Kind::Pod, told, 1);
            let current = state.is_current(NAMESPACE, at(1));
            let is_listing = matches!(current, Err(Stale::Watch(_)));
            assert_eq!(current.is_ok(), seen && !is_listing, "{what}, step {number}");
            assert_eq!(state.is_current("pando-b", at(1)).is_ok(), !is_listing, "{what}: others are not concerned");
        }
    }
}

#[test]
fn a_pod_that_was_made_and_deleted_is_not_taken_for_gone_before_it_was_told_of() {
    let mut state = listed(Vec::new());
    state.await_write(key("web-1"), stored("a", "7"), at(1));
    state.await_write(key("web-1"), Write::Deleted { uid: Uid::new("a") }, at(1));
    assert_eq!(state.is_current(NAMESPACE, at(1)), Err(Stale::Writes));
    tell(&mut state, Kind::Pod, Told::Is(pod("web-1", "a", "7")), 1);
    assert_eq!(state.is_current(NAMESPACE, at(1)), Err(Stale::Writes), "its deletion was not told");
    tell(&mut state, Kind::Pod, Told::Gone(pod("web-1", "a", "8")), 1);
    assert_eq!(state.is_current(NAMESPACE, at(1)), Ok(()));
}

#[test]
fn a_write_that_is_never_told_is_waited_for_no_longer_than_a_silent_watch() {
    let mut state = listed(Vec::new());
    state.await_write(key("web-1"), Write::Doubtful, at(0));
    let end = budget::WATCH_SILENCE.as_secs();
    for kind in KINDS {
        tell(&mut state, kind, Told::Fresh, end);
    }
    assert_eq!(state.is_current(NAMESPACE, at(end)), Err(Stale::Writes));
    assert_eq!(state.is_current(NAMESPACE, at(end + 1)), Ok(()));
}

#[test]
fn what_is_read_again_and_again_while_a_watch_is_broken_is_waited_for_once() {
    let mut state = listed(Vec::new());
    for version in ["7", "8", "7", "8"] {
        state.await_write(key("web-1"), stored("a", version), at(1));
    }
    tell(&mut state, Kind::Pod, Told::Is(pod("web-1", "a", "7")), 1);
    assert_eq!(state.is_current(NAMESPACE, at(1)), Err(Stale::Writes));
    tell(&mut state, Kind::Pod, Told::Is(pod("web-1", "a", "8")), 1);
    assert_eq!(state.is_current(NAMESPACE, at(1)), Ok(()));
}

#[test]
fn a_second_lost_answer_is_not_settled_by_a_list_that_began_before_it() {
    let mut state = listed(Vec::new());
    state.await_write(key("web-1"), Write::Doubtful, at(1));
    tell(&mut state, Kind::Pod, Told::Listing, 1);
    state.await_write(key("web-1"), Write::Doubtful, at(1));
    tell(&mut state, Kind::Pod, Told::All(vec![]), 1);
    assert_eq!(state.is_current(NAMESPACE, at(1)), Err(Stale::Writes));
    // One that is waited for no longer does not stand for a later one.
    let late = budget::WATCH_SILENCE.as_secs() + 2;
    for kind in KINDS {
        drop(tell(&mut state, kind, Told::Fresh, late));
    }
    assert_eq!(state.is_current(NAMESPACE, at(late)), Ok(()));
    state.await_write(key("web-1"), Write::Doubtful, at(late));
    assert_eq!(state.is_current(NAMESPACE, at(late)), Err(Stale::Writes));
}

#[test]
fn only_what_is_watched_is_waited_for() {
    let mut state = listed(Vec::new());
    for key in [
        ObjectKey::namespaced(Kind::Secret, NAMESPACE, "pando-env-web"),
        ObjectKey::namespaced(Kind::NetworkPolicy, "kube-system", "a"),
        ObjectKey::cluster(Kind::Namespace, "kube-system"),
    ] {
        state.await_write(key, Write::Doubtful, at(0));
    }
    assert_eq!(state.is_current(NAMESPACE, at(0)), Ok(()));
    assert_eq!(state.is_current("kube-system", at(0)), Ok(()));
}

#[test]
fn what_was_not_there_when_this_process_looked_is_not_shown_any_more() {
    let mut state = listed(vec![pod("web-1", "a", "5")]);
    state.await_absence(&key("web-2"), at(1));
    assert_eq!(state.is_current(NAMESPACE, at(1)), Ok(()), "it knows of none either");
    state.await_absence(&key("web-1"), at(1));
    assert_eq!(state.is_current(NAMESPACE, at(1)), Err(Stale::Writes));
    tell(&mut state, Kind::Pod, Told::Gone(pod("web-1", "a", "6")), 1);
    assert_eq!(state.is_current(NAMESPACE, at(1)), Ok(()));
}

#[test]
fn a_namespace_is_absent_only_when_that_is_sure() {
    let mut state = listed(Vec::new());
    let place = ObjectKey::cluster(Kind::Namespace, "pando-b");
    assert!(state.is_absent("pando-b", at(0)) && !state.is_absent(NAMESPACE, at(0)));
    assert!(!state.is_absent("pando-b", at(budget::WATCH_SILENCE.as_secs() + 1)), "the watch is silent");
    state.await_write(place, stored("b", "9"), at(0));
    assert!(!state.is_absent("pando-b", at(0)), "it was just made");
    tell(&mut state, Kind::Namespace, broken(), 1);
    assert!(!state.is_absent("pando-c", at(1)), "the watch is broken");
}

#[test]
fn policies_are_kept_whichever_comes_first_and_only_where_apps_may_be() {
    let mut state = listed(Vec::new());
    let policy = |namespace: &str| {
        object(
            Kind::NetworkPolicy,
            json!({"metadata": {"name": "open", "namespace": namespace}, "spec": {"podSelector": {}}}),
        )
    };
    tell(&mut state, Kind::NetworkPolicy, Told::Is(policy("pando-new")), 0);
    tell(&mut state, Kind::NetworkPolicy, Told::Is(policy("shop")), 0);
    let policies = |namespace: &str| state.app(namespace, at(0)).expect("it is fresh").policies.len();
    assert_eq!((policies("pando-new"), policies("shop")), (1, 0));
}

#[test]
fn facts_are_made_anew_only_when_a_node_says_something_new() {
    let node = |version: &str, ready: &str, beat: &str| {
        object(
            Kind::Node,
            json!({"metadata": {"name": "n1", "uid": "u", "resourceVersion": version}, "status": {
                "addresses": [{"type": "InternalIP", "address": "172.18.0.3"}], "images": [{"sizeBytes": 1}],
                "conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": beat}]}}),
        )
    };
    let mut state = listed(Vec::new());
    tell(&mut state, Kind::Node, Told::Is(node("1", "True", "2026-01-01T00:00:00Z")), 0);
    let first = state.facts(at(0)).expect("they are known");
    assert!(!first.is_lost("n1") && first.is_lost("n2"));
    assert_eq!(first.addresses.api_server.len(), 1);
    tell(&mut state, Kind::Node, Told::Is(node("2", "True", "2026-01-01T00:05:00Z")), 0);
    assert!(Arc::ptr_eq(&first, &state.facts(at(0)).expect("they are known")), "a heartbeat is no news");
    tell(&mut state, Kind::Node, Told::Is(node("3", "Unknown", "2026-01-01T00:05:00Z")), 0);
    assert!(state.facts(at(0)).expect("they are known").is_lost("n1"));
    assert_eq!(state.nodes(at(0)).map(|nodes| nodes.len()), Ok(1));
    tell(
        &mut state,
        Kind::EndpointSlice,
        Told::Gone(object(
            Kind::EndpointSlice,
            json!({"metadata": {"name": "kubernetes", "namespace": "default"}, "addressType": "IPv4", "endpoints": []}),
        )),
        0,
    );
    assert!(state.facts(at(0)).is_err(), "without the API server's addresses nothing is decided");
}

#[test]
fn a_failed_repair_is_tried_again_when_the_connection_lives_and_logged_once() {
    let mut state = listed(Vec::new());
    let over = || ended(pod("web-1", "a", "7"));
    let news = tell(&mut state, Kind::Pod, Told::Is(over()), 1);
    let [repair] = &news.repairs[..] else { panic!("{news:?}") };
    assert_eq!(repair.key, key("web-1"));
    assert!(state.tried(repair.clone(), true), "the first failure is logged");
    assert_eq!(tell(&mut state, Kind::Pod, Told::Fresh, 2).repairs, std::slice::from_ref(repair));
    assert!(!state.tried(repair.clone(), true), "the second is not");
    tell(&mut state, Kind::Pod, Told::Gone(over()), 3);
    assert_eq!(tell(&mut state, Kind::Pod, Told::Fresh, 4).repairs, [], "it is gone");
    tell(&mut state, Kind::Pod, Told::Listing, 5);
    assert_eq!(tell(&mut state, Kind::Pod, Told::All(vec![over()]), 6).repairs.len(), 1, "a list is looked at too");
}

/// What is read of a pod in this crate is the same of a pruned one.
#[test]
fn a_pruned_pod_reads_like_the_whole_one() {
    let status = |phase: &str, state: Value| {
        json!({"phase": phase, "podIP": "10.244.0.9", "hostIP": "172.18.0.3", "message": "m", "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:09Z", "lastProbeTime": "2026-01-01T00:00:09Z"},
                {"type": "PodReadyToStartContainers", "status": "True"},
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}],
            "initContainerStatuses": [{"name": "gate", "image": "busybox", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"terminated": {"exitCode": 0, "message": "closed 1200"}}}],
            "containerStatuses": [{"name": "app", "image": "web:1", "imageID": "web@sha256:ab", "containerID": "containerd://1",
                "ready": false, "restartCount": 0, "lastState": {"terminated": {"exitCode": 9}}, "state": state}]})
    };
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:01Z"}});
    let statuses = [
        status("Running", running),
        status("Pending", json!({"waiting": {"reason": "ImagePullBackOff", "message": "denied"}})),
        status("Running", json!({"terminated": {"exitCode": 137, "reason": "Error"}})),
        status("Failed", json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}})),
        json!({"phase": "Failed", "reason": "Evicted", "message": "memory"}),
        json!({"phase": "Pending"}),
    ];
    let now: jiff::Timestamp = "2026-01-01T01:00:00Z".parse().expect("a time");
    for status in statuses {
        for gates in [json!([]), json!([{"name": "pando.dev/start"}])] {
            let whole: Pod = serde_json::from_value(json!({
                "metadata": {"name": "web-3", "namespace": NAMESPACE, "uid": "u", "resourceVersion": "7",
                    "managedFields": [{"manager": "kubelet"}], "finalizers": ["x/y"],
                    "labels": {"app.kubernetes.io/managed-by": "pando", "pando.dev/workload": "web", "pando.dev/revision": "3", "tier": "x"},
                    "annotations": {"pando.dev/plan-digest": "v1.a.b", "pando.dev/template-digest": "t", "kubectl/x": "long"}},
                "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 7, "schedulingGates": gates, "volumes": [{"name": "v"}],
                    "initContainers": [{"name": "gate", "env": [{"name": "A", "value": "secret"}]}],
                    "containers": [{"name": "app", "image": "web:1", "command": ["sh"], "env": [{"name": "A", "value": "secret"}],
                        "resources": {"limits": {"memory": "64Mi"}}, "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                        "readinessProbe": {"exec": {"command": ["a"]}, "periodSeconds": 3, "failureThreshold": 2, "timeoutSeconds": 4}}]},
                "status": status,
            }))
            .expect("a pod");
            let Object::Pod(small) = pruned(whole.clone().into_object()) else { panic!("a pod") };
            assert!(sight::sight(&whole) == sight::sight(&small), "{status}");
            assert_eq!(sight::reason(&whole, true), sight::reason(&small, true));
            assert_eq!(sight::healthy(&whole, now), sight::healthy(&small, now));
            assert_eq!(sight::gate_passing(&whole), sight::gate_passing(&small));
            assert_eq!(sight::started_at(&whole), sight::started_at(&small));
            let texts = |pod: &Pod| (sight::image_digest(pod), sight::node(pod).to_owned(), sight::grace(pod));
            assert_eq!(texts(&whole), texts(&small));
            let flags = |pod: &Pod| {
                (sight::is_gated(pod), sight::is_going(pod), sight::has_ended(pod), sight::has_sandbox(pod))
            };
            assert_eq!(flags(&whole), flags(&small));
            let text = serde_json::to_string(&small).expect("JSON");
            for gone in [
                "secret",
                "managedFields",
                "finalizers",
                "tier",
                "kubectl/x",
                "volumeMounts",
                "containerd://",
                "command",
            ] {
                assert!(!text.contains(gone), "{gone} is not kept: {text}");
            }
            assert!(text.contains("plan-digest") && text.contains("template-digest"), "what we noted is");
        }
    }
}

/// What is compared as a whole is kept as a whole.
#[test]
fn records_and_policies_keep_their_labels_and_specs() {
    let meta =
        json!({"name": "web", "namespace": NAMESPACE, "labels": {"tier": "x"}, "managedFields": [{"manager": "a"}]});
    let spec = json!({"selector": {"a": "b"}, "clusterIP": "None", "ports": [{"port": 80}]});
    let service = object(Kind::Service, json!({"metadata": meta, "spec": spec}));
    let Some(kept) = Heard::of(service.clone()).kept.read::<Service>() else { panic!("a Service") };
    let Object::Service(whole) = service else { panic!("a Service") };
    assert_eq!((&kept.spec, &kept.metadata.labels), (&whole.spec, &whole.metadata.labels));
    assert_eq!(kept.metadata.managed_fields, None);
    let spec =
        json!({"podSelector": {}, "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}]}]});
    let policy = object(Kind::NetworkPolicy, json!({"metadata": meta, "spec": spec}));
    let kept = Heard::of(policy).kept.read::<NetworkPolicy>().and_then(|policy| policy.spec);
    assert_eq!(serde_json::to_value(kept).expect("JSON"), spec);
}

#[test]
fn every_kind_that_is_watched_can_be_kept_and_read() {
    let meta = json!({"name": "x", "namespace": "default", "uid": "u", "resourceVersion": "1"});
    for kind in KINDS {
        let whole =
            object(kind, json!({"metadata": meta, "addressType": "IPv4", "endpoints": [], "spec": {"containers": []}}));
        let kept = Heard::of(whole).kept;
        let version = |meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| meta.resource_version.clone();
        let read = match kind {
            Kind::Namespace => kept.read::<Namespace>().map(|it| version(&it.metadata)),
            Kind::Node => kept.read::<Node>().map(|it| version(&it.metadata)),
            Kind::Pod => kept.read::<Pod>().map(|it| version(&it.metadata)),
            Kind::Service => kept.read::<Service>().map(|it| version(&it.metadata)),
            Kind::PersistentVolumeClaim => kept.read::<PersistentVolumeClaim>().map(|it| version(&it.metadata)),
            Kind::NetworkPolicy => kept.read::<NetworkPolicy>().map(|it| version(&it.metadata)),
            Kind::PersistentVolume => kept.read::<PersistentVolume>().map(|it| version(&it.metadata)),
            Kind::EndpointSlice => kept.read::<EndpointSlice>().map(|it| version(&it.metadata)),
            other => panic!("{other} is read by nobody here"),
        };
        assert_eq!(read, Some(Some("1".to_owned())), "{kind}");
        assert_eq!(request(kind).kind, kind);
    }
}

#[test]
fn a_volume_is_known_with_the_app_whose_claim_has_it() {
    let mut state = State::default();
    for kind in KINDS {
        tell(&mut state, kind, Told::All(Vec::new()), 0);
    }
    let volume = |name: &str, namespace: &str| {
        let spec = json!({"claimRef": {"namespace": namespace, "name": "c", "uid": "u"}, "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": "d", "volumeHandle": "h"}});
        let meta = json!({"name": name, "uid": name, "resourceVersion": "1"});
        object(Kind::PersistentVolume, json!({"metadata": meta, "spec": spec}))
    };
    for volume in [volume("ours", NAMESPACE), volume("theirs", "team")] {
        tell(&mut state, Kind::PersistentVolume, Told::Is(volume), 1);
    }
    let known = state.app(NAMESPACE, at(1)).expect("it is fresh").volumes;
    let names: Vec<_> = known.iter().map(|volume| volume.metadata.name.as_deref()).collect();
    assert_eq!(names, [Some("ours")]);
    assert!(known[0].spec.as_ref().is_some_and(|spec| spec.csi.is_none()), "where the data lies is not kept");
}

/// What a follower was told by now, in words.
fn told_by(feed: &mut UnboundedReceiver<Told>) -> Vec<String> {
    use futures::FutureExt;
    let mut words = Vec::new();
    while let Some(Some(told)) = feed.next().now_or_never() {
        words.push(match told {
            Told::Listing => "listing".to_owned(),
            Told::All(pods) => format!("all {}", pods.len()),
            Told::Is(pod) => format!("is {}", pod.key().name),
            Told::Gone(pod) => format!("gone {}", pod.key().name),
            Told::Fresh => "fresh".to_owned(),
            Told::Broken(_) => "broken".to_owned(),
        });
    }
    words
}

#[test]
fn a_follower_is_told_of_its_namespace_and_of_breaks() {
    let mut state = listed(vec![pod("web-1", "a", "1")]);
    let mut feed = state.follow(NAMESPACE, at(0)).expect("the watch is fresh");
    assert_eq!(told_by(&mut feed), [""; 0], "what the view knows already is not told");
    let mut elsewhere = pod("web-1", "x", "2");
    elsewhere.meta_mut().namespace = Some("pando-b".to_owned());
    for told in [Told::Is(pod("web-2", "b", "3")), Told::Is(elsewhere), Told::Gone(pod("web-1", "a", "4")), broken()] {
        tell(&mut state, Kind::Pod, told, 0);
    }
    tell(&mut state, Kind::Service, broken(), 0);
    assert_eq!(told_by(&mut feed), ["is web-2", "gone web-1", "broken"]);
    assert!(state.follow(NAMESPACE, at(0)).is_none(), "a broken watch is not followed");
}

#[test]
fn a_follower_is_told_of_lists_that_begin_after_it_and_of_no_others() {
    let mut state = listed(Vec::new());
    tell(&mut state, Kind::Pod, Told::Listing, 0);
    // A watch that lists is not relied on; one that told something beside it is no case that a watch makes.
    assert!(state.follow(NAMESPACE, at(0)).is_none());
    tell(&mut state, Kind::Pod, Told::Fresh, 0);
    let mut feed = state.follow(NAMESPACE, at(0)).expect("the watch is fresh");
    tell(&mut state, Kind::Pod, Told::All(vec![pod("web-1", "a", "1")]), 0);
    tell(&mut state, Kind::Pod, Told::Listing, 0);
    tell(&mut state, Kind::Pod, Told::All(vec![pod("web-1", "a", "1")]), 0);
    assert_eq!(told_by(&mut feed), ["fresh", "listing", "all 1"][1..].to_vec());
}
