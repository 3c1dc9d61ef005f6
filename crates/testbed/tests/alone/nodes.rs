//! Nodes are added, drained, cut off and killed.

use std::time::Duration;

use testbed::command::output;
use testbed::harness::{Namespace, alone, eventually};

use crate::common::command_line::testbed;
use crate::common::pods::{connect, pair};
use crate::common::servers;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_node_can_be_added_and_removed() {
    let alone = alone();
    let cluster = alone.cluster;
    let name = output(testbed(cluster).args(["node", "add"]))
        .unwrap()
        .trim()
        .to_owned();
    assert_eq!(name, "node4");
    cluster.wait_node("node4", "True").unwrap();
    output(testbed(cluster).args(["node", "remove", "node4"])).unwrap();
    assert_eq!(cluster.ask(&["get", "nodes", "-o", "name"]).unwrap().lines().count(), 3);
    assert_eq!(cluster.nodes().len(), 3);
}

#[test]
fn cordon_and_drain_move_pods_away() {
    let alone = alone();
    let cluster = alone.cluster;
    servers::load(cluster);
    let namespace = Namespace::create(cluster, "drain").unwrap();
    namespace.apply(&servers::web()).unwrap();
    namespace.rollout("statefulset/web").unwrap();
    let node = namespace.field("pod/web-0", ".spec.nodeName").unwrap();
    let drained = cluster.ask(&["drain", &node, "--pod-selector=app=web", "--timeout=60s"]);
    let moved = drained.and_then(|_| namespace.rollout("statefulset/web"));
    let now = namespace.field("pod/web-0", ".spec.nodeName");
    cluster.ask(&["uncordon", &node]).unwrap();
    moved.unwrap();
    assert_ne!(now.unwrap(), node);
}

#[test]
fn an_unplugged_node_is_unreachable_and_comes_back() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = pair(cluster, "unplug");
    connect(&namespace, "two").unwrap();
    let unplugged = cluster.unplug("node2").unwrap();
    assert!(connect(&namespace, "two").is_err());
    unplugged.heal().unwrap();
    eventually("traffic flows again", SOON, || connect(&namespace, "two")).unwrap();
}

/// Both in one test, because the control plane takes half a minute to notice either.
#[test]
fn a_node_cut_from_the_control_plane_keeps_serving_and_a_killed_one_returns_with_its_pods() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = pair(cluster, "lost");
    namespace.apply(&servers::pod("three", "node3")).unwrap();
    namespace.wait("condition=Ready", "pod/three").unwrap();

    let cut = cluster.cut_from_control_plane("node2").unwrap();
    cluster.kill_node("node3").unwrap();
    cluster.wait_node("node2", "Unknown").unwrap();
    cluster.wait_node("node3", "Unknown").unwrap();
    let cut_off = connect(&namespace, "two");
    let killed = connect(&namespace, "three");
    cut.heal().unwrap();
    cluster.restart_node("node3").unwrap();
    cluster.wait_node("node2", "True").unwrap();

    cut_off.unwrap();
    killed.unwrap_err();
    assert_eq!(
        namespace
            .field("pod/two", ".status.containerStatuses[0].restartCount")
            .unwrap(),
        "0"
    );
    namespace
        .wait("jsonpath={.status.containerStatuses[0].restartCount}=1", "pod/three")
        .unwrap();
    eventually("the server answers again", SOON, || connect(&namespace, "three")).unwrap();
}
