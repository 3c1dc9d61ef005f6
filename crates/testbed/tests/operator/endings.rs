//! Workers and whole sets end while jobs run: by Kubernetes' doing, and by a deletion.

use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::operator::{SOON, install, install_chart, slurm, wait_idle, wait_job};

/// One worker that is given two minutes when it is told to end.
const PATIENT: &str = "nodesets:
  slinky:
    replicas: 1
    podSpec:
      terminationGracePeriodSeconds: 120
partitions:
  all:
    enabled: true
";

/// Starts a job of that many seconds, whose last words and exit code tell that it was not disturbed.
fn start_job(namespace: &Namespace, seconds: u32) -> String {
    let line = format!(
        "sbatch --parsable --partition=all --chdir=/tmp --output=/dev/null --wrap 'sleep {seconds}; exit 7'"
    );
    let job = slurm(namespace, &line).unwrap().trim().to_owned();
    wait_job(namespace, &job, "RUNNING").unwrap();
    job
}

/// Waits for the end of a job that ran undisturbed: with its own exit code, and in one go.
fn wait_undisturbed(namespace: &Namespace, job: &str) {
    wait_job(namespace, job, "FAILED").unwrap();
    let shown = slurm(namespace, &format!("scontrol show job {job}")).unwrap();
    assert!(shown.contains("ExitCode=7:0") && shown.contains("Restarts=0"), "{shown}");
}

#[test]
fn a_busy_worker_that_is_told_to_end_has_its_grace_period() {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, "grace").unwrap();
    install_chart(cluster, &namespace, PATIENT).unwrap();
    wait_idle(&namespace, 1).unwrap();
    let pod = "pod/slurm-worker-slinky-0";
    let uid = namespace.field(pod, ".metadata.uid").unwrap();
    let job = start_job(&namespace, 15);
    namespace.ask(&["delete", pod, "--wait=false"]).unwrap();
    eventually("no new job comes to it", SOON, || {
        let node = slurm(&namespace, "scontrol show node slinky-0")?;
        expect(node.contains("DRAIN") && node.contains("Reason=slurm-operator: Pod is terminating"), node)
    })
    .unwrap();
    wait_undisturbed(&namespace, &job);
    eventually("another pod", SOON, || {
        let now = namespace.field(pod, ".metadata.uid")?;
        expect(now != uid, now)
    })
    .unwrap();
    wait_idle(&namespace, 1).unwrap();
}
