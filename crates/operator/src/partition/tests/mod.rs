//! Tests of the rules of a Partition, as tables.

mod drift;

use std::{sync::Arc, time::Duration};

use api::{
    ConditionStatus, Controller, Partition, PartitionStatus,
    partition::{PartitionJobs, PartitionNodes},
};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    drift::Found,
    observe::Observed,
    plan::{Effect, assess, is_closing, plan_object},
    status::{build_status, throttle_counts},
};
use crate::{
    cluster::{
        Knowledge, Seen,
        partition_reports::{Change, PartitionReport, PartitionReports, publish},
    },
    finding::Finding,
    partition::rules::{line::PartitionLine, manual_state::ManualState},
    testing::any_spec::any_spec,
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
        unreadable_controller: None,
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
        trouble: Some(Finding::blocking("BadMembers", "spec.nodeSets[0] …")),
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
    // The Controller is blocked, and does not know which lines slurmctld has.
    let blocked = of(Some(PartitionReport {
        may_have_line: true,
        waits: Some("the configuration cannot be built".to_owned()),
        ..PartitionReport::default()
    }));
    assert_eq!((plan_object(&blocked), is_closing(&blocked)), (vec![], true));
    let waits = assess(&blocked).waits.unwrap();
    assert_eq!(waits.reason, "Waiting");
    assert!(waits.message.contains("cannot be built"), "{}", waits.message);
    // No slurmctld can have it.
    let mut orphan = deleted(view(&spec, Some(live(1))));
    orphan.controller = None;
    assert_eq!(plan_object(&orphan), [Effect::RemoveFinalizer]);
    // One may have it that this version of the operator cannot decode.
    orphan.unreadable_controller = Some("cannot be decoded".to_owned());
    assert_eq!(plan_object(&orphan), []);
    let retained = assess(&orphan).retained(&orphan.partition).cloned();
    assert_eq!(retained.unwrap().reason, crate::reason::CONTROLLER_UNREADABLE);
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

#[test]
fn counts_are_written_every_fifteen_seconds_at_most() {
    let (mut counted_at, begin) = (None, tokio::time::Instant::now());
    let at = |second: u64| begin + Duration::from_secs(second);
    let with = |running: i32| PartitionStatus {
        nodes: Some(PartitionNodes::default()),
        jobs: Some(PartitionJobs { running, pending: 0 }),
        ..PartitionStatus::default()
    };
    let mut status = with(1);
    assert_eq!(
        throttle_counts(&mut counted_at, Some(&with(0)), &mut status, at(0)),
        None
    );
    assert_eq!(status, with(1));
    let mut status = with(2);
    assert_eq!(
        throttle_counts(&mut counted_at, Some(&with(1)), &mut status, at(5)),
        Some(Duration::from_secs(10))
    );
    assert_eq!(status, with(1), "throttled");
    let mut status = with(3);
    assert_eq!(
        throttle_counts(&mut counted_at, Some(&with(1)), &mut status, at(15)),
        None
    );
    assert_eq!(status, with(3));
    assert_eq!(
        throttle_counts(&mut counted_at, Some(&with(3)), &mut with(3), at(16)),
        None
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_manifest_makes_a_plan_panic(spec in any_spec("Partition"), is_deleted in any::<bool>()) {
        let view = view(&spec, Some(live(2)));
        let view = if is_deleted { deleted(view) } else { view };
        let assessment = assess(&view);
        plan_object(&view);
        build_status(&view, &assessment, None, now());
    }
}
