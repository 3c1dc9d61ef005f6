//! The Service and the PodDisruptionBudget that all NodeSets of one Controller share. Each of them is an owner, so that
//! both are deleted with the last one.

use std::sync::Arc;

use api::{
    Controller, NodeSet,
    keys::{self, apps, labels},
    wellknown,
};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use crate::template::{fields, metadata::owner};

/// Builds the headless Service that gives every worker a DNS name. `owners` are the NodeSets of the Controller, by name.
pub fn build_service(controller: &Controller, owners: &[Arc<NodeSet>]) -> Value {
    let names = controller.child_names();
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(controller, &names.workers_service(), owners),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": { (labels::NAME): apps::SLURMD, (labels::CLUSTER): names.as_str() },
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
pub fn build_disruption_budget(controller: &Controller, owners: &[Arc<NodeSet>]) -> Value {
    let names = controller.child_names();
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(controller, &names.workers_disruption_budget(), owners),
        "spec": {
            "minAvailable": NEVER_EVICT,
            "selector": {
                "matchLabels": { (labels::POD_PROTECT): keys::ON, (labels::CLUSTER): names.as_str() },
            },
        },
    })
}

/// The owner references are without a controller.
fn metadata(controller: &Controller, name: &str, owners: &[Arc<NodeSet>]) -> Value {
    let reference = |nodeset: &Arc<NodeSet>| -> Map<String, Value> {
        let mut reference = fields(json!(owner(nodeset.as_ref())));
        reference.remove("controller");
        reference
    };
    let owners: Vec<_> = owners.iter().map(reference).collect();
    json!({ "namespace": controller.namespace(), "name": name, "ownerReferences": owners })
}
