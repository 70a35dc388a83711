//! The one place where the cluster's failures become core's codes.

use pando_api::{Code, Error};
use pando_cluster::converge::ConvergeError;
use pando_cluster::{ClusterError, Failure};

/// A read that failed: what was asked could not be found out (S-8).
pub(crate) fn unread(error: ClusterError) -> Error {
    coded(Code::AdapterUnavailable, error)
}

/// A change that failed.
pub(crate) fn unchanged(error: ClusterError) -> Error {
    let code = match error.failure {
        Failure::Unavailable(_) | Failure::Unauthorized | Failure::Overloaded { .. } => Code::AdapterUnavailable,
        _ => Code::AdapterFailed,
    };
    coded(code, error)
}

/// An object that could not be made so.
pub(crate) fn not_made(error: ConvergeError) -> Error {
    match error {
        ConvergeError::Cluster(error) => unchanged(error),
        ConvergeError::Foreign { .. } => Error::new(Code::AdapterFailed, error.to_string())
            .remedy("remove or rename that object if nobody needs it: what Pando did not make it does not touch"),
        ConvergeError::BeingDeleted { .. } => {
            Error::new(Code::AdapterFailed, error.to_string()).remedy("try again once it is gone")
        }
        ConvergeError::Contended { .. } => Error::new(Code::AdapterFailed, error.to_string())
            .remedy("find what else writes it: `kubectl get --show-managed-fields -o yaml` names the writers"),
    }
}

fn coded(code: Code, error: ClusterError) -> Error {
    let mapped = Error::new(code, error.to_string());
    let mapped = match error.remedy() {
        Some(remedy) => mapped.remedy(remedy),
        None => mapped,
    };
    mapped.caused_by(error)
}
