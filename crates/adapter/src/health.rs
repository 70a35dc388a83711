//! Whether an installation can be trusted with apps (S-10).

use pando_api::{Code, Error, Health, Isolation};
use pando_network::canary::Verdict;

use crate::canary::Finding;

/// What a canary found, in core's words.
///
/// # Errors
///
/// When policies are not enforced (S-14), or nothing was proved.
pub(crate) fn isolation(found: Finding) -> Result<Health, Error> {
    let places = found.nodes.join(", ");
    match found.verdict {
        Verdict::Enforced { time_to_deny } => Ok(Health {
            isolation: Isolation {
                checked: found.at,
                time_to_deny_millis: u64::try_from(time_to_deny.as_millis()).unwrap_or(u64::MAX),
                families: found.families.iter().map(ToString::to_string).collect(),
                places: found.nodes,
            },
        }),
        Verdict::NotEnforced { open, families } => {
            let message = format!(
                "this cluster does not enforce network policies (tried on {places}); packets still came through {open}"
            );
            let remedy = "install a network plugin that enforces NetworkPolicy in both directions and for every address family of pods, such as Calico or Cilium, then check again";
            let families: Vec<_> = families.iter().map(ToString::to_string).collect();
            Err(Error::new(Code::AdapterUnavailable, message).remedy(remedy).detail("open_families", families))
        }
        Verdict::Inconclusive { why, remedy } => {
            let message = format!(
                "whether this cluster enforces network policies could not be found out (tried on {places}): {why}"
            );
            Err(Error::new(Code::AdapterUnavailable, message).remedy(remedy))
        }
    }
}
