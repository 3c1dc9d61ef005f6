//! Tests of what users do and see: charts, manifests, jobs, mistakes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;
/// Upstream's objects, and how ours are compared with them.
#[path = "../../../operator/tests/golden/mod.rs"]
mod recorded;

mod accounting;
mod admission;
mod admission_policy;
mod adoption;
mod api;
mod autoscaling;
mod bad_config;
mod chart;
mod children;
mod clients;
mod config_update_restart;
mod draining;
mod evictions;
mod examples;
mod foreign;
mod forgotten_ends;
mod golden;
mod grace_periods;
mod guides;
mod hanging;
mod health;
mod held;
mod hybrid;
mod jobs;
mod keys;
mod kubectl_slurm;
mod login;
mod lost_by_slurm;
mod manifests;
mod manual_drains;
mod metrics;
mod mirroring;
mod mistakes;
mod modes;
mod pages;
mod partitions;
mod partitions_live;
mod pinning_and_claims;
mod pod_security;
mod replay;
mod restarts;
mod rpc;
mod rules;
mod scaling;
mod standbys;
mod state;
mod tokens;
mod trust;
mod updates;
