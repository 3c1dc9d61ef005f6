//! Tests that kill nodes, the control plane or the operator. Each has its own cluster.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;

/// What `make bench` measures.
#[path = "../../benches/cluster/subjects/mod.rs"]
mod subjects;

mod benches;
mod chaos;
mod control_plane;
mod draining;
mod fences;
mod flood;
mod kills_during_changes;
mod kills_during_partition_changes;
mod kills_during_removals;
mod metrics;
mod namespaced;
mod network_policies;
mod nodes;
mod nodes_lost;
mod older_definitions;
mod operator;
mod records;
mod releases;
mod slurm;
mod uninstall;
mod unreachable_agent;
mod unsigned_bundle;
mod webhook;
