//! What a set of NetworkPolicy objects does to a connection, as Kubernetes documents it.
//!
//! Pure: a [`World`] (who is where, with which labels and addresses), the policies, and a [`Connection`] go
//! in; a [`Verdict`] with its grounds comes out. Where the documentation leaves the answer to the network
//! plugin, [`Policies::documented`] says [`Verdict::Undefined`] and [`Policies::enforced_by`] answers for one
//! [`Plugin`].
//!
//! <https://kubernetes.io/docs/concepts/services-networking/network-policies/>

mod evaluate;
mod policy;
mod selector;
mod validate;
mod world;

pub use evaluate::{Decision, Direction, Grounds, HostPods, Plugin, ServiceRewrite, Verdict};
pub use policy::{Policies, PolicyName};
pub use selector::LabelMatch;
pub use validate::{FieldError, FieldErrorKind, validate};
pub use world::{
    Connection, ContainerPort, End, Family, Phase, PodName, PodSeat, Protocol, ServiceFacts, ServicePort, TargetPort,
    World,
};
