//! Daemons, pods and the operator itself die while jobs run.

use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::operator::{ONE_WORKER, SOON, install, install_chart, slurm, wait_idle, wait_job, wait_saved};

#[test]
fn a_job_outlives_slurmctld_and_its_pod() {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, "restarts").unwrap();
    install_chart(cluster, &namespace, ONE_WORKER).unwrap();
    wait_idle(&namespace, 1).unwrap();
    let job = slurm(
        &namespace,
        "sbatch --parsable -p all --chdir=/tmp -o /dev/null --wrap 'sleep 30'",
    )
    .unwrap();
    let job = job.trim();
    wait_job(&namespace, job, "RUNNING").unwrap();
    wait_saved(&namespace).unwrap();
    cluster
        .kill_container(namespace.pod("slurm-controller-0"), "slurmctld")
        .unwrap();
    eventually("slurmctld answers again", SOON, || {
        slurm(&namespace, "scontrol ping | grep UP")
    })
    .unwrap();
    namespace.ask(&["delete", "pod", "slurm-controller-0"]).unwrap();
    namespace.wait_new("condition=Ready", "pod/slurm-controller-0").unwrap();
    wait_job(&namespace, job, "COMPLETED").unwrap();
    let shown = slurm(&namespace, &format!("scontrol show job {job}")).unwrap();
    assert!(shown.contains("Restarts=0"), "{shown}");
}

#[test]
fn a_restart_trigger_restarts_slurmctld_once() {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, "trigger").unwrap();
    install_chart(cluster, &namespace, ONE_WORKER).unwrap();
    wait_idle(&namespace, 1).unwrap();
    let uid = || namespace.field("pod/slurm-controller-0", ".metadata.uid");
    let before = uid().unwrap();
    namespace
        .ask(&["annotate", "controller/slurm", "restart-trigger=1", "--overwrite"])
        .unwrap();
    let after = eventually("a new pod", SOON, || {
        let now = uid()?;
        expect(now != before, &now)?;
        Ok(now)
    })
    .unwrap();
    namespace.rollout("statefulset/slurm-controller").unwrap();
    wait_idle(&namespace, 1).unwrap();
    assert_eq!(uid().unwrap(), after);
}
