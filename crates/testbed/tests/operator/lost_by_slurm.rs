//! slurmctld is killed before it has saved that a worker joined, and a worker before Slurm looks for the processes of its job.

use std::thread::sleep;
use std::time::Duration;

use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{ONE_WORKER, chart_cluster};
use crate::common::kills::{Victim, kill_container};
use crate::common::slurm::{SOON, STATE, hold_state, release_state, slurm, start_job, wait_done, wait_idle, wait_node};

const SET: &str = "nodeset/slurm-worker-slinky";
/// The agent looks at the nodes every five seconds.
const LOOK: Duration = Duration::from_secs(7);

/// Adds a worker while slurmctld cannot save that it joins, and kills the agent and slurmctld.
fn forget_worker(namespace: &Namespace, between: impl FnOnce()) {
    hold_state(namespace, &["node"]).unwrap();
    namespace.ask(&["scale", SET, "--replicas=2"]).unwrap();
    wait_node(namespace, "slinky-1", &["State=IDLE"], &[]).unwrap();
    sleep(LOOK);
    Victim::Agent.kill(namespace);
    between();
    kill_container(namespace, "slurmctld").unwrap();
    release_state(namespace).unwrap();
}

#[test]
fn a_worker_that_slurm_has_lost_joins_again_though_the_agent_died_too() {
    let namespace = chart_cluster(cluster(), "forgotten", ONE_WORKER, 1);
    let uid = |number: u32| namespace.uid(&format!("pod/slurm-worker-slinky-{number}"));
    let job = start_job(&namespace, "-p all", "sleep 75").unwrap();
    forget_worker(&namespace, || {});
    let before = [uid(0).unwrap(), uid(1).unwrap()];
    eventually("the agent has asked the node to register", SOON, || {
        let log = namespace.ask(&["logs", "slurm-controller-0", "-c", "reconfigure"])?;
        let is_asked = |line: &str| line.contains("asking a node to register") && line.contains("slinky-1");
        expect(log.lines().any(is_asked), &log)
    })
    .unwrap();
    wait_node(&namespace, "slinky-1", &["State=IDLE"], &[]).unwrap();
    wait_done(&namespace, &job).unwrap();
    assert_eq!([uid(0).unwrap(), uid(1).unwrap()], before);
    // The same for its deletion.
    hold_state(&namespace, &["node"]).unwrap();
    namespace.ask(&["scale", SET, "--replicas=1"]).unwrap();
    wait_idle(&namespace, 1).unwrap();
    kill_container(&namespace, "slurmctld").unwrap();
    release_state(&namespace).unwrap();
    eventually("the agent has deleted the node again", SOON, || {
        let log = namespace.ask(&["logs", "slurm-controller-0", "-c", "reconfigure"])?;
        expect(log.contains("deleting a node again"), &log)
    })
    .unwrap();
    wait_idle(&namespace, 1).unwrap();
}

#[test]
fn a_worker_that_neither_slurm_nor_the_agent_remembers_joins_again() {
    let namespace = chart_cluster(cluster(), "unknown", ONE_WORKER, 1);
    let uid = |number: u32| namespace.uid(&format!("pod/slurm-worker-slinky-{number}"));
    let job = start_job(&namespace, "-p all", "sleep 30").unwrap();
    forget_worker(&namespace, || {
        slurm(&namespace, &format!("rm {STATE}/.slurm-operator/*/nodes")).unwrap();
    });
    let before = [uid(0).unwrap(), uid(1).unwrap()];
    wait_node(&namespace, "slinky-1", &["State=IDLE"], &[]).unwrap();
    let log = namespace
        .ask(&["logs", "slurm-controller-0", "-c", "reconfigure"])
        .unwrap();
    let is_asked = |line: &str| line.contains("which slurmctld does not have") && line.contains("slinky-1");
    assert!(log.lines().any(is_asked), "{log}");
    wait_done(&namespace, &job).unwrap();
    wait_idle(&namespace, 2).unwrap();
    // The operator would replace it two minutes after its start.
    assert_eq!([uid(0).unwrap(), uid(1).unwrap()], before);
}

#[test]
fn a_job_whose_worker_died_in_its_first_seconds_is_not_left_running() {
    let namespace = chart_cluster(cluster(), "young", ONE_WORKER, 1);
    let job = start_job(&namespace, "-p all --requeue", "sleep 1000").unwrap();
    let worker = namespace.pod("slurm-worker-slinky-0");
    cluster().kill_container(worker, "slurmd").unwrap();
    // Slurm itself would notice half an hour later.
    eventually("the job is requeued", Duration::from_secs(75), || {
        let shown = slurm(&namespace, &format!("scontrol show job {job}"))?;
        expect(
            shown.contains("JobState=PENDING") && shown.contains("Restarts=1"),
            shown,
        )
    })
    .unwrap();
    wait_node(&namespace, "slinky-0", &["State=IDLE"], &["DRAIN"]).unwrap();
}
