//! Finds manual changes other than the state: values that differ from those after the operator's last change.

use std::collections::BTreeMap;

use api::{
    Partition,
    partition::{Drift, DriftSettled},
};
use jiff::Timestamp;
use slurm::{
    Number,
    conf::{self, Settings},
    rpc::{PartitionUpdate, plan_partition_update},
};

use super::{
    plan::View,
    restore::RestoreOutcome,
    rules::line::{settings_in, strictness},
};

/// Slurm's values of a Partition just after it had received its line.
#[derive(Debug)]
pub(super) struct Baseline {
    line: String,
    settings: BTreeMap<&'static str, String>,
    /// When settings were last reverted to the line. An earlier response of Slurm is stale.
    restored_at: Option<Timestamp>,
    /// By key: the value that could not be reverted, and why.
    stuck: BTreeMap<String, (String, String)>,
}

/// The known manual changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Values that differ in Slurm (`Reported`), and values reverted since the line became this one (`Reverted`).
    pub(super) drift: Vec<Drift>,
    /// By key: why it cannot be reverted.
    pub(super) stuck: BTreeMap<String, String>,
    /// Whether Slurm was polled after the operator's last change. Otherwise this is the former result.
    pub(super) is_fresh: bool,
}

impl Baseline {
    /// Finds where Slurm differs from the baseline, which the first call creates. A known difference keeps its time.
    pub(super) fn find_drift(baseline: &mut Option<Self>, view: &View) -> Found {
        let before = view.partition.status.as_ref();
        // The Controller reports manual states.
        let known = before.iter().flat_map(|status| &status.drift);
        let known_line = before.and_then(|status| status.line.as_deref());
        let report = view.report.as_ref();
        let is_same_line = report
            .and_then(|report| report.line.as_ref())
            .is_none_or(|line| known_line == Some(line.whole().as_str()));
        let known: Vec<&Drift> = known
            .filter(|drift| drift.settled != DriftSettled::Kept)
            .filter(|drift| is_same_line || drift.settled != DriftSettled::Reverted)
            .collect();
        let as_before = || Found {
            drift: known.iter().map(|drift| (*drift).clone()).collect(),
            ..Found::default()
        };
        let Some((line, now, at)) = live_settings(view) else {
            return as_before();
        };
        let baseline = baseline.get_or_insert_with(|| {
            // An earlier leader may have seen other values.
            let line = known_line.unwrap_or(&line).to_owned();
            Baseline::begin(line, with_wanted(&now, &known))
        });
        if baseline.restored_at.is_some_and(|restored| restored >= at) {
            return as_before();
        }
        if baseline.line != line {
            // A manual change is kept if the new line does not change its key and slurmctld has not read the line.
            let manual = known.iter().copied().filter(|drift| {
                let is_live = now.get(drift.key.as_str()).is_some_and(|live| *live == drift.live);
                is_live && value_in(&baseline.line, &drift.key) == value_in(&line, &drift.key)
            });
            let manual: Vec<&Drift> = manual.collect();
            *baseline = Baseline::begin(line.clone(), with_wanted(&now, &manual));
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
        let opened = opened(view).map(|(wanted, live)| reported("State", &wanted, &live));
        let differs: Vec<Drift> = opened.into_iter().chain(changed).collect();
        let is_stuck = |key: &str, live: &str| differs.iter().any(|drift| drift.key == key && drift.live == live);
        baseline.stuck.retain(|key, (live, _)| is_stuck(key, live));
        let stuck = baseline.stuck.iter();
        let stuck = stuck.map(|(key, (_, why))| (key.clone(), why.clone())).collect();
        let reverted = known.iter().filter(|drift| drift.settled == DriftSettled::Reverted);
        Found {
            drift: differs
                .into_iter()
                .chain(reverted.map(|drift| (*drift).clone()))
                .collect(),
            stuck,
            is_fresh: true,
        }
    }

    /// Records that settings were sent again. The baseline is kept: they may change again before the next poll.
    pub(super) fn note_restored(&mut self, at: Timestamp, outcome: &RestoreOutcome) {
        self.restored_at = Some(at);
        self.stuck.extend(outcome.stuck.clone());
        for (key, live) in &outcome.same {
            if let Some(value) = self.settings.get_mut(key.as_str()) {
                value.clone_from(live);
            }
        }
    }

    /// `settings` is Slurm's first response, which may contain a manual change: the line takes precedence.
    fn begin(line: String, mut settings: BTreeMap<&'static str, String>) -> Self {
        for (key, written) in numbers_in(&line) {
            if let Some(value) = settings.get_mut(key) {
                *value = written;
            }
        }
        Self {
            line,
            settings,
            restored_at: None,
            stuck: BTreeMap::new(),
        }
    }
}

/// Since when the manual state is known.
pub(super) fn kept_since(partition: &Partition, state: &str) -> Option<String> {
    let mut drift = partition.status.iter().flat_map(|status| &status.drift);
    let kept = drift.find(|drift| drift.settled == DriftSettled::Kept && drift.live == state)?;
    kept.since.instant().map(|since| format!("{since:.3}"))
}

/// Slurm's values, with known manual changes replaced by the wanted values.
fn with_wanted(now: &BTreeMap<&'static str, String>, drift: &[&Drift]) -> BTreeMap<&'static str, String> {
    let mut settings = now.clone();
    for drift in drift {
        if let Some(value) = settings.get_mut(drift.key.as_str()) {
            value.clone_from(&drift.wanted);
        }
    }
    settings
}

/// The value of this key in a line of slurm.conf.
fn value_in(line: &str, key: &str) -> Option<String> {
    settings_in(line).get(&conf::Key::new(key)).cloned()
}

/// The values of a line that Slurm prints as written apart from the unit.
fn numbers_in(line: &str) -> Vec<(&'static str, String)> {
    let number = |number: u32| match number {
        PartitionUpdate::UNLIMITED => Number::Infinite.to_string(),
        number => number.to_string(),
    };
    let given = settings_in(line);
    let values = ["MaxTime", "MaxNodes", "PriorityTier", "PriorityJobFactor"].map(|key| {
        let alone = Settings::from_iter(
            given
                .get_key_value(&conf::Key::new(key))
                .map(|(key, value)| (key.clone(), value.clone())),
        );
        let update = plan_partition_update("", &Settings::new(), &alone).ok()?;
        let small = update.priority_tier.or(update.priority_job_factor).map(u32::from);
        let value = update.max_time.or(update.max_nodes).or(small)?;
        Some((key, number(value)))
    });
    values.into_iter().flatten().collect()
}

/// The line slurmctld has, and Slurm's values since then.
fn live_settings(view: &View) -> Option<(String, BTreeMap<&'static str, String>, Timestamp)> {
    let report = view.report.as_ref().filter(|report| report.runs)?;
    let line = report.line.as_ref()?;
    let seen = view.knowledge.known()?;
    if report.change.as_ref().is_some_and(|change| change.at >= seen.at) {
        return None;
    }
    let listed = seen.partitions.as_ref()?.get(&line.name)?;
    let settings = listed.settings().into_iter().collect();
    Some((line.whole(), settings, seen.at))
}

/// The written and the live state of a manually opened partition. The Controller handles closed ones.
fn opened(view: &View) -> Option<(String, String)> {
    // If it was closed manually before, opening it lifts the manual state.
    let report = view.report.as_ref().filter(|report| report.manual_state.is_none())?;
    let line = report.line.as_ref()?;
    let written = &line.state;
    let listed = view.knowledge.known()?.partitions.as_ref()?.get(&line.name)?;
    let state = listed.state.to_string();
    let is_known = strictness(&state).is_some();
    (is_known && state != *written && strictness(&state) <= strictness(written)).then(|| (written.clone(), state))
}
