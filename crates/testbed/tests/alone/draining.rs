//! `kubectl cordon` and `kubectl drain` of Kubernetes nodes with workers, while daemons are killed.

use testbed::harness::{alone, eventually, expect, rounds};

use crate::common::clusters::{both_modes, chart_cluster, install_chart, operator_namespace};
use crate::common::kills::{kill_everyone, kill_operator};
use crate::common::manual_drains::{SPREAD, drain_by_hand, expect_drained_by_hand, resume_by_hand};
use crate::common::nodes::RestoreNodes;
use crate::common::pods::uids;
use crate::common::slurm::{SOON, start_job, wait_done, wait_idle, wait_node, wait_saved};

/// A worker: its Kubernetes node, its name in Slurm, and the label selector of its pod.
const WORKERS: [(&str, &str, &str); 2] = [
    (
        "node2",
        "slinky-0",
        "app.kubernetes.io/name=slurmd,app.kubernetes.io/instance=slurm-worker-slinky",
    ),
    (
        "node3",
        "node3",
        "app.kubernetes.io/name=slurmd,app.kubernetes.io/instance=slurm-worker-daemon",
    ),
];

/// The operator polls Slurm every five seconds; this is long enough for its reaction.
const SETTLED: std::time::Duration = std::time::Duration::from_secs(8);

#[test]
fn kubectl_drain_waits_for_jobs_in_both_modes_whatever_is_killed() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = chart_cluster(cluster, "kubectl-drain", &both_modes("node2", "node3"), 2);
    let uncordon = RestoreNodes(cluster);

    // After a cordon the node is drained with the administrator's reason; after an uncordon it is resumed, also by an
    // operator that has just started.
    let reason = "nodeset.slinky.slurm.net/node-cordon-reason";
    for (host, node, _) in WORKERS {
        let words = format!("{reason}=new firmware");
        cluster.ask(&["annotate", "node", host, &words]).unwrap();
        cluster.ask(&["cordon", host]).unwrap();
        let drained = ["DRAIN", "Reason=slurm-operator: new firmware"];
        wait_node(&namespace, node, &drained, &[]).unwrap();
    }
    kill_operator(cluster).unwrap();
    for (host, node, _) in WORKERS {
        cluster.ask(&["annotate", "node", host, &format!("{reason}-")]).unwrap();
        cluster.ask(&["uncordon", host]).unwrap();
        wait_node(&namespace, node, &["State=IDLE"], &["DRAIN"]).unwrap();
    }

    let before = WORKERS.map(|(_, _, label)| uids(&namespace, label).unwrap());
    let jobs = WORKERS.map(|(_, node, _)| start_job(&namespace, &format!("-p all -w {node}"), "sleep 40").unwrap());
    wait_saved(&namespace).unwrap();
    // All daemons are killed during the drain. Their pods may not return to these nodes.
    let drain = [
        "drain",
        "node2",
        "node3",
        "--pod-selector=app.kubernetes.io/name=slurmd",
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--timeout=240s",
    ];
    let drained = std::thread::scope(|scope| {
        let drained = scope.spawn(|| cluster.ask(&drain));
        for (_, node, _) in WORKERS {
            wait_node(&namespace, node, &["DRAIN", "was cordoned"], &[]).unwrap();
        }
        kill_everyone(&namespace).unwrap();
        for job in &jobs {
            wait_done(&namespace, job).unwrap();
        }
        drained.join().unwrap()
    });
    drained.unwrap();
    drop(uncordon);
    for ((_, _, label), before) in WORKERS.into_iter().zip(before) {
        eventually("the worker is replaced", SOON, || {
            let now = uids(&namespace, label)?;
            expect(!now.is_empty() && now != before, now)
        })
        .unwrap();
    }
    wait_idle(&namespace, 2).unwrap();
}

/// Two workers on each of two machines.
const FOUR_WORKERS: &str = "nodesets:
  slinky:
    replicas: 4
    oversubscribeNode: true
    podSpec:
      nodeSelector: {testbed/workers: \"true\"}
partitions:
  all:
    enabled: true
";

#[test]
fn a_manual_drain_survives_kubectl_cordon_in_either_order() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = operator_namespace(cluster, "people-node");
    cluster
        .ask(&["label", "node", "node2", "node3", "testbed/workers=true"])
        .unwrap();
    install_chart(&namespace, FOUR_WORKERS).unwrap();
    wait_idle(&namespace, 4).unwrap();
    let nodes: Vec<String> = (0..4).map(|number| format!("slinky-{number}")).collect();
    for _ in 0..rounds(1) {
        let uncordon = RestoreNodes(cluster);
        std::thread::scope(|scope| {
            let cordoned = scope.spawn(|| {
                std::thread::sleep(SPREAD);
                cluster.ask(&["cordon", "node2", "node3"])
            });
            drain_by_hand(&namespace, &nodes).unwrap();
            cordoned.join().unwrap().unwrap();
        });
        std::thread::sleep(SETTLED);
        expect_drained_by_hand(&namespace, &nodes).unwrap();
        drop(uncordon);
        std::thread::sleep(SETTLED);
        expect_drained_by_hand(&namespace, &nodes).unwrap();
        resume_by_hand(&namespace, &nodes).unwrap();
        wait_idle(&namespace, 4).unwrap();
    }
    cluster
        .ask(&["label", "node", "node2", "node3", "testbed/workers-"])
        .unwrap();
}
