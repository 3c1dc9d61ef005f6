//! Addresses and links of a cluster. Each cluster has its own network without an uplink, so that all use the same
//! addresses.
//!
//! The machine's network namespace holds a bridge with the control plane's address; each node is a port on it. Pod
//! networks are routed between nodes; other packets end in the machine, which has no route for them.

use std::fmt::Write;

pub const CONTROL_PLANE: &str = "172.31.0.1";
pub const API_PORT: u16 = 6443;
pub const SERVICES: &str = "10.96.0.0/16";
pub const KUBERNETES_SERVICE: &str = "10.96.0.1";
pub const PODS: &str = "10.244.0.0/16";

/// Maximum number of nodes, for which routes are added.
pub const MAX_NODES: u8 = 20;

pub fn node_address(index: u8) -> String {
    format!("172.31.0.{}", 10 + index)
}

pub fn pod_network(index: u8) -> String {
    format!("10.244.{index}.0/24")
}

/// The bridge port of a node, inside the machine.
pub fn port(index: u8) -> String {
    format!("port{index}")
}

/// The address of a machine on the cluster's network that is not part of the cluster.
pub fn outside_address(index: u8) -> String {
    format!("172.31.0.{}", 200_u8.saturating_add(index))
}

/// The bridge port of such a machine.
pub fn outside_port(index: u8) -> String {
    format!("outside{index}")
}

/// `ip -batch` lines for the machine.
pub fn machine_setup() -> String {
    let mut lines = format!(
        "link set lo up\n\
         link add bridge0 type bridge\n\
         addr add {CONTROL_PLANE}/24 dev bridge0\n\
         link set bridge0 up\n"
    );
    for node in 1..=MAX_NODES {
        let _ = writeln!(
            lines,
            "route add {} via {} dev bridge0 onlink",
            pod_network(node),
            node_address(node)
        );
    }
    lines
}

/// `ip -batch` lines for a node, run when its end of the link (`eth0`) exists.
pub fn node_setup(index: u8) -> String {
    setup(&node_address(index), (1..=MAX_NODES).filter(|&other| other != index))
}

/// The same for a machine outside Kubernetes: pods are reached by their own addresses, as with peering, and Services are not.
pub fn outside_setup(index: u8) -> String {
    setup(&outside_address(index), 1..=MAX_NODES)
}

fn setup(address: &str, others: impl Iterator<Item = u8>) -> String {
    let mut lines = format!(
        "addr add {address}/24 dev eth0\n\
         link set eth0 up\n\
         route add default via {CONTROL_PLANE}\n"
    );
    for other in others {
        let _ = writeln!(
            lines,
            "route add {} via {} dev eth0 onlink",
            pod_network(other),
            node_address(other)
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_routes_to_every_pod_network_but_its_own() {
        let lines = node_setup(3);
        assert!(lines.contains("route add 10.244.2.0/24 via 172.31.0.12 "));
        assert!(!lines.contains("route add 10.244.3.0/24"));
        assert_eq!(lines.matches("route add 10.244.").count(), usize::from(MAX_NODES) - 1);
    }

    #[test]
    fn addresses_of_nodes_do_not_collide_with_the_control_plane() {
        for index in 1..=MAX_NODES {
            assert_ne!(node_address(index), CONTROL_PLANE);
        }
    }
}
