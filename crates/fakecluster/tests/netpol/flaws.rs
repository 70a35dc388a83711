//! Evaluators that go wrong: what the cases are tested with.
//!
//! None of them is an evaluator of its own: each is the right one, lied to about the policies, the world or the
//! connection.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pando_fakecluster::netpol::{End, Family, Phase, World};

use crate::cases::{Flaw, RIGHT, State};

/// Rewrites every spec.
fn specs(state: &State, change: impl Fn(&mut NetworkPolicySpec)) -> Vec<NetworkPolicy> {
    let mut policies = state.policies.clone();
    policies.iter_mut().filter_map(|policy| policy.spec.as_mut()).for_each(change);
    policies
}

/// Rewrites every rule's peers and ports, of both directions.
fn rules(
    state: &State,
    change: impl Fn(&mut Option<Vec<NetworkPolicyPeer>>, &mut Option<Vec<NetworkPolicyPort>>),
) -> Vec<NetworkPolicy> {
    specs(state, |spec| {
        spec.ingress.iter_mut().flatten().for_each(|rule| change(&mut rule.from, &mut rule.ports));
        spec.egress.iter_mut().flatten().for_each(|rule| change(&mut rule.to, &mut rule.ports));
    })
}

fn peers(state: &State, change: impl Fn(NetworkPolicyPeer) -> Vec<NetworkPolicyPeer>) -> Vec<NetworkPolicy> {
    rules(state, |peers, _| {
        if let Some(list) = peers.take() {
            *peers = Some(list.into_iter().flat_map(&change).collect());
        }
    })
}

fn ports(state: &State, change: impl Fn(&mut NetworkPolicyPort)) -> Vec<NetworkPolicy> {
    rules(state, |_, ports| ports.iter_mut().flatten().for_each(&change))
}

/// Rewrites every selector.
fn selectors(state: &State, change: impl Fn(&mut LabelSelector)) -> Vec<NetworkPolicy> {
    let lied = State {
        policies: peers(state, |mut peer| {
            peer.pod_selector.iter_mut().for_each(&change);
            peer.namespace_selector.iter_mut().for_each(&change);
            vec![peer]
        }),
        world: World::default(),
    };
    specs(&lied, |spec| change(spec.pod_selector.get_or_insert_default()))
}

fn requirement(key: &str, operator: &str) -> LabelSelectorRequirement {
    LabelSelectorRequirement { key: key.to_owned(), operator: operator.to_owned(), values: None }
}

fn types(named: &[&str]) -> Vec<String> {
    named.iter().map(ToString::to_string).collect()
}

/// Ways in which evaluators go wrong.
pub(crate) const FLAWS: &[Flaw] = &[
    Flaw {
        name: "ignores except",
        policies: |state| {
            peers(state, |mut peer| {
                peer.ip_block.iter_mut().for_each(|block| block.except = None);
                vec![peer]
            })
        },
        ..RIGHT
    },
    Flaw {
        name: "takes an empty podSelector for none",
        policies: |state| {
            let is_empty = |selector: &LabelSelector| *selector == LabelSelector::default();
            let mut policies = state.policies.clone();
            policies.retain(|policy| {
                let selector = policy.spec.as_ref().and_then(|spec| spec.pod_selector.as_ref());
                !selector.is_none_or(is_empty)
            });
            policies
        },
        ..RIGHT
    },
    Flaw {
        name: "ORs the two selectors of a peer",
        policies: |state| {
            peers(state, |peer| match (&peer.namespace_selector, &peer.pod_selector) {
                (Some(_), Some(_)) => vec![
                    NetworkPolicyPeer { pod_selector: None, ..peer.clone() },
                    NetworkPolicyPeer { namespace_selector: None, ..peer },
                ],
                _ => vec![peer],
            })
        },
        ..RIGHT
    },
    Flaw {
        name: "lets a lone podSelector look into every namespace",
        policies: |state| {
            peers(state, |mut peer| {
                if peer.pod_selector.is_some() && peer.namespace_selector.is_none() {
                    peer.namespace_selector = Some(LabelSelector::default());
                }
                vec![peer]
            })
        },
        ..RIGHT
    },
    Flaw { name: "ignores policyTypes", policies: |state| specs(state, |spec| spec.policy_types = None), ..RIGHT },
    Flaw {
        name: "isolates both ways whatever policyTypes says",
        policies: |state| specs(state, |spec| spec.policy_types = Some(types(&["Ingress", "Egress"]))),
        ..RIGHT
    },
    Flaw {
        name: "defaults policyTypes to Ingress alone",
        policies: |state| {
            specs(state, |spec| {
                if spec.policy_types.as_ref().is_none_or(Vec::is_empty) {
                    spec.policy_types = Some(types(&["Ingress"]));
                }
            })
        },
        ..RIGHT
    },
    Flaw {
        name: "ignores egress",
        policies: |state| {
            specs(state, |spec| {
                let types = spec.policy_types.get_or_insert_default();
                let was_default = types.is_empty();
                types.retain(|named| named == "Ingress");
                // A type list that lost its last entry must not fall back to the default.
                if types.is_empty() && !was_default {
                    spec.pod_selector = Some(LabelSelector {
                        match_expressions: Some(vec![requirement("x", "Exists"), requirement("x", "DoesNotExist")]),
                        ..LabelSelector::default()
                    });
                }
                spec.egress = None;
            })
        },
        ..RIGHT
    },
    Flaw {
        name: "applies policies across namespaces",
        policies: |state| {
            let everywhere = ["x", "y", "z", "edge", "kube-system"];
            let copies = state.policies.iter().flat_map(|policy| {
                everywhere.map(|namespace| {
                    let mut policy = policy.clone();
                    policy.metadata.namespace = Some(namespace.to_owned());
                    policy
                })
            });
            copies.collect()
        },
        ..RIGHT
    },
    Flaw {
        name: "lets the last policy of a namespace replace the others",
        policies: |state| {
            let last: BTreeMap<_, _> =
                state.policies.iter().map(|policy| (policy.metadata.namespace.clone(), policy.clone())).collect();
            last.into_values().collect()
        },
        ..RIGHT
    },
    Flaw {
        name: "takes empty lists of peers for nobody",
        policies: |state| {
            rules(state, |peers, _| {
                if peers.as_ref().is_some_and(Vec::is_empty) {
                    *peers = Some(vec![NetworkPolicyPeer::default()]);
                }
            })
        },
        ..RIGHT
    },
    Flaw {
        name: "NotIn needs the key",
        policies: |state| {
            selectors(state, |selector| {
                let expressions = selector.match_expressions.get_or_insert_default();
                let needed: Vec<_> = expressions.iter().filter(|it| it.operator == "NotIn").cloned().collect();
                expressions.extend(needed.iter().map(|it| requirement(&it.key, "Exists")));
            })
        },
        ..RIGHT
    },
    Flaw {
        name: "looks only at matchLabels",
        policies: |state| selectors(state, |selector| selector.match_expressions = None),
        ..RIGHT
    },
    Flaw {
        name: "takes an empty label value for an absent label",
        policies: |state| {
            selectors(state, |selector| {
                let labels = selector.match_labels.get_or_insert_default();
                let empty: Vec<_> = labels.extract_if(.., |_, value| value.is_empty()).map(|(key, _)| key).collect();
                let expressions = selector.match_expressions.get_or_insert_default();
                expressions.extend(empty.iter().map(|key| requirement(key, "DoesNotExist")));
            })
        },
        ..RIGHT
    },
    Flaw {
        name: "ORs peers and ports: a rule with peers opens all their ports",
        policies: |state| {
            rules(state, |peers, ports| {
                if peers.as_ref().is_some_and(|peers| !peers.is_empty()) {
                    *ports = None;
                }
            })
        },
        ..RIGHT
    },
    Flaw {
        name: "ignores the protocol of a port",
        policies: |state| {
            rules(state, |_, ports| {
                if let Some(list) = ports.take() {
                    let every = |port: NetworkPolicyPort| {
                        ["TCP", "UDP", "SCTP"]
                            .map(|protocol| NetworkPolicyPort { protocol: Some(protocol.to_owned()), ..port.clone() })
                    };
                    *ports = Some(list.into_iter().flat_map(every).collect());
                }
            })
        },
        ..RIGHT
    },
    Flaw {
        name: "leaves endPort out of its range",
        policies: |state| {
            ports(state, |port| {
                if let (Some(IntOrString::Int(first)), Some(last)) = (&port.port, port.end_port)
                    && *first < last
                {
                    port.end_port = Some(last - 1);
                }
            })
        },
        ..RIGHT
    },
    Flaw { name: "ignores endPort", policies: |state| ports(state, |port| port.end_port = None), ..RIGHT },
    Flaw {
        name: "knows no port names",
        policies: |state| {
            ports(state, |port| {
                if matches!(port.port, Some(IntOrString::String(_))) {
                    port.port = None;
                }
            })
        },
        ..RIGHT
    },
    Flaw {
        name: "forgets that a pod reaches its own node",
        world: |world| world.pods.values_mut().filter(|pod| !pod.host_network).for_each(|pod| pod.node = None),
        ..RIGHT
    },
    Flaw {
        name: "judges ended pods as if they ran",
        world: |world| world.pods.values_mut().for_each(|pod| pod.phase = Phase::Running),
        ..RIGHT
    },
    Flaw {
        name: "has no kubernetes.io/metadata.name on namespaces",
        policies: |state| {
            selectors(state, |selector| {
                let labels = selector.match_labels.get_or_insert_default();
                if let Some(value) = labels.remove("kubernetes.io/metadata.name") {
                    labels.insert("no-such-label".to_owned(), value);
                }
            })
        },
        ..RIGHT
    },
    Flaw {
        name: "judges the Service's port instead of the pod's",
        connection: |state, connection| {
            if let End::Service(namespace, name) = &connection.to {
                let service = &state.world.services[&(namespace.clone(), name.clone())];
                let mut backends = state.world.pods.iter().filter(|(pod, seat)| {
                    pod.namespace == *namespace
                        && service.selector.iter().all(|(key, value)| seat.labels.get(key) == Some(value))
                });
                let (pod, _) = backends.next().expect("every Service of the cases has a backend");
                connection.to = End::Pod(pod.clone());
            }
        },
        ..RIGHT
    },
    Flaw {
        name: "judges an IPv6 connection by the IPv4 addresses",
        connection: |_, connection| connection.family = Family::V4,
        ..RIGHT
    },
];
