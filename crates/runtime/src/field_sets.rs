//! A hash of the fields that each of our managers owns: all that is kept of an object's managedFields.
//!
//! Only managedFields tell whether a field that we no longer want is still ours. Without them a write could be skipped
//! although it would remove a field.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::hash;

/// The prefix of all our field managers.
pub(crate) const MANAGER_PREFIX: &str = "slurm-operator/";

/// The hash of the applied fields, by manager.
pub(crate) type FieldSets = BTreeMap<String, u64>;

/// Reads an object's managedFields. Only applies to the object itself count, not to its subresources.
pub(crate) fn field_sets(meta: &ObjectMeta) -> FieldSets {
    let ours = meta.managed_fields.iter().flatten().filter_map(|entry| {
        let name = entry.manager.as_deref()?;
        let applied =
            entry.operation.as_deref() == Some("Apply") && entry.subresource.as_deref().is_none_or(str::is_empty);
        // The API server writes the text of a field set in a fixed order.
        let fields = || entry.fields_v1.as_ref().map(|fields| fields.0.to_string());
        let is_ours = applied && name.starts_with(MANAGER_PREFIX);
        is_ours.then(|| (name.to_owned(), hash(&(&entry.api_version, fields()))))
    });
    ours.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(manager: &str, operation: &str, subresource: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": operation, "subresource": subresource, "apiVersion": "v1", "fieldsV1": fields})
    }

    fn read(entries: &[Value]) -> FieldSets {
        field_sets(&serde_json::from_value(json!({ "managedFields": entries })).unwrap())
    }

    const OURS: &str = "slurm-operator/controller";

    fn hash_of(fields: &Value) -> Option<u64> {
        read(&[entry(OURS, "Apply", "", fields)]).get(OURS).copied()
    }

    #[test]
    fn an_added_or_removed_field_changes_the_hash() {
        let one = json!({"f:data": {"f:a": {}}});
        let two = json!({"f:data": {"f:a": {}, "f:b": {}}});
        assert!(hash_of(&one).is_some());
        assert_eq!(hash_of(&one), hash_of(&one));
        assert_ne!(hash_of(&one), hash_of(&two));
    }

    #[test]
    fn only_our_applies_count() {
        let fields = json!({"f:data": {}});
        let sets = read(&[
            entry("kubectl", "Apply", "", &fields),
            entry(OURS, "Update", "", &fields),
            entry(OURS, "Apply", "status", &fields),
        ]);
        assert_eq!(sets, FieldSets::default());
    }
}
