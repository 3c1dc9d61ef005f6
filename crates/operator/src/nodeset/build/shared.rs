//! What all NodeSets of one Controller have together. Each of them owns it, so that it goes with the last one.

use api::{
    NodeSet,
    keys::{self, apps, labels},
    names::ControllerName,
    wellknown,
};
use serde_json::{Value, json};

use crate::template::metadata::owner;

/// The headless Service that gives every worker a name. `owners` are the NodeSets of the Controller, by name.
pub fn build_service(namespace: &str, controller: &ControllerName, owners: &[&NodeSet]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": namespace,
            "name": controller.workers_service(),
            "ownerReferences": references(owners),
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": { (labels::NAME): apps::SLURMD, (labels::CLUSTER): controller.as_str() },
            "ports": [{
                "name": apps::SLURMD,
                "port": wellknown::SLURMD_PORT,
                "protocol": "TCP",
                "targetPort": apps::SLURMD,
            }],
        },
    })
}

/// As many as there can be. A number needs no look at the pods' owners: with `maxUnavailable`, as upstream has it,
/// Kubernetes asks the owners how many pods they want, which fails in the first seconds of a definition and means
/// nothing in `DaemonSet` mode. With more than there are, no pod may ever go, ready or not.
const ALL_OF_THEM: i32 = i32::MAX;

/// The budget that keeps protected workers from being evicted.
pub fn build_disruption_budget(namespace: &str, controller: &ControllerName, owners: &[&NodeSet]) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "namespace": namespace,
            "name": controller.workers_disruption_budget(),
            "ownerReferences": references(owners),
        },
        "spec": {
            "minAvailable": ALL_OF_THEM,
            "selector": {
                "matchLabels": { (labels::POD_PROTECT): keys::ON, (labels::CLUSTER): controller.as_str() },
            },
        },
    })
}

/// None of them is the controller of what they share.
fn references(owners: &[&NodeSet]) -> Vec<Value> {
    owners
        .iter()
        .map(|nodeset| {
            let mut reference = json!(owner(*nodeset));
            if let Value::Object(fields) = &mut reference {
                fields.remove("controller");
            }
            reference
        })
        .collect()
}
