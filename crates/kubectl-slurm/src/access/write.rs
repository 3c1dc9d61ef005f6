//! Changes of objects by merge patches, with a retry on conflicts.

use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Access;
use crate::failure::{Failure, Outcome};

/// The field manager of the changes.
const MANAGER: &str = "kubectl-slurm";
/// More conflicts in a row mean that another client writes in a loop.
const MAX_ATTEMPTS: usize = 10;

impl Access {
    /// Changes an object by a merge patch that `decide` computes from the object; `None` changes nothing. Returns the object
    /// and whether it was changed. The patch is valid for that version alone, so that no concurrent change is lost.
    pub(crate) async fn change<K>(
        api: &Api<K>,
        name: &str,
        mut decide: impl FnMut(&K) -> Outcome<Option<Value>>,
    ) -> Outcome<(K, bool)>
    where
        K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let parameters = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        for _ in 0..MAX_ATTEMPTS {
            let object = api.get(name).await?;
            let Some(mut patch) = decide(&object)? else {
                return Ok((object, false));
            };
            if let Some(version) = object.resource_version() {
                guard(&mut patch, &version);
            }
            match api.patch(name, &parameters, &Patch::Merge(&patch)).await {
                Ok(object) => return Ok((object, true)),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::refused(format!(
            "other clients keep changing {name}; nothing was changed, try again"
        )))
    }
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
}
