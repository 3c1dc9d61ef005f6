//! A test that every example is used by a test on the cluster.

use std::fs;
use std::path::{Path, PathBuf};

use crate::paths;

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect()
}

#[test]
fn every_example_is_named_in_a_test_on_the_cluster() {
    let repository = paths::repository();
    let tests: Vec<String> = files(&repository.join("crates/testbed/tests"))
        .iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    let examples = files(&repository.join("examples"));
    for example in examples.iter().filter(|file| !file.ends_with("README.md")) {
        let name = example.strip_prefix(&repository).unwrap().display().to_string();
        assert!(tests.iter().any(|test| test.contains(&name)), "no test installs {name}");
    }
}
