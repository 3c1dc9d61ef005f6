//! Tools that manage a field and would revert a change of it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::{Resource, ResourceExt};

use crate::output::notify;

/// Labels and annotations by which tools mark their objects.
const MARKS: [(&str, Option<&str>, &str); 5] = [
    ("app.kubernetes.io/managed-by", Some("Helm"), "Helm"),
    ("argocd.argoproj.io/instance", None, "Argo CD"),
    ("argocd.argoproj.io/tracking-id", None, "Argo CD"),
    ("kustomize.toolkit.fluxcd.io/name", None, "Flux"),
    ("helm.toolkit.fluxcd.io/name", None, "Flux"),
];

/// The tools' names in managedFields.
const MANAGERS: [(&str, &str); 4] = [
    ("helm", "Helm"),
    ("argocd-controller", "Argo CD"),
    ("kustomize-controller", "Flux"),
    ("helm-controller", "Flux"),
];

/// Returns the tool that manages this field of an object, such as `["spec", "extraConf"]`.
///
/// A tool that marks an object manages it as a whole: after a change by another client, managedFields no longer has the tool, which
/// writes the field all the same.
pub(crate) fn owner<K: Resource>(object: &K, field: &[&str]) -> Option<&'static str> {
    let marked = MARKS.iter().find(|(key, value, _)| {
        let found = object.labels().get(*key).or_else(|| object.annotations().get(*key));
        found.is_some_and(|found| value.is_none_or(|value| found == value))
    });
    marked.map(|(_, _, tool)| *tool).or_else(|| {
        let entries = object.meta().managed_fields.iter().flatten();
        let mut owners = entries.filter(|entry| has_field(entry, field));
        owners.find_map(|entry| {
            let manager = entry.manager.as_deref()?;
            MANAGERS
                .iter()
                .find(|(name, _)| *name == manager)
                .map(|(_, tool)| *tool)
        })
    })
}

fn has_field(entry: &ManagedFieldsEntry, field: &[&str]) -> bool {
    let all = entry.fields_v1.as_ref().map(|fields| &fields.0);
    field
        .iter()
        .fold(all, |at, name| at.and_then(|at| at.get(format!("f:{name}"))))
        .is_some()
}

/// Prints a warning if a tool manages the field.
pub(crate) fn warn_owner<K: Resource>(object: &K, field: &[&str], value: &str) {
    if let Some(warning) = warning(object, field, value) {
        notify(&warning);
    }
}

/// Returns the warning about a tool that manages the field. `value` is its name in the tool's own configuration.
pub(crate) fn warning<K: Resource>(object: &K, field: &[&str], value: &str) -> Option<String> {
    let tool = owner(object, field)?;
    let release = object.annotations().get("meta.helm.sh/release-name");
    let release = release.map(|name| format!(" (release {name})")).unwrap_or_default();
    Some(format!(
        "warning: {tool}{release} manages {}, and its next run reverts {}; change {value} there too",
        object.name_any(),
        field.join("."),
    ))
}

#[cfg(test)]
mod tests {
    use api::Controller;
    use serde_json::{Value, json};

    use super::*;

    fn controller(metadata: Value) -> Controller {
        let mut metadata = metadata;
        metadata["name"] = "slurm".into();
        serde_json::from_value(
            json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "metadata": metadata, "spec": {} }),
        )
        .unwrap()
    }

    #[test]
    fn the_tool_that_manages_a_field_is_named() {
        let fields = |manager: &str, field: &str| {
            json!({ "managedFields": [
            { "manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": { format!("f:{field}"): {} } } },
        ] })
        };
        for (metadata, expected) in [
            (json!({}), None),
            (
                json!({ "labels": { "app.kubernetes.io/managed-by": "Helm" } }),
                Some("Helm"),
            ),
            (json!({ "labels": { "app.kubernetes.io/managed-by": "me" } }), None),
            (
                json!({ "annotations": { "argocd.argoproj.io/tracking-id": "x" } }),
                Some("Argo CD"),
            ),
            (
                json!({ "labels": { "kustomize.toolkit.fluxcd.io/name": "x" } }),
                Some("Flux"),
            ),
            (fields("helm", "extraConf"), Some("Helm")),
            (fields("helm", "template"), None),
            (fields("kubectl-edit", "extraConf"), None),
            (fields("argocd-controller", "extraConf"), Some("Argo CD")),
        ] {
            assert_eq!(
                owner(&controller(metadata.clone()), &["spec", "extraConf"]),
                expected,
                "{metadata}"
            );
        }
    }

    #[test]
    fn the_warning_says_which_value_to_change() {
        let controller = controller(json!({
            "labels": { "app.kubernetes.io/managed-by": "Helm" }, "annotations": { "meta.helm.sh/release-name": "hpc" },
        }));
        assert_eq!(
            warning(&controller, &["spec", "extraConf"], "controller.extraConf").unwrap(),
            "warning: Helm (release hpc) manages slurm, and its next run reverts spec.extraConf; change controller.extraConf there too"
        );
    }
}
