//! Tests of what users do and see: charts, manifests, jobs, mistakes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;
/// Upstream's objects, and how ours are compared with them.
#[path = "../../../operator/tests/golden/mod.rs"]
mod recorded;

mod accounting;
mod adoption;
mod api;
mod bad_config;
mod belongings;
mod chart;
mod children;
mod draining;
mod endings;
mod evictions;
mod examples;
mod foreign;
mod forgotten;
mod golden;
mod hanging;
mod held;
mod hybrid;
mod jobs;
mod keys;
mod kubectl_slurm;
mod login;
mod manifests;
mod metrics;
mod mistakes;
mod modes;
mod partitions;
mod partitions_live;
mod people;
mod restart_wished;
mod restarts;
mod rpc;
mod scaling;
mod soak;
mod standbys;
mod state;
mod story;
mod tokens;
mod updates;
mod view;
