//! Kubernetes nodes that a test cordons or kills.

use testbed::cluster::Cluster;

/// Brings all nodes back and uncordons them when it is dropped, also when a test fails halfway: other tests of this cluster use
/// them.
pub struct RestoreNodes(pub &'static Cluster);

impl Drop for RestoreNodes {
    fn drop(&mut self) {
        for node in ["node1", "node2", "node3"] {
            let up = self.0.wait_node(node, "True");
            let restored = up.or_else(|_| self.0.restart_node(node));
            let uncordoned = self.0.ask(&["uncordon", node]);
            assert!(
                std::thread::panicking() || restored.and(uncordoned.map(drop)).is_ok(),
                "{node} does not come back"
            );
        }
    }
}
