//! The law of the house, and the judge of a dependency graph.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// A crate of ours and the crates of ours that its products may be built from.
struct Room {
    name: &'static str,
    may_use: &'static [&'static str],
    why: &'static str,
}

const API: &str = "pando-api";
const CLUSTER: &str = "pando-cluster";
const KUBECLUSTER: &str = "pando-kubecluster";
const FAKECLUSTER: &str = "pando-fakecluster";
const NETWORK: &str = "pando-network";
const STORAGE: &str = "pando-storage";
const EDGE: &str = "pando-edge";
const TRIAL: &str = "pando-trial";
const ADAPTER: &str = "pando-adapter";
const CONFORMANCE: &str = "pando-conformance";
const CLI: &str = "pando-k8s";
const XTASK: &str = "xtask";

const DOMAIN: &str = "a domain crate decides one concern and knows no other; the adapter composes them";

/// Every crate has a place here; one that has none is an error, so that nobody moves in unseen.
const ROOMS: &[Room] = &[
    Room { name: API, may_use: &[], why: "it holds Pando's words only, and everyone may use it" },
    Room { name: CLUSTER, may_use: &[API], why: "the port knows neither those above it nor those who implement it" },
    Room { name: NETWORK, may_use: &[API, CLUSTER], why: DOMAIN },
    Room { name: STORAGE, may_use: &[API, CLUSTER], why: DOMAIN },
    Room { name: EDGE, may_use: &[API, CLUSTER], why: DOMAIN },
    Room { name: TRIAL, may_use: &[API, CLUSTER], why: DOMAIN },
    Room { name: KUBECLUSTER, may_use: &[API, CLUSTER], why: "it carries out the port and decides nothing" },
    Room {
        name: FAKECLUSTER,
        may_use: &[API, CLUSTER],
        why: "the double must not share code with what it is to judge",
    },
    Room {
        name: ADAPTER,
        may_use: &[API, CLUSTER, NETWORK, STORAGE, EDGE, TRIAL],
        why: "it works on any cluster behind the port, so it knows neither implementation",
    },
    Room {
        name: CONFORMANCE,
        may_use: &[API, CLUSTER, NETWORK, STORAGE, EDGE, TRIAL, KUBECLUSTER, FAKECLUSTER, ADAPTER],
        why: "it proves the library; the command line is proved from outside",
    },
    Room {
        name: CLI,
        may_use: &[API, CLUSTER, NETWORK, STORAGE, EDGE, TRIAL, KUBECLUSTER, FAKECLUSTER, ADAPTER],
        why: "a product is not built from its tests",
    },
    Room { name: XTASK, may_use: &[], why: "it must run while the others do not compile" },
];

/// A dependency from elsewhere that only some crates may be built from.
struct Shut {
    name: &'static str,
    /// Whether only naming it oneself counts, or also getting it through others.
    reach: Reach,
    open_to: &'static [&'static str],
    why: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Direct,
    Transitive,
}

const CLIENT: &str = "everything above the port must work without a client of Kubernetes";
const HOLDERS: &[&str] = &[KUBECLUSTER, CLI, CONFORMANCE];

const SHUT: &[Shut] = &[
    Shut { name: "kube", reach: Reach::Direct, open_to: &[KUBECLUSTER], why: "kube's types stay behind the port" },
    Shut { name: "kube-client", reach: Reach::Transitive, open_to: HOLDERS, why: CLIENT },
    Shut { name: "kube-core", reach: Reach::Transitive, open_to: HOLDERS, why: CLIENT },
    Shut {
        name: "kube-runtime",
        reach: Reach::Transitive,
        open_to: &[],
        why: "list-watch-relist is ours, above the port",
    },
    Shut {
        name: "k8s-openapi",
        reach: Reach::Transitive,
        open_to: &[CLUSTER, NETWORK, STORAGE, EDGE, TRIAL, KUBECLUSTER, FAKECLUSTER, ADAPTER, CONFORMANCE, CLI],
        why: "no word of Kubernetes crosses the boundary to core",
    },
];

/// What products are built from: every package's normal dependencies, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    /// The packages of this workspace.
    pub(crate) members: BTreeSet<String>,
    /// A package's name and the names of the packages it uses itself.
    pub(crate) uses: BTreeMap<String, BTreeSet<String>>,
}

/// A dependency that the law forbids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Breach {
    /// A crate that the law does not know.
    Homeless(String),
    /// An edge between two crates of ours.
    Edge { from: String, to: String, why: &'static str },
    /// A way to something shut; the packages on it, both ends included.
    Reaches { way: Vec<String>, why: &'static str },
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Homeless(name) => {
                write!(f, "{name} has no place in the layering: give it one in xtask/src/layering/rules.rs")
            }
            Self::Edge { from, to, why } => write!(f, "{from} must not depend on {to}: {why}"),
            Self::Reaches { way, why } => write!(f, "{} is not allowed: {why}", way.join(" -> ")),
        }
    }
}

/// Everything in `graph` that the law forbids, ordered by crate.
pub(crate) fn judge(graph: &Graph) -> Vec<Breach> {
    graph.members.iter().flat_map(|member| judge_member(graph, member)).collect()
}

fn judge_member(graph: &Graph, member: &str) -> Vec<Breach> {
    let Some(room) = ROOMS.iter().find(|room| room.name == member) else {
        return vec![Breach::Homeless(member.to_owned())];
    };
    let used = graph.uses.get(member).into_iter().flatten();
    let edges = used
        .filter(|to| graph.members.contains(*to) && !room.may_use.contains(&to.as_str()))
        .map(|to| Breach::Edge { from: member.to_owned(), to: to.clone(), why: room.why });
    let shut = SHUT.iter().filter(|shut| !shut.open_to.contains(&member)).filter_map(|shut| {
        let way = way(graph, member, shut.name)?;
        let counts = shut.reach == Reach::Transitive || way.len() == 2;
        counts.then_some(Breach::Reaches { way, why: shut.why })
    });
    edges.chain(shut).collect()
}

/// The shortest way from one package to another, both ends included.
fn way(graph: &Graph, from: &str, to: &str) -> Option<Vec<String>> {
    let mut seen = BTreeSet::from([from]);
    let mut open = VecDeque::from([vec![from]]);
    while let Some(way) = open.pop_front() {
        let here = *way.last()?;
        if here == to {
            return Some(way.into_iter().map(str::to_owned).collect());
        }
        for next in graph.uses.get(here).into_iter().flatten() {
            if seen.insert(next) {
                open.push_back([way.as_slice(), &[next.as_str()]].concat());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A graph from its edges; what has a room is a member.
    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::default();
        for (from, to) in edges {
            graph.uses.entry((*from).to_owned()).or_default().insert((*to).to_owned());
            let ends = [from, to].into_iter().filter(|name| ROOMS.iter().any(|room| room.name == **name));
            graph.members.extend(ends.map(|name| (*name).to_owned()));
        }
        graph
    }

    #[test]
    fn the_house_as_it_is_meant_breaks_no_law() {
        let meant = graph(&[
            (CLUSTER, API),
            (CLUSTER, "k8s-openapi"),
            (NETWORK, CLUSTER),
            (KUBECLUSTER, CLUSTER),
            (KUBECLUSTER, "kube"),
            ("kube", "kube-client"),
            ("kube-client", "kube-core"),
            ("kube-core", "k8s-openapi"),
            (FAKECLUSTER, CLUSTER),
            (ADAPTER, NETWORK),
            (CONFORMANCE, ADAPTER),
            (CONFORMANCE, KUBECLUSTER),
            (CONFORMANCE, FAKECLUSTER),
            (CLI, ADAPTER),
            (CLI, KUBECLUSTER),
        ]);
        assert_eq!(judge(&meant), []);
    }

    #[test]
    fn every_forbidden_edge_is_found_and_explained() {
        let rows: &[(&[(&str, &str)], &str)] = &[
            (
                &[(API, CLUSTER)],
                "pando-api must not depend on pando-cluster: it holds Pando's words only, and everyone may use it",
            ),
            (&[(NETWORK, STORAGE)], "pando-network must not depend on pando-storage: a domain crate"),
            (&[(TRIAL, EDGE)], "pando-trial must not depend on pando-edge: a domain crate"),
            (&[(CLUSTER, KUBECLUSTER)], "pando-cluster must not depend on pando-kubecluster"),
            (&[(CLUSTER, FAKECLUSTER)], "pando-cluster must not depend on pando-fakecluster"),
            (&[(KUBECLUSTER, FAKECLUSTER)], "pando-kubecluster must not depend on pando-fakecluster"),
            (
                &[(FAKECLUSTER, NETWORK)],
                "pando-fakecluster must not depend on pando-network: the double must not share code",
            ),
            (&[(ADAPTER, KUBECLUSTER)], "pando-adapter must not depend on pando-kubecluster: it works on any cluster"),
            (&[(ADAPTER, FAKECLUSTER)], "pando-adapter must not depend on pando-fakecluster"),
            (&[(CONFORMANCE, CLI)], "pando-conformance must not depend on pando-k8s"),
            (
                &[(CLI, CONFORMANCE)],
                "pando-k8s must not depend on pando-conformance: a product is not built from its tests",
            ),
            (&[(XTASK, API)], "xtask must not depend on pando-api"),
            (&[(ADAPTER, "kube")], "pando-adapter -> kube is not allowed: kube's types stay behind the port"),
            (&[(CLI, "kube")], "pando-k8s -> kube is not allowed"),
            (
                &[(NETWORK, "helper"), ("helper", "kube-client")],
                "pando-network -> helper -> kube-client is not allowed",
            ),
            (
                &[(API, "jiff"), ("jiff", "k8s-openapi")],
                "pando-api -> jiff -> k8s-openapi is not allowed: no word of Kubernetes",
            ),
            (
                &[(KUBECLUSTER, "kube-runtime")],
                "pando-kubecluster -> kube-runtime is not allowed: list-watch-relist is ours",
            ),
        ];
        for (edges, expected) in rows {
            let found: Vec<_> = judge(&graph(edges)).iter().map(ToString::to_string).collect();
            assert!(found.iter().any(|breach| breach.starts_with(expected)), "{edges:?}: {found:#?}");
        }
    }

    #[test]
    fn one_bad_edge_is_one_breach() {
        // What lies beyond the forbidden edge is allowed to its owner: blame the edge, not its neighbours.
        let found = judge(&graph(&[(NETWORK, CLUSTER), (EDGE, NETWORK), (CLUSTER, "k8s-openapi")]));
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn a_crate_without_a_place_is_refused() {
        let mut graph = graph(&[]);
        graph.members.insert("pando-attic".to_owned());
        assert_eq!(judge(&graph), [Breach::Homeless("pando-attic".to_owned())]);
    }

    #[test]
    fn circles_elsewhere_do_not_trap_the_search() {
        let circle = graph(&[(NETWORK, "a"), ("a", "b"), ("b", "a")]);
        assert_eq!(judge(&circle), []);
    }
}
