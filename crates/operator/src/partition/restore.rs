//! What is put back of what people changed in Slurm. Pure.
//!
//! Each value is put back once: whoever sets it again means it, or is a program that would do so for ever.

use std::collections::BTreeMap;

use api::partition::{Drift, DriftPolicy, DriftSettled};
use slurm::agent::Restored;

use super::{drift::Found, plan::View, rules::line::strictness};

/// How many values are remembered as put back. With more of them somebody else rules here, and they are only shown.
const MOST: usize = 16;

/// What came of bringing keys back, by key.
#[derive(Debug, Default)]
pub(super) struct Settled {
    pub(super) found: Found,
    /// Values that slurmctld did not take, each with what it has and why.
    pub(super) stuck: BTreeMap<String, (String, String)>,
    /// What Slurm has and the files say too.
    pub(super) same: BTreeMap<String, String>,
}

/// The keys to bring back to the Partition's line.
pub(super) fn plan_restore(view: &View) -> Vec<String> {
    let partition = view.partition.as_ref();
    let Found { drift, stuck, is_fresh } = &view.found;
    let reverted: Vec<&Drift> = drift.iter().filter(|drift| is_reverted(drift)).collect();
    let is_wanted = |drift: &Drift| match partition.spec.drift_policy() {
        DriftPolicy::Revert => reverted.len() < MOST && !reverted.iter().any(|other| is_same(other, drift)),
        DriftPolicy::RevertAll => true,
        DriftPolicy::Report | DriftPolicy::Other(_) => false,
    };
    if !is_fresh || partition.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let restored = drift
        .iter()
        .filter(|drift| !is_reverted(drift) && !stuck.contains_key(&drift.key))
        .filter(|drift| drift.key != "State" || strictness(&drift.live) < strictness(&drift.wanted))
        .filter(|drift| is_wanted(drift));
    restored.map(|drift| drift.key.clone()).collect()
}

/// What is known after these keys were told to slurmctld again.
pub(super) fn settle_restored(found: &Found, keys: &[String], restored: &Restored) -> Settled {
    let (mut drift, before): (Vec<Drift>, Vec<Drift>) =
        found.drift.iter().cloned().partition(|drift| !is_reverted(drift));
    let mut stuck = BTreeMap::new();
    for drift in drift.iter_mut().filter(|drift| keys.contains(&drift.key)) {
        match restored.left.get(&drift.key) {
            Some(why) => drop(stuck.insert(drift.key.clone(), (drift.live.clone(), why.clone()))),
            None => drift.settled = DriftSettled::Reverted,
        }
    }
    // What is as the files say was on its way there when it was looked at.
    let (same, mut drift): (Vec<Drift>, Vec<Drift>) = drift
        .into_iter()
        .partition(|drift| keys.contains(&drift.key) && restored.same.contains(&drift.key));
    // One that is put back again and again is told once.
    drift.retain(|drift| !(is_reverted(drift) && before.iter().any(|other| is_same(other, drift))));
    let forgotten = (before.len() + drift.len()).saturating_sub(MOST).min(before.len());
    drift.extend(before.into_iter().skip(forgotten));
    let mut after = Found { drift, ..found.clone() };
    after
        .stuck
        .extend(stuck.iter().map(|(key, (_, why))| (key.clone(), why.clone())));
    Settled {
        found: after,
        stuck,
        same: same.into_iter().map(|drift| (drift.key, drift.live)).collect(),
    }
}

pub(super) fn is_reverted(drift: &Drift) -> bool {
    drift.settled == DriftSettled::Reverted
}

fn is_same(one: &Drift, other: &Drift) -> bool {
    one.key == other.key && one.live == other.live
}
