//! Which fields our managers own, as one number each: all that is kept of an object's managedFields.
//!
//! Whether a field we no longer want is still ours stands nowhere else. Without it a write could be skipped although it
//! would remove something.

use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

/// What every field manager of ours begins with.
pub(super) const MANAGER_PREFIX: &str = "slurm-operator/";

/// By manager, a hash of the fields it applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FieldSets(Vec<(String, u64)>);

impl FieldSets {
    /// Reads an object's managedFields. What was written to a subresource or by other verbs is not applied.
    pub(super) fn read(managed: &[ManagedFieldsEntry]) -> Self {
        let ours = managed.iter().filter_map(|entry| {
            let name = entry.manager.as_deref()?;
            let applied =
                entry.operation.as_deref() == Some("Apply") && entry.subresource.as_deref().is_none_or(str::is_empty);
            (applied && name.starts_with(MANAGER_PREFIX)).then(|| (name.to_owned(), hash(entry)))
        });
        Self(ours.collect())
    }

    /// Whether any of our managers has applied to the object.
    pub(super) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    pub(super) fn of(&self, manager: &str) -> Option<u64> {
        self.0.iter().find(|(name, _)| name == manager).map(|(_, hash)| *hash)
    }
}

/// The API server writes field sets in a fixed order, so their text can be compared.
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

    fn number(fields: &serde_json::Value) -> Option<u64> {
        FieldSets::read(&[entry(OURS, "Apply", "", fields)]).of(OURS)
    }

    #[test]
    fn a_field_that_goes_or_comes_changes_the_number() {
        let one = json!({"f:data": {"f:a": {}}});
        let two = json!({"f:data": {"f:a": {}, "f:b": {}}});
        assert!(number(&one).is_some());
        assert_eq!(number(&one), number(&one));
        assert_ne!(number(&one), number(&two));
    }

    #[test]
    fn only_what_we_applied_counts() {
        let fields = json!({"f:data": {}});
        let sets = FieldSets::read(&[
            entry("kubectl", "Apply", "", &fields),
            entry(OURS, "Update", "", &fields),
            entry(OURS, "Apply", "status", &fields),
        ]);
        assert_eq!(sets, FieldSets::default());
    }
}
