//! The claims of workers.

use api::{
    NodeSet,
    keys::apps,
    nodeset::ClaimRetention,
    overlay::{ClaimTemplate, Overlay},
};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::Place;
use crate::template::metadata::{owner, selector_labels};

/// Returns volume and claim of each template, for the worker in this place.
pub(super) fn claim_names<'n>(nodeset: &'n NodeSet, place: &Place) -> impl Iterator<Item = (&'n str, String)> {
    let volumes = templates(nodeset).map(|(name, _)| name);
    volumes.zip(claims_of(nodeset, place.claim_suffix()))
}

/// Returns the names of a worker's claims, by their suffix.
pub fn claims_of(nodeset: &NodeSet, suffix: &str) -> Vec<String> {
    let names = nodeset.child_names();
    templates(nodeset).map(|(name, _)| names.claim(name, suffix)).collect()
}

/// Builds the claims of the worker in this place. They outlive the worker; with `whenDeleted: Delete` they are deleted with
/// the NodeSet.
pub fn build_claims(nodeset: &NodeSet, place: &Place) -> Vec<Value> {
    let names = nodeset.child_names();
    templates(nodeset)
        .map(|(name, template)| {
            let given = template.get("metadata").and_then(Value::as_object);
            let mut labels = given
                .and_then(|metadata| metadata.get("labels")?.as_object().cloned())
                .unwrap_or_default();
            let own = selector_labels(apps::SLURMD, &nodeset.name_any());
            labels.extend(own.into_iter().map(|(key, value)| (key, value.into())));
            let mut metadata = Map::new();
            metadata.insert("namespace".to_owned(), json!(nodeset.namespace()));
            metadata.insert("name".to_owned(), names.claim(name, place.claim_suffix()).into());
            metadata.insert("labels".to_owned(), labels.into());
            if let Some(annotations) = given
                .and_then(|metadata| metadata.get("annotations"))
                .filter(|it| !it.is_null())
            {
                metadata.insert("annotations".to_owned(), annotations.clone());
            }
            if nodeset.spec.claims_when_deleted() == ClaimRetention::Delete {
                metadata.insert("ownerReferences".to_owned(), json!([owner(nodeset)]));
            }
            json!({
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": metadata,
                "spec": template.get("spec").cloned().unwrap_or_else(|| json!({})),
            })
        })
        .collect()
}

/// Whether the labels of a pod or a claim show that the operator or upstream created it for this NodeSet.
pub fn is_made_for(nodeset: &NodeSet, object: &impl ResourceExt) -> bool {
    let own = selector_labels(apps::SLURMD, &nodeset.name_any());
    own.iter().all(|(key, value)| object.labels().get(key) == Some(value))
}

/// Returns the templates by name. Validation rejects a template without a name.
fn templates(nodeset: &NodeSet) -> impl Iterator<Item = (&str, &ClaimTemplate)> {
    let named = |template| Some((Overlay::get(template, "metadata")?.get("name")?.as_str()?, template));
    nodeset.spec.claim_templates().iter().filter_map(named)
}
