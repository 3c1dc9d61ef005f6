//! What tests of several kinds share.

pub(crate) mod any_spec;
pub(crate) mod keys;
mod limits;
/// What upstream made of five clusters.
#[path = "../../tests/golden/mod.rs"]
pub(crate) mod recorded;
