//! Slurm from plain manifests.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use testbed::cluster::Cluster;
use testbed::command::output;
use testbed::harness::{Namespace, eventually, expect};

pub const SOON: Duration = Duration::from_mins(1);

/// Installs `examples/plain/slurm.yaml` with its script and waits until all three workers are idle.
pub fn install(cluster: &'static Cluster, name: &str) -> Namespace {
    let namespace = Namespace::create(cluster, name).unwrap();
    let script = testbed::paths::repository().join("examples/plain/install.sh");
    let path = format!(
        "{}:{}",
        cluster.binaries.folder().display(),
        std::env::var("PATH").unwrap()
    );
    let mut install = Command::new(script);
    output(
        install
            .arg(&namespace.name)
            .env("KUBECONFIG", cluster.layout.kubeconfig())
            .env("PATH", path),
    )
    .unwrap();
    eventually("three idle workers", SOON * 2, || idle(&namespace, 3)).unwrap();
    namespace
}

pub fn idle(namespace: &Namespace, count: usize) -> Result<()> {
    let states = slurm(namespace, "sinfo --noheader --Node --format=%N,%t")?;
    expect(states.matches(",idle\n").count() == count, states)
}

/// Runs a Slurm command in slurmctld's pod.
pub fn slurm(namespace: &Namespace, line: &str) -> Result<String> {
    namespace.exec("slurmctld-0", line)
}
