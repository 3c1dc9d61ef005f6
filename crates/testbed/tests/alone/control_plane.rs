//! The control plane stops and starts again.

use std::time::Duration;

use testbed::harness::{alone, eventually};

const SOON: Duration = Duration::from_secs(30);

#[test]
fn the_api_server_and_etcd_can_be_stopped_paused_and_restarted() {
    let alone = alone();
    let cluster = alone.cluster;
    // A write, because reads may be served from memory while etcd is down.
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
        eventually("the API server responds again", SOON, answers).unwrap();

        let paused = cluster.pause(component).unwrap();
        assert!(untouched().is_err(), "{component} is paused");
        paused.heal().unwrap();
        eventually("the API server responds again", SOON, answers).unwrap();

        cluster.restart(component).unwrap();
        eventually("the API server responds again", SOON, answers).unwrap();
    }
    // The stored data is still there.
    let touched = cluster
        .ask(&["get", "node", "node1", "-o", "jsonpath={.metadata.annotations.touched}"])
        .unwrap();
    assert_eq!(touched, "yes");
}
