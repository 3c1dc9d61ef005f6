//! The nodes of the partitions of a cluster, by state. Pure.

use std::collections::BTreeMap;

use slurm::Node;

/// The nodes of one partition. A node counts once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLoad {
    pub nodes: u32,
    pub idle: u32,
    pub allocated: u32,
    pub drain: u32,
    pub down: u32,
    pub cpus: u64,
    pub allocated_cpus: u64,
    /// CPUs of nodes that accept jobs.
    pub idle_cpus: u64,
}

/// Returns the nodes of all partitions that have any.
pub fn of_nodes<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> BTreeMap<String, NodeLoad> {
    let mut loads: BTreeMap<String, NodeLoad> = BTreeMap::new();
    for node in nodes {
        for partition in &node.partitions {
            let load = loads.entry(partition.clone()).or_default();
            load.nodes += 1;
            load.cpus += node.cpus;
            load.allocated_cpus += node.alloc_cpus;
            let state = &node.state;
            if state.is_down() || !state.is_responding() {
                load.down += 1;
            } else if state.is_drain() {
                load.drain += 1;
            } else {
                load.idle_cpus += node.cpus.saturating_sub(node.alloc_cpus);
                if state.is_busy() {
                    load.allocated += 1;
                } else {
                    load.idle += 1;
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
        let expected = NodeLoad {
            nodes: 5,
            idle: 1,
            allocated: 1,
            drain: 1,
            down: 2,
            cpus: 20,
            allocated_cpus: 5,
            idle_cpus: 7,
        };
        assert_eq!(
            loads,
            BTreeMap::from([("a".to_owned(), expected.clone()), ("b".to_owned(), expected)])
        );
    }
}
