//! A desired object in the form in which it is sent and compared. Pure.

use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value};

use super::{Error, Key, Written, hash, to_value};

/// A desired object as it is sent.
#[derive(Debug)]
pub(super) struct Desired {
    pub(super) key: Key,
    pub(super) value: Value,
    /// The hash of the value.
    pub(super) hash: u64,
    pub(super) owners: Vec<OwnerReference>,
}

impl Desired {
    pub(super) fn of<K: Written>(object: &K) -> Result<Self, Error> {
        let mut value = to_value(object)?;
        remove_own_of_server(&mut value, &["creationTimestamp", "selfLink"]);
        if let Some(fields) = value.as_object_mut() {
            fields.insert("apiVersion".to_owned(), K::api_version(&()).into());
            fields.insert("kind".to_owned(), K::kind(&()).into());
            encode_string_data(fields);
        }
        drop_nulls(&mut value);
        Ok(Self {
            key: Key::of(object),
            hash: hash(&value.to_string()),
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
}

/// The hash of an object without what only the API server sets.
pub(super) fn content(value: &Value) -> u64 {
    let mut value = value.clone();
    remove_own_of_server(&mut value, &[]);
    hash(&value.to_string())
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

/// Converts `stringData` to `data` as the API server does, so that it can be compared.
fn encode_string_data(fields: &mut Map<String, Value>) {
    let Some(Value::Object(texts)) = fields.remove("stringData") else {
        return;
    };
    let data = fields.entry("data").or_insert_with(|| Value::Object(Map::new()));
    if let Some(data) = data.as_object_mut() {
        for (key, text) in texts {
            let encoded = BASE64_STANDARD.encode(text.as_str().unwrap_or_default());
            data.insert(key, encoded.into());
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
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
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

    #[test]
    fn string_data_is_sent_as_data() {
        let secret: Secret =
            serde_json::from_value(json!({"metadata": {"name": "a"}, "data": {"b": "Yg=="}, "stringData": {"a": "a"}}))
                .unwrap();
        let desired = Desired::of(&secret).unwrap().value;
        assert_eq!(desired["data"], json!({"b": "Yg==", "a": "YQ=="}));
        assert_eq!(desired.get("stringData"), None);
    }
}
