//! The children of one object's daemon, which share labels, a selector and an owner.

use api::{
    keys::annotations,
    templates::{PodTemplate as GivenPod, ServiceTemplate},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{
    metadata::{Marks, Words, component_labels, owner, selector_labels},
    pod::PodTemplate,
    restricted::restrict,
    service::{PortClash, Service},
    set,
};

/// An object and its daemon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Component<'a, K> {
    pub(crate) object: &'a K,
    /// The daemon's name: also that of its main container and its port.
    pub(crate) app: &'static str,
    /// The value of the component label.
    pub(crate) label: &'static str,
}

/// What differs between the pods of daemons.
#[derive(Debug)]
pub(crate) struct Pods<'a> {
    pub(crate) annotations: Vec<(&'static str, String)>,
    pub(crate) spec: Map<String, Value>,
    pub(crate) init_containers: Vec<Map<String, Value>>,
    pub(crate) container: Map<String, Value>,
    /// What the user merges over the template.
    pub(crate) given: Option<&'a GivenPod>,
}

impl<K: Resource<DynamicType = ()>> Component<'_, K> {
    fn labels(&self) -> Words {
        component_labels(self.app, &self.object.name_any(), self.label)
    }

    /// The metadata of a child with these marks and the labels of the component.
    pub(crate) fn child(&self, marks: Marks, name: String) -> ObjectMeta {
        let namespace = self.object.namespace().unwrap_or_default();
        marks
            .label(&self.labels())
            .into_meta(&namespace, name, owner(self.object))
    }

    /// The metadata of a child that carries the object's own labels and annotations.
    pub(crate) fn meta(&self, name: String) -> ObjectMeta {
        self.child(Marks::of(self.object.meta()), name)
    }

    /// The Service of the daemon's port, with what the user merges over it.
    pub(crate) fn service(
        &self,
        marks: Marks,
        name: String,
        port: u16,
        given: Option<&ServiceTemplate>,
    ) -> Result<Value, PortClash> {
        Service {
            meta: self.child(marks.and(given.and_then(|given| given.metadata.as_ref())), name),
            selector: selector_labels(self.app, &self.object.name_any()),
            port_name: self.app,
            port,
        }
        .with(given)
    }

    /// The labels and annotations of the pods.
    pub(crate) fn pod_marks(&self, annotations: &[(&str, String)], given: Option<&GivenPod>) -> Marks {
        let given = given.and_then(|given| given.metadata.as_ref());
        let marks = Marks::of_for_pods(self.object.meta()).and(given).label(&self.labels());
        let own = annotations.iter();
        let marks = own.fold(marks, |marks, (key, value)| marks.annotate(key, value));
        marks.annotate(annotations::DEFAULT_CONTAINER, self.app)
    }

    /// The Deployment or StatefulSet of the pods. `spec` holds the fields besides selector and template.
    pub(crate) fn workload<W: Resource<DynamicType = ()> + DeserializeOwned>(
        &self,
        name: String,
        pods: Pods<'_>,
        mut spec: Map<String, Value>,
    ) -> Result<W, serde_json::Error> {
        let given = pods.given.and_then(|given| given.metadata.as_ref());
        let containers = pods.init_containers.iter().chain([&pods.container]);
        let names = containers.filter_map(|container| Some(container.get("name")?.as_str()?.to_owned()));
        let names: Vec<String> = names.collect();
        let template = PodTemplate {
            meta: ObjectMeta {
                name: Some(name.clone()),
                namespace: self.object.namespace(),
                ..self.pod_marks(&pods.annotations, pods.given).into_template_meta()
            },
            spec: pods.spec,
            init_containers: pods.init_containers,
            containers: vec![pods.container],
        };
        let selector = selector_labels(self.app, &self.object.name_any());
        let mut template = template.with(pods.given.and_then(|given| given.spec.as_ref()));
        if let Some(spec) = template.get_mut("spec") {
            restrict(spec, &names);
        }
        set(&mut spec, "revisionHistoryLimit", 0);
        set(&mut spec, "selector", json!({ "matchLabels": selector }));
        set(&mut spec, "template", template);
        serde_json::from_value(json!({
            "apiVersion": W::api_version(&()),
            "kind": W::kind(&()),
            "metadata": self.child(Marks::of(self.object.meta()).and(given), name),
            "spec": spec,
        }))
    }
}
