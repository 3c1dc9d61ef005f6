//! Slurm's records of workers that were lost and do not come back.

use std::time::Duration;

use testbed::harness::{Namespace, eventually, expect};

use crate::common::slurm::{SOON, node_names, slurm, start_job, wait_job, wait_node};
use crate::nodes_lost::Stage;

/// A NodeSet of each mode, both on node2, and a node in slurm.conf.
const VALUES: &str = r"nodesets:
  slinky:
    replicas: 0
    oversubscribeNode: true
    podSpec: {nodeSelector: {kubernetes.io/hostname: node2}}
  daemon:
    scalingMode: DaemonSet
    oversubscribeNode: true
    podSpec: {nodeSelector: {kubernetes.io/hostname: node2}}
controller:
  extraConf: |
    NodeName=static-0 NodeAddr=10.255.255.1 CPUs=1 State=DOWN Reason=elsewhere
partitions:
  all:
    enabled: true
";
const SET: &str = "nodeset/slurm-worker-slinky";

fn records(namespace: &Namespace) -> anyhow::Result<Vec<String>> {
    Ok(node_names(&slurm(namespace, "scontrol --oneliner show nodes")?))
}

fn wait_records(namespace: &Namespace, expected: &[&str]) {
    eventually(&format!("records {expected:?}"), SOON, || {
        let now = records(namespace)?;
        expect(now == expected, now)
    })
    .unwrap();
}

#[test]
fn records_of_lost_workers_are_kept_or_pruned_and_foreign_records_are_kept() {
    let stage = Stage::empty("records", VALUES, "node2");
    let (cluster, namespace) = (stage.cluster, &stage.namespace);
    namespace.ask(&["scale", SET, "--replicas=1"]).unwrap();
    for node in ["slinky-0", "node2"] {
        wait_node(namespace, node, &["State=IDLE"], &[]).unwrap();
    }
    // A foreign record with a name like those of the set.
    let external = "scontrol create nodename=slinky-7 cpus=1 state=future &&
        scontrol update nodename=slinky-7 state=down reason=elsewhere";
    slurm(namespace, external).unwrap();

    // A lost worker would be recreated, so the set is scaled in too.
    let job = start_job(namespace, "-p all -w slinky-0", "sleep 600").unwrap();
    namespace.ask(&["scale", SET, "--replicas=0"]).unwrap();
    wait_node(namespace, "slinky-0", &["DRAIN", "scale-in"], &[]).unwrap();
    cluster.kill_node("node2").unwrap();
    cluster.ask(&["delete", "node", "node2"]).unwrap();
    for node in ["slinky-0", "node2"] {
        wait_node(namespace, node, &["DOWN", "slurm-operator: lost: "], &[]).unwrap();
    }
    wait_job(namespace, &job, "PENDING").unwrap();
    let all = ["node2", "slinky-0", "slinky-7", "static-0"];
    // Longer than the operator's poll interval.
    std::thread::sleep(Duration::from_secs(20));
    assert_eq!(records(namespace).unwrap(), all);
    let pods = ["get", "pods", "-l", "app.kubernetes.io/name=slurmd", "-o", "name"];
    assert_eq!(namespace.ask(&pods).unwrap(), "");

    let prune = r#"{"spec":{"pruneSlurmNodeRecords":"NodeNotFound"}}"#;
    for set in [SET, "nodeset/slurm-worker-daemon"] {
        namespace.ask(&["patch", set, "--type=merge", "-p", prune]).unwrap();
    }
    wait_records(namespace, &["slinky-0", "slinky-7", "static-0"]);
    // Slurm would fail the job that requests the node by name.
    std::thread::sleep(Duration::from_secs(20));
    assert_eq!(records(namespace).unwrap(), ["slinky-0", "slinky-7", "static-0"]);
    wait_job(namespace, &job, "PENDING").unwrap();
    slurm(namespace, &format!("scancel {job}")).unwrap();
    wait_records(namespace, &["slinky-7", "static-0"]);

    // The DaemonSet creates a worker on a new node; a taint removes it.
    cluster.restart_node("node2").unwrap();
    wait_node(namespace, "node2", &["State=IDLE"], &[]).unwrap();
    let taint = "node.testbed.invalid/broken";
    let set = |change: &str| cluster.ask(&["taint", "node", "node2", &format!("{taint}{change}")]);
    set("=yes:NoExecute").unwrap();
    let gone = eventually("no worker", SOON, || {
        let now = namespace.ask(&pods)?;
        expect(now.is_empty(), now)
    });
    set("-").unwrap();
    gone.unwrap();
    wait_node(namespace, "node2", &["State=IDLE"], &[]).unwrap();
}
