//! The claims of workers.

use api::{
    NodeSet,
    keys::apps,
    nodeset::ClaimRetention,
    overlay::{ClaimTemplate, Overlay},
};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::Place;
use crate::template::{
    fields,
    metadata::{owner, selector_labels},
};

pub fn claims_of(nodeset: &NodeSet, suffix: &str) -> Vec<String> {
    let names = nodeset.child_names();
    templates(nodeset).map(|(name, _)| names.claim(name, suffix)).collect()
}

pub(super) fn claim_volumes(nodeset: &NodeSet, suffix: &str) -> Vec<Value> {
    let names = nodeset.child_names();
    let volume =
        |name: &str| json!({ "name": name, "persistentVolumeClaim": { "claimName": names.claim(name, suffix) } });
    templates(nodeset).map(|(name, _)| volume(name)).collect()
}

/// Builds the claims of the worker in this place. They outlive the worker; with `whenDeleted: Delete` they are deleted with
/// the NodeSet.
pub fn build_claims(nodeset: &NodeSet, place: &Place) -> Vec<Value> {
    let names = nodeset.child_names();
    let is_owned = nodeset.spec.claims_when_deleted() == ClaimRetention::Delete;
    let claim = |(name, template): (&str, &ClaimTemplate)| {
        let metadata = template.get("metadata");
        let given = |field: &str| metadata.and_then(|metadata| metadata.get(field)).cloned();
        let mut labels = fields(given("labels").unwrap_or_default());
        let own = selector_labels(apps::SLURMD, &nodeset.name_any());
        labels.extend(own.into_iter().map(|(key, value)| (key, value.into())));
        let mut metadata = fields(json!({
            "namespace": nodeset.namespace(),
            "name": names.claim(name, place.claim_suffix()),
            "labels": labels,
            "annotations": given("annotations"),
            "ownerReferences": is_owned.then(|| [owner(nodeset)]),
        }));
        metadata.retain(|_, value| !value.is_null());
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata,
            "spec": template.get("spec").cloned().unwrap_or_else(|| json!({})),
        })
    };
    templates(nodeset).map(claim).collect()
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
