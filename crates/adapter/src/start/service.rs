//! The record of a workload, as it is made and repaired.

use k8s_openapi::api::core::v1::Service;
use pando_api::Error;
use pando_cluster::converge::{ConvergeError, difference};
use pando_cluster::names::{is_ours, label, label_value};
use pando_cluster::{Kind, Resource};

use super::Starter;
use crate::call::Call;
use crate::error::{not_made, unchanged, unread};
use crate::objects;
use crate::plan::Workload;
use crate::record::Revision;

impl Starter<'_> {
    /// Makes the record what it should be at `revision`, from the very state it was read in; writes only a difference.
    pub(super) async fn repair(&self, record: &Service, revision: Revision) -> Result<bool, Error> {
        let desired = objects::service(self.call.app, self.template.workload, revision);
        if !changes_in_place(record) {
            self.call.delete(record).await.map_err(unchanged)?;
            return make_record(self.call, self.template.workload, revision).await;
        }
        let as_json = |service: &Service| serde_json::to_value(service).unwrap_or_default();
        let found = difference(Kind::Service, &as_json(&desired), &as_json(record));
        if found.is_none() {
            return Ok(true);
        }
        match self.call.patch(record, found.patch, found.fields).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(false),
            Err(error) => Err(unchanged(error)),
        }
    }
}

/// Makes the workload's record at `revision`; `false` when another caller was there first.
pub(crate) async fn make_record(call: &Call<'_>, workload: &Workload, revision: Revision) -> Result<bool, Error> {
    let desired = objects::service(call.app, workload, revision);
    match call.create(&desired).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_already_exists() => {
            let holder = call.read::<Service>(&workload.name).await.map_err(unread)?;
            match holder {
                Some(holder) if !is_ours(&holder.metadata) => {
                    let manager = label_value(&holder.metadata, label::MANAGED_BY).map(str::to_owned);
                    Err(not_made(ConvergeError::Foreign { key: desired.key(), manager }))
                }
                _ => Ok(false),
            }
        }
        Err(error) => Err(unchanged(error)),
    }
}

/// Whether Kubernetes lets the record be changed into what we want; otherwise it is made again.
pub(crate) fn changes_in_place(record: &Service) -> bool {
    let Some(spec) = &record.spec else { return false };
    match spec.type_.as_deref().unwrap_or("ClusterIP") {
        "ClusterIP" => spec.cluster_ip.as_deref() == Some("None"),
        "ExternalName" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn records_that_kubernetes_cannot_change_are_made_again() {
        for (spec, in_place) in [
            (json!({"clusterIP": "None"}), true),
            (json!({"type": "ClusterIP", "clusterIP": "None"}), true),
            (json!({"type": "ExternalName", "externalName": "x"}), true),
            (json!({"type": "ClusterIP", "clusterIP": "10.96.0.9"}), false),
            (json!({"type": "NodePort", "clusterIP": "10.96.0.9"}), false),
        ] {
            let service: Service = serde_json::from_value(json!({"metadata": {}, "spec": spec})).expect("a Service");
            assert_eq!(changes_in_place(&service), in_place, "{spec}");
        }
    }
}
