//! A simulation of everything around the operator and the agent.
//!
//! [`slurm`] is the model of slurmctld, slurmd and slurmdbd; [`replay`] compares it with a real one. [`world`] is everything else:
//! Kubernetes, network, disks, clocks, and the production operators and agents in it.

// Test tooling: a failure stops the run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod arbitration;
pub mod campaign;
pub mod coverage;
pub mod crash_points;
pub mod history;
pub mod log;
pub mod oracles;
mod panics;
mod people;
pub mod replay;
pub mod script;
mod situations;
pub mod slurm;
pub mod world;
