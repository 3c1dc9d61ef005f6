//! `make bench`: what the ground itself costs, so that later figures can be read against it.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testbed::cluster::{Cluster, Size};
use testbed::command::output;
use testbed::harness::{eventually, expect};
use testbed::paths::{Layout, repository};

fn main() -> Result<()> {
    let name = format!("{}-bench", Layout::default_cluster());
    Cluster::down(&name)?;
    let mut table: Vec<(&str, Duration)> = Vec::new();
    let start = Instant::now();
    let cluster = Cluster::up(
        &name,
        Size {
            nodes: 3,
            fake_nodes: 0,
        },
    )?;
    table.push(("cluster of three nodes, from nothing to Ready", start.elapsed()));
    let measured = measure(&cluster, &mut table);
    Cluster::down(&name)?;
    measured?;
    println!("{:<60} {:>9}", "what", "seconds");
    for (what, took) in table {
        println!("{what:<60} {:>9.2}", took.as_secs_f64());
    }
    Ok(())
}

fn measure(cluster: &Cluster, table: &mut Vec<(&'static str, Duration)>) -> Result<()> {
    cluster.ask(&["create", "configmap", "edited", "--from-literal=value=old"])?;
    eventually("a ServiceAccount", Duration::from_secs(30), || {
        cluster.ask(&["get", "serviceaccount", "default"])
    })?;
    let pod = r#"{"spec":{"containers":[{"name":"shell","image":"alpine:latest","imagePullPolicy":"IfNotPresent","command":["sleep","infinity"],
        "volumeMounts":[{"name":"edited","mountPath":"/edited"}]}],"volumes":[{"name":"edited","configMap":{"name":"edited"}}]}}"#;
    let start = Instant::now();
    cluster.ask(&["run", "shell", "--image=alpine:latest", "--overrides", pod])?;
    cluster.ask(&["wait", "--for=condition=Ready", "pod/shell", "--timeout=60s"])?;
    table.push(("one pod, created to Ready", start.elapsed()));

    let start = Instant::now();
    cluster.ask(&["patch", "configmap", "edited", "-p", r#"{"data":{"value":"new"}}"#])?;
    eventually("the edit arrives", Duration::from_mins(3), || {
        let value = cluster.ask(&["exec", "shell", "--", "cat", "/edited/value"])?;
        expect(value == "new", value)
    })?;
    table.push((
        "a ConfigMap edited to the new file in a pod (kubelet alone)",
        start.elapsed(),
    ));

    let start = Instant::now();
    let path = format!("{}:{}", cluster.binaries.folder().display(), std::env::var("PATH")?);
    let mut install = Command::new(repository().join("examples/plain/install.sh"));
    output(
        install
            .arg("slurm")
            .env("KUBECONFIG", cluster.layout.kubeconfig())
            .env("PATH", path),
    )?;
    let answer = eventually("srun answers", Duration::from_mins(2), || {
        cluster.ask(&[
            "exec",
            "-n",
            "slurm",
            "slurmctld-0",
            "--",
            "timeout",
            "10",
            "srun",
            "--nodes=3",
            "hostname",
        ])
    })?;
    ensure!(answer.lines().count() == 3, "srun answered {answer}");
    table.push(("Slurm from plain manifests to `srun -N3 hostname`", start.elapsed()));
    Ok(())
}
