//! Jobs from every client, while all components are restarted in turn.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, cluster, eventually, expect, rounds};

use crate::accounting::{MARIADB, VALUES, set_password};
use crate::common::clusters::{install_chart, operator_namespace};
use crate::common::kills::{kill_container, kill_operator};
use crate::common::pods::shell_pod;
use crate::common::slurm::{SOON, slurm, wait_idle};
use crate::login::{client, let_root_in, ssh};

const RESTARTED: [&str; 7] = [
    "statefulset/slurm-controller",
    "deployment/slurm-restapi",
    "deployment/slurm-login-slinky",
    "the operator",
    "the agent",
    "statefulset/slurm-accounting",
    "statefulset/mariadb",
];

fn restart(cluster: &Cluster, namespace: &Namespace, what: &str) -> Result<()> {
    match what {
        "the operator" => kill_operator(cluster),
        "the agent" => kill_container(namespace, "reconfigure"),
        owner => {
            let path = "jsonpath={.spec.selector.matchLabels}";
            let labels: BTreeMap<String, String> = serde_json::from_str(&namespace.ask(&["get", owner, "-o", path])?)?;
            let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            namespace
                .ask(&["delete", "pods", "--selector", &labels.join(","), "--wait=false"])
                .map(drop)
        }
    }
}

/// Submits a job and returns its ID.
type Submit = fn(&Namespace) -> Result<String>;

const WAYS: [(&str, Submit); 3] = [("ssh", by_ssh), ("srun", by_srun), ("REST", by_rest)];

fn by_ssh(namespace: &Namespace) -> Result<String> {
    let submit = "sbatch --parsable --chdir=/tmp --output=/dev/null --partition=all --wrap='sleep 3'";
    Ok(ssh(namespace, submit)?.trim().to_owned())
}

fn by_srun(namespace: &Namespace) -> Result<String> {
    let run = "srun --chdir=/tmp --partition=all sh -c 'sleep 1; printenv SLURM_JOB_ID'";
    Ok(ssh(namespace, run)?.trim().to_owned())
}

fn by_rest(namespace: &Namespace) -> Result<String> {
    let token = slurm(namespace, "scontrol token lifespan=60")?;
    let token = token.trim().strip_prefix("SLURM_JWT=").context("no token")?;
    let job = json!({
        "script": "#!/bin/sh\nsleep 3\n",
        "job": {
            "partition": "all", "current_working_directory": "/tmp", "standard_output": "/dev/null",
            "environment": ["PATH=/usr/bin:/bin"],
        },
    });
    let post = format!(
        "curl -sS --max-time 20 -H 'X-SLURM-USER-TOKEN: {token}' -H 'Content-Type: application/json' \
         -d '{job}' http://slurm-restapi:6820/slurm/v0.0.45/job/submit"
    );
    let answer: Value = serde_json::from_str(&client(namespace, &post)?)?;
    let job = answer.get("job_id").and_then(Value::as_u64).filter(|&job| job > 0);
    Ok(job.with_context(|| answer.to_string())?.to_string())
}

/// Every job is recorded as completed.
fn check_records(namespace: &Namespace, jobs: &[String]) {
    let list = jobs.join(",");
    let ask = format!("sacct --noheader --parsable2 --allocations --jobs={list} --format=JobID,State,ExitCode");
    let expected: Vec<String> = jobs.iter().map(|job| format!("{job}|COMPLETED|0:0")).collect();
    eventually("all jobs are recorded", SOON * 2, || {
        let said = slurm(namespace, &ask)?;
        let missing = expected.iter().filter(|line| !said.lines().any(|said| said == *line));
        let missing: Vec<&String> = missing.collect();
        expect(missing.is_empty(), (missing, &said))
    })
    .unwrap();
}

#[test]
fn every_job_that_was_accepted_is_recorded_whatever_is_restarted() {
    let cluster = cluster();
    let namespace = operator_namespace(cluster, "clients");
    set_password(&namespace, "password");
    namespace.apply(MARIADB).unwrap();
    namespace.apply(&shell_pod("client", &json!({}))).unwrap();
    let login = "loginsets:\n  slinky:\n    replicas: 1\n";
    install_chart(&namespace, &format!("{VALUES}{login}")).unwrap();
    wait_idle(&namespace, 1).unwrap();
    for object in ["accounting/slurm", "pod/client", "loginset/slurm-login-slinky"] {
        namespace.wait("condition=Ready", object).unwrap();
    }
    let_root_in(&namespace);

    let mut jobs = Vec::new();
    for what in RESTARTED.into_iter().cycle().take(rounds(RESTARTED.len())) {
        eprintln!("restarting {what} after {} jobs", jobs.len());
        restart(cluster, &namespace, what).unwrap();
        for (way, submit) in WAYS {
            let accepted = || submit(&namespace);
            jobs.push(eventually(&format!("a job by {way} while {what} restarts"), SOON, accepted).unwrap());
        }
    }
    check_records(&namespace, &jobs);
}
