//! What an operator wants to know of an installation, line by line: each looked at by itself, so that one failure hides no other.
//!
//! Here the cluster is asked; what its answers mean is decided in `checks`.

mod checks;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use pando_api::{CallContext, Check, CheckState, Diagnosis, Progress};
use pando_cluster::{ClusterError, Kind, ListRequest, Scope, Selector};

use crate::Shared;
use crate::error::unread;

/// How often the API server is asked for its pace.
const READS: usize = 3;

/// Looks at everything. `renew` has isolation found out anew.
pub(crate) async fn diagnose(shared: &Arc<Shared>, context: &CallContext, renew: bool) -> Diagnosis {
    let Shared { cluster, settings, .. } = &**shared;
    let tell = |step: &str| {
        context.tell(Progress {
            workload: String::new(),
            step: step.to_owned(),
            waiting_for: String::new(),
            since: shared.env.wall.now(),
        });
    };
    tell("asking the API server");
    let answers = checks::answers(&pace(shared).await.map_err(unread));
    if answers.state == CheckState::Failed {
        let others = [checks::NODES, checks::PODS, checks::SERVICES, checks::NODE_RANGE, checks::ISOLATION];
        let others = others.map(|name| checks::unknown(name, "the API server could not be asked"));
        return Diagnosis { checks: [answers].into_iter().chain(others).collect() };
    }
    let nodes = ListRequest::of(Kind::Node, Scope::All);
    let service = ListRequest::of(Kind::Service, Scope::All)
        .with_fields(Selector::everything().equals("metadata.name", "kubernetes"));
    let (nodes, services) = futures::join!(cluster.list_all::<Node>(&nodes), cluster.list_all::<Service>(&service));
    let mut checks = vec![answers];
    match nodes {
        Ok((nodes, _)) => {
            checks.extend([
                checks::nodes(&nodes, settings),
                checks::pod_ranges(&nodes, &settings.network.pod_ranges),
                checks::node_ranges(&nodes, &settings.network.node_ranges),
            ]);
        }
        Err(error) => {
            let told = checks::failed(checks::NODES, &unread(error));
            let others = [checks::PODS, checks::NODE_RANGE].map(|name| checks::unknown(name, "no node could be read"));
            checks.push(told);
            checks.extend(others);
        }
    }
    checks.push(match services {
        Ok((services, _)) => checks::service_ranges(&services, &settings.network.service_ranges),
        Err(error) => checks::failed(checks::SERVICES, &unread(error)),
    });
    tell("checking isolation");
    let health = if renew { shared.health_anew(context).await } else { shared.health(context).await };
    checks.push(match health {
        Ok(health) => checks::isolated(&health.isolation, shared.env.wall.now()),
        Err(error) => checks::failed(checks::ISOLATION, &error),
    });
    Diagnosis { checks }
}

/// The API server's own addresses, and how long it takes to answer: the median of a few reads.
async fn pace(shared: &Arc<Shared>) -> Result<checks::Pace, ClusterError> {
    let mut times = Vec::new();
    let mut slice = None;
    for _ in 0..READS {
        let began = shared.env.now();
        slice = shared.cluster.read::<EndpointSlice>(Some("default"), "kubernetes").await?;
        times.push(shared.env.now().since(began));
    }
    times.sort_unstable();
    let addresses = slice.iter().flat_map(pando_network::api_server_addresses).collect();
    Ok(checks::Pace { median: times.get(READS / 2).copied().unwrap_or_default(), addresses })
}

/// A check's outcome.
fn check(name: &str, state: CheckState, fact: impl Into<String>, remedy: Option<&str>) -> Check {
    Check { name: name.to_owned(), state, fact: fact.into(), remedy: remedy.map(str::to_owned) }
}
