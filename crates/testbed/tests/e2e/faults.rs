//! Each fault does what it says, and heals.

use std::time::Duration;

use serde_json::json;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::pods::{connect, pair, shell_pod};

const SOON: Duration = Duration::from_secs(30);

#[test]
fn traffic_between_two_pods_can_be_delayed_and_dropped() {
    let cluster = cluster();
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
    let cluster = cluster();
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
    eventually("the killed container is restarted", SOON, || {
        let second = count("second")?;
        expect(second == "1", second)
    })
    .unwrap();
    assert_eq!(count("shell").unwrap(), "0");
}
