//! A Kubernetes in one process, on virtual time, for tests and for trying things out.
//!
//! [`FakeCluster`] implements the [`Cluster`](pando_cluster::Cluster) port. Modelled: an API server with
//! versions, watches, validation, admission, quotas and access rules ([`api`]) over a store with history
//! ([`store`]); controllers, a scheduler and kubelets whose containers do what a test says ([`behaviour`]);
//! claims, volumes and who wrote to each ([`Disk`]); images, passwords for them, and mounted files; a network
//! that judges by policy ([`netpol`]); and an HTTP face for real clients ([`face`]). Time, dates and chance come
//! from [`Env`](pando_cluster::Env) alone, so that on [`sim`] one seed makes one history.
//!
//! It is held against answers of a real API server, word for word (`tests/api/recorded.rs`).
//!
//! Not modelled, and refused where it is asked for: server-side apply, strategic merge patches, PUT, dry runs,
//! deletion of collections. Not modelled and not noticed: admission webhooks and policies, garbage collection
//! by owner references, the bytes on a volume, the six minutes for which a lost node's volume stays attached.

pub mod api;
pub mod behaviour;
mod cluster;
mod config;
mod controllers;
pub mod face;
pub mod netpol;
mod port;
mod signal;
pub mod sim;
pub mod store;
mod watch;

pub use cluster::FakeCluster;
pub use config::{Access, Delays, FakeConfig, FakeNode, FakeProvisioner, FakeStorageClass, Image, Login};
pub use controllers::{Disk, MountedFile, Running, Writer};
