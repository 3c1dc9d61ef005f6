//! A hash of the fields that each of our managers owns: all that is kept of an object's managedFields.
//!
//! Only managedFields tell whether a field that we no longer want is still ours. Without them a write could be skipped
//! although it would remove a field.

use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

/// The prefix of all our field managers.
pub(crate) const MANAGER_PREFIX: &str = "slurm-operator/";

/// The hash of the applied fields, by manager.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSets(Vec<(String, u64)>);

impl FieldSets {
    /// Reads an object's managedFields. Only applies to the object itself count, not to its subresources.
    pub(crate) fn read(managed: &[ManagedFieldsEntry]) -> Self {
        let ours = managed.iter().filter_map(|entry| {
            let name = entry.manager.as_deref()?;
            let applied =
                entry.operation.as_deref() == Some("Apply") && entry.subresource.as_deref().is_none_or(str::is_empty);
            (applied && name.starts_with(MANAGER_PREFIX)).then(|| (name.to_owned(), hash(entry)))
        });
        Self(ours.collect())
    }

    /// Whether any of our managers has applied to the object.
    pub(crate) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    pub(crate) fn of(&self, manager: &str) -> Option<u64> {
        self.0.iter().find(|(name, _)| name == manager).map(|(_, hash)| *hash)
    }
}

/// Hashes the text of a field set, which the API server writes in a fixed order.
fn hash(entry: &ManagedFieldsEntry) -> u64 {
    let mut hasher = DefaultHasher::new();
    entry.api_version.hash(&mut hasher);
    if let Some(fields) = &entry.fields_v1 {
        fields.0.to_string().hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(manager: &str, operation: &str, subresource: &str, fields: &serde_json::Value) -> ManagedFieldsEntry {
        serde_json::from_value(
            json!({"manager": manager, "operation": operation, "subresource": subresource, "apiVersion": "v1", "fieldsV1": fields}),
        )
        .unwrap()
    }

    const OURS: &str = "slurm-operator/controller";

    fn hash_of(fields: &serde_json::Value) -> Option<u64> {
        FieldSets::read(&[entry(OURS, "Apply", "", fields)]).of(OURS)
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
        let sets = FieldSets::read(&[
            entry("kubectl", "Apply", "", &fields),
            entry(OURS, "Update", "", &fields),
            entry(OURS, "Apply", "status", &fields),
        ]);
        assert_eq!(sets, FieldSets::default());
    }
}
