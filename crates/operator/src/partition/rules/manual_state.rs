//! Manual states: partitions that a person closed in Slurm. A partition that was closed in an emergency stays closed,
//! whatever the files said; the state is written into the files, so that it also survives a restart of slurmctld.
//!
//! A manual state is lifted by `scontrol update … State=UP`, by another state in the source of the partition, or by the
//! annotation [`annotations::RESUMED_AT`] on a Partition.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

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

/// The manual states, and what was learnt on the way.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundStates {
    pub(crate) states: ManualStates,
    /// Partitions whose manual state, known before, was lifted in Kubernetes.
    pub(crate) lifted: BTreeSet<String>,
    /// Slurm has other states than written, but was polled before they were written.
    pub(crate) is_unsure: bool,
}

/// Finds the manual states among the partitions that Slurm listed at a time (`live`). `is_fresh`: slurmctld ran with
/// `written` at that time; `None` if what it ran with is not known, so that each state may be manual. `before` are the states known
/// before, `wanted` is the slurm.conf that slurmctld should have.
pub(crate) fn find_manual_states(
    objects: &[Arc<Partition>],
    live: Option<(&BTreeMap<String, slurm::Partition>, Timestamp)>,
    is_fresh: bool,
    written: Option<&Document>,
    before: &ManualStates,
    wanted: impl FnOnce() -> Document,
) -> FoundStates {
    let written: Option<BTreeMap<&str, String>> = written.map(states);
    let is_changed = |(name, live): &(&str, String)| match &written {
        Some(written) => written.get(name).is_some_and(|written| written != live),
        None => is_fresh,
    };
    let listed = live.into_iter().flat_map(|(partitions, _)| partitions);
    let mut changed: BTreeMap<&str, String> = listed
        .filter(|(_, live)| matches!(live.state, PartitionState::Known(_)))
        .map(|(name, live)| (name.as_str(), live.state.to_string()))
        .filter(is_changed)
        .collect();
    let mut found = FoundStates::default();
    // This is the usual case; the wanted slurm.conf is then not needed.
    if changed.is_empty() && before.is_empty() {
        return found;
    }
    let wanted = wanted();
    // The first object of each name.
    let objects = objects.iter().rev();
    let objects: BTreeMap<String, &Partition> = objects
        .map(|partition| (partition.slurm_name(), partition.as_ref()))
        .collect();
    for (name, wanted) in states(&wanted) {
        let object = objects.get(name).copied();
        let prior = before.get(name).filter(|prior| {
            let is_lifted = prior.is_lifted(&wanted, object);
            found.lifted.extend(is_lifted.then(|| name.to_owned()));
            !is_lifted
        });
        let state = match changed.remove(name) {
            Some(state) if is_fresh => {
                let is_stricter = strictness(&state) > strictness(&wanted);
                let since = live.map(|(_, at)| format!("{at:.3}")).unwrap_or_default();
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
        found.states.extend(state.map(|state| (name.to_owned(), state)));
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SINCE: &str = "2026-01-02T00:00:00.000Z";

    fn drained() -> ManualState {
        ManualState {
            state: "DRAIN".to_owned(),
            wanted: "UP".to_owned(),
            since: SINCE.to_owned(),
        }
    }

    #[test]
    fn a_manual_state_is_lifted_by_another_wanted_state_a_resume_or_the_policy() {
        let partition = |spec: serde_json::Value, resumed_at: &str| -> Partition {
            let mut spec = spec;
            spec["controllerRef"] = json!({ "name": "slurm" });
            let mut partition = Partition::new("a", serde_json::from_value(spec).unwrap());
            partition
                .annotations_mut()
                .insert(annotations::RESUMED_AT.to_owned(), resumed_at.to_owned());
            partition
        };
        for (wanted, spec, resumed_at, is_lifted) in [
            ("UP", json!({}), "", false),
            ("UP", json!({}), "2026-01-01T00:00:00Z", false),
            ("UP", json!({}), "2026-01-03T00:00:00Z", true),
            ("DOWN", json!({}), "", true),
            ("UP", json!({ "driftPolicy": "RevertAll" }), "", true),
            ("UP", json!({ "driftPolicy": "Revert" }), "", false),
        ] {
            let object = partition(spec.clone(), resumed_at);
            assert_eq!(
                drained().is_lifted(wanted, Some(&object)),
                is_lifted,
                "{wanted} {spec} {resumed_at}"
            );
        }
        assert!(!drained().is_lifted("UP", None));
    }

    #[test]
    fn a_stricter_state_than_wanted_is_kept_until_a_person_opens_the_partition() {
        let wanted = "PartitionName=a\nPartitionName=b State=DRAIN\n";
        let written = "PartitionName=a State=DRAIN\nPartitionName=b State=DRAIN\n";
        let known = ManualStates::from([("a".to_owned(), drained())]);
        let none = ManualStates::new();
        for (states, is_fresh, written, before, expected) in [
            (["UP", "DRAIN"], true, wanted, &none, (&none, false)),
            (["DRAIN", "DRAIN"], true, wanted, &none, (&known, false)),
            // Read before the states were written.
            (["DRAIN", "DRAIN"], false, wanted, &none, (&none, true)),
            // Opening a partition that should be closed is no manual state.
            (["UP", "UP"], true, wanted, &none, (&none, false)),
            (["DRAIN", "DRAIN"], true, written, &known, (&known, false)),
            (["UP", "DRAIN"], true, written, &known, (&none, false)),
            (["UP", "DRAIN"], false, written, &known, (&known, true)),
            // What slurmctld ran with is not known.
            (["DRAIN", "DRAIN"], true, "", &none, (&known, false)),
            (["UP", "DRAIN"], true, "", &known, (&none, false)),
            (["DRAIN", "DRAIN"], false, "", &none, (&none, false)),
        ] {
            let live = ["a", "b"].into_iter().zip(states).map(|(name, state)| {
                let shown = json!({ "name": name, "partition": { "state": [state] }, "nodes": { "configured": "" } });
                (name.to_owned(), serde_json::from_value(shown).unwrap())
            });
            let live = live.collect();
            let live = Some((&live, SINCE.parse().unwrap()));
            let document = (!written.is_empty()).then(|| Document::parse(written));
            let found = find_manual_states(&[], live, is_fresh, document.as_ref(), before, || {
                Document::parse(wanted)
            });
            let found = (&found.states, found.is_unsure);
            assert_eq!(found, expected, "{states:?} {is_fresh} {written}");
        }
    }

    #[test]
    fn a_state_is_written_into_the_line_of_its_partition() {
        let known = ManualStates::from([("a".to_owned(), drained()), ("gone".to_owned(), drained())]);
        let conf = "PartitionName=a Nodes=x State=UP\nPartitionName=b Nodes=y\n";
        let expected = conf.replace("State=UP", "State=DRAIN");
        assert_eq!(write_states(conf, &known), expected);
    }
}
