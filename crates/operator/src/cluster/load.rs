//! The nodes of the partitions of a cluster, by state. Pure.

use std::collections::BTreeMap;

use api::partition::{PartitionCpus, PartitionNodes};
use slurm::Node;

/// Returns the nodes of all partitions that have any, and their CPUs. A node counts once.
pub fn of_nodes<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> BTreeMap<String, (PartitionNodes, PartitionCpus)> {
    let mut loads: BTreeMap<String, (PartitionNodes, PartitionCpus)> = BTreeMap::new();
    for node in nodes {
        let [cpus, allocated] = [node.cpus, node.alloc_cpus].map(|count| i64::try_from(count).unwrap_or_default());
        for partition in &node.partitions {
            let (of_nodes, of_cpus) = loads.entry(partition.clone()).or_default();
            of_nodes.total += 1;
            of_cpus.total += cpus;
            of_cpus.allocated += allocated;
            let state = &node.state;
            if state.is_down() || !state.is_responding() {
                of_nodes.down += 1;
            } else if state.is_drain() {
                of_nodes.drain += 1;
            } else {
                of_cpus.idle += cpus.saturating_sub(allocated).max(0);
                if state.is_busy() {
                    of_nodes.allocated += 1;
                } else {
                    of_nodes.idle += 1;
                }
            }
        }
    }
    loads
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_counts_once_in_each_of_its_partitions() {
        let node = |name: &str, states: &[&str], allocated: u64| -> Node {
            serde_json::from_value(json!({
                "name": name, "state": states, "partitions": ["a", "b"], "cpus": 4, "alloc_cpus": allocated,
            }))
            .unwrap()
        };
        let nodes = [
            node("n1", &["IDLE"], 0),
            node("n2", &["MIXED"], 1),
            node("n3", &["ALLOCATED", "DRAIN"], 4),
            node("n4", &["IDLE", "NOT_RESPONDING"], 0),
            node("n5", &["DOWN", "DRAIN"], 0),
        ];
        let loads = of_nodes(&nodes);
        let nodes = PartitionNodes {
            total: 5,
            idle: 1,
            allocated: 1,
            drain: 1,
            down: 2,
        };
        let cpus = PartitionCpus {
            total: 20,
            allocated: 5,
            idle: 7,
        };
        let expected = (nodes, cpus);
        assert_eq!(
            loads,
            BTreeMap::from([("a".to_owned(), expected.clone()), ("b".to_owned(), expected)])
        );
    }
}
