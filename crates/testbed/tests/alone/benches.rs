//! Each subject of `make bench` has figures, measured with the least effort. Their values depend on the load of the
//! machine.

use testbed::cluster::Cluster;
use testbed::harness::alone;

use crate::subjects::SUBJECTS;
use crate::subjects::effort::Effort;
use crate::subjects::measure;
use crate::subjects::table::Table;

/// The last figures of each subject.
const LAST: [(&str, &[&str]); SUBJECTS.len()] = [
    ("ground", &["Slurm from plain manifests to `srun -N3 hostname`, s"]),
    (
        "configuration",
        &[
            "configuration edit to live, p99, s",
            "100 edits in a burst, reconfigures",
        ],
    ),
    (
        "circumstances",
        &["configuration edit with a node out of reach, p90, s"],
    ),
    ("partitions", &["Partition edit to live, p99, ms", "… RPCs for each"]),
    (
        "admission",
        &[
            "admission reviews answered per second",
            "webhook's CPU time for a review, ms",
        ],
    ),
    (
        "scale",
        &[
            "pods removed per second, 1,000 to 0",
            "operator's memory with 1,000 pods, MiB",
        ],
    ),
];

/// Other tests expect real nodes only.
struct FakeNodes(&'static Cluster);

impl Drop for FakeNodes {
    fn drop(&mut self) {
        let removed = self.0.remove_fake_nodes();
        assert!(std::thread::panicking() || removed.is_ok(), "{removed:?}");
    }
}

#[test]
fn every_subject_of_the_benchmarks_has_figures() {
    let alone = alone();
    alone.cluster.add_fake_nodes(2).unwrap();
    let _nodes = FakeNodes(alone.cluster);
    let mut table = Table::default();
    measure(alone.cluster, &|_| true, &Effort::LEAST, &mut table).unwrap();
    println!("{table}");
    for (subject, figures) in LAST {
        assert!(SUBJECTS.contains(&subject), "{subject}");
        for figure in figures {
            assert!(table.has(figure), "{subject} has no {figure:?}: {table:?}");
        }
    }
}
