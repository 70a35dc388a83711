//! The isolation gate (S-78): a pod proves that its network is closed before its app starts.
//!
//! Network plugins are late for fresh pods: packets of one passed for 0.4 to 2.4 s although its policy was
//! there long before (measured on kube-router; BR-55). So an init container connects to addresses that the
//! app's policy closes, those of the API server, until two connects in a row to each of them fail.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;

/// The gate's container name.
pub const CONTAINER: &str = "gate";

/// The script that the gate runs, for the shell of the helper image.
const SCRIPT: &str = include_str!("gate.sh");

/// What a gate does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Addresses that must be closed, beside the API server's Service, which every container is told of.
    pub targets: BTreeSet<SocketAddr>,
    /// How long they may stay open; whole seconds.
    pub limit: Duration,
}

/// How a gate ended, by its own word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passing {
    /// Every address was closed after this time.
    Closed {
        /// From the gate's first probe on.
        after: Duration,
    },
    /// It did not pass, or left no word that can be read.
    NotClosed {
        /// The gate's words; empty when there are none.
        words: String,
    },
}

impl Gate {
    /// The gate's container: without environment, mounts or resources of its own, which the caller adds.
    #[must_use]
    pub fn container(&self, image: &str) -> Container {
        let limit = self.limit.as_secs().to_string();
        let targets = self.targets.iter().map(|target| format!("{} {}", target.ip(), target.port()));
        let shell = ["sh", "-c", SCRIPT, CONTAINER].map(str::to_owned);
        Container {
            name: CONTAINER.to_owned(),
            image: Some(image.to_owned()),
            command: Some(shell.into()),
            args: Some([limit].into_iter().chain(targets).collect()),
            image_pull_policy: Some("IfNotPresent".to_owned()),
            ..Container::default()
        }
    }

    /// The gate that a container of ours is; `None` for any other container.
    pub fn of(container: &Container) -> Option<Self> {
        let (limit, targets) = container.args.as_ref()?.split_first()?;
        if container.name != CONTAINER || container.command.as_ref()?.get(2)? != SCRIPT {
            return None;
        }
        let target = |text: &String| {
            let (address, port) = text.split_once(' ')?;
            Some(SocketAddr::new(address.parse().ok()?, port.parse().ok()?))
        };
        Some(Self {
            targets: targets.iter().map(target).collect::<Option<_>>()?,
            limit: Duration::from_secs(limit.parse().ok()?),
        })
    }
}

impl Passing {
    /// Reads what a gate left as its termination message, with its exit code.
    pub fn read(exit_code: i32, message: &str) -> Self {
        let millis = message.trim().strip_prefix("closed after ").and_then(|rest| rest.strip_suffix(" ms"));
        match millis.and_then(|millis| millis.parse().ok()) {
            Some(millis) if exit_code == 0 => Self::Closed { after: Duration::from_millis(millis) },
            _ => Self::NotClosed { words: message.trim().to_owned() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_read_back_from_its_container() {
        let gate = Gate {
            targets: ["172.18.0.2:6443", "[fd00::2]:6443"].map(|it| it.parse().expect("an address")).into(),
            limit: Duration::from_secs(30),
        };
        let container = gate.container("busybox:1.37");
        assert_eq!(
            container.args.as_ref().map(|args| args.join("|")).as_deref(),
            Some("30|172.18.0.2 6443|fd00::2 6443")
        );
        assert_eq!(Gate::of(&container), Some(gate));
        assert_eq!(Gate::of(&Container { name: "app".to_owned(), ..container.clone() }), None);
        assert_eq!(Gate::of(&Container { command: Some(vec!["sh".to_owned()]), ..container }), None);
    }

    #[test]
    fn only_a_gates_own_word_is_a_passing() {
        let closed = Passing::Closed { after: Duration::from_millis(1230) };
        for (code, message, passing) in [
            (0, "closed after 1230 ms\n", closed),
            (0, "", Passing::NotClosed { words: String::new() }),
            (1, "closed after 1230 ms", Passing::NotClosed { words: "closed after 1230 ms".to_owned() }),
            (
                1,
                "after 30 s: 10.96.0.1 443 is open;",
                Passing::NotClosed { words: "after 30 s: 10.96.0.1 443 is open;".to_owned() },
            ),
            (0, "closed after -1 ms", Passing::NotClosed { words: "closed after -1 ms".to_owned() }),
        ] {
            assert_eq!(Passing::read(code, message), passing, "{code} {message:?}");
        }
    }
}
