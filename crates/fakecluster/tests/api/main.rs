//! What the API server answers, row by row; each table names where its facts are from.
//!
//! "1.34" means: tried on a cluster of that version. A file of Kubernetes means its source at v1.34.0.

mod admission;
mod bed;
mod history;
mod lists;
mod port;
mod recorded;
mod rules;
mod watches;
mod writes;
