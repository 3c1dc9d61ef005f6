//! Decides which manual changes in Slurm are reverted. Pure.
//!
//! Each value is reverted once: a value that is set again is intended, or set by a program that would do so forever.

use std::collections::BTreeMap;

use api::partition::{Drift, DriftPolicy, DriftSettled};
use slurm::agent::Restored;

use super::{drift::Found, plan::View, rules::line::strictness};

/// How many reverted values are remembered. Beyond this another program manages them, and drift is only reported.
const LIMIT: usize = 16;

/// The result of reverting keys.
#[derive(Debug, Default)]
pub(super) struct RestoreOutcome {
    pub(super) found: Found,
    /// Values that slurmctld rejected, each with its live value and the reason.
    pub(super) stuck: BTreeMap<String, (String, String)>,
    /// Keys whose live value is also the value in the files.
    pub(super) same: BTreeMap<String, String>,
}

/// Returns the keys to revert to the Partition's line.
pub(super) fn plan_restore(view: &View) -> Vec<String> {
    let partition = view.partition.as_ref();
    let Found { drift, stuck, is_fresh } = &view.found;
    let reverted: Vec<&Drift> = drift.iter().filter(|drift| is_reverted(drift)).collect();
    let is_wanted = |drift: &Drift| match partition.spec.drift_policy() {
        DriftPolicy::Revert => reverted.len() < LIMIT && !reverted.iter().any(|other| is_same(other, drift)),
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

/// Returns the state after these keys were sent to slurmctld again.
pub(super) fn settle_restored(found: &Found, keys: &[String], restored: &Restored) -> RestoreOutcome {
    let (mut drift, before): (Vec<Drift>, Vec<Drift>) =
        found.drift.iter().cloned().partition(|drift| !is_reverted(drift));
    let mut stuck = BTreeMap::new();
    for drift in drift.iter_mut().filter(|drift| keys.contains(&drift.key)) {
        match restored.left.get(&drift.key) {
            Some(why) => drop(stuck.insert(drift.key.clone(), (drift.live.clone(), why.clone()))),
            None => drift.settled = DriftSettled::Reverted,
        }
    }
    // A live value that equals the files was being applied when it was polled.
    let (same, mut drift): (Vec<Drift>, Vec<Drift>) = drift
        .into_iter()
        .partition(|drift| keys.contains(&drift.key) && restored.same.contains(&drift.key));
    // A value that is reverted repeatedly is listed once.
    drift.retain(|drift| !(is_reverted(drift) && before.iter().any(|other| is_same(other, drift))));
    let forgotten = (before.len() + drift.len()).saturating_sub(LIMIT).min(before.len());
    drift.extend(before.into_iter().skip(forgotten));
    let mut after = Found { drift, ..found.clone() };
    after
        .stuck
        .extend(stuck.iter().map(|(key, (_, why))| (key.clone(), why.clone())));
    RestoreOutcome {
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
