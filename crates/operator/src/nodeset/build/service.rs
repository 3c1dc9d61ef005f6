//! The Service and the PodDisruptionBudget that all NodeSets of one Controller share. Each of them is an owner, so that
//! both are deleted with the last one.

use api::{
    NodeSet,
    keys::{self, apps, labels},
    names::ControllerName,
    wellknown,
};
use serde_json::{Map, Value, json};

use crate::template::{fields, metadata::owner};

/// Builds the headless Service that gives every worker a DNS name. `owners` are the NodeSets of the Controller, by name.
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

/// More pods than can exist, so the budget never allows an eviction. With `maxUnavailable`, as in upstream, Kubernetes asks
/// the owners for their scale, which fails in the first seconds of a definition and is meaningless in `DaemonSet` mode.
const NEVER_EVICT: i32 = i32::MAX;

/// Builds the budget that protects workers from eviction.
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
            "minAvailable": NEVER_EVICT,
            "selector": {
                "matchLabels": { (labels::POD_PROTECT): keys::ON, (labels::CLUSTER): controller.as_str() },
            },
        },
    })
}

/// Returns owner references without a controller.
fn references(owners: &[&NodeSet]) -> Vec<Map<String, Value>> {
    let reference = |nodeset: &&NodeSet| {
        let mut reference = fields(json!(owner(*nodeset)));
        reference.remove("controller");
        reference
    };
    owners.iter().map(reference).collect()
}
