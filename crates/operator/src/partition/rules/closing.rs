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

/// Returns the lines to retain of `written`, the slurm.conf that slurmctld has. `kept` are the partitions that stay or
/// have a rule of their own, `node_sets` the NodeSets whose lines the operator wrote, `before` the lines retained before,
/// `in_use` the partitions that slurmctld recently refused to delete. The agent finds jobs that are submitted after `jobs`
/// were read; `None` if they are not known.
pub(crate) fn find_retained(
    written: &Document,
    kept: &BTreeSet<String>,
    node_sets: &BTreeSet<&str>,
    before: &RetainedLines,
    in_use: &[PartitionInUse],
    jobs: Option<&[Job]>,
) -> RetainedLines {
    let is_in = |name: &str, job: &Job| !job.state.is_finished() && job.partitions().any(|partition| partition == name);
    let may_have_jobs = |name: &str| match jobs {
        _ if in_use.iter().any(|partition| partition.name == name) => true,
        Some(jobs) => jobs.iter().any(|job| is_in(name, job)),
        // A retained line is kept until it is known to have none.
        None => before.contains_key(name),
    };
    let lines = written.effective(RecordKind::Partition).into_iter();
    lines
        .filter(|(name, _)| !kept.contains(*name) && may_have_jobs(name))
        .filter_map(|(name, settings)| {
            let known = before.get(name).cloned();
            let retained = known.or_else(|| close(written, node_sets, name, &settings))?;
            Some((name.to_owned(), retained))
        })
        .collect()
}

/// Returns the closed line. `None` for one that cannot be written on its own: its removal waits for its jobs.
fn close(written: &Document, own_node_sets: &BTreeSet<&str>, name: &str, settings: &Settings) -> Option<Retained> {
    let is_plain =
        |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || "\"#\\[]".contains(c));
    let nodes = settings.get(&Key::new("Nodes")).map(String::as_str).unwrap_or_default();
    let mut node_sets = BTreeSet::new();
    for item in nodes.split(',') {
        if written.record(RecordKind::NodeSet, item).is_none() {
            continue;
        }
        // A node set in a user's own lines may contain any nodes.
        own_node_sets.get(item)?;
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
    use serde_json::json;

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

    #[test]
    fn a_removed_line_is_retained_and_closed_while_it_may_have_jobs() {
        let written = Document::parse(
            "NodeSet=cpu Feature=cpu\nNodeSet=own Feature=own\n\
             PartitionName=a Nodes=cpu,n1 MaxTime=60 Default=YES\nPartitionName=b Nodes=ALL State=DOWN\n\
             PartitionName=c Nodes=own\nPartitionName=d Nodes=ALL\nPartitionName=kept Nodes=ALL\n",
        );
        let job = |state: &str, partition: &str| -> Job {
            let job = json!({ "job_id": 1, "job_state": [state], "partition": partition, "nodes": "" });
            serde_json::from_value(job).unwrap()
        };
        let jobs = [
            job("RUNNING", "a"),
            job("PENDING", "b,kept"),
            job("RUNNING", "c"),
            job("COMPLETED", "d"),
        ];
        let kept = BTreeSet::from(["kept".to_owned()]);
        let node_sets = BTreeSet::from(["cpu"]);
        let find = |before: &RetainedLines, in_use: &[PartitionInUse], jobs: Option<&[Job]>| {
            find_retained(&written, &kept, &node_sets, before, in_use, jobs)
        };
        let retained = |name: &str, line: &str, node_sets: &[&str]| {
            let node_sets = node_sets.iter().map(|name| (*name).to_owned()).collect();
            let line = line.to_owned();
            (name.to_owned(), Retained { line, node_sets })
        };
        let a = retained("a", "a MaxTime=60 Nodes=cpu,n1 State=DRAIN", &["cpu"]);
        let b = retained("b", "b Nodes=ALL State=INACTIVE", &[]);
        let d = retained("d", "d Nodes=ALL State=DRAIN", &[]);
        let none = RetainedLines::new();
        // A node set of a user's own line may contain any nodes, so the removal of `c` waits for its jobs.
        let both = RetainedLines::from([a, b]);
        assert_eq!(find(&none, &[], Some(&jobs)), both);
        assert_eq!(find(&both, &[], Some(&[])), none, "its jobs have ended");
        assert_eq!(
            find(&none, &[], None),
            none,
            "jobs are not known, and the removal waits for them"
        );
        assert_eq!(find(&both, &[], None), both, "jobs are not known");
        let refused = serde_json::from_value(json!({ "name": "d", "why": "jobs" })).unwrap();
        assert_eq!(find(&none, &[refused], Some(&[])), RetainedLines::from([d]));
    }
}
