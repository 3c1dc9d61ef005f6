//! The JSON body of a request to slurmrestd. Fields that are not set are absent, which means "unchanged".

use serde::Serialize;
use serde_json::{Map, Value, json};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Body(Map<String, Value>);

impl Body {
    /// Sets a field, which one name or two nested ones identify.
    pub(super) fn set<const DEPTH: usize>(&mut self, place: [&str; DEPTH], value: Option<impl Into<Value>>) {
        let (Some(value), Some((last, outer))) = (value, place.split_last()) else {
            return;
        };
        let mut object = &mut self.0;
        for name in outer {
            let inner = object.entry(*name).or_insert_with(|| json!({}));
            let Value::Object(inner) = inner else { return };
            object = inner;
        }
        object.insert((*last).to_owned(), value.into());
    }
}
