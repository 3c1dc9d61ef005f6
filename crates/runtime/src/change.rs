//! A change of one object, from the watches to the kinds.

use std::{any::Any, collections::BTreeSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

use crate::{Key, Object};

/// One object before and after. `before: None` is a new object, `after: None` a deleted one.
#[derive(Debug)]
pub struct Delta<K> {
    pub before: Option<Arc<K>>,
    pub after: Option<Arc<K>>,
}

impl<K> Delta<K> {
    pub fn appeared(object: Arc<K>) -> Self {
        Self {
            before: None,
            after: Some(object),
        }
    }

    /// The versions of the object that exist: after, then before.
    pub fn sides(&self) -> impl Iterator<Item = &Arc<K>> {
        self.after.iter().chain(&self.before)
    }
}

impl<K: Resource<DynamicType = ()>> Delta<K> {
    /// The key of the changed object.
    pub fn key(&self) -> Option<Key> {
        self.sides().next().map(|object| Key::of(object.as_ref()))
    }

    /// Whether only the status changed. The API server increments the generation with every change of the spec.
    pub fn is_of_status(&self) -> bool {
        let (Some(before), Some(after)) = (&self.before, &self.after) else {
            return false;
        };
        let others = |meta: &ObjectMeta| ObjectMeta {
            resource_version: None,
            managed_fields: None,
            ..meta.clone()
        };
        after.meta().generation.is_some() && others(before.meta()) == others(after.meta())
    }

    /// The objects of kind `Owner` that the object has an owner reference to, or had before.
    pub fn owners<Owner: Resource<DynamicType = ()>>(&self) -> Vec<Key> {
        let is_owner = |owner: &&OwnerReference| {
            owner.kind == Owner::kind(&()) && in_group(&owner.api_version, &Owner::group(&()))
        };
        let keys: BTreeSet<Key> = self
            .sides()
            .flat_map(|object| {
                let meta = object.meta();
                let owners = meta.owner_references.iter().flatten().filter(is_owner);
                owners.map(|owner| Key::new(meta.namespace.clone().unwrap_or_default(), &owner.name))
            })
            .collect();
        keys.into_iter().collect()
    }
}

/// A [`Delta`] of one object of any kind. A clone shares it.
#[derive(Debug, Clone)]
pub struct Change(Arc<dyn Any + Send + Sync>);

impl Change {
    /// The change, if the object is of this kind.
    pub fn delta<K: Object>(&self) -> Option<&Delta<K>> {
        self.0.downcast_ref()
    }
}

impl<K: Object> From<Delta<K>> for Change {
    fn from(delta: Delta<K>) -> Self {
        Self(Arc::new(delta))
    }
}

/// Whether an apiVersion is of this group. Any version matches: a child that another release created has the same owner.
pub fn in_group(api_version: &str, group: &str) -> bool {
    api_version.rsplit_once('/').map_or("", |(group, _)| group) == group
}

#[cfg(test)]
mod tests {
    use api::{Controller, NodeSet};
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn owned_by(kind: &str, api_version: &str, name: &str) -> Arc<ConfigMap> {
        let owner = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": "u"});
        let object = json!({"metadata": {"namespace": "n", "name": "a", "ownerReferences": [owner]}});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_child_concerns_its_owner_and_the_one_it_had_before() {
        let delta = Delta {
            before: Some(owned_by("Controller", "slinky.slurm.net/v1alpha1", "old")),
            after: Some(owned_by("Controller", "slinky.slurm.net/v1beta1", "new")),
        };
        assert_eq!(
            delta.owners::<Controller>(),
            [Key::new("n", "new"), Key::new("n", "old")]
        );
        assert!(delta.owners::<NodeSet>().is_empty());
    }

    #[test]
    fn a_change_of_the_status_alone_is_recognized() {
        let object = |generation: i64, version: &str, labels: &[&str]| {
            let labels: std::collections::BTreeMap<&str, &str> = labels.iter().map(|label| (*label, "")).collect();
            let metadata = json!({
                "namespace": "n", "name": "a", "generation": generation, "resourceVersion": version, "labels": labels,
            });
            Arc::new(serde_json::from_value::<ConfigMap>(json!({ "metadata": metadata })).unwrap())
        };
        let before = Some(object(1, "1", &["a"]));
        let to = |after| Delta {
            before: before.clone(),
            after,
        };
        assert!(to(Some(object(1, "2", &["a"]))).is_of_status());
        assert!(!to(Some(object(2, "2", &["a"]))).is_of_status());
        assert!(!to(Some(object(1, "2", &["b"]))).is_of_status());
        assert!(!to(None).is_of_status());
        assert!(!Delta::appeared(object(1, "1", &[])).is_of_status());
    }

    #[test]
    fn a_kind_of_the_same_name_in_another_group_is_another_kind() {
        let delta = Delta::appeared(owned_by("Controller", "example.com/v1beta1", "a"));
        assert!(delta.owners::<Controller>().is_empty());
    }
}
