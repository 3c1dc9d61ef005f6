//! Shows on the real cluster that the ground holds: what works inside it, and Slurm running on it. Side by side.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;

mod command_line;
mod faults;
mod inside;
mod isolation;
mod slurm;
mod storage;
