//! A folder for each node in every cgroup v1 hierarchy, below which its kubelet creates the pods' folders.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::ground::CGROUP_CONTROLLERS;

const HIERARCHIES: &str = "/sys/fs/cgroup";

/// The kubelet's cgroup root, relative to the top of each hierarchy.
pub(crate) fn root(cluster: &str, node: &str) -> String {
    format!("/slurm-testbed/{cluster}/{node}")
}

/// A node starts without old folders: the kubelet would search for the containers of each of them for seconds before it
/// registers the node.
pub(crate) fn create(cluster: &str, node: &str) -> Result<()> {
    for hierarchy in fs::read_dir(HIERARCHIES)?.flatten() {
        remove_tree(&below(&hierarchy.path(), &root(cluster, node)));
    }
    for controller in CGROUP_CONTROLLERS {
        let hierarchy = Path::new(HIERARCHIES).join(controller);
        let folder = below(&hierarchy, &root(cluster, node));
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        if controller == "cpuset" {
            fill_cpuset(&hierarchy, &folder)?;
        }
    }
    Ok(())
}

/// A new cpuset is empty and takes no process until each level names its CPUs and memory nodes.
fn fill_cpuset(hierarchy: &Path, folder: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let all = fs::read_to_string(hierarchy.join(file))?;
        let mut levels: Vec<&Path> = folder.ancestors().take_while(|level| *level != hierarchy).collect();
        levels.reverse();
        for level in levels {
            fs::write(level.join(file), &all)?;
        }
    }
    Ok(())
}

/// Thaws frozen processes, because a frozen process, such as a suspended job, cannot be killed.
pub(crate) fn thaw(cluster: &str) {
    thaw_tree(&Path::new(HIERARCHIES).join("freezer/slurm-testbed").join(cluster));
}

fn thaw_tree(folder: &Path) {
    let _ = fs::write(folder.join("freezer.state"), "THAWED");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            thaw_tree(&entry.path());
        }
    }
}

/// Removes the folders of a cluster that has ended or was killed. Folders with processes are kept.
pub(crate) fn remove(cluster: &str) {
    let Ok(hierarchies) = fs::read_dir(HIERARCHIES) else {
        return;
    };
    for hierarchy in hierarchies.flatten() {
        remove_tree(&hierarchy.path().join("slurm-testbed").join(cluster));
        let _ = fs::remove_dir(hierarchy.path().join("slurm-testbed"));
    }
}

/// The files of a cgroup folder cannot be removed; the folder can, once it has no subfolders.
fn remove_tree(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

fn below(hierarchy: &Path, root: &str) -> PathBuf {
    hierarchy.join(root.trim_start_matches('/'))
}
