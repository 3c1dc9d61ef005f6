//! What users of the operator do and see: charts, manifests, jobs, mistakes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;

mod api;
mod chart;
mod manifests;
mod mistakes;
mod restarts;
