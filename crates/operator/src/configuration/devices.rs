//! Finds devices of NodeSets that no job can get. The checker does not see the `Gres=` of workers. Pure.

use std::{collections::BTreeSet, sync::Arc};

use api::NodeSet;
use kube::ResourceExt as _;
use slurm::conf::Configuration;

/// Returns warnings about these NodeSets. `GresTypes` is not added automatically: a change of it ends jobs.
pub(crate) fn undeclared_devices(node_sets: &[Arc<NodeSet>], configuration: &Configuration) -> Vec<String> {
    let with_devices: Vec<(String, BTreeSet<String>)> = node_sets
        .iter()
        .filter(|node_set| node_set.metadata.deletion_timestamp.is_none())
        .filter_map(|node_set| {
            let kinds = node_set.spec.device_kinds();
            (!kinds.is_empty()).then(|| (node_set.name_any(), kinds))
        })
        .collect();
    if with_devices.is_empty() || configuration.includes_elsewhere() {
        return Vec::new();
    }
    let declared: BTreeSet<&str> = configuration
        .value("GresTypes")
        .into_iter()
        .flat_map(|types| types.split(',').map(str::trim))
        .collect();
    let messages = with_devices.into_iter().filter_map(|(name, kinds)| {
        let absent: Vec<&str> = kinds
            .iter()
            .map(String::as_str)
            .filter(|kind| !declared.contains(kind))
            .collect();
        let absent = (!absent.is_empty()).then(|| absent.join(","))?;
        Some(format!(
            "NodeSet {name:?} has {absent} in Gres= of its spec.extraConf, which GresTypes does not name, so no job gets any; add {absent} to GresTypes in spec.extraConf of the Controller"
        ))
    });
    messages.collect()
}
