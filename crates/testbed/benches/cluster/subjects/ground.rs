//! Baseline figures of the machine and of Slurm without the operator.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, eventually};

use super::table::{Row, Table};
use crate::common::plain_slurm;
use crate::common::pods::shell_pod;

pub(crate) fn measure(cluster: &'static Cluster, table: &mut Table) -> Result<()> {
    let namespace = Namespace::create(cluster, "ground")?;
    let start = Instant::now();
    namespace.apply(&shell_pod("shell", &json!({})))?;
    namespace.wait("condition=Ready", "pod/shell")?;
    table.add(Row::alone(
        "one pod, created to Ready, s",
        start.elapsed().as_secs_f64(),
    ));

    let start = Instant::now();
    let namespace = plain_slurm::install(cluster, "plain-slurm");
    let answer = eventually("srun succeeds", Duration::from_mins(2), || {
        plain_slurm::slurm(&namespace, "timeout 10 srun --nodes=3 hostname")
    })?;
    ensure!(answer.lines().count() == 3, "srun answered {answer}");
    table.add(Row::alone(
        "Slurm from plain manifests to `srun -N3 hostname`, s",
        start.elapsed().as_secs_f64(),
    ));
    Ok(())
}
