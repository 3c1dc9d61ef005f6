//! `make bench`: latencies and costs, each figure beside its baseline from the same run.
//!
//! docs/benchmarks.md says what each row means. Arguments name the subjects to measure; without any, all are.

// Panics, like a test, if the cluster fails.
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
#[path = "../../tests/common/mod.rs"]
mod common;

#[path = "../../../operator/benches/reconcile/circumstances.rs"]
mod circumstances;
mod subjects;

use std::time::Instant;

use anyhow::{Result, bail};
use testbed::cluster::{Cluster, Size};
use testbed::paths::Layout;

use subjects::SUBJECTS;
use subjects::effort::Effort;
use subjects::table::{Row, Table};

/// The number with which upstream's figures were measured.
const FAKE_NODES: u32 = 100;

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let Some(unknown) = wanted.iter().find(|word| !SUBJECTS.contains(&word.as_str())) {
        bail!("nothing is called {unknown:?}; subjects: {}", SUBJECTS.join(", "));
    }
    let wants = |subject: &str| wanted.is_empty() || wanted.iter().any(|word| word == subject);

    let circumstances = circumstances::describe();
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
    let measured = subjects::measure(cluster, &wants, &Effort::FULL, &mut table);
    Cluster::down(&name)?;
    // The figures before a failure are printed too.
    println!("\n{circumstances}\n{table}");
    measured
}
