//! What published figures have to name: the commit, and what else the machine had to do.

use std::{fs, process::Command};

/// As of now, so before anything is measured.
pub(crate) fn describe() -> String {
    let commit = Command::new("git")
        .args(["describe", "--always", "--exclude=*", "--dirty= with changes"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let commit = commit.ok().filter(|said| said.status.success());
    let commit = commit.and_then(|said| String::from_utf8(said.stdout).ok());
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let commit = commit.as_deref().map_or("unknown", str::trim);
    format!("commit {commit}, load average {load} at the beginning")
}
