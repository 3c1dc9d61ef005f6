//! Partitions whose line somebody took away while jobs are in them. A reconfigure without the line would end those jobs, so it stays,
//! closed, until they have ended, and the rest of the change does not wait for it. Pure.
//!
//! Partitions that are objects are not in here: those say themselves that they are about to go.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use slurm::conf::{Document, Key, RecordKind, Settings};

use super::{inputs::Inputs, observe::Observed};

/// By the partition's name in Slurm.
pub(super) type RetainedLines = BTreeMap<String, Retained>;

/// A line that is not the user's any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Retained {
    /// What stands after `PartitionName=`.
    pub(super) line: String,
    /// NodeSets that it names, whose own lines may be gone too.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) node_sets: BTreeSet<String>,
}

/// What has to stay of what slurmctld was told last (`written`). Jobs that come after this look are found by whoever deletes
/// the partition.
pub(super) fn find_retained(
    observed: &Observed,
    before: &Inputs,
    written: Option<&Document>,
    wanted: &Inputs,
) -> RetainedLines {
    let Some(written) = written else {
        return RetainedLines::new();
    };
    let there = partition_names(wanted);
    let objects: BTreeSet<&str> = before.partitions.values().map(|line| line.name.as_str()).collect();
    let gone = written
        .effective(RecordKind::Partition)
        .into_iter()
        .filter(|(name, _)| {
            let is_in_use = objects.contains(name) || before.adopted.contains_key(*name);
            !there.contains(*name) && !is_in_use
        });
    gone.filter(|(name, _)| has_jobs(observed, before, name))
        .filter_map(|(name, settings)| {
            let retained = match before.retained.get(name) {
                Some(retained) => retained.clone(),
                None => close(before, written, name, &settings)?,
            };
            Some((name.to_owned(), retained))
        })
        .collect()
}

/// One that stayed for its jobs stays until it is known that there are none.
fn has_jobs(observed: &Observed, before: &Inputs, name: &str) -> bool {
    let is_in_use = observed.report.in_use.iter().any(|partition| partition.name == name);
    let stayed = before.retained.contains_key(name);
    let seen = observed.knowledge.known();
    match seen.and_then(|seen| seen.jobs.as_ref()) {
        None => stayed || is_in_use,
        Some(jobs) => {
            let mut unfinished = jobs.iter().filter(|job| !job.state.is_finished());
            is_in_use || unfinished.any(|job| job.partitions().any(|partition| partition == name))
        }
    }
}

/// The line with no new jobs. None for one that cannot be written without its surroundings: that waits for its jobs as it is.
fn close(before: &Inputs, written: &Document, name: &str, settings: &Settings) -> Option<Retained> {
    let is_plain =
        |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || "\"#\\[]".contains(c));
    let nodes = settings.get(&Key::new("Nodes")).map(String::as_str).unwrap_or_default();
    let mut node_sets = BTreeSet::new();
    for item in nodes.split(',') {
        if written.record(RecordKind::NodeSet, item).is_none() {
            continue;
        }
        // Those of the user's own lines may be anything.
        before.node_sets.values().find(|node_set| node_set.name == item)?;
        node_sets.insert(item.to_owned());
    }
    let state = settings.get(&Key::new("State")).map(|state| state.to_ascii_uppercase());
    // What was stopped is not started to be emptied.
    let is_stopped = state.is_some_and(|state| ["DOWN", "INACTIVE"].contains(&state.as_str()));
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
    items.push(if is_stopped { "State=INACTIVE" } else { "State=DRAIN" }.to_owned());
    let line = items.join(" ");
    is_plain(name).then_some(Retained { line, node_sets })
}

/// All partitions that have an owner.
pub(super) fn partition_names(inputs: &Inputs) -> BTreeSet<String> {
    let node_sets = inputs
        .node_sets
        .values()
        .filter(|node_set| node_set.partition.is_some());
    let extra = Document::parse(&inputs.extra_conf);
    let lines = extra
        .records(RecordKind::Partition)
        .map(|record| record.name.to_owned());
    let objects = inputs.partitions.values().map(|line| line.name.clone());
    node_sets
        .map(|node_set| node_set.name.clone())
        .chain(lines)
        .chain(objects)
        .chain(inputs.adopted.keys().cloned())
        .collect()
}
