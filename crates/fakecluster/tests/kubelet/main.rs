//! The nodes and controllers of the fake cluster, held against what Kubernetes 1.34 does.

mod bed;
mod control;
mod images;
mod logs;
mod network;
mod nodes;
mod pods;
mod speed;
mod swarm;
mod volumes;
