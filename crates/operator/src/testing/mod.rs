//! What tests of several kinds share.

pub(crate) mod any_spec;
