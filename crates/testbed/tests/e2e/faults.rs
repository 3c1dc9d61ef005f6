//! Each fault does what it says, and heals.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, alone, eventually, expect, shared};

use crate::inside::shell_pod;
use crate::servers;

const SOON: Duration = Duration::from_secs(30);

/// A client `one` on node1 and a server `two` on node2.
fn pair(cluster: &'static Cluster, name: &str) -> Namespace {
    servers::load(cluster);
    let namespace = Namespace::create(cluster, name).unwrap();
    namespace
        .apply(&shell_pod("one", &json!({"nodeName": "node1"})))
        .unwrap();
    namespace.apply(&servers::pod("two", "node2")).unwrap();
    namespace.wait("condition=Ready", "pod/one").unwrap();
    namespace.wait("condition=Ready", "pod/two").unwrap();
    namespace
}

/// Fetches a page of a server from `one`; how long the connection took, in seconds.
fn connect(namespace: &Namespace, server: &str) -> Result<f64> {
    let address = namespace.field(&format!("pod/{server}"), ".status.podIP")?;
    let line = format!("curl -s -o /dev/null --max-time 3 -w '%{{time_connect}}' http://{address}:8080/hostname");
    Ok(namespace.exec("one", &line)?.trim().parse()?)
}

#[test]
fn traffic_between_two_pods_can_be_delayed_and_dropped() {
    let (cluster, _use) = shared();
    let namespace = pair(cluster, "traffic");
    let (one, two) = (namespace.pod("one"), namespace.pod("two"));
    assert!(connect(&namespace, "two").unwrap() < 0.3);

    let slow = cluster.delay_traffic(one, two, Duration::from_millis(500)).unwrap();
    let took = connect(&namespace, "two").unwrap();
    assert!((0.5..2.0).contains(&took), "{took}");
    slow.heal().unwrap();
    assert!(connect(&namespace, "two").unwrap() < 0.3);

    let lost = cluster.drop_traffic(one, two).unwrap();
    assert!(connect(&namespace, "two").is_err());
    lost.heal().unwrap();
    connect(&namespace, "two").unwrap();
}

#[test]
fn one_container_of_a_pod_can_be_killed() {
    let (cluster, _use) = shared();
    let namespace = Namespace::create(cluster, "kill").unwrap();
    let second = json!({"name": "second", "image": "alpine:latest", "imagePullPolicy": "IfNotPresent", "command": ["sleep", "infinity"]});
    let mut pod: serde_json::Value = serde_json::from_str(&shell_pod("shell", &json!({}))).unwrap();
    pod["spec"]["containers"].as_array_mut().unwrap().push(second);
    namespace.apply(&pod.to_string()).unwrap();
    namespace.wait("condition=Ready", "pod/shell").unwrap();

    cluster.kill_container(namespace.pod("shell"), "second").unwrap();
    let count = |name: &str| {
        namespace.field(
            "pod/shell",
            &format!(".status.containerStatuses[?(@.name==\"{name}\")].restartCount"),
        )
    };
    eventually("the killed container is started again", SOON, || {
        let second = count("second")?;
        expect(second == "1", second)
    })
    .unwrap();
    assert_eq!(count("shell").unwrap(), "0");
}

#[test]
fn the_api_server_and_etcd_can_be_stopped_paused_and_restarted() {
    let (cluster, _alone) = alone();
    // A write, since reads may be answered from memory while etcd is away.
    let answers = || {
        cluster.ask(&[
            "annotate",
            "--overwrite",
            "node",
            "node1",
            "touched=yes",
            "--request-timeout=3s",
        ])
    };
    answers().unwrap();
    let untouched = || cluster.ask(&["annotate", "node", "node1", "touched-", "--request-timeout=3s"]);
    for component in ["kube-apiserver", "etcd"] {
        let stopped = cluster.stop(component).unwrap();
        assert!(untouched().is_err(), "{component} is stopped");
        stopped.heal().unwrap();
        eventually("answers again", SOON, answers).unwrap();

        let paused = cluster.pause(component).unwrap();
        assert!(untouched().is_err(), "{component} is paused");
        paused.heal().unwrap();
        eventually("answers again", SOON, answers).unwrap();

        cluster.restart(component).unwrap();
        eventually("answers again", SOON, answers).unwrap();
    }
    // What was stored is still there.
    let touched = cluster
        .ask(&["get", "node", "node1", "-o", "jsonpath={.metadata.annotations.touched}"])
        .unwrap();
    assert_eq!(touched, "yes");
}

#[test]
fn an_unplugged_node_is_unreachable_and_comes_back() {
    let (cluster, _alone) = alone();
    let namespace = pair(cluster, "unplug");
    connect(&namespace, "two").unwrap();
    let unplugged = cluster.unplug("node2").unwrap();
    assert!(connect(&namespace, "two").is_err());
    unplugged.heal().unwrap();
    eventually("traffic flows again", SOON, || connect(&namespace, "two")).unwrap();
}

/// Both in one test, since either takes the control plane half a minute to notice.
#[test]
fn a_node_cut_from_the_control_plane_goes_on_serving_and_a_killed_one_returns_with_its_pods() {
    let (cluster, _alone) = alone();
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
