//! Clusters are isolated from the network, the host and each other.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use testbed::cluster::{Cluster, Size};
use testbed::command::output;
use testbed::harness::{cluster, eventually, expect};
use testbed::namespaces::Namespaces;
use testbed::paths::Layout;

/// Network links of some namespaces as (name, index of the other end).
fn links(place: Namespaces) -> Vec<(String, Option<u64>)> {
    let listed = output(place.network_command("ip").args(["-json", "link", "show"])).unwrap();
    let listed: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
    listed
        .iter()
        .map(|link| (link["ifname"].as_str().unwrap().to_owned(), link["link_index"].as_u64()))
        .collect()
}

#[test]
fn no_link_leads_out_of_the_cluster() {
    let cluster = cluster();
    let machine = cluster.machine().unwrap();
    let expected: BTreeSet<String> = ["lo", "bridge0", "port1", "port2", "port3"]
        .iter()
        .map(|&name| name.to_owned())
        .collect();
    let found: BTreeSet<String> = links(machine).into_iter().map(|(name, _)| name).collect();
    assert_eq!(found, expected);
    let routes = output(machine.network_command("ip").args(["route", "show", "default"])).unwrap();
    assert_eq!(routes, "", "the machine must not know a way out");
    for node in cluster.nodes() {
        let outward: Vec<String> = links(cluster.node_namespaces(&node).unwrap())
            .into_iter()
            .map(|(name, _)| name)
            .filter(|name| !["lo", "eth0", "cni0"].contains(&name.as_str()) && !name.starts_with("veth"))
            .collect();
        assert_eq!(outward, Vec::<String>::new(), "{node}");
    }
    // The host has no link into the cluster either.
    let host = output(Command::new("ip").args(["-oneline", "link", "show"])).unwrap();
    assert!(!host.contains("bridge0") && !host.contains("cni0"), "{host}");
}

#[test]
fn the_host_is_left_as_it_was() {
    let cluster = cluster();
    let inside = output(
        cluster
            .node_namespaces("node1")
            .unwrap()
            .command("cat")
            .arg("/proc/sys/kernel/panic_on_oops"),
    )
    .unwrap();
    // The node sees a file with the kubelet's value, not that of the kernel.
    assert_eq!(inside.trim(), "1");
    let mounts = output(
        cluster
            .node_namespaces("node1")
            .unwrap()
            .command("cat")
            .arg("/proc/self/mountinfo"),
    )
    .unwrap();
    assert!(mounts.contains(" /proc/sys/kernel/panic_on_oops "), "{mounts}");
    for path in [
        "/run/containerd",
        "/var/lib/kubelet",
        "/var/lib/containerd/io.containerd.metadata.v1.bolt",
        // Other programs keep files of their own there.
        "/etc/cni/net.d/10-bridge.conflist",
        "/opt/containerd",
    ] {
        assert!(!std::path::Path::new(path).exists(), "{path} was written on the host");
    }
    let rules = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    assert!(
        !String::from_utf8_lossy(&rules.stdout).contains("kube"),
        "the host's firewall was changed"
    );
}

#[test]
fn a_second_cluster_runs_beside_the_first_and_after_a_killed_start() {
    let first = cluster();
    let name = format!("{}-2", Layout::test_cluster());
    // An `up` that is killed halfway leaves its processes behind.
    let mut started = Command::new(testbed::sibling("testbed").unwrap())
        .args(["--cluster", &name, "up", "--control-plane-only"])
        .spawn()
        .unwrap();
    let half = Layout::of(&name).unwrap().run().join("control-plane.etcd.json");
    eventually("the second cluster has begun", Duration::from_secs(30), || {
        expect(half.exists(), "no etcd yet")
    })
    .unwrap();
    started.kill().unwrap();
    started.wait().unwrap();

    let second = Cluster::up(
        &name,
        Size {
            nodes: 0,
            fake_nodes: 20,
        },
    )
    .unwrap();
    let nodes = second.ask(&["get", "nodes", "-o", "name"]).unwrap();
    let neighbours = first.ask(&["get", "nodes", "-o", "name"]).unwrap();
    second
        .ask(&["create", "deployment", "many", "--image=none", "--replicas=40"])
        .unwrap();
    let tolerate = r#"{"spec":{"template":{"spec":{"tolerations":[{"operator":"Exists"}]}}}}"#;
    second.ask(&["patch", "deployment", "many", "-p", tolerate]).unwrap();
    let rolled = second.ask(&["rollout", "status", "deployment/many", "--timeout=60s"]);
    Cluster::down(&name).unwrap();

    assert_eq!(nodes.lines().count(), 20);
    rolled.unwrap();
    assert_eq!(neighbours.lines().count(), 3);
    first.ask(&["get", "--raw=/readyz"]).unwrap();
    assert!(!second.layout.root().exists());
    assert!(second.machine().is_err());
}
