//! What an app's pods may reach and be reached by.
//!
//! Pure decisions: the policy of an app's namespace ([`default_policy`]), what of the cluster's own addresses
//! it must close ([`ClusterAddresses`]), the gate in which a pod proves that the policy holds before its
//! app starts ([`gate`]), and the canary that finds out whether policies hold at all ([`canary`]). Nothing here
//! talks to a cluster.

mod addresses;
pub mod canary;
pub mod gate;
mod policy;

pub use addresses::{ClusterAddresses, api_server_addresses, node_addresses};
pub use policy::{Dns, Egress, NetworkConfig, Proxy, default_policy, open_addresses, server_labels};
