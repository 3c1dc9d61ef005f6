//! What the children of all kinds have in common: containers, pods, Services and metadata, each with the user's overlay.
//!
//! Pure, and on JSON where there is an overlay: it may hold fields of a Kubernetes release that the typed structs do not
//! know. [`crate::overlay`] has the rules of the merge.

pub(crate) mod component;
pub(crate) mod container;
pub(crate) mod metadata;
pub(crate) mod pod;
pub(crate) mod restricted;
pub(crate) mod service;
pub(crate) mod tidy;

use serde_json::{Map, Value};

/// Prints a daemon's log: it reads the pipe that the daemon writes to, so that the log is in `kubectl logs`.
pub(crate) const LOGFILE_SCRIPT: &str = include_str!("logfile.sh");

/// The fields of an object literal.
pub(crate) fn fields(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

pub(crate) fn set(object: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    object.insert(field.to_owned(), value.into());
}
