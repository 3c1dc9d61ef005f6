//! Computes `MaxNodeCount`: how many nodes slurmctld has room for.

use std::sync::Arc;

use api::{NodeSet, nodeset::ScalingMode};
use slurm::conf::Document;

/// Upstream's value.
const MIN_COUNT: u32 = 1024;
/// Slurm's `MAX_SLURM_NODES`. slurmctld does not start with a higher number.
const MAX_COUNT: u32 = 65_536;

/// Returns the next power of two above the requested nodes, never below the live value: slurmctld would lose nodes.
pub(crate) fn max_node_count(node_sets: &[Arc<NodeSet>], accepted: Option<&Document>) -> u32 {
    let nodes = node_sets
        .iter()
        .map(|node_set| requested_by(node_set))
        .fold(0, u32::saturating_add);
    let room = nodes.saturating_add(1).checked_next_power_of_two().unwrap_or(u32::MAX);
    let room = room.max(MIN_COUNT).max(accepted.and_then(rendered).unwrap_or_default());
    room.min(MAX_COUNT)
}

fn requested_by(node_set: &NodeSet) -> u32 {
    match node_set.spec.scaling_mode() {
        // One pod per matching node, counted by the NodeSet's own reconcile.
        ScalingMode::DaemonSet => {
            let pods = node_set.status.as_ref().map_or(0, |status| status.replicas);
            u32::try_from(pods).unwrap_or_default()
        }
        _ => node_set.spec.ordinals(),
    }
}

/// The operator's own value; a user's value comes after it.
fn rendered(accepted: &Document) -> Option<u32> {
    accepted.values("MaxNodeCount").next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node_set(spec: Value, pods: i32) -> Arc<NodeSet> {
        let mut spec = spec;
        spec["controllerRef"] = json!({ "name": "slurm" });
        Arc::new(
            serde_json::from_value(json!({
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": { "name": "a" },
                "spec": spec, "status": { "replicas": pods },
            }))
            .unwrap(),
        )
    }

    #[test]
    fn the_count_covers_all_nodes_and_never_shrinks() {
        let sets = |replicas: &[i32]| -> Vec<Arc<NodeSet>> {
            replicas
                .iter()
                .map(|replicas| node_set(json!({ "replicas": replicas }), 0))
                .collect()
        };
        for (replicas, live, expected) in [
            (&[][..], None, 1024),
            (&[1023], None, 1024),
            (&[1024], None, 2048),
            (&[1000, 1000, 100], None, 4096),
            (&[1], Some(4096), 4096),
            (&[5000], Some(4096), 8192),
            (&[40_000], None, 65_536),
            (&[65_536], None, 65_536),
            (&[40_000, 40_000], None, 65_536),
            (&[i32::MAX, i32::MAX, i32::MAX], None, 65_536),
            (&[-1], None, 1024),
        ] {
            let accepted = live.map(|count| Document::parse(&format!("MaxNodeCount={count}\nMaxNodeCount=7\n")));
            assert_eq!(
                max_node_count(&sets(replicas), accepted.as_ref()),
                expected,
                "{replicas:?} {live:?}"
            );
        }
    }

    #[test]
    fn a_daemon_set_counts_by_its_pods() {
        let set = node_set(json!({ "replicas": 1, "scalingMode": "DaemonSet" }), 3000);
        assert_eq!(max_node_count(&[set], None), 4096);
    }
}
