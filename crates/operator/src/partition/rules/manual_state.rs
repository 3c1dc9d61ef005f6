//! Manual states: partitions that a person closed in Slurm. A partition that was closed in an emergency stays closed,
//! whatever the files said; the state is written into the files, so that it also survives a restart of slurmctld.
//!
//! A manual state is lifted by `scontrol update … State=UP`, by another state in the source of the partition, or by the
//! annotation [`annotations::RESUMED_AT`] on a Partition.

use std::{collections::BTreeMap, sync::Arc};

use api::{Partition, keys::annotations, partition::DriftPolicy};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use slurm::{
    conf::{Document, Key, RecordKind, SettingChange, Settings, edit_partition},
    partition::PartitionState,
};

use super::line::strictness;

/// Manual states by the partition's name in Slurm.
pub(crate) type ManualStates = BTreeMap<String, ManualState>;

/// A state that a person set and that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ManualState {
    /// As Slurm writes it.
    pub(crate) state: String,
    /// The state the partition should have. A change of it lifts the manual state.
    pub(crate) wanted: String,
    /// Since when it is known.
    pub(crate) since: String,
}

impl ManualState {
    /// Whether the manual state was lifted: the wanted state has changed, or the owner resumes the partition or does not
    /// keep manual states. `None` for a partition without an object.
    pub(crate) fn is_lifted(&self, wanted: &str, partition: Option<&Partition>) -> bool {
        let time = |text: &String| text.parse::<Timestamp>().ok();
        let resumed_at = partition.and_then(|partition| partition.annotations().get(annotations::RESUMED_AT));
        let is_resumed = (resumed_at.and_then(time).zip(time(&self.since))).is_some_and(|(at, since)| at > since);
        let reverts_all = |partition: &Partition| partition.spec.drift_policy() == DriftPolicy::RevertAll;
        self.wanted != wanted || is_resumed || partition.is_some_and(reverts_all)
    }
}

/// The input for finding manual states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateInputs<'a> {
    pub(crate) objects: &'a [Arc<Partition>],
    /// The partitions that Slurm listed, and when.
    pub(crate) live: Option<(&'a BTreeMap<String, slurm::Partition>, Timestamp)>,
    /// Whether slurmctld ran with `written` at that time.
    pub(crate) is_fresh: bool,
    /// The slurm.conf that slurmctld has.
    pub(crate) written: Option<&'a Document>,
    /// The manual states known before.
    pub(crate) before: &'a ManualStates,
}

/// The current manual states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) states: ManualStates,
    /// Slurm has other states than written, but they were read before the states were written.
    pub(crate) is_unsure: bool,
}

/// Finds the manual states. `wanted` is the slurm.conf that slurmctld should have.
pub(crate) fn find_manual_states(inputs: &StateInputs, wanted: impl FnOnce() -> Document) -> Found {
    let written: BTreeMap<&str, String> = inputs.written.map(states).unwrap_or_default();
    let live = inputs.live.into_iter().flat_map(|(partitions, _)| partitions);
    let mut changed: BTreeMap<&str, String> = live
        .filter(|(_, live)| matches!(live.state, PartitionState::Known(_)))
        .map(|(name, live)| (name.as_str(), live.state.to_string()))
        .filter(|(name, live)| written.get(name).is_some_and(|written| written != live))
        .collect();
    let mut found = Found::default();
    // This is the usual case; the wanted slurm.conf is then not needed.
    if changed.is_empty() && inputs.before.is_empty() {
        return found;
    }
    let wanted = wanted();
    // The first object of each name.
    let objects: BTreeMap<String, &Partition> = inputs
        .objects
        .iter()
        .rev()
        .map(|partition| (partition.slurm_name(), partition.as_ref()))
        .collect();
    for (name, wanted) in states(&wanted) {
        let object = objects.get(name).copied();
        let prior = inputs.before.get(name);
        let prior = prior.filter(|prior| !prior.is_lifted(&wanted, object));
        let state = match changed.remove(name) {
            Some(state) if inputs.is_fresh => {
                let is_stricter = strictness(&state) > strictness(&wanted);
                let since = inputs.live.map(|(_, at)| format!("{at:.3}")).unwrap_or_default();
                // With RevertAll it is kept for one delivery only: the next one opens the partition.
                is_stricter.then(|| match prior {
                    Some(prior) if prior.state == state => prior.clone(),
                    _ => ManualState { state, wanted, since },
                })
            }
            Some(_) => {
                found.is_unsure = true;
                prior.cloned()
            }
            None => prior.cloned(),
        };
        if let Some(state) = state {
            found.states.insert(name.to_owned(), state);
        }
    }
    found
}

/// The states of all partitions of a slurm.conf.
fn states(conf: &Document) -> BTreeMap<&str, String> {
    let state = |settings: &Settings| {
        let given = settings.get(&Key::new("State")).map(|state| state.to_ascii_uppercase());
        given.unwrap_or_else(|| "UP".to_owned())
    };
    let partitions = conf.effective(RecordKind::Partition).into_iter();
    partitions.map(|(name, settings)| (name, state(&settings))).collect()
}

/// Returns the slurm.conf with these states in the lines of their partitions. A line that cannot be parsed, or that
/// continues with a backslash, is not changed, so that line numbers are kept: then only slurmctld keeps the state,
/// until it restarts.
pub(crate) fn write_states(conf: &str, manual: &ManualStates) -> String {
    manual.iter().fold(conf.to_owned(), |conf, (name, manual)| {
        let state = SettingChange::Set {
            key: Key::new("State"),
            value: manual.state.clone(),
        };
        let edited = edit_partition(&conf, name, &[state]).ok().flatten();
        let lines = conf.lines().count();
        edited.filter(|edited| edited.lines().count() == lines).unwrap_or(conf)
    })
}
