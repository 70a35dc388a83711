//! The life of a pod, as far as the port shows it.

use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod, PodSchedulingGate};
use pando_cluster::names::START_GATE;
use pando_cluster::{Cluster, ClusterError, DeleteOptions, Kind, LogRequest, ObjectKey};
use pando_fakecluster::behaviour::Behaviour;
use serde_json::json;

use super::fixture::{SOON, gone, key, namespace, patch, pod, uid, until};
use crate::bed::{Bed, eventually};

fn gated(bed: &dyn Bed, namespace: &str, name: &str) -> Pod {
    let mut pod = pod(bed, namespace, name, &Behaviour::Run);
    let gate = PodSchedulingGate { name: START_GATE.to_owned() };
    pod.spec.get_or_insert_default().scheduling_gates = Some(vec![gate]);
    pod
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Why the pod has no node, or that it has one.
fn scheduled(pod: &Pod) -> (&str, &str) {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let condition = conditions.into_iter().flatten().find(|condition| condition.type_ == "PodScheduled");
    condition.map_or(("", ""), |it| (it.status.as_str(), it.reason.as_deref().unwrap_or_default()))
}

fn ended(pod: &Pod) -> Option<ContainerStateTerminated> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == "app")?.state.as_ref()?.terminated.clone()
}

/// Makes the pod and waits until its container runs.
async fn running(bed: &dyn Bed, pod: &Pod) -> Pod {
    let made = bed.admin().make(pod).await.expect("a pod");
    let key = key(
        Kind::Pod,
        made.metadata.namespace.as_deref().unwrap_or_default(),
        made.metadata.name.as_deref().unwrap_or_default(),
    );
    until(bed, &key, "runs", |pod: &Pod| (phase(pod) == "Running").then(|| pod.clone())).await
}

pub(super) async fn a_gated_pod_does_not_run(bed: &dyn Bed) {
    let namespace = namespace(bed, "gated").await;
    let key = key(Kind::Pod, &namespace, "a");
    bed.admin().make(&gated(bed, &namespace, "a")).await.expect("a pod");
    // A pod without a gate, made later, has been through everything before this one is looked at.
    running(bed, &pod(bed, &namespace, "b", &Behaviour::Run)).await;
    let gated: Pod = bed.admin().read(Some(&namespace), "a").await.expect("a read").expect("it is there");
    assert_eq!((phase(&gated), scheduled(&gated)), ("Pending", ("False", "SchedulingGated")));
    assert_eq!(gated.spec.and_then(|spec| spec.node_name), None, "{key}");
}

pub(super) async fn a_gated_pod_goes_at_once(bed: &dyn Bed) {
    let namespace = namespace(bed, "ungone").await;
    let made = bed.admin().make(&gated(bed, &namespace, "a")).await.expect("a pod");
    let key = key(Kind::Pod, &namespace, "a");
    bed.admin().delete(&key, &DeleteOptions::of(uid(&made.metadata))).await.expect("a deletion");
    assert_eq!(bed.admin().get(&key).await.expect("a read"), None, "nobody has to end it first");
}

pub(super) async fn an_opened_gate_lets_the_pod_run(bed: &dyn Bed) {
    let namespace = namespace(bed, "open").await;
    bed.admin().make(&gated(bed, &namespace, "a")).await.expect("a pod");
    let key = key(Kind::Pod, &namespace, "a");
    patch(bed, &key, json!({"spec": {"schedulingGates": null}})).await.expect("the gate opens");
    let pod = until(bed, &key, "runs", |pod: &Pod| (phase(pod) == "Running").then(|| pod.clone())).await;
    assert_eq!(scheduled(&pod).0, "True");
    let status = pod.status.expect("a status");
    assert!(status.pod_ip.is_some() && status.start_time.is_some(), "{status:?}");
    assert!(pod.spec.and_then(|spec| spec.node_name).is_some());
}

pub(super) async fn a_failed_pod_stays_failed(bed: &dyn Bed) {
    let namespace = namespace(bed, "failed").await;
    let behaviour = Behaviour::Exit { after: Duration::ZERO, code: 3 };
    bed.admin().make(&pod(bed, &namespace, "a", &behaviour)).await.expect("a pod");
    let key = key(Kind::Pod, &namespace, "a");
    let failed = until(bed, &key, "has failed", |pod: &Pod| (phase(pod) == "Failed").then(|| pod.clone())).await;
    let end = ended(&failed).expect("its container has ended");
    assert_eq!((end.exit_code, end.reason.as_deref()), (3, Some("Error")));
    assert!(end.started_at.is_some() && end.finished_at.is_some(), "{end:?}");
    let statuses = failed.status.and_then(|status| status.container_statuses).unwrap_or_default();
    assert_eq!(statuses.iter().map(|status| status.restart_count).sum::<i32>(), 0);
}

pub(super) async fn an_ended_pod_goes_at_once(bed: &dyn Bed) {
    let namespace = namespace(bed, "ended").await;
    let behaviour = Behaviour::Exit { after: Duration::ZERO, code: 0 };
    let made = bed.admin().make(&pod(bed, &namespace, "a", &behaviour)).await.expect("a pod");
    let key = key(Kind::Pod, &namespace, "a");
    until(bed, &key, "has succeeded", |pod: &Pod| (phase(pod) == "Succeeded").then_some(())).await;
    bed.admin().delete(&key, &DeleteOptions::of(uid(&made.metadata))).await.expect("a deletion");
    assert_eq!(bed.admin().get(&key).await.expect("a read"), None, "there is nothing to wait for");
}

pub(super) async fn a_pod_stays_until_its_containers_have_ended(bed: &dyn Bed) {
    let namespace = namespace(bed, "grace").await;
    let mut stubborn = pod(bed, &namespace, "a", &Behaviour::IgnoreTerm);
    stubborn.spec.get_or_insert_default().termination_grace_period_seconds = Some(3);
    let running = running(bed, &stubborn).await;
    let key = key(Kind::Pod, &namespace, "a");
    let begun = bed.env().now();
    bed.admin().delete(&key, &DeleteOptions::of(uid(&running.metadata))).await.expect("a deletion");
    let dying: Pod = bed.admin().read(Some(&namespace), "a").await.expect("a read").expect("it is still there");
    assert_eq!(dying.metadata.deletion_grace_period_seconds, Some(3));
    assert!(dying.metadata.deletion_timestamp.is_some() && phase(&dying) == "Running", "{:?}", dying.metadata);
    gone(bed, &key).await;
    assert!(bed.env().now().since(begun) >= Duration::from_millis(2500), "its grace was its own");
}

pub(super) async fn a_second_deletion_may_only_hasten(bed: &dyn Bed) {
    let namespace = namespace(bed, "hasten").await;
    let mut stubborn = pod(bed, &namespace, "a", &Behaviour::IgnoreTerm);
    stubborn.spec.get_or_insert_default().termination_grace_period_seconds = Some(30);
    let running = running(bed, &stubborn).await;
    let key = key(Kind::Pod, &namespace, "a");
    let delete = async |grace: u32| {
        let options = DeleteOptions { grace_seconds: Some(grace), ..DeleteOptions::of(uid(&running.metadata)) };
        bed.admin().delete(&key, &options).await.expect("a deletion");
        let pod: Option<Pod> = bed.admin().read(Some(&namespace), "a").await.expect("a read");
        pod.and_then(|pod| pod.metadata.deletion_grace_period_seconds)
    };
    assert_eq!(delete(10).await, Some(10));
    assert_eq!(delete(20).await, Some(10), "longer is not given");
    assert_eq!(delete(5).await, Some(5), "shorter is");
    // A kubelet that is ending the pod already may still take the time it was given first.
    gone(bed, &key).await;
}

pub(super) async fn an_image_that_cannot_be_had_is_told(bed: &dyn Bed) {
    let namespace = namespace(bed, "image").await;
    let mut pod = pod(bed, &namespace, "a", &Behaviour::Run);
    for container in &mut pod.spec.get_or_insert_default().containers {
        container.image = Some("registry.invalid/nothing:1".to_owned());
    }
    bed.admin().make(&pod).await.expect("a pod");
    let waiting = |pod: &Pod| {
        let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
        let waiting = status.state.as_ref()?.waiting.clone()?;
        waiting
            .reason
            .as_deref()
            .is_some_and(|reason| reason.ends_with("ImagePull") || reason == "ImagePullBackOff")
            .then_some(waiting)
    };
    let waiting = until(bed, &key(Kind::Pod, &namespace, "a"), "says why it waits", waiting).await;
    assert!(
        waiting.message.as_deref().is_some_and(|message| message.contains("registry.invalid/nothing:1")),
        "{waiting:?}"
    );
}

fn log_of(key: &ObjectKey) -> LogRequest {
    LogRequest {
        namespace: key.namespace.clone().unwrap_or_default(),
        pod: key.name.clone(),
        container: "app".to_owned(),
        follow: false,
        since: None,
        tail_lines: None,
        limit_bytes: None,
        timestamps: false,
    }
}

async fn read_log(cluster: &dyn Cluster, request: &LogRequest) -> Result<String, ClusterError> {
    let pieces: Vec<Bytes> = cluster.logs(request).await?.try_collect().await?;
    Ok(String::from_utf8_lossy(&pieces.concat()).into_owned())
}

/// A pod that prints three lines and ends.
async fn printed(bed: &dyn Bed, word: &str) -> ObjectKey {
    let namespace = namespace(bed, word).await;
    let lines = ["one", "two", "three"].map(str::to_owned).to_vec();
    let behaviour = Behaviour::Print { lines, then: Box::new(Behaviour::Exit { after: Duration::ZERO, code: 0 }) };
    bed.admin().make(&pod(bed, &namespace, "a", &behaviour)).await.expect("a pod");
    let key = key(Kind::Pod, &namespace, "a");
    until(bed, &key, "has ended", |pod: &Pod| ended(pod).map(|_| ())).await;
    key
}

pub(super) async fn a_log_is_what_was_printed_in_order(bed: &dyn Bed) {
    let key = printed(bed, "log").await;
    let admin = bed.admin();
    // The last lines may reach the log a moment after the end.
    let log = eventually(bed.env(), "the log is whole", SOON, || async {
        let log = read_log(&*admin, &log_of(&key)).await.expect("a log");
        (log.lines().count() == 3).then_some(log)
    })
    .await;
    assert_eq!(log, "one\ntwo\nthree\n");
    let stamped = read_log(&*admin, &LogRequest { timestamps: true, ..log_of(&key) }).await.expect("a log");
    for (line, word) in stamped.lines().zip(["one", "two", "three"]) {
        let (time, rest) = line.split_once(' ').expect("a time and the line");
        assert!(time.parse::<jiff::Timestamp>().is_ok() && rest == word, "{line}");
    }
}

pub(super) async fn only_the_last_lines_of_a_log_when_asked(bed: &dyn Bed) {
    let key = printed(bed, "tail").await;
    let admin = bed.admin();
    for (lines, expected) in [(2, "two\nthree\n"), (0, ""), (9, "one\ntwo\nthree\n")] {
        let request = LogRequest { tail_lines: Some(lines), ..log_of(&key) };
        eventually(bed.env(), &format!("the last {lines} lines are {expected:?}"), SOON, || async {
            (read_log(&*admin, &request).await.expect("a log") == expected).then_some(())
        })
        .await;
    }
}

pub(super) async fn a_followed_log_ends_with_its_container(bed: &dyn Bed) {
    let namespace = namespace(bed, "follow").await;
    let lines = ["first".to_owned()].to_vec();
    let behaviour =
        Behaviour::Print { lines, then: Box::new(Behaviour::Exit { after: Duration::from_secs(3), code: 0 }) };
    running(bed, &pod(bed, &namespace, "a", &behaviour)).await;
    let key = key(Kind::Pod, &namespace, "a");
    let admin = bed.admin();
    let request = LogRequest { follow: true, ..log_of(&key) };
    let log = bed.env().timeout(SOON, read_log(&*admin, &request)).await.expect("it ends by itself").expect("a log");
    assert_eq!(log, "first\n");
    until(bed, &key, "has ended", |pod: &Pod| ended(pod).map(|_| ())).await;
}
