//! A pod template with the user's overlay.

use api::overlay::{DNS_POLICY, PodSpecOverlay};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

use super::{fields, set, tidy::tidy};
use crate::overlay::{lay_over, lay_over_containers};

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
    /// Merges `overlay` over the template.
    pub(crate) fn with(self, overlay: Option<&PodSpecOverlay>) -> Value {
        let mut given = overlay.map(|overlay| overlay.fields().clone()).unwrap_or_default();
        let (misspelled, meant) = DNS_POLICY;
        if let Some(policy) = given.remove(misspelled) {
            given.entry(meant).or_insert(policy);
        }
        let lists = [
            ("containers", self.containers),
            ("initContainers", self.init_containers),
        ];
        let lists = lists.map(|(field, ours)| {
            let mut containers: Vec<Value> = ours.into_iter().map(Value::Object).collect();
            if let Some(Value::Array(theirs)) = given.remove(field) {
                lay_over_containers(&mut containers, &theirs);
            }
            (field, containers)
        });
        let mut spec = Value::Object(self.spec);
        lay_over(&mut spec, &given);
        let mut spec = fields(spec);
        for (field, containers) in lists {
            set(&mut spec, field, containers);
        }
        tidy(&mut spec);
        json!({ "metadata": self.meta, "spec": spec })
    }
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
