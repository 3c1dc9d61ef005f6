//! Fixtures of all tests on the cluster. Each suite uses a part of them.
#![allow(dead_code, unreachable_pub)]

pub mod clusters;
pub mod command_line;
pub mod forward;
pub mod jobs;
pub mod kills;
pub mod manual_drains;
pub mod nodes;
pub mod operator;
pub mod plain_slurm;
pub mod pods;
pub mod servers;
pub mod shell;
pub mod slurm;
