//! The canary: whether network policies are enforced at all, found out by pods that dial each other (S-11).
//!
//! That a policy object exists says nothing: many network plugins accept it and do nothing, some do half of it, and one whose
//! agent has died keeps what was and ignores what is new. So pods of two namespaces dial each other, first without a policy and then with
//! the very policy that apps have. A way counts as closed only when the same probe came through before, and when another probe of the
//! same pod, which the policy admits, comes through beside it. Everything else proves nothing.
//!
//! Pure: [`probers`] says who dials whom, a [`Record`] reads what they wrote, and a [`Standing`] is what is held by it from then on. The pods are made elsewhere, of the containers here.

mod judge;
mod legs;
mod standing;

use k8s_openapi::api::core::v1::Container;

pub use judge::{Outcome, Record, Verdict};
pub use legs::{Family, Leg, Prober, Seat, Server, Target, Way, probers};
pub use standing::{Finding, Held, Open, Standing, Worth};

/// The name of a canary's container.
pub const CONTAINER: &str = "canary";

/// The TCP port that a canary's servers listen on.
pub const PORT: u16 = 8080;

const SERVER: &str = include_str!("server.sh");
const PROBER: &str = include_str!("prober.sh");

/// What a canary's container does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Answers with a page.
    Server {
        /// The page: a word that nobody else knows.
        page: String,
    },
    /// Dials.
    Prober {
        /// The page that an answer must be.
        page: String,
        /// Where to, in the order of the indices that it writes.
        targets: Vec<Target>,
    },
}

impl Part {
    /// The container: without resources and security context, which the caller adds.
    #[must_use]
    pub fn container(&self, image: &str) -> Container {
        let (script, words) = match self {
            Self::Server { page } => (SERVER, vec![page.clone(), PORT.to_string()]),
            Self::Prober { page, targets } => {
                (PROBER, [page.clone()].into_iter().chain(targets.iter().map(ToString::to_string)).collect())
            }
        };
        Container {
            name: CONTAINER.to_owned(),
            image: Some(image.to_owned()),
            image_pull_policy: Some("IfNotPresent".to_owned()),
            // Kubernetes reads `$$` as `$`, and `$(…)` as a variable where there is one of that name.
            command: Some(["sh", "-c", &script.replace('$', "$$"), CONTAINER].map(str::to_owned).into()),
            args: Some(words),
            ..Container::default()
        }
    }

    /// What a container of the canary's does; `None` for any other container.
    pub fn of(container: &Container) -> Option<Self> {
        if container.name != CONTAINER {
            return None;
        }
        let script = container.command.as_ref()?.get(2)?.replace("$$", "$");
        let (page, rest) = container.args.as_ref()?.split_first()?;
        let page = page.clone();
        match script.as_str() {
            SERVER => Some(Self::Server { page }),
            PROBER => {
                let targets = rest.iter().map(|text| Target::read(text)).collect::<Option<_>>()?;
                Some(Self::Prober { page, targets })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_back_from_its_container() {
        let targets = vec![
            Target { http: true, host: "10.244.1.5".to_owned(), port: 8080 },
            Target { http: true, host: "[fd00::5]".to_owned(), port: 8080 },
            Target { http: false, host: "172.18.0.2".to_owned(), port: 6443 },
        ];
        let page = "p4g3".to_owned();
        for part in [Part::Server { page: page.clone() }, Part::Prober { page, targets }] {
            let container = part.container("busybox:1.37");
            assert_eq!(Part::of(&container), Some(part));
            assert_eq!(Part::of(&Container { name: "app".to_owned(), ..container.clone() }), None);
            assert_eq!(Part::of(&Container { command: Some(vec!["sh".to_owned()]), ..container }), None);
        }
    }
}
