//! Slurm while nodes die.

use testbed::harness::{alone, eventually};

use crate::common::plain_slurm::{SOON, idle, install, slurm};

#[test]
fn a_worker_returns_after_its_node_was_killed() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = install(cluster, "slurm-node");
    let node_of = |pod: &str| namespace.field(&format!("pod/{pod}"), ".spec.nodeName").unwrap();
    // Not slurmctld's node: if slurmctld is killed before it has saved its state once, it does not start again ("No
    // Assoc usage file").
    let spared = [node_of("slurmctld-0"), node_of("mariadb-0")];
    let workers = ["slurmd-0", "slurmd-1", "slurmd-2"];
    let worker = workers
        .into_iter()
        .find(|worker| !spared.contains(&node_of(worker)))
        .unwrap();
    let node = node_of(worker);
    cluster.kill_node(&node).unwrap();
    cluster.restart_node(&node).unwrap();
    // Slurm takes most of a minute to notice, so its state is meaningful only after the restart.
    namespace
        .wait(
            "jsonpath={.status.containerStatuses[0].restartCount}=1",
            &format!("pod/{worker}"),
        )
        .unwrap();
    for workload in ["statefulset/slurmctld", "statefulset/slurmd", "statefulset/slurmdbd"] {
        namespace.rollout(workload).unwrap();
    }
    eventually("all workers are idle again", SOON * 3, || idle(&namespace, 3)).unwrap();
    let mut hosts: Vec<String> = eventually("a job over all three", SOON * 2, || {
        slurm(&namespace, "timeout 30 srun -N3 hostname")
    })
    .unwrap()
    .lines()
    .map(str::to_owned)
    .collect();
    hosts.sort();
    assert_eq!(hosts, ["slurmd-0", "slurmd-1", "slurmd-2"]);
}
