//! slurmctld is killed before it has saved that a worker joined.

use testbed::harness::{cluster, eventually, expect};

use crate::common::clusters::{ONE_WORKER, chart_cluster};
use crate::common::kills::kill_container;
use crate::common::slurm::{SOON, hold_state, release_state, slurm, start_job, wait_done, wait_idle, wait_node};

const SET: &str = "nodeset/slurm-worker-slinky";

#[test]
fn a_worker_that_slurm_has_lost_is_replaced_and_the_others_are_not() {
    let namespace = chart_cluster(cluster(), "forgotten", ONE_WORKER, 1);
    let uid = |number: u32| namespace.uid(&format!("pod/slurm-worker-slinky-{number}"));
    let job = start_job(&namespace, "-p all", "sleep 75").unwrap();
    hold_state(&namespace, &["node"]).unwrap();
    namespace.ask(&["scale", SET, "--replicas=2"]).unwrap();
    wait_node(&namespace, "slinky-1", &["State=IDLE"], &[]).unwrap();
    let before = [uid(0).unwrap(), uid(1).unwrap()];
    kill_container(&namespace, "slurmctld").unwrap();
    release_state(&namespace).unwrap();
    eventually("Slurm has lost the node", SOON, || {
        let nodes = slurm(&namespace, "scontrol --oneliner show nodes")?;
        expect(
            nodes.contains("NodeName=slinky-0 ") && !nodes.contains("slinky-1"),
            nodes,
        )
    })
    .unwrap();
    // The rule waits a minute, counted from the start of the operator, which other tests kill.
    eventually("the pod is replaced", 2 * SOON, || {
        let now = uid(1)?;
        expect(now != before[1], now)
    })
    .unwrap();
    wait_node(&namespace, "slinky-1", &["State=IDLE"], &[]).unwrap();
    wait_done(&namespace, &job).unwrap();
    wait_idle(&namespace, 2).unwrap();
    assert_eq!(uid(0).unwrap(), before[0]);
}
