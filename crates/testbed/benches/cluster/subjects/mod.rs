//! The subjects of `make bench`, each with its figures. `make test` measures all of them with little effort, so that
//! they keep working.

mod admission;
mod api;
mod configuration;
pub(crate) mod effort;
mod ground;
mod memory;
mod observer;
mod partitions;
mod propagation;
mod requests;
mod scale;
pub(crate) mod table;

use std::thread;

use anyhow::{Result, bail};
use testbed::cluster::Cluster;
use testbed::harness::Namespace;
use testbed::steps::long_step;

use crate::common::clusters::install_chart;
use crate::common::operator::install;
use crate::common::slurm::wait_idle;

use effort::Effort;
use table::Table;

pub(crate) const SUBJECTS: [&str; 6] = [
    "ground",
    "configuration",
    "circumstances",
    "partitions",
    "admission",
    "scale",
];

/// One worker with a partition of its own, and two sets to make partitions of.
const VALUES: &str = "nodesets:\n  slinky:\n    replicas: 1\n    partition:\n      enabled: true\n  second:\n    replicas: 0\n  \
                      third:\n    replicas: 0\n";

/// Measures the selected subjects on a cluster with simulated nodes.
pub(crate) fn measure(
    cluster: &'static Cluster,
    wants: &dyn Fn(&str) -> bool,
    effort: &Effort,
    table: &mut Table,
) -> Result<()> {
    if wants("ground") {
        ground::measure(cluster, table)?;
    }
    if !SUBJECTS.iter().any(|subject| *subject != "ground" && wants(subject)) {
        return Ok(());
    }
    install(cluster);
    let namespace = Namespace::create(cluster, "slurm")?;
    install_chart(&namespace, VALUES)?;
    wait_idle(&namespace, 1)?;
    if wants("configuration") {
        // The kubelet takes minutes, in which it uses hardly any CPU.
        thread::scope(|scope| {
            let alone = scope.spawn(|| long_step("ConfigMaps into pods", || propagation::measure(cluster, effort)));
            let mut bench = configuration::Bench::new(cluster, &namespace, effort)?;
            let edits = bench.quiet();
            let alone = alone.join().unwrap_or_else(|_| bail!("a thread panicked"));
            edits?.report_against(&alone?, table);
            bench.burst(table)
        })?;
    }
    if wants("circumstances") {
        configuration::Bench::new(cluster, &namespace, effort)?.under_circumstances(table)?;
    }
    if wants("partitions") {
        partitions::Bench::new(cluster, &namespace, effort)?.measure(table)?;
    }
    if wants("admission") {
        admission::measure(&namespace, effort, table)?;
    }
    if wants("scale") {
        scale::measure(cluster, &namespace, effort, table)?;
    }
    Ok(())
}
