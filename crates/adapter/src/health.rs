//! Whether an installation can be trusted with apps (S-10), in core's words.

use pando_api::{Code, Error, Health, Isolation};
use pando_network::canary::{Held, Standing};

/// What is held of the cluster's isolation.
///
/// # Errors
///
/// When policies are not enforced (S-14).
pub(crate) fn isolation(standing: Standing) -> Result<Health, Error> {
    match standing.held {
        Held::Passed { time_to_deny } => Ok(Health {
            isolation: Isolation {
                checked: standing.at,
                time_to_deny_millis: u64::try_from(time_to_deny.as_millis()).unwrap_or(u64::MAX),
                families: standing.families.iter().map(ToString::to_string).collect(),
                places: standing.nodes,
            },
        }),
        Held::Doubted(open) | Held::Failed(open) => {
            let message = format!(
                "this cluster does not enforce network policies (tried on {} at {}); packets still came through {}",
                standing.nodes.join(", "),
                standing.at,
                open.ways
            );
            let remedy = "install a network plugin that enforces NetworkPolicy in both directions and for every address family of pods, such as Calico or Cilium; it is looked at again in five minutes";
            let families: Vec<_> = open.families.iter().map(ToString::to_string).collect();
            Err(Error::new(Code::AdapterUnavailable, message).remedy(remedy).detail("open_families", families))
        }
    }
}

/// A canary proved nothing.
pub(crate) fn inconclusive(nodes: &[String], why: &str, remedy: &str) -> Error {
    let message = format!(
        "whether this cluster enforces network policies could not be found out (tried on {}): {why}",
        nodes.join(", ")
    );
    Error::new(Code::AdapterUnavailable, message).remedy(remedy)
}
