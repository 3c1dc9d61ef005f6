//! The content that the files of a revision are rendered from, by the place where people wrote it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use slurm::{
    conf::{Document, NodeSetLines, PowerSaving, RecordKind},
    revision::{File, FileName},
};

use crate::partition::rules::{closing::RetainedLines, line::PartitionLine, manual_state::ManualStates};

/// Everything a person wrote that the files are rendered from, by its place. It is recorded without the bytes of files,
/// which the revision has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Content {
    pub(crate) extra_conf: String,
    /// Host and port of slurmdbd.
    pub(crate) accounting: Option<(String, u16)>,
    /// Power saving, if a NodeSet has autoscaling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) power_saving: Option<PowerSaving>,
    /// NodeSets by their own names.
    pub(crate) node_sets: BTreeMap<String, NodeSetLines>,
    /// Lines by the names of the Partitions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) partitions: BTreeMap<String, PartitionLine>,
    /// States that people set in Slurm.
    #[serde(rename = "kept", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) manual_states: ManualStates,
    /// Manually created partitions with jobs: the text after `PartitionName=`, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) adopted: BTreeMap<String, String>,
    /// Partitions without an owner that are kept for their jobs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) retained: RetainedLines,
    pub(crate) files: BTreeMap<FileName, UserFile>,
}

/// An entry of a ConfigMap that becomes a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UserFile {
    #[serde(skip)]
    pub(crate) file: File,
    pub(crate) config_map: String,
    pub(crate) entry: String,
    /// The hooks that run it, if it is a script.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) runs_as: BTreeSet<Script>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Script {
    Prolog,
    Epilog,
    PrologSlurmctld,
    EpilogSlurmctld,
}

impl Content {
    /// Names of the scripts of this hook.
    pub(crate) fn scripts(&self, script: Script) -> Vec<String> {
        let runs = self.files.iter().filter(|(_, file)| file.runs_as.contains(&script));
        runs.map(|(name, _)| name.to_string()).collect()
    }

    /// Names of all partitions that have an owner.
    pub(crate) fn partition_names(&self) -> BTreeSet<String> {
        let node_sets = self.node_sets.values().filter(|node_set| node_set.partition.is_some());
        let extra = Document::parse(&self.extra_conf);
        let lines = extra
            .records(RecordKind::Partition)
            .map(|record| record.name.to_owned());
        let objects = self.partitions.values().map(|line| line.name.clone());
        node_sets
            .map(|node_set| node_set.name.clone())
            .chain(lines)
            .chain(objects)
            .chain(self.adopted.keys().cloned())
            .collect()
    }
}

impl UserFile {
    /// A label for people.
    pub(crate) fn label(&self) -> String {
        entry_label(&self.config_map, &self.entry)
    }
}

pub(crate) fn entry_label(config_map: &str, entry: &str) -> String {
    format!("ConfigMap {config_map:?} entry {entry:?}")
}
