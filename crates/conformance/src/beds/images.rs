//! Which nodes have an image.
//!
//! A node tells which images it has, but late (up to 40 s on Kubernetes 1.34) and only the fifty largest. A pod
//! that may not pull tells at once.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Container, ContainerState, Namespace, Node, Pod, PodSpec, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_cluster::{Cluster, DeleteOptions, Env, Kind, ObjectKey, Uid};

use crate::bed::eventually;

/// Longer than a node takes to look for an image that it has, or has not.
const LOOKS: Duration = Duration::from_mins(1);

/// Whether every one of `nodes` has `image`; asks those that do not tell by a pod, in a namespace made for it.
pub(super) async fn on_every_node(
    admin: &dyn Cluster,
    env: &Env,
    nodes: &[&Node],
    image: &str,
    namespace: &str,
) -> bool {
    let asked: Vec<_> = nodes.iter().filter(|node| !tells(node, image)).filter_map(|node| name(node)).collect();
    if asked.is_empty() {
        return true;
    }
    let meta = ObjectMeta { name: Some(namespace.to_owned()), ..ObjectMeta::default() };
    let made = admin.make(&Namespace { metadata: meta, ..Namespace::default() }).await.expect("a namespace for a look");
    let account = ServiceAccount { metadata: meta_in(namespace, "look"), ..ServiceAccount::default() };
    admin.make(&account).await.expect("an account for a look");
    let looks = asked.into_iter().map(|node| look(admin, env, namespace, node, image));
    let found = join_all(looks).await.into_iter().all(|found| found);
    let uid = Uid::of(&made.metadata).expect("a stored object has a uid");
    let key = ObjectKey::cluster(Kind::Namespace, namespace);
    admin.delete(&key, &DeleteOptions::of(uid)).await.expect("the namespace for a look goes");
    found
}

/// Whether a container of that image starts on the node, without a pull.
async fn look(admin: &dyn Cluster, env: &Env, namespace: &str, node: &str, image: &str) -> bool {
    let container = Container {
        name: "look".to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some("Never".to_owned()),
        ..Container::default()
    };
    let spec = PodSpec {
        node_name: Some(node.to_owned()),
        containers: vec![container],
        restart_policy: Some("Never".to_owned()),
        service_account_name: Some("look".to_owned()),
        automount_service_account_token: Some(false),
        termination_grace_period_seconds: Some(1),
        ..PodSpec::default()
    };
    let pod = Pod { metadata: meta_in(namespace, node), spec: Some(spec), ..Pod::default() };
    admin.make(&pod).await.expect("a pod for a look");
    eventually(env, &format!("{node} says whether it has {image}"), LOOKS, || async {
        let pod: Pod = admin.read(Some(namespace), node).await.expect("it can be read")?;
        let statuses = pod.status?.container_statuses?;
        found(statuses.first()?.state.as_ref()?)
    })
    .await
}

/// What a container's state says about its image; `None` while it says nothing.
fn found(state: &ContainerState) -> Option<bool> {
    if state.running.is_some() || state.terminated.is_some() {
        return Some(true);
    }
    match state.waiting.as_ref()?.reason.as_deref()? {
        "ErrImageNeverPull" | "InvalidImageName" => Some(false),
        _ => None,
    }
}

fn tells(node: &Node, image: &str) -> bool {
    let images = node.status.iter().flat_map(|status| status.images.iter().flatten());
    images.flat_map(|image| image.names.iter().flatten()).any(|name| *name == full_name(image))
}

/// The name a node lists an image under: `nginx:1.22` is `docker.io/library/nginx:1.22`.
fn full_name(image: &str) -> String {
    match image.split_once('/') {
        None => format!("docker.io/library/{image}"),
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => image.to_owned(),
        Some(_) => format!("docker.io/{image}"),
    }
}

fn name<'a>(node: &'a &Node) -> Option<&'a str> {
    node.metadata.name.as_deref()
}

fn meta_in(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ContainerStateRunning, ContainerStateWaiting};

    use super::*;

    #[test]
    fn an_image_is_known_by_the_name_that_nodes_give_it() {
        for (name, full) in [
            ("nginx:1.22", "docker.io/library/nginx:1.22"),
            ("bitnami/nginx:1", "docker.io/bitnami/nginx:1"),
            ("ghcr.io/a/b:1", "ghcr.io/a/b:1"),
            ("localhost/b:1", "localhost/b:1"),
            ("localhost:5000/b:1", "localhost:5000/b:1"),
        ] {
            assert_eq!(full_name(name), full);
        }
    }

    #[test]
    fn a_container_that_only_waits_says_nothing_about_its_image() {
        let waiting = |reason: &str| ContainerState {
            waiting: Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message: None }),
            ..ContainerState::default()
        };
        assert_eq!(found(&waiting("ContainerCreating")), None);
        assert_eq!(found(&waiting("ErrImageNeverPull")), Some(false));
        let running = ContainerState { running: Some(ContainerStateRunning::default()), ..ContainerState::default() };
        assert_eq!(found(&running), Some(true));
    }
}
