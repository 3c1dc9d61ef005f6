//! Tests of the test bed itself: its cluster, and plain Slurm on it. They run in parallel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;

mod command_line;
mod faults;
mod inside;
mod isolation;
mod slurm;
mod storage;
