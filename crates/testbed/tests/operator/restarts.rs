//! Daemons, pods and the operator itself die while jobs run.

use testbed::harness::{cluster, eventually, expect};

use crate::common::clusters::{ONE_WORKER, chart_cluster, set_extra_conf};
use crate::common::kills::kill_container;
use crate::common::slurm::{SOON, slurm, wait_idle, wait_job, wait_saved};

#[test]
fn a_job_survives_kills_of_slurmctld_and_its_pod() {
    let namespace = chart_cluster(cluster(), "restarts", ONE_WORKER, 1);
    let job = slurm(
        &namespace,
        "sbatch --parsable -p all --chdir=/tmp -o /dev/null --wrap 'sleep 30'",
    )
    .unwrap();
    let job = job.trim();
    wait_job(&namespace, job, "RUNNING").unwrap();
    wait_saved(&namespace).unwrap();
    kill_container(&namespace, "slurmctld").unwrap();
    eventually("slurmctld responds again", SOON, || {
        slurm(&namespace, "scontrol ping | grep UP")
    })
    .unwrap();
    namespace.ask(&["delete", "pod", "slurm-controller-0"]).unwrap();
    namespace.wait_new("condition=Ready", "pod/slurm-controller-0").unwrap();
    wait_job(&namespace, job, "COMPLETED").unwrap();
    let shown = slurm(&namespace, &format!("scontrol show job {job}")).unwrap();
    assert!(shown.contains("Restarts=0"), "{shown}");
}

/// Agent and slurmctld are killed during a change, and during one that requires a restart of slurmctld.
#[test]
fn a_change_survives_kills_of_agent_and_slurmctld_and_the_job_continues() {
    let namespace = chart_cluster(cluster(), "midway", ONE_WORKER, 1);
    let uid = namespace.uid("pod/slurm-controller-0").unwrap();
    let job = slurm(
        &namespace,
        "sbatch --parsable -p all --chdir=/tmp -o /dev/null --wrap 'sleep 40'",
    )
    .unwrap();
    let job = job.trim();
    wait_job(&namespace, job, "RUNNING").unwrap();
    wait_saved(&namespace).unwrap();
    let extra_conf = namespace.field("controller/slurm", ".spec.extraConf").unwrap();
    for (line, kill) in [
        ("MaxJobCount=4001", Some("reconfigure")),
        ("MaxJobCount=4002", Some("slurmctld")),
        // slurm.conf(5) requires a restart for this key.
        ("SlurmdPort=6828", None),
        ("SlurmdPort=6818", Some("reconfigure")),
    ] {
        set_extra_conf(&namespace, &format!("{extra_conf}\n{line}\n")).unwrap();
        if let Some(container) = kill {
            kill_container(&namespace, container).unwrap();
        }
        let (key, value) = line.split_once('=').unwrap();
        eventually(&format!("{line} is live"), SOON, || {
            let shown = slurm(&namespace, &format!("scontrol show config | grep '^{key} '"))?;
            expect(shown.trim_end().ends_with(&format!("= {value}")), shown)
        })
        .unwrap();
        let file = slurm(&namespace, "cat /etc/slurm/slurm.conf").unwrap();
        assert!(file.contains(line), "live and not in the file:\n{file}");
        // The log of a killed agent is lost.
        if kill.is_none() {
            let logs = ["logs", "slurm-controller-0", "-c", "reconfigure"];
            let log = namespace.ask(&logs).unwrap();
            assert!(log.contains("restarting slurmctld, which the change needs"), "{log}");
        }
    }
    wait_job(&namespace, job, "COMPLETED").unwrap();
    let shown = slurm(&namespace, &format!("scontrol show job {job}")).unwrap();
    assert!(shown.contains("Restarts=0"), "{shown}");
    assert_eq!(namespace.uid("pod/slurm-controller-0").unwrap(), uid);
}

#[test]
fn a_restart_trigger_restarts_slurmctld_once() {
    let namespace = chart_cluster(cluster(), "trigger", ONE_WORKER, 1);
    let uid = || namespace.uid("pod/slurm-controller-0");
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
