//! A desired object in the form in which it is sent and compared. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;

use super::{Error, Key, Written, to_value};

/// A desired object as it is sent.
#[derive(Debug)]
pub(super) struct Desired {
    pub(super) key: Key,
    pub(super) value: Value,
    pub(super) owners: Vec<OwnerReference>,
}

impl Desired {
    pub(super) fn of<K: Written>(object: &K) -> Result<Self, Error> {
        let mut value = to_value(object)?;
        remove_own_of_server(&mut value, &["creationTimestamp", "selfLink"]);
        if let Some(fields) = value.as_object_mut() {
            fields.insert("apiVersion".to_owned(), K::api_version(&()).into());
            fields.insert("kind".to_owned(), K::kind(&()).into());
        }
        drop_nulls(&mut value);
        Ok(Self {
            key: Key::of(object),
            value,
            owners: object.meta().owner_references.clone().unwrap_or_default(),
        })
    }

    /// The value for the object with this UID only. An apply with a UID neither creates an object nor changes another one.
    pub(super) fn for_uid(&self, uid: &str) -> Value {
        let mut value = self.value.clone();
        if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.insert("uid".to_owned(), uid.into());
        }
        value
    }

    /// An apply of this: what is sent, and the result with the hash of the fields that are ours then.
    pub(super) fn exchange(&self, result: &Value, field_set: Option<u64>) -> (String, String, Option<u64>) {
        (self.value.to_string(), result.to_string(), field_set)
    }
}

/// An object without what only the API server sets.
pub(super) fn content<K: Written>(object: &K) -> Result<Value, Error> {
    let mut value = to_value(object)?;
    remove_own_of_server(&mut value, &[]);
    Ok(value)
}

/// Removes the status, which has an endpoint of its own, and metadata that the API server sets with every write (a
/// resourceVersion would be a precondition), with more fields of the metadata.
fn remove_own_of_server(value: &mut Value, more: &[&str]) {
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["managedFields", "resourceVersion", "generation"].iter().chain(more) {
            meta.remove(*field);
        }
    }
}

/// Removes nulls. They mean the same as an absent field, but in an apply they would claim the field.
pub(super) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(elements) => elements.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_fields_of_ours_are_sent() {
        let object: ConfigMap = serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "n", "resourceVersion": "1", "managedFields": [], "creationTimestamp": "2026-01-01T00:00:00Z"},
            "data": {"a": "b"},
        }))
        .unwrap();
        assert_eq!(
            Desired::of(&object).unwrap().value,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}, "data": {"a": "b"}})
        );
    }
}
