//! Labels, annotations and owner of the operator's objects.

use std::collections::BTreeMap;

use api::{
    keys::{annotations, labels},
    templates::Metadata,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

/// Labels or annotations.
pub(crate) type Words = BTreeMap<String, String>;

/// Prefixes of annotations that kubectl, Helm, the chart or a person set about the object itself, not about its children. On a
/// pod template each `kubectl apply` and each adoption by Helm would restart the pods.
const FOREIGN_ANNOTATIONS: &[&str] = &[
    "kubectl.kubernetes.io/last-applied-configuration",
    "kubectl.kubernetes.io/restartedAt",
    "deployment.kubernetes.io/",
    "meta.helm.sh/",
    "helm.sh/",
    "slinky.slurm.net/chart-replicas",
    annotations::FORCE_CONFIG,
];

/// Labels that Helm and the charts set on every object of a release. They describe the release, not the pods.
const RELEASE_LABELS: &[&str] = &[
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];

/// Labels and annotations, merged from the least to the most important.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) labels: Words,
    pub(crate) annotations: Words,
}

impl Marks {
    pub(crate) fn of(parent: &ObjectMeta) -> Self {
        Self {
            labels: parent.labels.clone().unwrap_or_default(),
            annotations: parent.annotations.clone().unwrap_or_default(),
        }
    }

    /// Those of the parent that may be on a pod template, where any change restarts the pods.
    pub(crate) fn of_for_pods(parent: &ObjectMeta) -> Self {
        let mut marks = Self::of(parent);
        let is_foreign = |key: &str| FOREIGN_ANNOTATIONS.iter().any(|prefix| key.starts_with(prefix));
        marks.annotations.retain(|key, _| !is_foreign(key));
        marks.labels.retain(|key, _| !RELEASE_LABELS.contains(&key.as_str()));
        marks
    }

    /// Adds those that the user sets for this child.
    #[must_use]
    pub(crate) fn and(mut self, given: Option<&Metadata>) -> Self {
        let Metadata { labels, annotations } = given.cloned().unwrap_or_default();
        self.labels.extend(labels.unwrap_or_default());
        self.annotations.extend(annotations.unwrap_or_default());
        self
    }

    #[must_use]
    pub(crate) fn label(mut self, labels: &Words) -> Self {
        self.labels.extend(labels.clone());
        self
    }

    #[must_use]
    pub(crate) fn annotate(mut self, key: &str, value: impl Into<String>) -> Self {
        self.annotations.insert(key.to_owned(), value.into());
        self
    }

    /// The metadata of a child with these marks.
    pub(crate) fn into_meta(self, namespace: &str, name: impl Into<String>, owner: OwnerReference) -> ObjectMeta {
        ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.into()),
            owner_references: Some(vec![owner]),
            ..self.into_template_meta()
        }
    }

    /// The metadata of a pod template with these marks.
    pub(crate) fn into_template_meta(self) -> ObjectMeta {
        let given = |words: Words| (!words.is_empty()).then_some(words);
        ObjectMeta {
            labels: given(self.labels),
            annotations: given(self.annotations),
            ..ObjectMeta::default()
        }
    }
}

/// Whether this label names the release of an object.
pub(crate) fn is_release_label(key: &str) -> bool {
    key == "app.kubernetes.io/part-of" || RELEASE_LABELS.contains(&key)
}

/// Labels that select the pods of a component.
pub(crate) fn selector_labels(app: &str, instance: &str) -> Words {
    BTreeMap::from([
        (labels::NAME.to_owned(), app.to_owned()),
        (labels::INSTANCE.to_owned(), instance.to_owned()),
    ])
}

/// Labels of all objects of a component.
pub(crate) fn component_labels(app: &str, instance: &str, component: &str) -> Words {
    let mut labels = selector_labels(app, instance);
    labels.insert(labels::COMPONENT.to_owned(), component.to_owned());
    labels
}

/// The reference that makes `parent` the owner of a child.
pub(crate) fn owner<K: Resource<DynamicType = ()>>(parent: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: parent.meta().name.clone().unwrap_or_default(),
        uid: parent.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pairs: &[(&str, &str)]) -> Words {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_restart_trigger_reaches_the_pods_and_annotations_of_kubectl_and_helm_do_not() {
        let parent = ObjectMeta {
            annotations: Some(words(&[
                ("kubectl.kubernetes.io/last-applied-configuration", "{}"),
                ("meta.helm.sh/release-name", "slurm"),
                ("restart-trigger", "1"),
                (annotations::FORCE_CONFIG, "true"),
            ])),
            labels: Some(words(&[("app.kubernetes.io/managed-by", "Helm"), ("team", "hpc")])),
            ..ObjectMeta::default()
        };
        let marks = Marks::of_for_pods(&parent);
        assert_eq!(marks.annotations, words(&[("restart-trigger", "1")]));
        assert_eq!(marks.labels, words(&[("team", "hpc")]));
        assert_eq!(Marks::of(&parent).annotations.len(), 4);
    }

    #[test]
    fn later_marks_win() {
        let given = Metadata {
            labels: Some(words(&[("a", "2"), (labels::NAME, "mine")])),
            annotations: None,
        };
        let parent = ObjectMeta {
            labels: Some(words(&[("a", "1")])),
            ..ObjectMeta::default()
        };
        let marks = Marks::of(&parent)
            .and(Some(&given))
            .label(&selector_labels("slurmctld", "slurm"));
        assert_eq!(marks.labels["a"], "2");
        assert_eq!(marks.labels[labels::NAME], "slurmctld");
    }
}
