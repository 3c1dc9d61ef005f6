//! A Slurm cluster from plain manifests over three nodes.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::plain_slurm::{SOON, install, slurm};

#[test]
fn jobs_run_over_three_nodes_by_srun_and_by_rest_and_are_accounted() {
    let cluster = cluster();
    let start = Instant::now();
    let namespace = install(cluster, "slurm");
    testbed::steps::keep(
        "Slurm from plain manifests to three idle workers",
        start.elapsed().as_secs_f64(),
    );

    let mut hosts: Vec<String> = slurm(&namespace, "srun -N3 hostname")
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    hosts.sort();
    assert_eq!(hosts, ["slurmd-0", "slurmd-1", "slurmd-2"]);
    let nodes = namespace
        .ask(&[
            "get",
            "pods",
            "-l",
            "app=slurmd",
            "-o",
            "jsonpath={.items[*].spec.nodeName}",
        ])
        .unwrap();
    let mut nodes: Vec<&str> = nodes.split(' ').collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["node1", "node2", "node3"], "one worker on each node");

    // A job by REST, with a token from Slurm itself.
    let token = slurm(&namespace, "scontrol token username=slurm lifespan=600").unwrap();
    let token = token.trim().strip_prefix("SLURM_JWT=").unwrap();
    let job = json!({"job": {
        "name": "by-rest", "current_working_directory": "/tmp", "environment": ["PATH=/usr/bin:/bin"],
        "script": "#!/bin/bash\nhostname\n",
    }});
    let rest = |method: &str, path: &str, body: &str| -> Result<Value> {
        let line = format!(
            "curl -sS -X {method} -H 'X-SLURM-USER-TOKEN: {token}' -H 'Content-Type: application/json' -d '{body}' http://slurmrestd:6820/{path}"
        );
        Ok(serde_json::from_str(&slurm(&namespace, &line)?)?)
    };
    let submitted = rest("POST", "slurm/v0.0.44/job/submit", &job.to_string()).unwrap();
    let id = submitted["job_id"].as_u64().unwrap_or_else(|| panic!("{submitted}"));
    assert!(id > 1, "{submitted}");

    // The end of a job reaches the database a moment later.
    eventually("both jobs are accounted as completed", SOON, || {
        let rows = slurm(
            &namespace,
            "sacct --allocations --noheader --parsable2 --format=JobID,JobName,State,NNodes",
        )?;
        expect(
            rows.contains("1|hostname|COMPLETED|3") && rows.contains(&format!("{id}|by-rest|COMPLETED|1")),
            rows,
        )
    })
    .unwrap();
}

#[test]
fn a_running_job_survives_a_reconfigure_and_a_kill_of_slurmctld() {
    let cluster = cluster();
    let namespace = install(cluster, "slurm-restart");
    let id = slurm(
        &namespace,
        "sbatch --parsable --chdir=/tmp --output=/dev/null --wrap 'sleep 15'",
    )
    .unwrap();
    let id = id.trim();
    eventually("the job runs", SOON, || state(&namespace, id, "RUNNING")).unwrap();
    slurm(&namespace, "scontrol reconfigure").unwrap();
    state(&namespace, id, "RUNNING").unwrap();

    // Slurm saves its state every five seconds; an earlier kill would lose the job.
    eventually("the job is saved", SOON, || {
        slurm(
            &namespace,
            "find /var/spool/slurmctld/job_state -newermt '-2 seconds' | grep .",
        )
    })
    .unwrap();
    // The daemon dies, its supervisor starts it again, the container stays.
    slurm(
        &namespace,
        "pkill -KILL -x slurmctld || pkill -KILL -f '^(/usr/sbin/)?slurmctld'",
    )
    .unwrap();
    eventually("slurmctld responds again", SOON, || {
        slurm(&namespace, "scontrol ping | grep UP")
    })
    .unwrap();
    assert_eq!(
        namespace
            .field("pod/slurmctld-0", ".status.containerStatuses[0].restartCount")
            .unwrap(),
        "0"
    );
    eventually("the job completes", SOON, || state(&namespace, id, "COMPLETED")).unwrap();
}

fn state(namespace: &Namespace, job: &str, wanted: &str) -> Result<()> {
    let shown = slurm(namespace, &format!("scontrol show job {job}"))?;
    expect(shown.contains(&format!("JobState={wanted}")), shown)
}
