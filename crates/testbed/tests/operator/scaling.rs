//! Scale-in with running jobs, while daemons are killed.

use std::{thread::sleep, time::Duration};

use testbed::harness::{cluster, eventually, expect, rounds};

use crate::common::clusters::{CONTROLLER, chart_cluster, chart_workers, operator_namespace, workers};
use crate::common::kills::{kill_container, kill_operator};
use crate::common::slurm::{SOON, STATE, hold_state, release_state, slurm, start_job, wait_done, wait_idle, wait_node};

#[test]
fn jobs_that_start_during_a_scale_in_are_not_lost() {
    let namespace = operator_namespace(cluster(), "race");
    namespace.apply(CONTROLLER).unwrap();
    namespace.apply(&workers(8)).unwrap();
    // Each round has seven jobs in it; TESTBED_ROUNDS asks for more rounds.
    for _ in 0..rounds(2) {
        wait_idle(&namespace, 8).unwrap();
        let scale_in = std::thread::scope(|scope| {
            let scaled = scope.spawn(|| namespace.ask(&["scale", "nodeset/compute", "--replicas=1"]));
            let submit = "for i in 1 2 3 4 5 6 7; do
                sbatch --parsable --exclusive --chdir=/tmp -o /dev/null --wrap \"sleep 2\"; sleep 0.$((RANDOM % 4)); done";
            let jobs = slurm(&namespace, submit).unwrap();
            scaled.join().unwrap().unwrap();
            jobs
        });
        for job in scale_in.lines() {
            wait_done(&namespace, job).unwrap();
        }
        wait_idle(&namespace, 1).unwrap();
        namespace.ask(&["scale", "nodeset/compute", "--replicas=8"]).unwrap();
    }
}

/// A scale-in removes workers that are starting first, and a backlog gives each of them a job as soon as it registers.
#[test]
fn first_jobs_of_workers_that_are_removed_while_they_start_are_not_lost() {
    let namespace = operator_namespace(cluster(), "flap");
    namespace.apply(CONTROLLER).unwrap();
    // The jobs outlive the grace period, so a job whose worker is deleted under it is restarted or fails.
    let template = "  template:\n    spec:\n      terminationGracePeriodSeconds: 5\n";
    namespace.apply(&format!("{}{template}", workers(3))).unwrap();
    wait_idle(&namespace, 3).unwrap();
    let scale = |replicas: usize| namespace.ask(&["scale", "nodeset/compute", &format!("--replicas={replicas}")]);
    let lost = "scontrol --oneliner show jobs | grep -v -E 'JobState=(PENDING|CONFIGURING|RUNNING|COMPLETING|COMPLETED) .* Restarts=0 ' || true";
    for round in 0..rounds(6) {
        let backlog = "sbatch --parsable --exclusive --chdir=/tmp -o /dev/null --array=1-12 --wrap 'sleep 8'";
        slurm(&namespace, backlog).unwrap();
        scale(6).unwrap();
        // Each round removes them at another moment of their start.
        sleep(Duration::from_millis(500) * u32::try_from(round % 12).unwrap());
        scale(3).unwrap();
        eventually("three workers are left", SOON, || {
            let pods = namespace.ask(&["get", "pods", "-l", "app.kubernetes.io/name=slurmd", "-o", "name"])?;
            expect(pods.lines().count() == 3, pods)
        })
        .unwrap();
        // Slurm forgets ended jobs after five minutes.
        assert_eq!(slurm(&namespace, lost).unwrap().trim(), "", "round {round}");
    }
    slurm(&namespace, "scancel --me --state=PENDING").unwrap();
    wait_idle(&namespace, 3).unwrap();
    let cancelled = lost.replace("PENDING", "CANCELLED");
    assert_eq!(slurm(&namespace, &cancelled).unwrap().trim(), "");
}

#[test]
fn a_scale_in_continues_safely_when_slurmctld_slurmrestd_and_the_operator_are_killed() {
    let cluster = cluster();
    let namespace = chart_cluster(cluster, "scaling", &chart_workers(2), 2);
    // The worker that is not ready in Kubernetes would be removed first.
    for pod in ["pod/slurm-worker-slinky-0", "pod/slurm-worker-slinky-1"] {
        namespace.wait("condition=Ready", pod).unwrap();
    }
    // Set early enough for the operator to notice; without it the worker without a job would be removed.
    let cost = "nodeset.slinky.slurm.net/pod-deletion-cost=-1";
    namespace.ask(&["annotate", "pod/slurm-worker-slinky-1", cost]).unwrap();
    let job = start_job(&namespace, "-p all -w slinky-1", "sleep 45").unwrap();
    // Slurm lets the node of a suspended job be deleted.
    slurm(&namespace, &format!("scontrol suspend {job}")).unwrap();
    hold_state(&namespace, &["node"]).unwrap();
    namespace
        .ask(&["scale", "nodeset/slurm-worker-slinky", "--replicas=1"])
        .unwrap();
    let draining = ["DRAIN", "is pending termination for scale-in"];
    wait_node(&namespace, "slinky-1", &draining, &[]).unwrap();
    // Slurm has acknowledged the drain but not saved it: the next slurmctld does not have it.
    let unwritten = format!("cd {STATE} && test -s node_state && ! grep -q 'pending termination' node_state");
    slurm(&namespace, &unwritten).unwrap();
    kill_container(&namespace, "slurmctld").unwrap();
    release_state(&namespace).unwrap();
    wait_node(&namespace, "slinky-1", &draining, &[]).unwrap();
    slurm(&namespace, &format!("scontrol resume {job}")).unwrap();
    namespace
        .ask(&[
            "delete",
            "pods",
            "-l",
            "app.kubernetes.io/name=slurmrestd",
            "--grace-period=1",
        ])
        .unwrap();
    kill_operator(cluster).unwrap();
    wait_done(&namespace, &job).unwrap();
    wait_idle(&namespace, 1).unwrap();
    namespace.wait("delete", "pod/slurm-worker-slinky-1").unwrap();

    // A reverted scale-in leaves no drain.
    namespace
        .ask(&["scale", "nodeset/slurm-worker-slinky", "--replicas=2"])
        .unwrap();
    wait_idle(&namespace, 2).unwrap();
    namespace.ask(&["annotate", "pod/slurm-worker-slinky-1", cost]).unwrap();
    let job = start_job(&namespace, "-p all -w slinky-1", "sleep 10").unwrap();
    namespace
        .ask(&["scale", "nodeset/slurm-worker-slinky", "--replicas=1"])
        .unwrap();
    wait_node(&namespace, "slinky-1", &draining, &[]).unwrap();
    namespace
        .ask(&["scale", "nodeset/slurm-worker-slinky", "--replicas=2"])
        .unwrap();
    wait_node(&namespace, "slinky-1", &[], &["DRAIN"]).unwrap();
    wait_done(&namespace, &job).unwrap();

    // Scaling to zero and back leaves no stale record.
    namespace
        .ask(&["scale", "nodeset/slurm-worker-slinky", "--replicas=0"])
        .unwrap();
    eventually("Slurm has no node", SOON, || {
        let nodes = slurm(&namespace, "scontrol show nodes --oneliner")?;
        expect(!nodes.contains("NodeName="), nodes)
    })
    .unwrap();
    namespace
        .ask(&["scale", "nodeset/slurm-worker-slinky", "--replicas=1"])
        .unwrap();
    wait_idle(&namespace, 1).unwrap();
}
