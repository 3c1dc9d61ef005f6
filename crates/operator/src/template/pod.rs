//! A pod template with the user's overlay.

use api::overlay::{DNS_POLICY, PodSpecOverlay};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

use super::tidy::tidy;
use crate::overlay::{lay_over, lay_over_container};

/// The parts of a pod template.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodTemplate {
    pub(crate) meta: ObjectMeta,
    /// Everything but containers.
    pub(crate) spec: Map<String, Value>,
    pub(crate) init_containers: Vec<Map<String, Value>>,
    pub(crate) containers: Vec<Map<String, Value>>,
}

impl PodTemplate {
    /// Merges `overlay` over the template. The user's containers follow ours; one with the name of ours is merged over it,
    /// since names are unique in a pod.
    pub(crate) fn with(self, overlay: Option<&PodSpecOverlay>) -> Value {
        let mut given = overlay.map(|overlay| overlay.fields().clone()).unwrap_or_default();
        let (misspelled, meant) = DNS_POLICY;
        if let Some(policy) = given.remove(misspelled) {
            given.entry(meant).or_insert(policy);
        }
        let containers = append(self.containers, given.remove("containers"));
        let init_containers = append(self.init_containers, given.remove("initContainers"));
        let mut spec = Value::Object(self.spec);
        lay_over(&mut spec, &given);
        if let Value::Object(spec) = &mut spec {
            spec.insert("containers".to_owned(), containers.into());
            spec.insert("initContainers".to_owned(), init_containers.into());
            tidy(spec);
        }
        json!({ "metadata": self.meta, "spec": spec })
    }
}

fn append(ours: Vec<Map<String, Value>>, theirs: Option<Value>) -> Vec<Value> {
    let mut containers: Vec<Value> = ours.into_iter().map(Value::Object).collect();
    let Some(Value::Array(theirs)) = theirs else {
        return containers;
    };
    for container in theirs {
        let name = container.get("name");
        let same = containers
            .iter_mut()
            .find(|own| name.is_some() && own.get("name") == name);
        match (same, container) {
            (Some(own), Value::Object(fields)) => lay_over_container(own, &fields),
            (_, container) => containers.push(container),
        }
    }
    containers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> PodTemplate {
        let fields = |value: Value| value.as_object().cloned().unwrap();
        PodTemplate {
            meta: ObjectMeta::default(),
            spec: fields(json!({ "volumes": [{ "name": "run", "emptyDir": {} }] })),
            init_containers: vec![fields(json!({ "name": "logfile", "image": "alpine" }))],
            containers: vec![fields(json!({ "name": "slurmctld", "args": ["-1"] }))],
        }
    }

    fn with(overlay: Value) -> Value {
        ours().with(Some(&serde_json::from_value(overlay).unwrap()))["spec"].clone()
    }

    #[test]
    fn the_guides_spelling_of_the_dns_policy_is_accepted() {
        let spec = with(json!({ "dNSPolicy": "ClusterFirstWithHostNet" }));
        assert_eq!(spec["dnsPolicy"], "ClusterFirstWithHostNet");
        assert!(spec.get("dNSPolicy").is_none());
        let both = with(json!({ "dNSPolicy": "Default", "dnsPolicy": "ClusterFirst" }));
        assert_eq!(both["dnsPolicy"], "ClusterFirst");
    }

    #[test]
    fn the_users_containers_follow_ours() {
        let spec = with(json!({ "containers": [{ "name": "x" }], "initContainers": [{ "name": "y" }] }));
        assert_eq!(
            spec["containers"],
            json!([{ "name": "slurmctld", "args": ["-1"] }, { "name": "x" }])
        );
        assert_eq!(spec["initContainers"][1], json!({ "name": "y" }));
    }

    #[test]
    fn a_container_with_the_name_of_ours_is_merged_over_it() {
        let spec = with(json!({ "containers": [{ "name": "slurmctld", "args": ["-2"], "image": "i" }] }));
        assert_eq!(
            spec["containers"],
            json!([{ "name": "slurmctld", "args": ["-1", "-2"], "image": "i" }])
        );
    }

    #[test]
    fn the_rest_of_the_spec_is_merged() {
        let spec = with(json!({ "volumes": [{ "name": "mine", "emptyDir": {} }], "nodeSelector": { "a": "b" } }));
        assert_eq!(spec["volumes"].as_array().map(Vec::len), Some(2));
        assert_eq!(spec["nodeSelector"], json!({ "a": "b" }));
    }
}
