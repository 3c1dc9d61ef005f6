//! Finds manual changes other than the state, and decides which of them are reverted. Pure.
//!
//! A manual change is a value that differs from the one after the operator's last change. Each value is reverted once: a
//! value that is set again is intended, or set by a program that would do so forever.

use std::collections::BTreeMap;

use api::{
    Partition,
    partition::{Drift, DriftPolicy, DriftSettled},
};
use jiff::Timestamp;
use slurm::{
    Number,
    agent::Restored,
    conf::{self, Settings},
    rpc::{PartitionUpdate, plan_partition_update},
};

use super::{
    observe::Observed,
    rules::line::{PartitionLine, settings_in, strictness},
};
use crate::cluster::partition_reports::PartitionReport;

/// How many reverted values are remembered. Beyond this another program manages them, and drift is only reported.
const LIMIT: usize = 16;

/// By key: the value that could not be reverted, and why.
type Stuck = BTreeMap<String, (String, String)>;

/// Slurm's values of a Partition just after it had received its line.
#[derive(Debug)]
pub(super) struct Baseline {
    line: String,
    settings: BTreeMap<&'static str, String>,
    /// When settings were last reverted to the line. An earlier response of Slurm is stale.
    restored_at: Option<Timestamp>,
    stuck: Stuck,
}

/// The known manual changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Values that differ in Slurm (`Reported`), and values reverted since the line became this one (`Reverted`).
    pub(super) drift: Vec<Drift>,
    pub(super) stuck: Stuck,
    /// Whether Slurm was polled after the operator's last change. Otherwise this is the former result.
    pub(super) is_fresh: bool,
}

impl Baseline {
    /// Finds where Slurm differs from the baseline, which the first call creates. A known difference keeps its time.
    pub(super) fn find_drift(baseline: &mut Option<Self>, observed: &Observed) -> Found {
        let before = observed.partition.status.as_ref();
        let known_line = before.and_then(|status| status.line.as_deref());
        let line = observed.report.as_ref().and_then(|report| report.line.as_ref());
        let is_same_line = line.is_none_or(|line| known_line == Some(line.whole().as_str()));
        // The Controller reports manual states.
        let mut known: Vec<Drift> = before.map(|status| status.drift.clone()).unwrap_or_default();
        known.retain(|drift| drift.settled != DriftSettled::Kept && (is_same_line || !is_reverted(drift)));
        let as_before = || Found {
            drift: known.clone(),
            ..Found::default()
        };
        let Some((report, line, listed, at)) = live(observed) else {
            return as_before();
        };
        let (written, line) = (&line.state, line.whole());
        let now: BTreeMap<&'static str, String> = listed.settings().into_iter().collect();
        let baseline = baseline.get_or_insert_with(|| {
            // An earlier leader may have seen other values.
            Self::begin(known_line.unwrap_or(&line), now.clone(), known.iter())
        });
        if baseline.restored_at.is_some_and(|restored| restored >= at) {
            return as_before();
        }
        if baseline.line != line {
            // A manual change is kept if the new line does not change its key and slurmctld has not read the line.
            let value_in = |line: &str, key: &str| settings_in(line).get(&conf::Key::new(key)).cloned();
            let manual = known.iter().filter(|drift| {
                let is_live = now.get(drift.key.as_str()).is_some_and(|live| *live == drift.live);
                is_live && value_in(&baseline.line, &drift.key) == value_in(&line, &drift.key)
            });
            *baseline = Self::begin(&line, now.clone(), manual);
        }
        let reported = |setting: &str, wanted: &str, live: &str| {
            let mut known = known.iter().filter(|drift| drift.settled == DriftSettled::Reported);
            let same = known.find(|drift| drift.key == setting && drift.live == live);
            Drift {
                key: setting.to_owned(),
                wanted: wanted.to_owned(),
                live: live.to_owned(),
                since: same.map_or_else(|| format!("{at:.3}").into(), |drift| drift.since.clone()),
                settled: DriftSettled::Reported,
            }
        };
        let changed = now.iter().filter_map(|(setting, live)| {
            let wanted = baseline.settings.get(setting)?;
            (wanted != live).then(|| reported(setting, wanted, live))
        });
        // The Controller handles closed partitions. If one was closed manually before, opening it lifts the manual state.
        let state = listed.state.to_string();
        let is_opened = report.manual_state.is_none()
            && state != *written
            && strictness(&state).is_some()
            && strictness(&state) <= strictness(written);
        let opened = is_opened.then(|| reported("State", written, &state));
        let mut drift: Vec<Drift> = opened.into_iter().chain(changed).collect();
        let differs = |key: &str, live: &str| drift.iter().any(|drift| drift.key == key && drift.live == live);
        baseline.stuck.retain(|key, (live, _)| differs(key, live));
        drift.extend(known.into_iter().filter(is_reverted));
        Found {
            drift,
            stuck: baseline.stuck.clone(),
            is_fresh: true,
        }
    }

    /// Records that these keys were sent to slurmctld again. The baseline is kept: they may change again before the next
    /// poll.
    pub(super) fn note_restored(&mut self, found: &mut Found, keys: &[String], restored: &Restored, at: Timestamp) {
        self.restored_at = Some(at);
        let all = std::mem::take(&mut found.drift).into_iter();
        let (before, mut drift): (Vec<Drift>, Vec<Drift>) = all.partition(is_reverted);
        drift.retain_mut(|drift| {
            let Drift { key, live, settled, .. } = drift;
            if !keys.contains(key) {
                return true;
            }
            if let Some(why) = restored.left.get(key) {
                self.stuck.insert(key.clone(), (live.clone(), why.clone()));
            } else {
                *settled = DriftSettled::Reverted;
            }
            // A live value that equals the files was being applied when it was polled.
            if restored.same.contains(key) {
                if let Some(value) = self.settings.get_mut(key.as_str()) {
                    value.clone_from(live);
                }
                return false;
            }
            // A value that is reverted repeatedly is listed once.
            !(is_reverted(drift) && before.iter().any(|other| is_same(other, drift)))
        });
        let forgotten = (before.len() + drift.len()).saturating_sub(LIMIT).min(before.len());
        drift.extend(before.into_iter().skip(forgotten));
        found.drift = drift;
        found.stuck.clone_from(&self.stuck);
    }

    /// `settings` is Slurm's first response, which may contain manual changes: the known ones are replaced by the wanted
    /// values, and the line takes precedence.
    fn begin<'a>(
        line: &str,
        mut settings: BTreeMap<&'static str, String>,
        known: impl Iterator<Item = &'a Drift>,
    ) -> Self {
        let known = known.map(|drift| (drift.key.as_str(), drift.wanted.clone()));
        for (key, wanted) in known.chain(numbers_in(line)) {
            if let Some(value) = settings.get_mut(key) {
                *value = wanted;
            }
        }
        Self {
            line: line.to_owned(),
            settings,
            restored_at: None,
            stuck: BTreeMap::new(),
        }
    }
}

/// Returns the keys to revert to the Partition's line.
pub(super) fn plan_restore(observed: &Observed) -> Vec<String> {
    let partition = observed.partition.as_ref();
    let Found { drift, stuck, is_fresh } = &observed.found;
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

pub(super) fn is_reverted(drift: &Drift) -> bool {
    drift.settled == DriftSettled::Reverted
}

fn is_same(one: &Drift, other: &Drift) -> bool {
    one.key == other.key && one.live == other.live
}

/// Since when the manual state is known.
pub(super) fn kept_since(partition: &Partition, state: &str) -> Option<String> {
    let mut drift = partition.status.iter().flat_map(|status| &status.drift);
    let kept = drift.find(|drift| drift.settled == DriftSettled::Kept && drift.live == state)?;
    kept.since.instant().map(|since| format!("{since:.3}"))
}

/// The values of a line that Slurm prints as written apart from the unit.
fn numbers_in(line: &str) -> Vec<(&'static str, String)> {
    let given = settings_in(line);
    let keys = ["MaxTime", "MaxNodes", "PriorityTier", "PriorityJobFactor"].into_iter();
    keys.filter_map(|key| {
        let written = given.get_key_value(&conf::Key::new(key))?;
        let alone = Settings::from([(written.0.clone(), written.1.clone())]);
        let update = plan_partition_update("", &Settings::new(), &alone).ok()?;
        let small = update.priority_tier.or(update.priority_job_factor).map(u32::from);
        let number = match update.max_time.or(update.max_nodes).or(small)? {
            PartitionUpdate::UNLIMITED => Number::Infinite.to_string(),
            number => number.to_string(),
        };
        Some((key, number))
    })
    .collect()
}

/// The line that slurmctld has, and the partition in Slurm's response since then.
fn live(observed: &Observed) -> Option<(&PartitionReport, &PartitionLine, &slurm::Partition, Timestamp)> {
    let report = observed.report.as_ref().filter(|report| report.runs)?;
    let line = report.line.as_ref()?;
    let seen = observed.knowledge.known()?;
    if report.change.as_ref().is_some_and(|change| change.at >= seen.at) {
        return None;
    }
    let listed = seen.partitions.as_ref()?.get(&line.name)?;
    Some((report, line, listed, seen.at))
}
