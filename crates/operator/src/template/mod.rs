//! What the children of all kinds have in common: containers, pods, Services and metadata, each with what its user lays
//! over it.
//!
//! Pure, and in terms of JSON where there is an overlay: it may hold fields of a Kubernetes release that the typed structs
//! do not know. The rules of laying over are [`crate::overlay`]'s.

pub(crate) mod component;
pub(crate) mod container;
pub(crate) mod metadata;
pub(crate) mod pod;
pub(crate) mod service;
pub(crate) mod tidy;

use serde_json::{Map, Value};

/// Prints a daemon's log: the daemon writes into a pipe that this reads, so that the log is in `kubectl logs`.
pub(crate) const LOGFILE_SCRIPT: &str = include_str!("logfile.sh");

/// The fields of an object literal.
pub(crate) fn fields(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Sets a field.
pub(crate) fn set(object: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    object.insert(field.to_owned(), value.into());
}
