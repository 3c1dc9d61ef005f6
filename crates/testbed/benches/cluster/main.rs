//! `make bench`: what users wait for and what it costs, each figure beside its baseline from the same run.
//!
//! docs/benchmarks.md says what each row means. Arguments name the subjects to measure; without any, all are.

// It panics as tests do when the ground fails.
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
#[path = "../../tests/common/mod.rs"]
mod common;

mod api;
mod configuration;
mod ground;
mod memory;
mod observer;
mod partitions;
mod propagation;
mod requests;
mod scale;
mod table;

use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};
use testbed::cluster::{Cluster, Size};
use testbed::harness::Namespace;
use testbed::paths::Layout;
use testbed::steps::long_step;

use common::operator::{install, install_chart, wait_idle};
use table::{Row, Table};

const SUBJECTS: [&str; 5] = ["ground", "configuration", "circumstances", "partitions", "scale"];

/// As many as upstream's figures were taken with.
const FAKE_NODES: u32 = 100;

/// One worker with a partition of its own, and two sets to make partitions of.
const VALUES: &str = "nodesets:\n  slinky:\n    replicas: 1\n    partition:\n      enabled: true\n  second:\n    replicas: 0\n  \
                      third:\n    replicas: 0\n";

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let Some(unknown) = wanted.iter().find(|word| !SUBJECTS.contains(&word.as_str())) {
        bail!("nothing is called {unknown:?}; subjects: {}", SUBJECTS.join(", "));
    }
    let wants = |subject: &str| wanted.is_empty() || wanted.iter().any(|word| word == subject);

    let name = format!("{}-bench", Layout::default_cluster());
    Cluster::down(&name)?;
    let mut table = Table::default();
    let start = Instant::now();
    let size = Size {
        nodes: 3,
        fake_nodes: FAKE_NODES,
    };
    // Namespaces keep a reference to their cluster for as long as the program runs.
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::up(&name, size)?));
    if wants("ground") {
        table.add(Row::alone(
            "cluster of three nodes, from nothing to Ready, s",
            start.elapsed().as_secs_f64(),
        ));
    }
    let measured = measure(cluster, &wants, &mut table);
    Cluster::down(&name)?;
    // What was measured before something failed is worth seeing.
    println!("\n{table}");
    measured
}

fn measure(cluster: &'static Cluster, wants: &dyn Fn(&str) -> bool, table: &mut Table) -> Result<()> {
    if wants("ground") {
        ground::measure(cluster, table)?;
    }
    if !["configuration", "circumstances", "partitions", "scale"]
        .iter()
        .any(|subject| wants(subject))
    {
        return Ok(());
    }
    install(cluster);
    let namespace = Namespace::create(cluster, "slurm")?;
    install_chart(cluster, &namespace, VALUES)?;
    wait_idle(&namespace, 1)?;
    if wants("configuration") {
        // The kubelet takes minutes, in which it needs next to nothing.
        thread::scope(|scope| {
            let alone = scope.spawn(|| long_step("ConfigMaps into pods", || propagation::measure(cluster)));
            let mut bench = configuration::Bench::new(cluster, &namespace)?;
            let edits = bench.quiet();
            let alone = alone.join().unwrap_or_else(|_| bail!("a thread panicked"));
            edits?.report_against(&alone?, table);
            bench.burst(table)
        })?;
    }
    if wants("circumstances") {
        configuration::Bench::new(cluster, &namespace)?.under_circumstances(table)?;
    }
    if wants("partitions") {
        partitions::Bench::new(cluster, &namespace)?.measure(table)?;
    }
    if wants("scale") {
        scale::measure(cluster, &namespace, table)?;
    }
    Ok(())
}
