//! Changes of objects by merge patches, with a retry on conflicts, and their reverts.

use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::Access;
use crate::failure::{Failure, Outcome};

/// The field manager of the changes.
const MANAGER: &str = "kubectl-slurm";
/// More conflicts in a row mean that another client writes in a loop.
const MAX_ATTEMPTS: usize = 10;

/// An object after a change.
#[derive(Debug)]
pub(crate) struct Changed<K> {
    pub(crate) object: K,
    /// How to revert the change; `None` if the object had the values already.
    pub(crate) undo: Option<Undo>,
}

/// How to revert a change: the patch, and the one that restores the former values of the same fields.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Undo {
    done: Value,
    revert: Value,
}

impl Access {
    /// Changes an object by a merge patch that `decide` computes from the object; `None` changes nothing. The patch is valid for
    /// that version alone, so that no concurrent change is lost.
    pub(crate) async fn change<K>(
        api: &Api<K>,
        name: &str,
        mut decide: impl FnMut(&K) -> Outcome<Option<Value>>,
    ) -> Outcome<Changed<K>>
    where
        K: kube::Resource + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
    {
        let parameters = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        for _ in 0..MAX_ATTEMPTS {
            let object = api.get(name).await?;
            let Some(mut patch) = decide(&object)? else {
                return Ok(Changed { object, undo: None });
            };
            let undo = Undo::new(&patch, &serde_json::to_value(&object)?);
            if let Some(version) = object.resource_version() {
                guard(&mut patch, &version);
            }
            match api.patch(name, &parameters, &Patch::Merge(&patch)).await {
                Ok(object) => {
                    return Ok(Changed {
                        object,
                        undo: Some(undo),
                    });
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::refused(format!(
            "other clients keep changing {name}; nothing was changed, try again"
        )))
    }

    /// Reverts a change. `None` if another client has changed the same fields since; then they stay.
    pub(crate) async fn revert<K>(api: &Api<K>, name: &str, undo: &Undo) -> Outcome<Option<K>>
    where
        K: kube::Resource + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
    {
        let reverted = Self::change(api, name, |object: &K| {
            let is_ours = has(&serde_json::to_value(object)?, &undo.done);
            Ok(is_ours.then(|| undo.revert.clone()))
        })
        .await?;
        Ok(reverted.undo.map(|_| reverted.object))
    }
}

impl Undo {
    fn new(patch: &Value, before: &Value) -> Self {
        Self {
            done: patch.clone(),
            revert: inverse(patch, before),
        }
    }
}

/// Returns the merge patch that restores the fields of another one.
fn inverse(patch: &Value, before: &Value) -> Value {
    let Value::Object(fields) = patch else {
        return before.clone();
    };
    let restored = fields.iter().map(|(name, value)| {
        let before = before.get(name).unwrap_or(&Value::Null);
        (name.clone(), inverse(value, before))
    });
    Value::Object(restored.collect::<Map<String, Value>>())
}

/// Whether an object has all values of a merge patch.
fn has(object: &Value, patch: &Value) -> bool {
    let Value::Object(fields) = patch else {
        return object == patch;
    };
    let mut fields = fields.iter();
    fields.all(|(name, value)| has(object.get(name).unwrap_or(&Value::Null), value))
}

/// Makes a patch valid for one version of the object alone.
fn guard(patch: &mut Value, version: &str) {
    if let Some(patch) = patch.as_object_mut() {
        let metadata = patch.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("resourceVersion".to_owned(), version.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_is_valid_for_one_version() {
        let mut patch = json!({ "spec": { "extraConf": "a" } });
        guard(&mut patch, "7");
        assert_eq!(
            patch,
            json!({ "spec": { "extraConf": "a" }, "metadata": { "resourceVersion": "7" } })
        );
        let mut patch = json!({ "metadata": { "annotations": { "a": null } } });
        guard(&mut patch, "7");
        assert_eq!(
            patch,
            json!({ "metadata": { "annotations": { "a": null }, "resourceVersion": "7" } })
        );
    }

    #[test]
    fn a_revert_restores_the_changed_fields_and_no_others() {
        let before = json!({
            "metadata": { "name": "gpu", "annotations": { "reason": "disk" } },
            "spec": { "maxTime": 60, "nodeSets": ["compute"], "priorityTier": 3 },
        });
        let patch = json!({
            "metadata": { "annotations": { "reason": null, "resumed": "now" } },
            "spec": { "maxTime": "soon", "nodeSets": null, "config": "A=1" },
        });
        let undo = Undo::new(&patch, &before);
        assert_eq!(
            undo.revert,
            json!({
                "metadata": { "annotations": { "reason": "disk", "resumed": null } },
                "spec": { "maxTime": 60, "nodeSets": ["compute"], "config": null },
            })
        );
        let after = json!({
            "metadata": { "name": "gpu", "annotations": { "resumed": "now" } },
            "spec": { "maxTime": "soon", "config": "A=1", "priorityTier": 4 },
        });
        assert!(has(&after, &undo.done));
    }

    #[test]
    fn what_another_client_changed_since_is_not_reverted() {
        let undo = Undo::new(&json!({ "spec": { "maxTime": "soon" } }), &json!({ "spec": {} }));
        assert!(!has(&json!({ "spec": { "maxTime": 60 } }), &undo.done));
        assert!(!has(&json!({ "spec": {} }), &undo.done));
    }
}
