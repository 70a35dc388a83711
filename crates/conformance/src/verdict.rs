//! The verdict on a cluster's isolation, as one that a canary found there.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_cluster::names::object;
use pando_cluster::{Object, Resource as _};
use pando_network::canary::{Family, Held, Standing};

/// Who is told to have found it out.
const ADAPTER: &str = "of a case";

/// A pass of that time, so that an app is started without a canary of its own.
pub(crate) fn passed(at: Timestamp) -> Standing {
    let held = Held::Passed { time_to_deny: Duration::from_secs(1) };
    Standing { held, families: [Family::V4].into(), nodes: vec!["node-1".to_owned()], at }
}

/// The same where it is kept.
pub(crate) fn kept(namespace: &str, standing: &Standing) -> Object {
    ConfigMap {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(object::ISOLATION.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(standing.to_texts(ADAPTER)),
        ..ConfigMap::default()
    }
    .into_object()
}
