//! Exit codes: what a script learns without reading a word.

use pando_api::Code;

/// The call was interrupted from the keyboard or by a request to end.
pub(crate) const INTERRUPTED: u8 = 130;

/// The exit code of a failure. 0 is success, and 2 is also what a command line that cannot be read ends with.
pub(crate) const fn of(code: Code) -> u8 {
    match code {
        Code::Internal => 1,
        Code::ValidInvalid => 2,
        Code::NotFound => 3,
        Code::PlanCapabilityUnsupported | Code::CapacityWouldOversubscribe => 4,
        Code::AdapterUnavailable => 5,
        Code::AdapterFailed | Code::AdapterRegistryRateLimited => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_exit_code() {
        for (code, exit) in [
            (Code::Internal, 1),
            (Code::ValidInvalid, 2),
            (Code::NotFound, 3),
            (Code::PlanCapabilityUnsupported, 4),
            (Code::CapacityWouldOversubscribe, 4),
            (Code::AdapterUnavailable, 5),
            (Code::AdapterFailed, 6),
            (Code::AdapterRegistryRateLimited, 6),
        ] {
            assert_eq!(of(code), exit, "{code}");
        }
    }
}
