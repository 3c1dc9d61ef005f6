//! Rules that hold for all files of the repository.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what it expects by panicking"
)]

mod file_length;
mod frozen_strings;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The root of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The files below a folder of the repository whose name ends so, in order, with their paths from the root.
fn files(folder: &str, suffix: &str) -> Vec<(String, String)> {
    let root = repository();
    let (mut folders, mut found) = (vec![root.join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(suffix) {
                let name = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "no {suffix} files below {folder}");
    found.sort();
    found
}
