//! Manual changes in Slurm, as one poll after the other finds them.

use std::sync::Arc;

use api::{PartitionStatus, partition::Drift};
use jiff::Timestamp;
use serde_json::{Value, json};
use slurm::agent::Restored;

use super::{deleted, live, now, seen, view};
use crate::{
    cluster::{Knowledge, partition_reports::PartitionReport},
    partition::{
        drift::{Baseline, plan_restore},
        observe::Observed,
        plan::assess,
        status::build_status,
    },
};

/// A Partition whose Slurm is polled repeatedly, with its memory.
struct Watched {
    view: Observed,
    baseline: Option<Baseline>,
    restored_at: i64,
    /// Keys whose live value is also the value in slurmctld's files.
    same: Vec<String>,
}

impl Watched {
    fn new(spec: &Value, given: PartitionReport) -> Self {
        Self {
            view: view(spec, Some(given)),
            baseline: None,
            restored_at: 0,
            same: Vec::new(),
        }
    }

    /// Returns the reverted keys; slurmctld rejects those in `left`.
    fn poll(&mut self, knowledge: Knowledge, left: &[&str]) -> Vec<String> {
        if let Some(seen) = knowledge.known() {
            self.restored_at = seen.at.as_second() + 1;
        }
        self.view.knowledge = knowledge;
        self.view.found = Baseline::find_drift(&mut self.baseline, &self.view);
        let keys = plan_restore(&self.view);
        if !keys.is_empty() {
            let left = left.iter().map(|key| ((*key).to_owned(), "Slurm refused".to_owned()));
            let restored = Restored {
                left: left.collect(),
                same: self.same.clone(),
            };
            let at = Timestamp::from_second(self.restored_at).unwrap();
            let baseline = self.baseline.as_mut().unwrap();
            baseline.note_restored(&mut self.view.found, &keys, &restored, at);
        }
        let status = self.status();
        Arc::make_mut(&mut self.view.partition).status = Some(status);
        keys
    }

    fn status(&self) -> PartitionStatus {
        build_status(&self.view, &assess(&self.view), None, now())
    }

    /// Key, wanted value, live value and whether it was reverted.
    fn drift(&self) -> Vec<String> {
        let status = self.view.partition.status.as_ref();
        let drift = status.iter().flat_map(|status| &status.drift);
        drift
            .map(|drift| {
                let Drift {
                    key,
                    wanted,
                    live,
                    settled,
                    ..
                } = drift;
                format!("{key} {wanted}->{live} {}", settled.as_str())
            })
            .collect()
    }

    fn drifted(&self) -> Option<String> {
        let drifted = self.status().conditions.into_iter();
        drifted
            .filter(|condition| condition.type_ == "Drifted")
            .map(|condition| condition.message)
            .next()
    }
}

const NONE: &[&str] = &[];

#[test]
fn a_value_that_differs_from_the_operators_last_change_is_reported() {
    let mut watched = Watched::new(&json!({ "nodeSets": ["a"], "driftPolicy": "Report" }), live(2));
    assert_eq!(watched.poll(seen(60, 1, "UP", 0), NONE), NONE);
    assert_eq!(watched.drift(), NONE);
    assert_eq!(watched.poll(seen(5, 1, "UP", 10), NONE), NONE, "reported only");
    assert_eq!(watched.drift(), ["MaxTime 60->5 Reported"]);
    assert!(watched.drifted().unwrap().contains("MaxTime=5"));
    // Another leader knows it from the status.
    watched.baseline = None;
    watched.poll(seen(5, 1, "UP", 20), NONE);
    assert_eq!(watched.drift(), ["MaxTime 60->5 Reported"]);
    // It stays reported when another key of the line changes.
    let of_line = |settings: &str| {
        let mut changed = live(3);
        changed.line.as_mut().unwrap().settings = settings.to_owned();
        Some(changed)
    };
    watched.view.report = of_line("MaxTime=60 PriorityTier=2");
    watched.poll(seen(5, 2, "UP", 30), NONE);
    assert_eq!(watched.drift(), ["MaxTime 60->5 Reported"]);
    // With the same value in the line it is no longer drift.
    watched.view.report = of_line("MaxTime=5 PriorityTier=2");
    watched.poll(seen(5, 2, "UP", 40), NONE);
    assert_eq!(watched.drift(), NONE);
}

#[test]
fn a_manual_change_is_reverted_once_per_value() {
    let mut watched = Watched::new(&json!({ "nodeSets": ["a"] }), live(2));
    watched.poll(seen(60, 1, "UP", 0), NONE);
    assert_eq!(watched.poll(seen(5, 1, "UP", 10), NONE), ["MaxTime"]);
    assert_eq!(watched.drift(), ["MaxTime 60->5 Reverted"]);
    assert_eq!(watched.drifted(), None, "nothing differs any more");
    // A response from before the revert decides nothing.
    assert_eq!(watched.poll(seen(5, 1, "UP", 10), NONE), NONE);
    assert_eq!(watched.drift(), ["MaxTime 60->5 Reverted"]);
    // Another value before the next poll does not change the baseline.
    assert_eq!(watched.poll(seen(7, 1, "UP", 20), NONE), ["MaxTime"]);
    assert_eq!(watched.drift(), ["MaxTime 60->7 Reverted", "MaxTime 60->5 Reverted"]);
    // Nor for a later leader.
    watched.baseline = None;
    assert_eq!(watched.poll(seen(8, 1, "UP", 30), NONE), ["MaxTime"]);
    // A value that is set again is intended.
    assert_eq!(watched.poll(seen(5, 1, "UP", 40), NONE), NONE);
    assert_eq!(watched.drift()[0], "MaxTime 60->5 Reported");
    assert!(watched.drifted().unwrap().contains("reverted once, and set again"));
    assert_eq!(watched.poll(seen(60, 1, "UP", 50), NONE), NONE);
    assert_eq!((watched.drift().len(), watched.drifted()), (3, None));
    // A new line starts over.
    let mut changed = live(3);
    changed.line.as_mut().unwrap().settings = "MaxTime=90".to_owned();
    watched.view.report = Some(changed);
    assert_eq!(watched.poll(Knowledge::unknown("not reachable"), NONE), NONE);
    assert_eq!(watched.drift(), NONE);
    assert_eq!(watched.poll(seen(90, 1, "UP", 60), NONE), NONE);
    assert_eq!(watched.drift(), NONE);
    assert_eq!(watched.poll(seen(5, 1, "UP", 70), NONE), ["MaxTime"]);
}

#[test]
fn a_manual_change_before_the_first_poll_is_not_taken_as_the_baseline() {
    let mut watched = Watched::new(&json!({ "nodeSets": ["a"] }), live(2));
    assert_eq!(watched.poll(seen(5, 1, "UP", 0), NONE), ["MaxTime"]);
    assert_eq!(watched.drift(), ["MaxTime 60->5 Reverted"]);
    // Values in other notations of Slurm.
    for (settings, shown) in [
        ("MaxTime=1:30:00", 90),
        ("MaxTime=1-0", 1440),
        ("", 5),
        ("MaxTime=5k", 5),
    ] {
        let mut given = live(2);
        given.line.as_mut().unwrap().settings = settings.to_owned();
        let mut watched = Watched::new(&json!({ "nodeSets": ["a"] }), given);
        assert_eq!(watched.poll(seen(shown, 1, "UP", 0), NONE), NONE, "{settings}");
    }
}

#[test]
fn a_value_that_is_being_applied_from_the_files_is_no_manual_change() {
    let mut watched = Watched::new(&json!({ "nodeSets": ["a"] }), live(2));
    watched.poll(seen(60, 1, "UP", 0), NONE);
    // A push that is newer than this poll.
    watched.same = vec!["MaxTime".to_owned()];
    assert_eq!(watched.poll(seen(90, 1, "UP", 10), NONE), ["MaxTime"]);
    assert_eq!((watched.drift(), watched.drifted()), (Vec::new(), None));
    assert_eq!(watched.poll(seen(90, 1, "UP", 20), NONE), NONE, "the new baseline");
}

#[test]
fn the_drift_policy_decides_what_is_reverted() {
    for (policy, again) in [("Report", 0), ("Revert", 1), ("RevertAll", 3)] {
        let mut watched = Watched::new(&json!({ "nodeSets": ["a"], "driftPolicy": policy }), live(2));
        let polls = [60, 5, 60, 5, 60, 5].into_iter().zip(0_i64..);
        let restored: Vec<String> = polls
            .flat_map(|(minutes, poll)| watched.poll(seen(minutes, 1, "UP", 10 * poll), NONE))
            .collect();
        assert_eq!(restored.len(), again, "{policy}");
    }
    // A Partition that is being deleted is not reverted.
    let mut leaving = Watched::new(&json!({ "nodeSets": ["a"] }), live(2));
    leaving.poll(seen(60, 1, "UP", 0), NONE);
    leaving.view = deleted(leaving.view);
    assert_eq!(leaving.poll(seen(5, 1, "UP", 10), NONE), NONE);
}

#[test]
fn values_that_change_forever_are_no_longer_reverted() {
    let mut watched = Watched::new(&json!({ "nodeSets": ["a"] }), live(2));
    watched.poll(seen(60, 1, "UP", 0), NONE);
    let restored = (1..40_u32).filter(|poll| {
        let keys = watched.poll(seen(100 + u64::from(*poll), 1, "UP", 10 * i64::from(*poll)), NONE);
        !keys.is_empty()
    });
    assert_eq!(restored.count(), 16);
    assert_eq!(watched.drift().len(), 17);
}

#[test]
fn a_revert_that_slurmctld_rejects_is_reported_and_not_retried() {
    let mut watched = Watched::new(&json!({ "nodeSets": ["a"] }), live(2));
    watched.poll(seen(60, 1, "UP", 0), NONE);
    assert_eq!(
        watched.poll(seen(5, 9, "UP", 10), &["MaxTime"]),
        ["MaxTime", "PriorityTier"]
    );
    assert_eq!(
        watched.drift(),
        ["MaxTime 60->5 Reported", "PriorityTier 1->9 Reverted"]
    );
    assert!(watched.drifted().unwrap().contains("Slurm refused"));
    assert_eq!(watched.poll(seen(5, 1, "UP", 20), NONE), NONE);
    assert!(watched.drifted().unwrap().contains("Slurm refused"));
    assert_eq!(
        watched.poll(seen(6, 1, "UP", 30), NONE),
        ["MaxTime"],
        "another value is reverted"
    );
}

#[test]
fn a_manually_opened_partition_is_closed_again_and_a_manually_closed_one_is_kept() {
    for (written, live_state, reverted) in [
        ("DRAIN", "UP", true),
        ("INACTIVE", "DOWN", true),
        // Neither is stricter than the other.
        ("DRAIN", "DOWN", false),
        // Handled by the Controller.
        ("UP", "DRAIN", false),
        ("DRAIN", "INACTIVE", false),
    ] {
        let mut given = live(2);
        given.line = given.line.map(|line| line.with_state(written));
        let mut watched = Watched::new(&json!({ "nodeSets": ["a"] }), given);
        watched.poll(seen(60, 1, written, 0), NONE);
        let keys = watched.poll(seen(60, 1, live_state, 10), NONE);
        assert_eq!(keys == ["State"], reverted, "{written} {live_state}: {keys:?}");
    }
}
