//! The rules of a Partition, as tables.

use std::sync::Arc;

use api::{ConditionStatus, Controller, Partition, PartitionStatus};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    board::{Board, Change, Standing, Standings},
    line::Line,
    observe::Observed,
    plan::{Effect, plan},
    status::build_status,
};
use crate::{
    access::{Knowledge, Seen},
    controller::Kept,
    fault::Fault,
    runtime::Key,
};

const NOW: &str = "2026-01-02T00:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn line(generation: i64) -> Line {
    Line {
        name: "long".to_owned(),
        nodes: "a,b".to_owned(),
        state: "UP".to_owned(),
        settings: "MaxTime=60".to_owned(),
        generation,
        mark: None,
    }
}

fn observed(spec: &Value, standing: Option<Standing>) -> Observed {
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
        controller: Some(Arc::new(controller)),
        namespace_goes: false,
        standing,
        knowledge: Knowledge::unknown("nobody was asked"),
        drift: Vec::new(),
    }
}

fn live(generation: i64) -> Standing {
    Standing {
        line: Some(line(generation)),
        runs: true,
        ..Standing::default()
    }
}

fn deleted(mut observed: Observed) -> Observed {
    let partition = Arc::make_mut(&mut observed.partition);
    partition.metadata.deletion_timestamp = Some(serde_json::from_value(NOW.into()).unwrap());
    observed
}

fn ready(observed: &Observed) -> (ConditionStatus, String) {
    let status = build_status(observed, &plan(observed), None, now());
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .unwrap();
    (ready.status.clone(), ready.reason.clone())
}

#[test]
fn ready_is_what_slurmctld_has_as_it_is_written() {
    let spec = json!({ "nodeSets": ["a"] });
    let trouble = Standing {
        trouble: Some(Fault {
            reason: "BadMembers",
            message: "spec.nodeSets[0] …".to_owned(),
        }),
        ..live(1)
    };
    let waits = Standing {
        waits: Some("slurmctld's agent cannot be reached".to_owned()),
        ..live(1)
    };
    let started = Standing { runs: false, ..live(2) };
    for (standing, status, reason) in [
        (Some(live(2)), ConditionStatus::True, "Ready"),
        (Some(live(1)), ConditionStatus::False, "Applying"),
        (Some(Standing::default()), ConditionStatus::False, "Applying"),
        (Some(started), ConditionStatus::False, "Applying"),
        (Some(waits), ConditionStatus::False, "Waiting"),
        (Some(trouble), ConditionStatus::False, "BadMembers"),
        (None, ConditionStatus::False, "Applying"),
    ] {
        assert_eq!(
            ready(&observed(&spec, standing.clone())),
            (status, reason.to_owned()),
            "{standing:?}"
        );
    }
    let mut alone = observed(&spec, None);
    alone.controller = None;
    assert_eq!(ready(&alone), (ConditionStatus::False, "ControllerMissing".to_owned()));
    let invalid = observed(&json!({}), None);
    assert_eq!(ready(&invalid), (ConditionStatus::False, "InvalidSpec".to_owned()));
}

#[test]
fn the_finalizer_comes_with_the_object_and_goes_with_the_line() {
    let spec = json!({ "nodeSets": ["a"] });
    let mut new = observed(&spec, None);
    Arc::make_mut(&mut new.partition).metadata.finalizers = None;
    assert_eq!(plan(&new).effects, [Effect::AddFinalizer]);

    let of = |standing: Option<Standing>| plan(&deleted(observed(&spec, standing)));
    assert_eq!(of(Some(Standing::default())).effects, [Effect::RemoveFinalizer]);
    // Nobody has said yet how it stands, or it is still there.
    assert_eq!(of(None).effects, []);
    let waits = of(Some(live(1)));
    assert_eq!((waits.effects.as_slice(), waits.needs_jobs), (&[][..], true));
    assert!(waits.retained.is_some());
    // There is nothing it could be in.
    let mut orphan = deleted(observed(&spec, Some(live(1))));
    orphan.controller = None;
    assert_eq!(plan(&orphan).effects, [Effect::RemoveFinalizer]);
    let mut ending = deleted(observed(&spec, Some(live(1))));
    ending.namespace_goes = true;
    assert_eq!(plan(&ending).effects, [Effect::RemoveFinalizer]);
}

#[test]
fn jobs_are_cancelled_only_if_that_is_asked_for_and_the_partition_is_closed() {
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
        let standing = Standing {
            line: Some(line(1).with_state(state)),
            ..live(1)
        };
        let mut leaving = deleted(observed(
            &json!({ "nodeSets": ["a"], "deletionPolicy": policy }),
            Some(standing),
        ));
        leaving.knowledge = knowledge.clone();
        let cancelled = plan(&leaving).effects.into_iter().find_map(|effect| match effect {
            Effect::CancelJobs(jobs) => Some(jobs.iter().map(|job| job.as_str().to_owned()).collect::<Vec<_>>()),
            _ => None,
        });
        let expected = expected.map(|jobs| jobs.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(cancelled, expected, "{policy} {state}");
    }
}

#[test]
fn what_brought_a_line_is_told_until_the_line_is_another() {
    let spec = json!({ "nodeSets": ["a"] });
    let change = |sequence| Change {
        sequence,
        at: now(),
        way: None,
        milliseconds: 7,
    };
    let with_change = |sequence, generation| Standing {
        change: Some(change(sequence)),
        ..live(generation)
    };
    let mut first = observed(&spec, Some(with_change(3, 2)));
    let status = build_status(&first, &plan(&first), None, now());
    let applied = status.applied.clone().unwrap();
    assert_eq!((applied.generation, applied.sequence), (2, Some(3)));
    assert_eq!(
        status.line.as_deref(),
        Some("PartitionName=long Nodes=a,b State=UP MaxTime=60")
    );
    Arc::make_mut(&mut first.partition).status = Some(status);
    first.standing = Some(with_change(4, 5));
    let same = build_status(&first, &plan(&first), None, now()).applied.unwrap();
    assert_eq!((same.generation, same.sequence), (5, Some(3)), "the line is the same");

    // And the board remembers it over changes of other partitions.
    let board = Board::default();
    let cluster = Key::new("hpc", "slurm");
    let standings = |sequence| Standings::from([("long".to_owned(), with_change(sequence, 2))]);
    assert_eq!(board.publish(&cluster, standings(3)).len(), 1);
    assert_eq!(board.publish(&cluster, standings(4)).len(), 0);
    assert_eq!(board.find(&cluster, "long").unwrap().change, Some(change(3)));
}

#[test]
fn slurms_words_stand_in_the_status_and_what_was_closed_by_hand_too() {
    let node = |name: &str, state: &str| json!({ "name": name, "state": [state], "partitions": ["long"], "cpus": 4 });
    let nodes = serde_json::from_value(json!([node("a-0", "IDLE"), node("b-0", "DOWN")])).unwrap();
    let mut seen = Seen::of_nodes(nodes, now());
    let shown = json!({ "name": "long", "partition": { "state": ["DRAIN"] }, "nodes": { "configured": "a-0,b-0" } });
    seen.partitions = Some(Arc::new(
        [("long".to_owned(), serde_json::from_value(shown).unwrap())].into(),
    ));
    seen.job_loads = Some(Arc::default());
    let closed = Standing {
        kept: Some(Kept {
            state: "DRAIN".to_owned(),
            wanted: "UP".to_owned(),
            since: NOW.to_owned(),
        }),
        ..live(2)
    };
    let mut observed = observed(&json!({ "nodeSets": ["a"] }), Some(closed));
    observed.knowledge = Knowledge::Known(seen.into());
    let status: PartitionStatus = build_status(&observed, &plan(&observed), None, now());
    assert_eq!(status.state.as_deref(), Some("DRAIN"));
    let nodes = status.nodes.clone().unwrap();
    assert_eq!((nodes.total, nodes.idle, nodes.down), (2, 1, 1));
    assert_eq!(status.jobs.clone().unwrap().running, 0);
    assert_eq!(status.drift.len(), 1);
    assert!(status.conditions.iter().any(|condition| condition.type_ == "Drifted"));
}

#[test]
fn a_value_that_slurm_has_otherwise_than_after_our_own_change_is_told() {
    let seen = |minutes: u64, second: i64| {
        let mut seen = Seen::of_nodes(Vec::new(), Timestamp::from_second(1_800_000_000 + second).unwrap());
        let shown = json!({
            "name": "long", "partition": { "state": ["UP"] }, "nodes": { "configured": "" },
            "maximums": { "time": { "set": true, "infinite": false, "number": minutes } },
        });
        seen.partitions = Some(Arc::new(
            [("long".to_owned(), serde_json::from_value(shown).unwrap())].into(),
        ));
        Knowledge::Known(seen.into())
    };
    let key = Key::new("hpc", "long");
    let mut observed = observed(&json!({ "nodeSets": ["a"] }), Some(live(2)));
    let baselines = super::drift::Baselines::default();
    observed.knowledge = seen(60, 0);
    assert_eq!(baselines.find_drift(&key, &observed), []);
    observed.knowledge = seen(5, 10);
    let drift = baselines.find_drift(&key, &observed);
    let said: Vec<_> = drift
        .iter()
        .map(|drift| (drift.key.as_str(), drift.wanted.as_str(), drift.live.as_str()))
        .collect();
    assert_eq!(said, [("MaxTime", "60", "5")]);
    // Another operator knows it from the status.
    observed.drift.clone_from(&drift);
    let status = build_status(&observed, &plan(&observed), None, now());
    Arc::make_mut(&mut observed.partition).status = Some(status);
    let next = super::drift::Baselines::default();
    assert_eq!(next.find_drift(&key, &observed), drift);
    // A state that takes more jobs than the written one, too.
    let closed = live(2).line.map(|line| line.with_state("DRAIN"));
    let mut opened = observed.clone();
    opened.standing = Some(Standing {
        line: closed,
        ..live(2)
    });
    let drift = super::drift::Baselines::default().find_drift(&key, &opened);
    assert_eq!(drift.len(), 1, "{drift:?}");
    assert_eq!(
        (drift[0].key.as_str(), drift[0].wanted.as_str(), drift[0].live.as_str()),
        ("State", "DRAIN", "UP")
    );
    // With a new line it is ours again.
    let mut changed = live(3);
    changed.line.as_mut().unwrap().settings = "MaxTime=5".to_owned();
    observed.standing = Some(changed);
    assert_eq!(next.find_drift(&key, &observed), []);
}
