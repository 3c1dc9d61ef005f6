//! Tests of the crate's public API.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what it expects by panicking"
)]

mod common;
mod generated;
mod manifests;
mod properties;
mod rules;
mod upstream;
mod validation;
