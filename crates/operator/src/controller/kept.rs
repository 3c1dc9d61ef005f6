//! Partitions that somebody closed in Slurm by hand. What was closed in an emergency stays closed, whatever the files said,
//! and is written into the files, so that it is closed after a restart of slurmctld too. Pure.
//!
//! It is lifted by `scontrol update … State=UP`, by another state in whatever the partition is made from, or by the annotation
//! [`annotations::RESUMED_AT`] on a Partition.

use std::collections::BTreeMap;

use api::{Partition, keys::annotations, partition::DriftPolicy};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use slurm::{
    conf::{Document, Key, RecordKind, SettingChange, edit_partition},
    partition::PartitionState,
};

use super::observe::Observed;
use crate::partition::line::strictness;

/// By the partition's name in Slurm.
pub(super) type KeptStates = BTreeMap<String, Kept>;

/// A state that was set by hand and stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Kept {
    /// In Slurm's word.
    pub(crate) state: String,
    /// What the partition is meant to be in. Another wish lifts it.
    pub(crate) wanted: String,
    /// Since when it is known.
    pub(crate) since: String,
}

/// What is kept now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) kept: KeptStates,
    /// Slurm has other states than it was told, but that was read before it was told.
    pub(super) look_again: bool,
}

/// Judges by what slurmctld was told last (`written`), what it is to be told (`wanted`), and what it says itself, if it said that
/// when it had been told (`is_fresh`).
pub(super) fn find_kept(
    observed: &Observed,
    before: &KeptStates,
    written: Option<&Document>,
    wanted: impl FnOnce() -> Document,
    is_fresh: bool,
) -> Judgement {
    let seen = observed.knowledge.known();
    let live = seen.and_then(|seen| seen.partitions.as_deref());
    let written: BTreeMap<&str, String> = written.map(states).unwrap_or_default();
    let mut by_hand: BTreeMap<&str, String> = live
        .into_iter()
        .flatten()
        .filter_map(|(name, live)| Some((name.as_str(), word(&live.state)?)))
        .filter(|(name, live)| written.get(name).is_some_and(|written| written != live))
        .collect();
    let mut judgement = Judgement::default();
    // As it is nearly always, and then nobody needs to know what is wanted.
    if by_hand.is_empty() && before.is_empty() {
        return judgement;
    }
    let wanted = wanted();
    let objects = by_slurm_name(observed);
    for (name, wanted) in states(&wanted) {
        let terms = Terms::of(objects.get(name).copied());
        let prior = before
            .get(name)
            .filter(|kept| kept.wanted == wanted && !terms.is_resumed(kept))
            .filter(|_| terms.keeps);
        let kept = match by_hand.remove(name) {
            Some(state) if is_fresh => {
                let is_stricter = strictness(&state) > strictness(&wanted);
                let since = seen.map(|seen| format!("{:.3}", seen.at)).unwrap_or_default();
                // Where nothing is kept it is for one push only: what the next one opens, slurmctld is told.
                is_stricter.then(|| match prior {
                    Some(prior) if prior.state == state => prior.clone(),
                    _ => Kept { state, wanted, since },
                })
            }
            Some(_) => {
                judgement.look_again = true;
                prior.cloned()
            }
            None => prior.cloned(),
        };
        if let Some(kept) = kept {
            judgement.kept.insert(name.to_owned(), kept);
        }
    }
    judgement
}

/// The first of each name, as they come.
fn by_slurm_name(observed: &Observed) -> BTreeMap<String, &Partition> {
    let partitions = observed.partitions.iter().rev();
    partitions
        .map(|partition| (partition.slurm_name(), partition.as_ref()))
        .collect()
}

/// What the owner of a partition says about changes by hand.
struct Terms {
    keeps: bool,
    resumed_at: Option<Timestamp>,
}

impl Terms {
    fn of(partition: Option<&Partition>) -> Self {
        let resumed_at = partition.and_then(|partition| partition.annotations().get(annotations::RESUMED_AT));
        Self {
            keeps: partition.is_none_or(|partition| partition.spec.drift_policy() != DriftPolicy::RevertAll),
            resumed_at: resumed_at.and_then(|time| time.parse().ok()),
        }
    }

    fn is_resumed(&self, kept: &Kept) -> bool {
        let since: Option<Timestamp> = kept.since.parse().ok();
        self.resumed_at
            .zip(since)
            .is_some_and(|(resumed, since)| resumed > since)
    }
}

/// The states of all partitions of a slurm.conf.
fn states(conf: &Document) -> BTreeMap<&str, String> {
    let state = |settings: &slurm::conf::Settings| {
        let given = settings.get(&Key::new("State")).map(|state| state.to_ascii_uppercase());
        given.unwrap_or_else(|| "UP".to_owned())
    };
    let partitions = conf.effective(RecordKind::Partition).into_iter();
    partitions.map(|(name, settings)| (name, state(&settings))).collect()
}

/// None for a state that nobody knows, which is not for us to judge.
fn word(state: &PartitionState) -> Option<String> {
    match state {
        PartitionState::Known(name) => Some(name.name().to_owned()),
        PartitionState::Other(_) => None,
    }
}

/// The slurm.conf with these states in the lines of their partitions. A line that cannot be read, or goes on behind a backslash, stays
/// as it is, so that lines can be counted: there slurmctld alone keeps the state, until it starts anew.
pub(super) fn write_states(conf: &str, kept: &KeptStates) -> String {
    kept.iter().fold(conf.to_owned(), |conf, (name, kept)| {
        let state = SettingChange::Set {
            key: Key::new("State"),
            value: kept.state.clone(),
        };
        let edited = edit_partition(&conf, name, &[state]).ok().flatten();
        let lines = conf.lines().count();
        edited.filter(|edited| edited.lines().count() == lines).unwrap_or(conf)
    })
}
