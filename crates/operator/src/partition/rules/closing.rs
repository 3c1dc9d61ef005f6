//! Closing: a partition that is being removed accepts no new jobs, and is removed when its jobs have ended.
//!
//! A reconfigure without a partition's line would end its jobs. If a line of a NodeSet or of extraConf is removed while
//! jobs are in the partition, the line is retained and closed, and the rest of the change does not wait for it.
//! Partition objects close by themselves when they are deleted.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use slurm::{
    Job,
    agent::PartitionInUse,
    conf::{Document, Key, RecordKind, Settings},
};

/// The state of a partition while it is closing. A stopped partition is not started in order to drain it.
pub(crate) fn closing_state(state: &str) -> &'static str {
    let is_stopped = ["DOWN", "INACTIVE"].iter().any(|name| state.eq_ignore_ascii_case(name));
    if is_stopped { "INACTIVE" } else { "DRAIN" }
}

/// Whether a partition in this state accepts no new jobs.
pub(crate) fn is_closed(state: &str) -> bool {
    ["DRAIN", "INACTIVE"]
        .iter()
        .any(|name| state.eq_ignore_ascii_case(name))
}

/// Retained lines by the partition's name in Slurm.
pub(crate) type RetainedLines = BTreeMap<String, Retained>;

/// A line that its owner removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Retained {
    /// The text after `PartitionName=`.
    pub(crate) line: String,
    /// NodeSets in the line, whose own lines may have been removed too.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) node_sets: BTreeSet<String>,
}

/// Partitions whose lines may be missing from the next slurm.conf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Removal<'a> {
    /// The slurm.conf that slurmctld has.
    pub(crate) written: &'a Document,
    /// Names of the partitions that have an owner in the next slurm.conf.
    pub(crate) there: &'a BTreeSet<String>,
    /// Names of the partitions that were objects: they close by themselves.
    pub(crate) objects: &'a BTreeSet<&'a str>,
    /// Manually created partitions: they have their own rule.
    pub(crate) adopted: &'a BTreeMap<String, String>,
    /// Names of the NodeSets whose lines the operator wrote.
    pub(crate) node_sets: &'a BTreeSet<&'a str>,
    /// Lines retained before.
    pub(crate) before: &'a RetainedLines,
    /// Partitions that slurmctld recently refused to delete.
    pub(crate) in_use: &'a [PartitionInUse],
    /// `None` if they are not known.
    pub(crate) jobs: Option<&'a [Job]>,
}

/// Returns the lines to retain. The agent finds jobs that are submitted after `jobs` were read.
pub(crate) fn find_retained(removal: &Removal) -> RetainedLines {
    let removed = removal.written.effective(RecordKind::Partition).into_iter();
    removed
        .filter(|(name, _)| {
            let has_other_rule = removal.objects.contains(name) || removal.adopted.contains_key(*name);
            !removal.there.contains(*name) && !has_other_rule
        })
        .filter(|(name, _)| has_jobs(removal, name))
        .filter_map(|(name, settings)| {
            let retained = match removal.before.get(name) {
                Some(retained) => retained.clone(),
                None => close(removal, name, &settings)?,
            };
            Some((name.to_owned(), retained))
        })
        .collect()
}

/// Whether the partition may have jobs. A retained line is kept until it is known to have none.
fn has_jobs(removal: &Removal, name: &str) -> bool {
    let is_in_use = removal.in_use.iter().any(|partition| partition.name == name);
    match removal.jobs {
        None => is_in_use || removal.before.contains_key(name),
        Some(jobs) => {
            let mut unfinished = jobs.iter().filter(|job| !job.state.is_finished());
            is_in_use || unfinished.any(|job| job.partitions().any(|partition| partition == name))
        }
    }
}

/// Returns the closed line. `None` for one that cannot be written on its own: its removal waits for its jobs.
fn close(removal: &Removal, name: &str, settings: &Settings) -> Option<Retained> {
    let is_plain =
        |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || "\"#\\[]".contains(c));
    let nodes = settings.get(&Key::new("Nodes")).map(String::as_str).unwrap_or_default();
    let mut node_sets = BTreeSet::new();
    for item in nodes.split(',') {
        if removal.written.record(RecordKind::NodeSet, item).is_none() {
            continue;
        }
        // A node set in a user's own lines may contain any nodes.
        removal.node_sets.get(item)?;
        node_sets.insert(item.to_owned());
    }
    let state = settings.get(&Key::new("State")).map_or("UP", String::as_str);
    let mut items = vec![name.to_owned()];
    for (key, value) in settings {
        if *key == *"State" || *key == *"Default" {
            continue;
        }
        let is_list = *key == *"Nodes";
        if !is_list && !is_plain(value) || is_list && value.contains(char::is_whitespace) {
            return None;
        }
        items.push(format!("{key}={value}"));
    }
    items.push(format!("State={}", closing_state(state)));
    let line = items.join(" ");
    is_plain(name).then_some(Retained { line, node_sets })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_partition_is_not_started_in_order_to_drain_it() {
        for (state, closing) in [
            ("UP", "DRAIN"),
            ("DRAIN", "DRAIN"),
            ("down", "INACTIVE"),
            ("INACTIVE", "INACTIVE"),
        ] {
            assert_eq!(closing_state(state), closing, "{state}");
            assert!(is_closed(closing));
        }
        assert!(!is_closed("UP") && !is_closed("DOWN"));
    }
}
