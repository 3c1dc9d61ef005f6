//! Tests of the rules of a Partition, as tables.

use std::sync::Arc;

use api::{ConditionStatus, Controller, Partition, PartitionStatus, partition::Drift};
use jiff::Timestamp;
use serde_json::{Value, json};
use slurm::agent::Restored;

use super::{
    drift::{Baseline, Found, plan_restore},
    observe::Observed,
    plan::{Effect, assess, is_closing, plan_object},
    status::build_status,
};
use crate::{
    cluster::{
        Knowledge, Seen,
        partition_reports::{Change, PartitionReport, PartitionReports, publish},
    },
    fault::Fault,
    partition::rules::{line::PartitionLine, manual_state::ManualState},
};

const NOW: &str = "2026-01-02T00:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn line(generation: i64) -> PartitionLine {
    PartitionLine {
        name: "long".to_owned(),
        nodes: "a,b".to_owned(),
        state: "UP".to_owned(),
        settings: "MaxTime=60".to_owned(),
        generation,
        mark: None,
    }
}

fn view(spec: &Value, report: Option<PartitionReport>) -> Observed {
    let mut spec = spec.clone();
    spec["controllerRef"] = json!({ "name": "slurm" });
    let partition: Partition = serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1alpha1", "kind": "Partition",
        "metadata": {
            "name": "long", "namespace": "hpc", "generation": 2,
            "finalizers": ["partition.slinky.slurm.net/slurm"],
        },
        "spec": spec,
    }))
    .unwrap();
    let controller: Controller = serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
        "metadata": { "name": "slurm", "namespace": "hpc" }, "spec": {},
    }))
    .unwrap();
    Observed {
        partition: Arc::new(partition),
        cluster: crate::runtime::Key::new("hpc", "slurm"),
        controller: Some(Arc::new(controller)),
        is_namespace_deleted: false,
        report,
        knowledge: Knowledge::unknown("not polled"),
        external: None,
        siblings: Vec::new(),
        node_sets: Vec::new(),
        found: Found::default(),
        now: now(),
    }
}

fn live(generation: i64) -> PartitionReport {
    PartitionReport {
        line: Some(line(generation)),
        runs: true,
        ..PartitionReport::default()
    }
}

fn deleted(mut view: Observed) -> Observed {
    let partition = Arc::make_mut(&mut view.partition);
    partition.metadata.deletion_timestamp = Some(serde_json::from_value(NOW.into()).unwrap());
    view
}

fn ready(view: &Observed) -> (ConditionStatus, String) {
    let status = build_status(view, &assess(view), None, now());
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .unwrap();
    (ready.status.clone(), ready.reason.clone())
}

#[test]
fn a_partition_is_ready_once_slurmctld_has_it_as_specified() {
    let spec = json!({ "nodeSets": ["a"] });
    let trouble = PartitionReport {
        trouble: Some(Fault {
            reason: "BadMembers",
            message: "spec.nodeSets[0] …".to_owned(),
        }),
        ..live(1)
    };
    let waits = PartitionReport {
        waits: Some("slurmctld's agent cannot be reached".to_owned()),
        ..live(1)
    };
    let started = PartitionReport { runs: false, ..live(2) };
    let ready = |view: Observed| {
        let knowledge = seen(60, 1, "UP", 0);
        ready(&Observed { knowledge, ..view })
    };
    for (given, status, reason) in [
        (Some(live(2)), ConditionStatus::True, "Ready"),
        (Some(live(1)), ConditionStatus::False, "Applying"),
        (Some(PartitionReport::default()), ConditionStatus::False, "Applying"),
        (Some(started), ConditionStatus::False, "Applying"),
        (Some(waits), ConditionStatus::False, "Waiting"),
        (Some(trouble), ConditionStatus::False, "BadMembers"),
        (None, ConditionStatus::False, "Applying"),
    ] {
        assert_eq!(
            ready(view(&spec, given.clone())),
            (status, reason.to_owned()),
            "{given:?}"
        );
    }
    let mut alone = view(&spec, None);
    alone.controller = None;
    assert_eq!(ready(alone), (ConditionStatus::False, "ControllerMissing".to_owned()));
    let invalid = view(&json!({}), None);
    assert_eq!(ready(invalid), (ConditionStatus::False, "InvalidSpec".to_owned()));
}

#[test]
fn a_partition_is_ready_only_if_a_poll_found_it() {
    let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
    let lists = |names: &[&str], second: i64| {
        let mut seen = Seen::of_nodes(Vec::new(), at(second));
        let listed = |name: &&str| {
            let shown = json!({ "name": name, "partition": { "state": ["UP"] }, "nodes": { "configured": "" } });
            ((*name).to_owned(), serde_json::from_value(shown).unwrap())
        };
        seen.partitions = Some(Arc::new(names.iter().map(listed).collect()));
        Knowledge::Known(seen.into())
    };
    let lists_none = Knowledge::Known(Seen::of_nodes(Vec::new(), at(9)).into());
    let away = Knowledge::unknown("slurmctld does not answer");
    let since = |second: i64| PartitionReport {
        live_since: Some(at(second)),
        ..live(2)
    };
    for (given, knowledge, was_ready, expected) in [
        (since(5), lists(&["other", "long"], 9), false, "True Ready"),
        // Slurm had it before, and the change was read back by the step that made it.
        (since(5), lists(&["long"], 3), false, "True Ready"),
        // Polled since it went live, and not listed.
        (since(5), lists(&["other"], 9), false, "False NotInSlurm"),
        (since(5), lists(&["other"], 9), true, "False NotInSlurm"),
        (since(5), lists(&[], 9), true, "False NotInSlurm"),
        // The poll is older, or it is not known since when it is live.
        (since(5), lists(&["other"], 3), false, "False Applying"),
        (since(5), lists(&["other"], 3), true, "False Applying"),
        (live(2), lists(&["other"], 9), false, "False Applying"),
        // Without a poll: the last result counts, and a partition that was never found is not ready.
        (since(5), away.clone(), false, "False Waiting"),
        (since(5), away.clone(), true, "True Ready"),
        (since(5), lists_none.clone(), false, "False Waiting"),
        (since(5), lists_none, true, "True Ready"),
    ] {
        let mut view = self::view(&json!({ "nodeSets": ["a"] }), Some(given));
        view.knowledge = knowledge.clone();
        if was_ready {
            let ready = json!({ "conditions": [{
                "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": NOW,
            }] });
            Arc::make_mut(&mut view.partition).status = Some(serde_json::from_value(ready).unwrap());
        }
        let (status, reason) = ready(&view);
        assert_eq!(
            format!("{} {reason}", status.as_str()),
            expected,
            "{was_ready} {knowledge:?}"
        );
        assert_eq!(
            assess(&view).needs_poll,
            ["Applying", "Waiting"].contains(&reason.as_str()),
            "{was_ready} {knowledge:?}"
        );
    }
    let mut missing = view(&json!({ "nodeSets": ["a"] }), Some(since(5)));
    missing.knowledge = lists(&["other"], 9);
    let message = assess(&missing).faults.remove(0).message;
    assert!(
        message.contains("\"long\"") && message.contains("scontrol reconfigure"),
        "{message}"
    );
}

#[test]
fn the_time_a_line_went_live_is_kept_when_other_lines_change() {
    let reports = std::cell::RefCell::new(PartitionReports::default());
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let report = |given: PartitionReport| PartitionReports::from([("long".to_owned(), given)]);
    let since = |generation, second| PartitionReport {
        live_since: Some(at(second)),
        ..live(generation)
    };
    let known = || reports.borrow().get("long").unwrap().live_since;
    assert_eq!(publish(&mut reports.borrow_mut(), report(since(2, 5))).len(), 1);
    let woken = publish(&mut reports.borrow_mut(), report(since(2, 8)));
    assert_eq!(woken.len(), 0, "nothing is woken");
    assert_eq!(known(), Some(at(5)));
    publish(&mut reports.borrow_mut(), report(since(3, 9)));
    assert_eq!(known(), Some(at(9)), "another line");
    let stopped = PartitionReport { runs: false, ..live(3) };
    publish(&mut reports.borrow_mut(), report(stopped));
    publish(&mut reports.borrow_mut(), report(since(3, 12)));
    assert_eq!(known(), Some(at(12)), "slurmctld restarted");
}

#[test]
fn the_finalizer_is_added_to_a_new_object_and_removed_with_the_line() {
    let spec = json!({ "nodeSets": ["a"] });
    let mut new = view(&spec, None);
    Arc::make_mut(&mut new.partition).metadata.finalizers = None;
    assert_eq!(plan_object(&new), [Effect::AddFinalizer]);

    let of = |report: Option<PartitionReport>| deleted(view(&spec, report));
    assert_eq!(
        plan_object(&of(Some(PartitionReport::default()))),
        [Effect::RemoveFinalizer]
    );
    // There is no report yet, or slurmctld still has it.
    assert_eq!(plan_object(&of(None)), []);
    let waits = of(Some(live(1)));
    assert_eq!((plan_object(&waits), is_closing(&waits)), (vec![], true));
    assert!(assess(&waits).retained(&waits.partition).is_some());
    // No slurmctld can have it.
    let mut orphan = deleted(view(&spec, Some(live(1))));
    orphan.controller = None;
    assert_eq!(plan_object(&orphan), [Effect::RemoveFinalizer]);
    let mut ending = deleted(view(&spec, Some(live(1))));
    ending.is_namespace_deleted = true;
    assert_eq!(plan_object(&ending), [Effect::RemoveFinalizer]);
}

#[test]
fn jobs_are_cancelled_only_by_policy_and_once_the_partition_is_closed() {
    let job = |id: u64, state: &str, partition: &str| json!({ "job_id": id, "job_state": [state], "partition": partition, "nodes": "" });
    let mut seen = Seen::of_nodes(Vec::new(), now());
    seen.jobs = Some(
        serde_json::from_value(json!([
            job(1, "RUNNING", "long"),
            job(2, "PENDING", "long"),
            job(3, "PENDING", "long,other"),
            job(4, "RUNNING", "other"),
            job(5, "COMPLETED", "long"),
        ]))
        .unwrap(),
    );
    let knowledge = Knowledge::Known(seen.into());
    for (policy, state, expected) in [
        ("Wait", "DRAIN", None),
        ("Cancel", "UP", None),
        ("Cancel", "DRAIN", Some(vec!["1", "2"])),
    ] {
        let given = PartitionReport {
            line: Some(line(1).with_state(state)),
            ..live(1)
        };
        let mut leaving = deleted(view(
            &json!({ "nodeSets": ["a"], "deletionPolicy": policy }),
            Some(given),
        ));
        leaving.knowledge = knowledge.clone();
        let cancelled = plan_object(&leaving).into_iter().find_map(|effect| match effect {
            Effect::CancelJobs(jobs) => Some(jobs.iter().map(|job| job.as_str().to_owned()).collect::<Vec<_>>()),
            _ => None,
        });
        let expected = expected.map(|jobs| jobs.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(cancelled, expected, "{policy} {state}");
    }
}

#[test]
fn the_change_that_delivered_a_line_is_reported_until_the_line_changes() {
    let spec = json!({ "nodeSets": ["a"] });
    let change = |sequence| Change {
        sequence: Some(sequence),
        at: now(),
        way: None,
        milliseconds: 7,
    };
    let with_change = |sequence, generation| PartitionReport {
        change: Some(change(sequence)),
        ..live(generation)
    };
    let mut first = view(&spec, Some(with_change(3, 2)));
    let status = build_status(&first, &assess(&first), None, now());
    let applied = status.applied.clone().unwrap();
    assert_eq!((applied.generation, applied.sequence), (2, Some(3)));
    assert_eq!(
        status.line.as_deref(),
        Some("PartitionName=long Nodes=a,b State=UP MaxTime=60")
    );
    Arc::make_mut(&mut first.partition).status = Some(status);
    first.report = Some(with_change(4, 5));
    let same = build_status(&first, &assess(&first), None, now()).applied.unwrap();
    assert_eq!((same.generation, same.sequence), (5, Some(3)), "the line is the same");

    // The reports keep it when other partitions change.
    let reports = std::cell::RefCell::new(PartitionReports::default());
    let all = |sequence| PartitionReports::from([("long".to_owned(), with_change(sequence, 2))]);
    assert_eq!(publish(&mut reports.borrow_mut(), all(3)).len(), 1);
    assert_eq!(publish(&mut reports.borrow_mut(), all(4)).len(), 0);
    assert_eq!(reports.borrow().get("long").unwrap().change.clone(), Some(change(3)));
}

#[test]
fn the_status_shows_the_live_state_and_a_manual_state() {
    let node = |name: &str, state: &str| json!({ "name": name, "state": [state], "partitions": ["long"], "cpus": 4 });
    let nodes = serde_json::from_value(json!([node("a-0", "IDLE"), node("b-0", "DOWN")])).unwrap();
    let mut seen = Seen::of_nodes(nodes, now());
    let listed = json!({ "name": "long", "partition": { "state": ["DRAIN"] }, "nodes": { "configured": "a-0,b-0" } });
    seen.partitions = Some(Arc::new(
        [("long".to_owned(), serde_json::from_value(listed).unwrap())].into(),
    ));
    seen.job_summary = Some(Arc::default());
    let closed = PartitionReport {
        manual_state: Some(ManualState {
            state: "DRAIN".to_owned(),
            wanted: "UP".to_owned(),
            since: NOW.to_owned(),
        }),
        ..live(2)
    };
    let mut view = self::view(&json!({ "nodeSets": ["a"] }), Some(closed));
    view.knowledge = Knowledge::Known(seen.into());
    let status: PartitionStatus = build_status(&view, &assess(&view), None, now());
    assert_eq!(status.state.as_deref(), Some("DRAIN"));
    let nodes = status.nodes.clone().unwrap();
    assert_eq!((nodes.total, nodes.idle, nodes.down), (2, 1, 1));
    assert_eq!(status.jobs.clone().unwrap().running, 0);
    assert_eq!(status.drift.len(), 1);
    assert!(status.conditions.iter().any(|condition| condition.type_ == "Drifted"));
}

fn seen(minutes: u64, tier: u64, state: &str, second: i64) -> Knowledge {
    let mut seen = Seen::of_nodes(Vec::new(), Timestamp::from_second(1_800_000_000 + second).unwrap());
    let listed = json!({
        "name": "long", "partition": { "state": [state] }, "nodes": { "configured": "" },
        "maximums": { "time": { "set": true, "infinite": false, "number": minutes } },
        "priority": { "tier": tier },
    });
    seen.partitions = Some(Arc::new(
        [("long".to_owned(), serde_json::from_value(listed).unwrap())].into(),
    ));
    Knowledge::Known(seen.into())
}

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
