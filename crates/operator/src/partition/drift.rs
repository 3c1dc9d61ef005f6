//! What people changed in Slurm beside the state: Slurm now says something else than it said after our own last change.

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
    restore::Settled,
    rules::line::{settings_in, strictness},
};

/// What Slurm said of a Partition when it had just been given its line.
#[derive(Debug)]
pub(super) struct Baseline {
    line: String,
    settings: BTreeMap<&'static str, String>,
    /// When settings were last brought back to the line. What Slurm said before that is old.
    restored_at: Option<Timestamp>,
    /// By key: the value that could not be brought back, and why.
    stuck: BTreeMap<String, (String, String)>,
}

/// What people changed, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// What Slurm has otherwise (`Reported`), and what was brought back since the line is this one (`Reverted`).
    pub(super) drift: Vec<Drift>,
    /// By key: why it cannot be brought back.
    pub(super) stuck: BTreeMap<String, String>,
    /// Slurm was heard since it was last changed by us. Otherwise this is what was known before.
    pub(super) is_fresh: bool,
}

impl Baseline {
    /// Finds where Slurm differs from the baseline, which is made at the first call. A known difference keeps its time.
    pub(super) fn find_drift(baseline: &mut Option<Self>, view: &View) -> Found {
        let before = view.partition.status.as_ref();
        // What was closed is told by the Controller.
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
        let Some((line, now, at)) = settled(view) else {
            return as_before();
        };
        let baseline = baseline.get_or_insert_with(|| {
            // An operator before this one may have seen it otherwise.
            let line = known_line.unwrap_or(&line).to_owned();
            Baseline::begin(line, with_wanted(&now, &known))
        });
        if baseline.restored_at.is_some_and(|restored| restored >= at) {
            return as_before();
        }
        if baseline.line != line {
            // What somebody changed is theirs still where the new line says nothing new of it and slurmctld has not read it.
            let theirs = known.iter().copied().filter(|drift| {
                let is_live = now.get(drift.key.as_str()).is_some_and(|live| *live == drift.live);
                is_live && value_in(&baseline.line, &drift.key) == value_in(&line, &drift.key)
            });
            let theirs: Vec<&Drift> = theirs.collect();
            *baseline = Baseline::begin(line.clone(), with_wanted(&now, &theirs));
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

    /// Notes that settings were sent to slurmctld again. The baseline stays: they may have been changed again by the next poll.
    pub(super) fn note_restored(&mut self, at: Timestamp, settled: &Settled) {
        self.restored_at = Some(at);
        self.stuck.extend(settled.stuck.clone());
        for (key, live) in &settled.same {
            if let Some(value) = self.settings.get_mut(key.as_str()) {
                value.clone_from(live);
            }
        }
    }

    /// `settings` is what Slurm says at the first look. Somebody may have been quicker than that, where the line says better.
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

/// Since when it is known that somebody closed it so.
pub(super) fn kept_since(partition: &Partition, state: &str) -> Option<String> {
    let mut drift = partition.status.iter().flat_map(|status| &status.drift);
    let kept = drift.find(|drift| drift.settled == DriftSettled::Kept && drift.live == state)?;
    kept.since.instant().map(|since| format!("{since:.3}"))
}

/// What Slurm says, but for what it is known that somebody changed.
fn with_wanted(now: &BTreeMap<&'static str, String>, drift: &[&Drift]) -> BTreeMap<&'static str, String> {
    let mut settings = now.clone();
    for drift in drift {
        if let Some(value) = settings.get_mut(drift.key.as_str()) {
            value.clone_from(&drift.wanted);
        }
    }
    settings
}

/// What a line of slurm.conf says for this key.
fn value_in(line: &str, key: &str) -> Option<String> {
    settings_in(line).get(&conf::Key::new(key)).cloned()
}

/// Those values of a line that Slurm shows as they are written but for the unit.
fn numbers_in(line: &str) -> Vec<(&'static str, String)> {
    let number = |number: u32| match number {
        PartitionUpdate::UNLIMITED => Number::Infinite.to_string(),
        number => number.to_string(),
    };
    let given = settings_in(line);
    let said = ["MaxTime", "MaxNodes", "PriorityTier", "PriorityJobFactor"].map(|key| {
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
    said.into_iter().flatten().collect()
}

/// The line that slurmctld has, and what Slurm says since then.
fn settled(view: &View) -> Option<(String, BTreeMap<&'static str, String>, Timestamp)> {
    let report = view.report.as_ref().filter(|report| report.runs)?;
    let line = report.line.as_ref()?;
    let seen = view.knowledge.known()?;
    if report.change.as_ref().is_some_and(|change| change.at >= seen.at) {
        return None;
    }
    let shown = seen.partitions.as_ref()?.get(&line.name)?;
    let settings = shown.settings().into_iter().collect();
    Some((line.whole(), settings, seen.at))
}

/// The state that was written, and that of Slurm, if somebody opened the partition. One that was closed is the Controller's affair.
fn opened(view: &View) -> Option<(String, String)> {
    // Where it was closed by hand before, opening it is as it should be.
    let report = view.report.as_ref().filter(|report| report.manual_state.is_none())?;
    let line = report.line.as_ref()?;
    let written = &line.state;
    let shown = view.knowledge.known()?.partitions.as_ref()?.get(&line.name)?;
    let state = shown.state.to_string();
    let is_known = strictness(&state).is_some();
    (is_known && state != *written && strictness(&state) <= strictness(written)).then(|| (written.clone(), state))
}
