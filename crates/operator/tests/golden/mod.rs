//! What upstream really made of five clusters, and how ours is compared with it, field by field.
//!
//! The operator's unit tests compare what they plan, the tests on a real API server what charts and operator make there. Both
//! use one list of differences, [`MEANT`].

#![allow(dead_code, unused_imports, reason = "each kind of test uses a part")]

mod compare;
mod meant;

use base64::Engine;
use serde_json::Value;

pub(crate) use compare::{Objects, flatten_all, judge, matches};
pub(crate) use meant::MEANT;

/// One cluster of upstream's.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) cluster: &'static str,
    /// The values given to upstream's chart.
    pub(crate) values: String,
    /// What people, the chart and the operator made.
    pub(crate) objects: Vec<Value>,
}

pub(crate) fn recordings() -> Vec<Recording> {
    [
        ("a-default", include_str!("a-default.yaml")),
        ("b-full", include_str!("b-full.yaml")),
        ("c-ha", include_str!("c-ha.yaml")),
        ("d-hybrid", include_str!("d-hybrid.yaml")),
        ("e-nodes", include_str!("e-nodes.yaml")),
    ]
    .into_iter()
    .map(|(cluster, text)| Recording {
        cluster,
        values: text
            .lines()
            .filter_map(|line| line.strip_prefix("#   "))
            .fold(String::new(), |text, line| text + line + "\n"),
        objects: serde_saphyr::from_multiple(text).unwrap(),
    })
    .collect()
}

impl Recording {
    pub(crate) fn namespace(&self) -> &str {
        self.objects[0]["metadata"]["namespace"].as_str().unwrap()
    }

    /// Objects that neither the chart nor anybody's controller made.
    pub(crate) fn made_by_hand(&self) -> Vec<Value> {
        // A StatefulSet's claims have no owner, but its labels.
        self.select(|object| owners(object).is_empty() && object["metadata"].get("labels").is_none())
    }

    /// What upstream's chart rendered, without namespace and Helm's own marks; data of Secrets is as the API server has it.
    pub(crate) fn made_by_helm(&self) -> Vec<Value> {
        let mut objects = self.select(|object| {
            object["metadata"]["annotations"]
                .get("meta.helm.sh/release-name")
                .is_some()
        });
        objects.retain(|object| owners(object).is_empty());
        for object in &mut objects {
            let metadata = object["metadata"].as_object_mut().unwrap();
            metadata.remove("namespace");
            let annotations = metadata["annotations"].as_object_mut().unwrap();
            annotations.retain(|name, _| !name.starts_with("meta.helm.sh/"));
        }
        encode_secrets(&mut objects);
        objects
    }

    /// What upstream's operator had to work with; data of Secrets is as the API server has it.
    pub(crate) fn inputs(&self) -> Vec<Value> {
        let mut inputs = self.select(|object| owners(object).is_empty() && object["kind"] != "PersistentVolumeClaim");
        encode_secrets(&mut inputs);
        inputs
    }

    /// What upstream's operator made for objects of these kinds.
    pub(crate) fn children_of(&self, kinds: &[&str]) -> Vec<Value> {
        self.select(|object| owners(object).iter().any(|owner| kinds.contains(owner)))
    }

    /// The volumes of workers, which nobody owns.
    pub(crate) fn claims_of_workers(&self) -> Vec<Value> {
        self.select(|object| {
            object["kind"] == "PersistentVolumeClaim"
                && object["metadata"]["labels"]["app.kubernetes.io/name"] == "slurmd"
        })
    }

    fn select(&self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        self.objects.iter().filter(|object| wanted(object)).cloned().collect()
    }
}

fn encode_secrets(objects: &mut [Value]) {
    for secret in objects.iter_mut().filter(|object| object["kind"] == "Secret") {
        for (_, value) in secret["data"].as_object_mut().unwrap() {
            *value = base64::engine::general_purpose::STANDARD
                .encode(value.as_str().unwrap())
                .into();
        }
    }
}

/// The kinds of an object's owners.
fn owners(object: &Value) -> Vec<&str> {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners
        .into_iter()
        .flatten()
        .map(|owner| owner["kind"].as_str().unwrap())
        .collect()
}
