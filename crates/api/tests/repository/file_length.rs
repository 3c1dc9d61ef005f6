//! A source file has one subject and at most 600 lines, tests included.

use crate::files;

const MAX_LINES: usize = 600;

#[test]
fn no_source_file_has_more_than_600_lines() {
    let too_long: Vec<String> = files("crates", ".rs")
        .iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > MAX_LINES)
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    assert!(
        too_long.is_empty(),
        "split these files by subject:\n{}",
        too_long.join("\n")
    );
}
