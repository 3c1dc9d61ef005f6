//! A source file has one subject and at most 600 lines, tests included.

use crate::files;

const MAX_LINES: usize = 600;

/// Files that are still longer. A file that was split leaves this list; none joins it.
const STILL_LONGER: &[&str] = &[
    "crates/agent/src/serve/keeper.rs",
    "crates/agent/tests/partitions/mod.rs",
    "crates/agent/tests/serve.rs",
    "crates/operator/src/controller/push/task.rs",
    "crates/operator/src/controller/tests/end_to_end.rs",
    "crates/operator/src/controller/tests/held.rs",
    "crates/operator/src/controller/tests/partitions.rs",
    "crates/operator/src/controller/tests/rules.rs",
    "crates/operator/src/nodeset/plan/loss.rs",
    "crates/operator/src/nodeset/plan/model.rs",
    "crates/operator/src/nodeset/plan/reservation.rs",
    "crates/operator/src/nodeset/plan/tests.rs",
    "crates/operator/src/runtime/write/tests.rs",
    "crates/slurm/tests/rest.rs",
];

#[test]
fn no_source_file_has_more_than_600_lines() {
    let too_long: Vec<String> = files("crates", ".rs")
        .iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(path, lines)| *lines > MAX_LINES && !STILL_LONGER.contains(&path.as_str()))
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    assert!(
        too_long.is_empty(),
        "split these files by subject:\n{}",
        too_long.join("\n")
    );
}
