//! The reports about the Partitions of a cluster, made by the reconcile of their Controller, which alone writes
//! slurm.conf. The reconciles of the Partitions write them into their status.

use std::collections::{BTreeMap, BTreeSet};

use api::partition::PartitionWay;
use jiff::Timestamp;

use crate::{
    finding::Finding,
    partition::rules::{line::PartitionLine, manual_state::ManualState},
};

/// Reports by the names of the Partition objects.
pub(crate) type PartitionReports = BTreeMap<String, PartitionReport>;

/// The report about one Partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartitionReport {
    /// The line in the last accepted configuration.
    pub(crate) line: Option<PartitionLine>,
    /// The lines of the accepted configuration are not known.
    pub(crate) may_have_line: bool,
    /// slurmctld has started with the line, or received it.
    pub(crate) runs: bool,
    /// Since when slurmctld runs with the line. An earlier response of Slurm may describe the line before it.
    pub(crate) live_since: Option<Timestamp>,
    /// Why the newest version is not in the configuration.
    pub(crate) trouble: Option<Finding>,
    /// The manual state in Slurm that is kept.
    pub(crate) manual_state: Option<ManualState>,
    /// What the cluster's configuration waits for, if anything.
    pub(crate) waits: Option<String>,
    /// The change of the configuration that contains the line.
    pub(crate) change: Option<Change>,
    /// Why slurmctld loses the partition, if the operator does not manage its files.
    pub(crate) not_persistent: Option<String>,
}

/// A change of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The sequence of the revision. `None` if slurmctld received the change without one.
    pub(crate) sequence: Option<u64>,
    pub(crate) at: Timestamp,
    pub(crate) way: Option<PartitionWay>,
    pub(crate) milliseconds: u64,
}

/// Replaces the reports of one cluster. Returns the names of the Partitions whose report changed.
pub(crate) fn publish(before: &mut PartitionReports, mut reports: PartitionReports) -> Vec<String> {
    for (name, report) in &mut reports {
        let Some(before) = before.get(name).filter(|before| before.line == report.line) else {
            continue;
        };
        // Later changes were about other lines.
        if before.change.is_some() {
            report.change.clone_from(&before.change);
        }
        if before.runs && report.runs && before.live_since.is_some() {
            report.live_since = before.live_since;
        }
    }
    let names: BTreeSet<&String> = reports.keys().chain(before.keys()).collect();
    let changed = names.into_iter().filter(|name| before.get(*name) != reports.get(*name));
    let changed = changed.cloned().collect();
    *before = reports;
    changed
}
