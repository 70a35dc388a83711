//! The built program as a person meets it: files, flags, messages, exit codes, signals.

mod cluster;
mod offline;
mod support;
