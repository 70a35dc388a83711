//! Who reaches an app, and what an app reaches. Whoever is found closed out is first shown to be able to dial at all.

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use pando_cluster::{Kind, ListRequest, Scope};
use pando_fakecluster::behaviour::{Behaviour, Target};
use pando_fakecluster::netpol::PodName;

use super::fixture::{key as key_of, map, namespace, pod, until};
use super::packets::{closes, opens};
use crate::apps::{App, address, pod_name};
use crate::bed::Bed;

/// The labels of Pando's own server.
const SERVER: &[(&str, &str)] = &[("app.kubernetes.io/name", "pando"), ("app.kubernetes.io/component", "server")];

const KUBELET: u16 = 10_250;
const METADATA: [u8; 4] = [169, 254, 169, 254];

/// A pod that an administrator made in any namespace, to dial from; it runs.
async fn bystander(bed: &dyn Bed, namespace: &str, labels: &[(&str, &str)], behaviour: &Behaviour) -> Pod {
    let name = bed.unique("bystander");
    let mut bystander = pod(bed, namespace, &name, behaviour);
    bystander.metadata.labels = Some(map(labels));
    // Not every namespace has the account that apps run as.
    let spec: &mut PodSpec = bystander.spec.get_or_insert_default();
    spec.service_account_name = None;
    let key = key_of(Kind::Pod, namespace, &name);
    bed.remove_afterwards(key.clone());
    let account = key_of(Kind::ServiceAccount, namespace, "default");
    until(bed, &account, "is there", |_: &ServiceAccount| Some(())).await;
    bed.admin().make(&bystander).await.expect("a pod");
    until(bed, &key, "runs", |pod: &Pod| {
        (pod.status.as_ref()?.phase.as_deref() == Some("Running")).then(|| pod.clone())
    })
    .await
}

pub(super) async fn only_pandos_server_and_the_apps_own_pods_reach_an_app(bed: &dyn Bed) {
    let (app, other) = (App::new(bed, "reached"), App::new(bed, "other"));
    app.apply(&app.web_server()).await;
    other.apply(&other.plan(&Behaviour::Listen { ports: vec![8080] })).await;
    let (fresh, open) = (namespace(bed, "labelled").await, namespace(bed, "open").await);
    let idle = &Behaviour::Run;
    let name = app.upstream(80);
    let addressed = Target::address(address(&app.pod().await), 80);
    let server = pod_name(&bystander(bed, "pando", SERVER, idle).await);
    let own = pod_name(&bystander(bed, &app.namespace, &[], idle).await);
    for from in [&server, &own] {
        opens(bed, from, &name).await;
        opens(bed, from, &addressed).await;
    }
    // Whoever can dial this one can dial.
    let control = bystander(bed, &open, &[], &Behaviour::Listen { ports: vec![8080] }).await;
    let control = Target::address(address(&control), 8080);
    let strangers = [
        bystander(bed, &fresh, SERVER, idle).await,
        bystander(bed, "default", &[], idle).await,
        bystander(bed, "default", SERVER, idle).await,
        bystander(bed, "pando", &[], idle).await,
        bystander(bed, "pando", &SERVER[..1], idle).await,
    ];
    for from in strangers.iter().map(pod_name) {
        opens(bed, &from, &control).await;
        closes(bed, &from, &addressed).await;
        closes(bed, &from, &name).await;
    }
    // Another app may dial its own pods, and no other's.
    let from = pod_name(&other.pod().await);
    opens(bed, &from, &other.upstream(8080)).await;
    closes(bed, &from, &addressed).await;
    closes(bed, &from, &name).await;
    // All the while, it was there.
    opens(bed, &server, &name).await;
}

/// What of the cluster itself no app may reach: all of it answers to a pod without a policy.
async fn of_the_cluster(bed: &dyn Bed) -> Vec<Target> {
    let admin = bed.admin();
    let service: Service = admin.read(Some("default"), "kubernetes").await.expect("a read").expect("a Service");
    let service = service.spec.and_then(|spec| spec.cluster_ip).expect("an address");
    let slice: EndpointSlice = admin.read(Some("default"), "kubernetes").await.expect("a read").expect("a slice");
    let mut targets = vec![Target::address(service.parse::<std::net::IpAddr>().expect("an address"), 443)];
    targets.extend(pando_network::api_server_addresses(&slice).iter().map(|it| Target::address(it.ip(), it.port())));
    let (nodes, _) = admin.list_all::<Node>(&ListRequest::of(Kind::Node, Scope::All)).await.expect("the nodes");
    targets.extend(pando_network::node_addresses(&nodes).into_iter().map(|node| Target::address(node, KUBELET)));
    targets
}

pub(super) async fn an_app_reaches_the_outside_and_nothing_of_the_cluster(bed: &dyn Bed) {
    let (app, other) = (App::new(bed, "egress"), App::new(bed, "neighbour"));
    app.apply(&app.plan(&Behaviour::Listen { ports: vec![8080] })).await;
    other.apply(&other.plan(&Behaviour::Listen { ports: vec![8080] })).await;
    let from = pod_name(&app.pod().await);
    let outside = outside(bed);
    opens(bed, &from, &outside).await;
    // Its own name: DNS answers.
    opens(bed, &from, &app.upstream(8080)).await;
    let free = namespace(bed, "free").await;
    let free = pod_name(&bystander(bed, &free, &[], &Behaviour::Run).await);
    let mut closed = of_the_cluster(bed).await;
    assert!(closed.len() >= 4, "the API server twice and two nodes: {closed:?}");
    closed.push(Target::address(METADATA, 80));
    for target in &closed {
        opens(bed, &free, target).await;
        closes(bed, &from, target).await;
    }
    let beside = pod_name(&bystander(bed, &other.namespace, &[], &Behaviour::Run).await);
    for target in [Target::address(address(&other.pod().await), 8080), other.upstream(8080)] {
        opens(bed, &beside, &target).await;
        closes(bed, &from, &target).await;
    }
    opens(bed, &from, &outside).await;
}

/// The bed's place outside of the cluster, to dial.
fn outside(bed: &dyn Bed) -> Target {
    let url = bed.outside().expect("the case needs a place outside");
    let rest = url.strip_prefix("http://").unwrap_or_else(|| panic!("{url} begins with http://"));
    let authority = rest.split('/').next().unwrap_or_default();
    let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
    let port = port.parse().unwrap_or_else(|_| panic!("{url} has a port"));
    match host.parse::<std::net::IpAddr>() {
        Ok(ip) => Target::address(ip, port),
        Err(_) => Target::name(host, port),
    }
}

/// The name of the pod that a stopped app's upstream led to leads nowhere.
pub(super) async fn nobody_answers_for_a_stopped_app(bed: &dyn Bed) {
    let app = App::new(bed, "silent");
    app.apply(&app.plan(&Behaviour::Listen { ports: vec![8080] })).await;
    let server: PodName = pod_name(&bystander(bed, "pando", SERVER, &Behaviour::Run).await);
    opens(bed, &server, &app.upstream(8080)).await;
    app.stop().await;
    closes(bed, &server, &app.upstream(8080)).await;
}
