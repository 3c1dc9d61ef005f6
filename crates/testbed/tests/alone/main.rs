//! Tests that hurt nodes or the control plane: one after the other, with nothing beside them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;

mod control_plane;
mod draining;
mod metrics;
mod nodes;
mod nodes_lost;
mod older_definitions;
mod operator;
mod slurm;
mod uninstall;
