//! Connections between pods, and what a NetworkPolicy does to them.
//!
//! Network plugins are late: a policy, a fresh pod and a fresh listener each take effect in their own time. So
//! these cases wait for what must come, and hold that it stays.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use pando_cluster::Kind;
use pando_fakecluster::behaviour::{Behaviour, Outcome, Target};
use pando_fakecluster::netpol::PodName;

use super::fixture::{SOON, key, map, meta, namespace, pod, service, until};
use crate::bed::{Bed, eventually};

const PORT: u16 = 8080;

/// Makes a pod with labels, and answers its address once it runs.
async fn running(bed: &dyn Bed, namespace: &str, name: &str, labels: &[(&str, &str)], behaviour: &Behaviour) -> IpAddr {
    let mut pod = pod(bed, namespace, name, behaviour);
    pod.metadata.labels = Some(map(labels));
    bed.admin().make(&pod).await.expect("a pod");
    let address = |pod: &Pod| {
        let status = pod.status.as_ref()?;
        (status.phase.as_deref() == Some("Running")).then(|| status.pod_ip.as_ref()?.parse().ok())?
    };
    until(bed, &key(Kind::Pod, namespace, name), "runs", address).await
}

fn listener() -> Behaviour {
    Behaviour::Listen { ports: vec![PORT] }
}

/// Waits until dialling ends so.
async fn comes(
    bed: &dyn Bed,
    from: &PodName,
    target: &Target,
    what: &str,
    expected: impl Fn(Outcome) -> bool + Send + Sync,
) {
    let what = format!("{}/{} finds {target:?} {what}", from.namespace, from.name);
    eventually(bed.env(), &what, SOON, || async { expected(bed.probe(from, target).await).then_some(()) }).await;
}

/// Waits until the target answers.
pub(super) async fn opens(bed: &dyn Bed, from: &PodName, target: &Target) {
    comes(bed, from, target, "open", |outcome| outcome == Outcome::Open).await;
}

/// Waits until the target does not answer, and holds that it stays so.
pub(super) async fn closes(bed: &dyn Bed, from: &PodName, target: &Target) {
    comes(bed, from, target, "closed", |outcome| outcome != Outcome::Open).await;
    assert_ne!(bed.probe(from, target).await, Outcome::Open, "{from:?} {target:?}: once closed it stays so");
}

/// Closes every pod of a namespace to all but pods of it with these labels, if any.
fn policy(namespace: &str, from: Option<BTreeMap<String, String>>) -> NetworkPolicy {
    let selector = |labels| LabelSelector { match_labels: Some(labels), ..LabelSelector::default() };
    let rule = |labels| NetworkPolicyIngressRule {
        from: Some(vec![NetworkPolicyPeer { pod_selector: Some(selector(labels)), ..NetworkPolicyPeer::default() }]),
        ports: None,
    };
    let spec = NetworkPolicySpec {
        pod_selector: Some(LabelSelector::default()),
        policy_types: Some(vec!["Ingress".to_owned()]),
        ingress: from.map(|labels| vec![rule(labels)]),
        egress: None,
    };
    NetworkPolicy { metadata: meta(namespace, "closed"), spec: Some(spec) }
}

pub(super) async fn without_a_policy_everybody_reaches_a_listener(bed: &dyn Bed) {
    let (one, other) = (namespace(bed, "near").await, namespace(bed, "far").await);
    let address = running(bed, &one, "web", &[], &listener()).await;
    for namespace in [&one, &other] {
        running(bed, namespace, "client", &[], &Behaviour::Run).await;
        let client = PodName::new(namespace, "client");
        opens(bed, &client, &Target::address(address, PORT)).await;
        let nobody = bed.probe(&client, &Target::address(address, PORT + 1)).await;
        assert_eq!(nobody, Outcome::Refused, "nobody listens there");
    }
}

pub(super) async fn a_headless_service_gives_its_pod_a_name(bed: &dyn Bed) {
    let namespace = namespace(bed, "dns").await;
    running(bed, &namespace, "web", &[("app", "web")], &listener()).await;
    running(bed, &namespace, "client", &[], &Behaviour::Run).await;
    let mut record: Service = service(&namespace, "web", None);
    record.spec.get_or_insert_default().selector = Some(map(&[("app", "web")]));
    bed.admin().make(&record).await.expect("a Service");
    let client = PodName::new(&namespace, "client");
    opens(bed, &client, &Target::name(format!("web.{namespace}.svc.cluster.local"), PORT)).await;
    let unknown = Target::name(format!("nobody.{namespace}.svc.cluster.local"), PORT);
    assert_eq!(bed.probe(&client, &unknown).await, Outcome::NoRoute);
}

pub(super) async fn a_policy_closes_what_it_selects(bed: &dyn Bed) {
    let namespace = namespace(bed, "closed").await;
    let address = running(bed, &namespace, "web", &[], &listener()).await;
    running(bed, &namespace, "client", &[], &Behaviour::Run).await;
    let (client, target) = (PodName::new(&namespace, "client"), Target::address(address, PORT));
    opens(bed, &client, &target).await;
    bed.admin().make(&policy(&namespace, None)).await.expect("a policy");
    closes(bed, &client, &target).await;
}

pub(super) async fn a_policy_opens_to_those_it_names_and_nobody_else(bed: &dyn Bed) {
    let (namespace, stranger) = (namespace(bed, "named").await, namespace(bed, "stranger").await);
    let labels = [("role", "friend")];
    bed.admin().make(&policy(&namespace, Some(map(&labels)))).await.expect("a policy");
    let target = Target::address(running(bed, &namespace, "web", &[], &listener()).await, PORT);
    for (place, name, labels) in [
        (&namespace, "friend", labels.as_slice()),
        (&namespace, "other", &[]),
        (&stranger, "friend", labels.as_slice()),
    ] {
        running(bed, place, name, labels, &Behaviour::Run).await;
    }
    opens(bed, &PodName::new(&namespace, "friend"), &target).await;
    closes(bed, &PodName::new(&namespace, "other"), &target).await;
    // The same labels in another namespace are somebody else's.
    closes(bed, &PodName::new(&stranger, "friend"), &target).await;
}

pub(super) async fn a_program_tells_what_it_dialled(bed: &dyn Bed) {
    let namespace = namespace(bed, "dials").await;
    let address = running(bed, &namespace, "web", &[], &listener()).await;
    running(bed, &namespace, "probe", &[], &Behaviour::Run).await;
    opens(bed, &PodName::new(&namespace, "probe"), &Target::address(address, PORT)).await;
    let targets = vec![Target::address(address, PORT), Target::address(address, PORT + 1)];
    let dial = Behaviour::Dial {
        targets: targets.clone(),
        every: Duration::from_millis(100),
        during: Duration::ZERO,
        then: Box::new(Behaviour::Exit { after: Duration::ZERO, code: 0 }),
    };
    bed.admin().make(&pod(bed, &namespace, "client", &dial)).await.expect("a pod");
    until(bed, &key(Kind::Pod, &namespace, "client"), "has ended", ended_with(0)).await;
    let [open, nobody]: [Target; 2] = targets.try_into().expect("two targets");
    let dialled = bed.dialled(&PodName::new(&namespace, "client"), "app").await;
    assert_eq!(dialled, [(open, Outcome::Open), (nobody, Outcome::Refused)]);
}

pub(super) async fn a_program_that_waits_to_be_closed_in_goes_on_then(bed: &dyn Bed) {
    let namespace = namespace(bed, "gate").await;
    let address = running(bed, &namespace, "web", &[], &listener()).await;
    let targets = vec![Target::address(address, PORT)];
    let gate = |limit| Behaviour::DialUntilClosed { targets: targets.clone(), in_a_row: 2, limit };
    bed.admin().make(&pod(bed, &namespace, "open", &gate(Duration::from_secs(2)))).await.expect("a pod");
    until(bed, &key(Kind::Pod, &namespace, "open"), "gives up", ended_with(1)).await;
    bed.admin().make(&policy(&namespace, None)).await.expect("a policy");
    bed.admin().make(&pod(bed, &namespace, "closed", &gate(SOON))).await.expect("a pod");
    until(bed, &key(Kind::Pod, &namespace, "closed"), "goes on", ended_with(0)).await;
}

/// Finds that the container has ended with `code`.
fn ended_with(code: i32) -> impl Fn(&Pod) -> Option<()> + Send + Sync {
    move |pod: &Pod| {
        let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
        let terminated = status.state.as_ref()?.terminated.as_ref()?;
        assert_eq!(terminated.exit_code, code, "{terminated:?}");
        Some(())
    }
}
