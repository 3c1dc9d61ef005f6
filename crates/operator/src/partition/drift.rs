//! What people changed in Slurm beside the state: Slurm now says something else than it said after our own last change.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
};

use api::partition::{Drift, DriftSettled};

use super::{line::strictness, observe::Observed};
use crate::runtime::Key;

/// What Slurm said of each Partition when it had just been given its line.
#[derive(Debug, Default)]
pub(super) struct Baselines(Mutex<HashMap<Key, Baseline>>);

#[derive(Debug)]
struct Baseline {
    line: String,
    settings: BTreeMap<&'static str, String>,
}

impl Baselines {
    /// Where Slurm differs from then. What is known already keeps its time.
    pub(super) fn find_drift(&self, key: &Key, observed: &Observed) -> Vec<Drift> {
        let before = observed.partition.status.as_ref();
        let known: Vec<&Drift> = before
            .iter()
            .flat_map(|status| &status.drift)
            .filter(|drift| drift.key != "State")
            .collect();
        let Some((line, now, at)) = settled(observed) else {
            return known.into_iter().cloned().collect();
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let baseline = all.entry(key.clone()).or_insert_with(|| {
            // An operator before this one may have seen it otherwise.
            let same_line = before.is_some_and(|status| status.line.as_deref() == Some(line.as_str()));
            let mut settings = now.clone();
            for drift in known.iter().filter(|_| same_line) {
                if let Some(value) = settings.get_mut(drift.key.as_str()) {
                    value.clone_from(&drift.wanted);
                }
            }
            Baseline {
                line: line.clone(),
                settings,
            }
        });
        if baseline.line != line {
            *baseline = Baseline {
                line,
                settings: now.clone(),
            };
        }
        let reported = |setting: &str, wanted: &str, live: &str| {
            let known = before.iter().flat_map(|status| &status.drift);
            let mut known = known.filter(|drift| drift.settled == DriftSettled::Reported);
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
        let opened = opened(observed).map(|(wanted, live)| reported("State", &wanted, &live));
        opened.into_iter().chain(changed).collect()
    }

    /// It is gone.
    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// The line that slurmctld has, and what Slurm says since then.
fn settled(observed: &Observed) -> Option<(String, BTreeMap<&'static str, String>, jiff::Timestamp)> {
    let standing = observed.standing.as_ref().filter(|standing| standing.runs)?;
    let line = standing.line.as_ref()?;
    let seen = observed.knowledge.known()?;
    if standing.change.as_ref().is_some_and(|change| change.at >= seen.at) {
        return None;
    }
    let shown = seen.partitions.as_ref()?.get(&line.name)?;
    let settings = shown.settings().into_iter().collect();
    Some((format!("PartitionName={}", line.text()), settings, seen.at))
}

/// The state that was written, and that of Slurm, if somebody opened the partition. One that was closed is the Controller's affair.
fn opened(observed: &Observed) -> Option<(String, String)> {
    // Where it was closed by hand before, opening it is as it should be.
    let standing = observed.standing.as_ref().filter(|standing| standing.kept.is_none())?;
    let line = standing.line.as_ref()?;
    let written = &line.state;
    let shown = observed.knowledge.known()?.partitions.as_ref()?.get(&line.name)?;
    let state = shown.state.to_string();
    (state != *written && strictness(&state) <= strictness(written)).then(|| (written.clone(), state))
}
