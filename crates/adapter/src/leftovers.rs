//! Taking away what the plan has no use for any more (S-40). Claims are never among it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Service};
use pando_api::Error;
use pando_cluster::names::{label, label_value, role};

use crate::call::Call;
use crate::error::unchanged;
use crate::follow::Followed;
use crate::ground::Ground;
use crate::objects::{workload_of_pod, workload_of_record};
use crate::plan::Plan;
use crate::sight;

/// Ends the workloads that left the plan, and pulls that a caller left behind. Answers whether there were such workloads.
pub(crate) async fn remove_workloads(call: &Call<'_>, plan: &Plan, ground: &Ground) -> Result<bool, Error> {
    for pull in ground.pods.iter().filter(|pod| is_pull(pod) && !sight::is_going(pod)) {
        call.delete(pull).await.map_err(unchanged)?;
    }
    let left = left(plan, &ground.records, &ground.pods);
    let any = !left.is_empty();
    futures::future::try_join_all(left.into_iter().map(|workload| remove(call, workload, ground))).await?;
    Ok(any)
}

/// The workloads that are there and not in the plan any more.
pub(crate) fn left<'a>(plan: &Plan, records: &'a [Service], pods: &'a [Pod]) -> BTreeSet<&'a str> {
    let by_record = records.iter().filter_map(workload_of_record);
    let by_pod = pods.iter().filter_map(workload_of_pod);
    by_record.chain(by_pod).filter(|workload| plan.workload(workload).is_none()).collect()
}

async fn remove(call: &Call<'_>, workload: &str, ground: &Ground) -> Result<(), Error> {
    for record in ground.records.iter().filter(|record| workload_of_record(record) == Some(workload)) {
        call.delete(record).await.map_err(unchanged)?;
    }
    // Listed after the record went: a pod made since our own list cannot have its gate opened any more.
    let mut follower = call.follow(Followed::Workloads).await?;
    let pods: Vec<Pod> = follower.pods().filter(|pod| workload_of_pod(pod) == Some(workload)).cloned().collect();
    call.end(&pods, &mut follower).await
}

/// Whether the pod only pulls an image: whoever waits for it makes another one.
pub(crate) fn is_pull(pod: &Pod) -> bool {
    label_value(&pod.metadata, label::ROLE) == Some(role::PULL)
}

/// Removes what workloads were given and none is given any more, once no pod has it.
pub(crate) async fn remove_contents(call: &Call<'_>, ground: &Ground) -> Result<(), Error> {
    for secret in &ground.idle_secrets {
        call.delete(secret).await.map_err(unchanged)?;
    }
    for files in &ground.idle_files {
        call.delete(files).await.map_err(unchanged)?;
    }
    Ok(())
}
