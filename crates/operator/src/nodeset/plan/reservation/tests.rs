//! Rules about the reservation of a scheduled update.

use proptest::prelude::*;
use serde_json::{Value, json};
use slurm::rest::{Observation, Process};

use super::super::{Plan, plan, tests::steps};
use super::*;
use crate::cluster::Knowledge;
use crate::nodeset::{
    fixture::{NOW, controller, nodeset, now, observed, planned, slurm_key, terminating, unknown, with, worker},
    status::status,
};

const MAINT: &[&str] = &["IDLE", "DYNAMIC_NORM", "MAINTENANCE", "RESERVED"];
const OPEN: &[&str] = &["IDLE", "DYNAMIC_NORM"];
const NAME: &str = "SlurmOperatorMaint-compute";
const LATER: &str = "2026-01-01T02:00:00Z";

fn unix(time: &str) -> i64 {
    time.parse::<Timestamp>().unwrap().as_second()
}

fn reservation(start: &str, minutes: i64, nodes: &str, flags: &[&str]) -> Value {
    json!({
        "name": NAME, "users": "slurm", "node_list": nodes, "flags": flags,
        "start_time": { "set": true, "number": unix(start) },
        "end_time": { "set": true, "number": unix(start) + minutes * 60 },
    })
}

fn usual(start: &str) -> Value {
    reservation(start, 30, "compute-[0-1]", &["MAINT", "IGNORE_JOBS", "SPEC_NODES"])
}

/// A snapshot with these nodes, some drained by the operator, and these reservations.
fn slurm(state: &[&str], drained: &[&str], reservations: Vec<Value>) -> Knowledge {
    let held = if state == MAINT { NAME } else { "" };
    let node = |name: &str| {
        let mut states = state.to_vec();
        if drained.contains(&name) {
            states.push("DRAIN");
        }
        let reason = format!("slurm-operator: Pod (slurm/{name}) is pending termination for an update");
        json!({ "name": name, "state": states, "reservation": held, "reason": reason })
    };
    let observation = Observation {
        nodes: serde_json::from_value(json!([node("compute-0"), node("compute-1")])).unwrap(),
        jobs: Vec::new(),
        process: Some(Process { boot_time: 1 }),
    };
    let mut seen = Seen::new(observation, now(), crate::cluster::Source::Agent);
    seen.reservations = Some(serde_json::from_value(reservations.into()).unwrap());
    Knowledge::Known(seen.into())
}

fn scheduled(start: &str, flags: &[&str]) -> Value {
    json!({ "replicas": 2, "updateStrategy": {
        "type": "ScheduledUpdate", "scheduledUpdate": { "startTime": start, "duration": "30m", "flags": flags },
    } })
}

/// The earlier status: the condition, and the start that the reservation was created for.
fn remembered(status: &str, reason: &str, since: &str, start: Option<&str>) -> Value {
    let condition = json!({ "type": "ReservationCreated", "status": status, "reason": reason, "message": "",
        "lastTransitionTime": since });
    json!({ "nodeSetHash": "", "selector": "", "conditions": [condition], "reservedStart": start })
}

fn planned_after(spec: &Value, before: Value, pods: Vec<Value>, knowledge: Knowledge) -> (Plan, Observed) {
    let set = with(nodeset(spec), &[("/status", before)]);
    let objects = [controller(), slurm_key(), set].into_iter().chain(pods).collect();
    let observed = observed(objects, knowledge);
    (plan(&observed), observed)
}

fn reason(plan: &Plan) -> &str {
    match &plan.reservation {
        ReservationReport::Reported { condition, .. } => condition.reason,
        other => panic!("{other:?}"),
    }
}

fn sorted(plan: &Plan) -> Vec<String> {
    let mut steps = steps(plan);
    steps.sort();
    steps
}

fn two() -> Vec<Value> {
    vec![worker(0), worker(1)]
}

#[test]
fn the_intention_is_written_down_before_a_reservation_is_made() {
    let spec = scheduled(LATER, &["flex"]);
    let first = planned(&spec, two(), slurm(OPEN, &[], vec![]));
    assert_eq!((steps(&first), reason(&first)), (vec![], "Creating"));
    assert_eq!(first.requeue, Some(SOON));
    let creating = remembered("False", "Creating", NOW, None);
    let (second, _) = planned_after(&spec, creating, two(), slurm(OPEN, &[], vec![]));
    let [Effect::Reserve { request, new: true }] = second.effects.as_slice() else {
        panic!("{:?}", second.effects)
    };
    let texts = |lines: &[SingleLine]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(request.name.as_str(), NAME);
    assert_eq!(request.start, Some(u64::try_from(unix(LATER)).unwrap()));
    assert_eq!(request.minutes, Some(30));
    assert_eq!(texts(&request.nodes), ["compute-[0-1]"]);
    assert_eq!(texts(&request.users), ["slurm"]);
    assert_eq!(texts(&request.flags), ["MAINT", "IGNORE_JOBS", "FLEX"]);
}

fn made(start: &str) -> Value {
    remembered("True", "Created", "2026-01-01T00:00:00Z", Some(start))
}

/// Rows: the difference, the spec, the status, the reservation in Slurm, and the step.
fn check_changes(rows: Vec<(&str, Value, Value, Value, Option<&str>)>) {
    for (what, spec, before, found, expected) in rows {
        let (plan, _) = planned_after(&spec, before, two(), slurm(OPEN, &[], vec![found]));
        let expected: Vec<String> = expected.iter().map(|verb| format!("{verb} {NAME}")).collect();
        assert_eq!(steps(&plan), expected, "{what}");
        assert_eq!(reason(&plan), "Created", "{what}");
    }
}

#[test]
fn a_reservation_is_changed_only_where_the_spec_differs() {
    let spec = |flags: &[&str]| scheduled(LATER, flags);
    let short = |minutes: i64, nodes: &str| reservation(LATER, minutes, nodes, &["MAINT", "IGNORE_JOBS"]);
    let flexible = |start: &str| {
        let flags = ["MAINT", "IGNORE_JOBS", "SPEC_NODES", "FLEX", "MAGNETIC"];
        reservation(start, 30, "compute-[0-1]", &flags)
    };
    let begun = |minutes: i64, nodes: &str| reservation(BEGUN, minutes, nodes, &["MAINT"]);
    let early = "2026-01-01T00:00:00Z";
    let late = "2026-01-01T03:00:00Z";
    let over = reservation(early, 20, "compute-0", &["MAINT"]);
    let all = "compute-[0-1]";
    let change = Some("change");
    check_changes(vec![
        ("nothing", spec(&[]), made(LATER), usual(LATER), None),
        ("its start", scheduled(late, &[]), made(LATER), usual(LATER), change),
        (
            "a start in the past",
            scheduled(early, &[]),
            made(LATER),
            usual(LATER),
            None,
        ),
        ("its length", spec(&[]), made(LATER), short(20, all), change),
        ("a flag", spec(&["FLEX"]), made(LATER), usual(LATER), change),
        (
            "a flag fewer",
            spec(&["magnetic"]),
            made(LATER),
            flexible(LATER),
            Some("unreserve"),
        ),
        (
            "a flag fewer, but it has begun",
            spec(&[]),
            made(LATER),
            flexible(BEGUN),
            None,
        ),
        (
            "nothing, in other words",
            spec(&["FLE", "MAGNETIC=1"]),
            made(LATER),
            flexible(LATER),
            change,
        ),
        ("a node", spec(&[]), made(LATER), short(30, "compute-0"), change),
        (
            "all, but it has begun",
            spec(&["FLEX"]),
            made(LATER),
            begun(20, all),
            None,
        ),
        (
            "a node, and it has begun",
            spec(&[]),
            made(LATER),
            begun(30, "compute-0"),
            change,
        ),
        ("all, but it is over", scheduled(early, &[]), made(early), over, None),
    ]);
}

#[test]
fn a_recurring_reservation_that_slurm_moved_on_is_not_moved_back() {
    let first = "2025-12-31T00:50:00Z";
    let daily = |start: &str| {
        let flags = &["MAINT", "IGNORE_JOBS", "DAILY", "SPEC_NODES"];
        reservation(start, 30, "compute-[0-1]", flags)
    };
    let next = || daily("2026-01-02T00:50:00Z");
    let spec = |start: &str| scheduled(start, &["DAILY"]);
    let upstreams = remembered("True", "Created", NOW, None);
    let other_time = "2025-12-31T05:50:00Z";
    let remove = Some("unreserve");
    check_changes(vec![
        ("nothing", spec(first), made(first), next(), None),
        ("made by upstream", spec(first), upstreams, next(), None),
        ("the time of day", spec(other_time), made(first), next(), Some("change")),
        (
            "weekly",
            scheduled(LATER, &["WEEKLY"]),
            made(LATER),
            daily(LATER),
            remove,
        ),
        ("once", scheduled(LATER, &[]), made(LATER), daily(LATER), remove),
    ]);
}

#[test]
fn a_missing_reservation_is_created_again_only_if_slurm_lost_it_or_the_spec_changed() {
    let past = "2026-01-01T00:30:00Z";
    for (what, start, before, made, said) in [
        (
            "it is over",
            past,
            remembered("True", "Created", past, Some(past)),
            false,
            "NotExists",
        ),
        (
            "it is over for long",
            past,
            remembered("False", "NotExists", past, Some(past)),
            false,
            "NotExists",
        ),
        (
            "it was deleted manually",
            LATER,
            remembered("True", "Created", "2026-01-01T00:50:00Z", Some(LATER)),
            false,
            "NotExists",
        ),
        (
            "Slurm was killed",
            LATER,
            remembered("True", "Created", "2026-01-01T00:59:50Z", Some(LATER)),
            true,
            "Creating",
        ),
        (
            "another start",
            LATER,
            remembered("False", "NotExists", past, Some(past)),
            true,
            "Creating",
        ),
        (
            "too late",
            past,
            remembered("False", "Creating", past, None),
            false,
            "StartPassed",
        ),
        (
            "its nodes were replaced",
            "2026-01-01T00:45:00Z",
            remembered("False", "Replacing", NOW, Some("2026-01-01T00:45:00Z")),
            true,
            "Replacing",
        ),
        (
            "they took too long",
            past,
            remembered("False", "Replacing", NOW, Some(past)),
            false,
            "NotExists",
        ),
    ] {
        let (plan, _) = planned_after(&scheduled(start, &[]), before, two(), slurm(OPEN, &[], vec![]));
        assert_eq!(!steps(&plan).is_empty(), made, "{what}: {:?}", steps(&plan));
        assert_eq!(reason(&plan), said, "{what}");
    }
    // For the rest of its time, so that no node is reserved for longer than planned.
    let replaced = remembered("False", "Replacing", NOW, Some("2026-01-01T00:45:00Z"));
    let spec = scheduled("2026-01-01T00:45:00Z", &[]);
    let (plan, _) = planned_after(&spec, replaced, two(), slurm(OPEN, &[], vec![]));
    let Some(Effect::Reserve { request, .. }) = plan.effects.first() else {
        panic!("{:?}", plan.effects)
    };
    assert_eq!(
        (request.minutes, request.start),
        (Some(15), Some(u64::try_from(unix(NOW)).unwrap()))
    );
}

#[test]
fn an_unwanted_reservation_is_deleted() {
    let made = || remembered("True", "Created", NOW, Some(LATER));
    let found = || slurm(OPEN, &[], vec![usual(LATER)]);
    let gone = [format!("unreserve {NAME}")];
    let (other, _) = planned_after(&json!({ "replicas": 2 }), made(), two(), found());
    assert_eq!(steps(&other), gone);
    let mut zero = scheduled(LATER, &[]);
    zero["replicas"] = json!(0);
    let (zero, _) = planned_after(&zero, made(), vec![], found());
    assert_eq!(steps(&zero), gone);
    let deleted = |before: Value, knowledge: Knowledge| {
        let set = terminating(with(nodeset(&scheduled(LATER, &[])), &[("/status", before)]));
        steps(&plan(&observed(vec![controller(), slurm_key(), set], knowledge)))
    };
    assert_eq!(deleted(made(), found()), gone);
    assert_eq!(deleted(made(), unknown()), [""; 0]);
    assert_eq!(deleted(made(), slurm(OPEN, &[], vec![])), ["let go"]);

    let (settled, observed) = planned_after(&json!({ "replicas": 2 }), made(), two(), slurm(OPEN, &[], vec![]));
    assert_eq!(steps(&settled), [""; 0]);
    let said = status(&observed, &settled, None);
    assert!(
        said.conditions
            .iter()
            .all(|condition| condition.type_ != RESERVATION_CREATED)
    );
    assert_eq!(said.reserved_start, None);
}

#[test]
fn without_a_snapshot_nothing_is_done_and_the_status_is_kept() {
    let made = remembered("True", "Created", "2026-01-01T00:00:00Z", Some(LATER));
    let (plan, observed) = planned_after(&scheduled("2026-01-01T05:00:00Z", &[]), made, two(), unknown());
    assert_eq!(steps(&plan), [""; 0]);
    let said = status(&observed, &plan, None);
    let condition = said
        .conditions
        .iter()
        .find(|condition| condition.type_ == RESERVATION_CREATED)
        .unwrap();
    assert_eq!(condition.last_transition_time.as_str(), "2026-01-01T00:00:00Z");
    assert_eq!(said.reserved_start.unwrap().as_str(), LATER);
}

fn old(pod: Value) -> Value {
    with(
        pod,
        &[("/metadata/labels/controller.kubernetes.io~1hash", json!("old"))],
    )
}

fn leaving(pod: Value) -> Value {
    let mark = json!("update 2026-01-01T00:59:00Z");
    with(
        old(pod),
        &[("/metadata/annotations/nodeset.slinky.slurm.net~1leaving", mark)],
    )
}

const BEGUN: &str = "2026-01-01T00:50:00Z";

fn inside(pods: Vec<Value>, drained: &[&str], nodes: &str) -> Plan {
    let made = remembered("True", "Created", BEGUN, Some(BEGUN));
    let found = reservation(BEGUN, 30, nodes, &["MAINT", "IGNORE_JOBS"]);
    planned_after(&scheduled(BEGUN, &[]), made, pods, slurm(MAINT, drained, vec![found])).0
}

#[test]
fn all_old_workers_inside_the_reservation_are_replaced_at_once() {
    let plan = inside(vec![old(worker(0)), old(worker(1))], &[], "compute-[0-1]");
    assert_eq!(
        sorted(&plan),
        ["mark compute-0 for update", "mark compute-1 for update"]
    );
    let made = remembered("True", "Created", NOW, Some(LATER));
    let pods = vec![old(worker(0)), leaving(worker(1))];
    let (before, _) = planned_after(&scheduled(LATER, &[]), made, pods, slurm(OPEN, &[], vec![usual(LATER)]));
    assert_eq!(
        steps(&before),
        ["spare compute-1"],
        "not before it begins, and not after it has ended"
    );
}

#[test]
fn a_worker_leaves_the_reservation_before_it_is_removed() {
    let plan = inside(
        vec![leaving(worker(0)), leaving(worker(1))],
        &["compute-0"],
        "compute-[0-1]",
    );
    assert_eq!(steps(&plan), [&format!("change {NAME}"), "drain compute-1"]);
    let [Effect::Reserve { request, .. }, ..] = plan.effects.as_slice() else {
        panic!()
    };
    assert_eq!(request.nodes.first().unwrap().as_str(), "compute-1");
    // The reservation is deleted with its last nodes, since it cannot be empty.
    let plan = inside(
        vec![leaving(worker(0)), leaving(worker(1))],
        &["compute-0", "compute-1"],
        "compute-[0-1]",
    );
    assert_eq!(
        (steps(&plan), reason(&plan)),
        (vec![format!("unreserve {NAME}")], "Replacing")
    );
    // Then they are removed.
    let replacing = remembered("False", "Replacing", NOW, Some(BEGUN));
    let pods = vec![leaving(worker(0)), leaving(worker(1))];
    let free = slurm(OPEN, &["compute-0", "compute-1"], vec![]);
    let (plan, _) = planned_after(&scheduled(BEGUN, &[]), replacing, pods, free);
    assert_eq!(sorted(&plan), ["remove compute-0", "remove compute-1"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever the strategy, the reservation and the state of the nodes.
    #[test]
    fn with_paused_nothing_leaves_for_an_update(
        kind in prop_oneof![Just("RollingUpdate"), Just("OnDelete"), Just("ScheduledUpdate")],
        state in prop_oneof![Just(MAINT), Just(OPEN)],
        drained in any::<[bool; 2]>(),
        marked in any::<[bool; 2]>(),
        begun in any::<bool>(),
        reason in prop_oneof![Just("Created"), Just("Replacing"), Just("Creating")],
    ) {
        let start = if begun { BEGUN } else { LATER };
        let mut spec = scheduled(start, &[]);
        spec["updateStrategy"]["type"] = json!(kind);
        spec["updateStrategy"]["paused"] = json!(true);
        let pods = marked.iter().zip(0..).map(|(marked, n)| if *marked { leaving(worker(n)) } else { old(worker(n)) });
        let drained: Vec<&str> =
            ["compute-0", "compute-1"].into_iter().zip(drained).filter(|(_, drained)| *drained).map(|(name, _)| name).collect();
        let before = remembered("True", reason, start, Some(start));
        let (plan, _) = planned_after(&spec, before, pods.collect(), slurm(state, &drained, vec![usual(start)]));
        for step in steps(&plan) {
            let harmless = ["spare", "undrain", "unreserve", "change"].iter().any(|verb| step.starts_with(verb));
            prop_assert!(harmless, "{step}");
        }
    }
}
