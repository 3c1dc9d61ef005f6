//! Shows on the real cluster that the ground holds: what works inside it, how it is hurt, and Slurm running on it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod command_line;
mod faults;
mod inside;
mod isolation;
mod servers;
mod slurm;
mod storage;
