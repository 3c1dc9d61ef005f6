//! `kubectl cordon` and `kubectl drain` of Kubernetes nodes with workers on them.

use testbed::harness::{Namespace, alone, eventually, expect};

use crate::common::operator::{ONE_WORKER, SOON, install, install_chart, start_job, wait_done, wait_idle, wait_node};

const WORKER: &str = "pod/slurm-worker-slinky-0";

#[test]
fn kubectl_drain_waits_for_the_job_of_a_worker() {
    let alone = alone();
    let cluster = alone.cluster;
    install(cluster);
    let namespace = Namespace::create(cluster, "kubectl-drain").unwrap();
    install_chart(cluster, &namespace, ONE_WORKER).unwrap();
    wait_idle(&namespace, 1).unwrap();
    let node = namespace.field(WORKER, ".spec.nodeName").unwrap();
    let uid = namespace.field(WORKER, ".metadata.uid").unwrap();

    // Cordoned and uncordoned again: drained with the administrator's words, and back.
    let reason = "nodeset.slinky.slurm.net/node-cordon-reason";
    cluster
        .ask(&["annotate", "node", &node, &format!("{reason}=new firmware")])
        .unwrap();
    cluster.ask(&["cordon", &node]).unwrap();
    wait_node(
        &namespace,
        "slinky-0",
        &["DRAIN", "Reason=slurm-operator: new firmware"],
        &[],
    )
    .unwrap();
    cluster
        .ask(&["annotate", "node", &node, &format!("{reason}-")])
        .unwrap();
    cluster.ask(&["uncordon", &node]).unwrap();
    wait_node(&namespace, "slinky-0", &["State=IDLE"], &["DRAIN"]).unwrap();

    let job = start_job(&namespace, "-p all", "sleep 20").unwrap();
    let drain = [
        "drain",
        &node,
        "--pod-selector=app.kubernetes.io/name=slurmd",
        "--ignore-daemonsets",
        "--delete-emptydir-data",
    ];
    let drained = std::thread::scope(|scope| {
        let drained = scope.spawn(|| cluster.ask(&[&drain[..], &["--timeout=120s"]].concat()));
        wait_node(&namespace, "slinky-0", &["DRAIN", "was cordoned"], &[]).unwrap();
        wait_done(&namespace, &job).unwrap();
        drained.join().unwrap()
    });
    let healed = cluster.ask(&["uncordon", &node]);
    drained.unwrap();
    healed.unwrap();
    eventually("another worker in its place", SOON, || {
        let now = namespace.field(WORKER, ".metadata.uid")?;
        expect(now != uid, now)
    })
    .unwrap();
    wait_idle(&namespace, 1).unwrap();
}
