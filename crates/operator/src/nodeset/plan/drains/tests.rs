use serde_json::{Value, json};

use super::super::{
    Plan,
    tests::{only_drain, steps},
};
use crate::{
    cluster::{Knowledge, Seen},
    nodeset::fixture::{begun, nodeset, now, observed_exactly, planned, with, worker},
    worker::RESUMED,
};

fn node(state: &[&str], reason: &str) -> Knowledge {
    let nodes = json!([{ "name": "compute-0", "state": state, "reason": reason }]);
    Knowledge::Known(Seen::of_nodes(serde_json::from_value(nodes).unwrap(), now()).into())
}

fn annotated(pod: Value, key: &str, value: &str) -> Value {
    with(
        pod,
        &[(
            &format!("/metadata/annotations/{}", key.replace('/', "~1")),
            json!(value),
        )],
    )
}

fn on(node: &Value, pod: Value, knowledge: Knowledge) -> Plan {
    planned(&json!({ "replicas": 1 }), vec![node.clone(), pod], knowledge)
}

fn k1(unschedulable: bool, annotations: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "k1", "annotations": annotations },
        "spec": { "unschedulable": unschedulable },
        "status": { "conditions": [{ "type": "DiskBroken", "status": "True", "reason": "Smart", "message": "sda\nfails" }] } })
}

const OPEN: &[&str] = &["IDLE", "DYNAMIC_NORM"];
const DRAIN: &[&str] = &["IDLE", "DRAIN", "DYNAMIC_NORM"];
const CORDON: &str = "nodeset.slinky.slurm.net/pod-cordon";
const DOWN: &[&str] = &["DOWN", "DYNAMIC_NORM"];
const SINCE: &str = "nodeset.slinky.slurm.net/drained";
const REASON: &str = "nodeset.slinky.slurm.net/drain-reason";

#[test]
fn a_cordon_of_pod_or_node_drains_with_its_reason() {
    let bare = || with(worker(0), &[]);
    let cordoned = annotated(worker(0), CORDON, "true");
    let quiet = k1(false, &json!({}));
    for (node_object, pod, reason) in [
        (
            &quiet,
            cordoned.clone(),
            "slurm-operator: Pod (slurm/compute-0) was cordoned",
        ),
        (
            &quiet,
            annotated(worker(0), "slinky.slurm.net/pod-cordon", "true"),
            "slurm-operator: Pod (slurm/compute-0) was cordoned",
        ),
        (
            &quiet,
            annotated(cordoned, "nodeset.slinky.slurm.net/pod-cordon-reason", "ticket 7"),
            "slurm-operator: ticket 7",
        ),
        (
            &k1(
                true,
                &json!({ "nodeset.slinky.slurm.net/node-cordon-reason": "new\nfirmware" }),
            ),
            bare(),
            "slurm-operator: new firmware",
        ),
        (&k1(true, &json!({})), bare(), "slurm-operator: (Smart: sda fails)"),
    ] {
        let plan = on(node_object, pod, node(OPEN, ""));
        assert_eq!(only_drain(&plan).1, Some(reason));
    }
    let mut untold = k1(true, &json!({}));
    untold["status"] = json!({});
    let plan = on(&untold, bare(), node(OPEN, ""));
    assert_eq!(
        only_drain(&plan).1,
        Some("slurm-operator: Node (k1) was cordoned, Pod (slurm/compute-0) must be cordoned")
    );
}

#[test]
fn only_our_own_drain_is_taken_back() {
    let quiet = k1(false, &json!({}));
    for (state, reason, expected) in [
        (
            DRAIN,
            "slurm-operator: Pod (slurm/compute-0) was cordoned",
            &["undrain compute-0"][..],
        ),
        (
            DRAIN,
            "slurm-operator: Pod (slurm/compute-0) was cordoned : Not responding",
            &["undrain compute-0"],
        ),
        (DRAIN, "broken fan", &[]),
        (DRAIN, "broken fan : Not responding", &[]),
        (DRAIN, "Not responding", &[]),
        (DRAIN, "slurm-operator: broken fan", &[]),
        (DRAIN, "", &[]),
        (OPEN, "", &[]),
    ] {
        assert_eq!(
            steps(&on(&quiet, worker(0), node(state, reason))),
            expected,
            "{reason:?}"
        );
    }
    // Before slurmd runs, jobs would fail to start on an undrained node.
    let starting = with(worker(0), &[("/status/conditions/0/status", json!("False"))]);
    let ours = "slurm-operator: Pod (slurm/compute-0) was cordoned";
    assert_eq!(steps(&on(&quiet, starting, node(DRAIN, ours))), [""; 0]);
    // A user's reason that the operator passed on is the operator's while the pod has it recorded.
    let recorded = || annotated(worker(0), REASON, "slurm-operator: ticket 7");
    for (state, reason, expected) in [
        (DRAIN, "slurm-operator: ticket 7", "undrain compute-0"),
        (DRAIN, "slurm-operator: ticket 7 : Not responding", "undrain compute-0"),
        (DRAIN, "slurm-operator: ticket 8", "label compute-0"),
        (DRAIN, "RMA : Not responding", "label compute-0"),
        (DRAIN, "RMA", "label compute-0"),
        (OPEN, "", "label compute-0"),
    ] {
        let plan = on(&quiet, recorded(), node(state, reason));
        assert_eq!(steps(&plan).join("; "), expected, "{reason:?}");
    }
}

#[test]
fn an_order_names_the_state_it_was_planned_on_and_keeps_a_manual_reason() {
    let quiet = k1(false, &json!({}));
    let leaving = annotated(
        worker(0),
        "nodeset.slinky.slurm.net/leaving",
        "scale-in 2026-01-01T00:59:00Z",
    );
    let scaled_in = |knowledge| {
        planned(
            &json!({ "replicas": 0 }),
            vec![quiet.clone(), leaving.clone()],
            knowledge,
        )
    };
    for (state, reason, given) in [
        (OPEN, "", Some("is pending termination for scale-in")),
        (DOWN, "broken fan", None),
        (DOWN, "Not responding", Some("is pending termination for scale-in")),
        (
            DRAIN,
            "slurm-operator: Pod (slurm/compute-0) was cordoned",
            Some("for scale-in"),
        ),
    ] {
        let plan = scaled_in(node(state, reason));
        let (order, reason_sent) = only_drain(&plan);
        assert_eq!(reason_sent.is_some(), given.is_some(), "{reason}");
        assert!(reason_sent.unwrap_or_default().contains(given.unwrap_or_default()));
        let expect = &order.expect;
        assert_eq!((expect.reason.as_str(), expect.drain), (reason, state == DRAIN));
    }
    // A cordon adds nothing to a manual down.
    let cordoned = || annotated(worker(0), CORDON, "true");
    assert_eq!(steps(&on(&quiet, cordoned(), node(DOWN, "broken fan"))), [""; 0]);
    assert_eq!(
        steps(&on(&quiet, cordoned(), node(DOWN, "Not responding"))),
        ["drain compute-0"]
    );
}

#[test]
fn who_resumes_a_node_that_is_to_leave_is_respected() {
    let quiet = k1(false, &json!({}));
    let leaving = annotated(
        worker(0),
        "nodeset.slinky.slurm.net/leaving",
        "scale-in 2026-01-01T00:59:00Z",
    );
    for (since, expected) in [
        // It was drained to leave, and an administrator reverted that.
        (Some("2026-01-01T00:59:10Z"), "label compute-0"),
        // The drain was for a cordon, before it was chosen to leave.
        (Some("2026-01-01T00:58:00Z"), "drain compute-0"),
        // The snapshot is older than the drain.
        (Some("2026-01-01T01:00:01Z"), ""),
        (None, "drain compute-0"),
    ] {
        let pod = match since {
            Some(since) => annotated(leaving.clone(), SINCE, since),
            None => leaving.clone(),
        };
        let seen = begun(node(OPEN, ""), "2026-01-01T00:10:00Z");
        let plan = planned(&json!({ "replicas": 0 }), vec![quiet.clone(), pod], seen);
        assert_eq!(steps(&plan).join("; "), expected, "{since:?}");
    }
}

#[test]
fn a_drain_that_slurm_lost_is_sent_again_and_one_that_an_administrator_reverted_is_not() {
    let quiet = k1(false, &json!({}));
    let cordoned = |since: &str| annotated(annotated(worker(0), CORDON, "true"), SINCE, since);
    // It is not known yet whether the running slurmctld accepted the drain. One that did cannot have lost it.
    for since in ["2026-01-01T00:59:55Z", "2026-01-01T00:50:00Z"] {
        let plan = on(&quiet, cordoned(since), node(OPEN, ""));
        assert_eq!(steps(&plan), [""; 0]);
        assert!(plan.needs_jobs);
        assert_eq!(plan.waits, []);
    }
    let same = || begun(node(OPEN, ""), "2026-01-01T00:59:50Z");
    let plan = on(&quiet, cordoned("2026-01-01T00:59:55Z"), same());
    assert_eq!(steps(&plan), ["label compute-0"]);
    assert_eq!(plan.waits, []);
    // A resume is reported once the pod has it recorded.
    let recorded = annotated(cordoned("2026-01-01T00:59:55Z"), RESUMED, "2026-01-01T00:59:59Z");
    let plan = on(&quiet, recorded, same());
    assert_eq!(steps(&plan), [""; 0]);
    assert_eq!(plan.waits, [super::resumed("compute-0", false)]);
    let next = begun(node(OPEN, ""), "2026-01-01T00:59:58Z");
    assert_eq!(
        steps(&on(&quiet, cordoned("2026-01-01T00:59:55Z"), next)),
        ["drain compute-0"]
    );
    // Slurm reports the start in whole seconds, so the previous process may have accepted the drain.
    let within = begun(node(OPEN, ""), "2026-01-01T00:59:55Z");
    let plan = on(&quiet, cordoned("2026-01-01T00:59:55.4Z"), within);
    assert_eq!(steps(&plan), ["drain compute-0"]);
    // slurmctld was killed right afterwards, and the operator was away for longer than slurmctld takes to save.
    for (booted, expected) in [
        ("2026-01-01T00:50:20Z", "drain compute-0"),
        ("2026-01-01T00:57:00Z", "label compute-0"),
        ("2026-01-01T00:40:00Z", "label compute-0"),
    ] {
        let plan = on(&quiet, cordoned("2026-01-01T00:50:00Z"), begun(node(OPEN, ""), booted));
        assert_eq!(steps(&plan).join("; "), expected, "{booted}");
    }
    // The resume is forgotten with the cordon.
    let uncordoned = annotated(worker(0), SINCE, "2026-01-01T00:50:00Z");
    assert_eq!(steps(&on(&quiet, uncordoned, node(OPEN, ""))), ["label compute-0"]);
    let resumed = annotated(worker(0), RESUMED, "2026-01-01T00:50:00Z");
    assert_eq!(steps(&on(&quiet, resumed, node(OPEN, ""))), ["label compute-0"]);
}

#[test]
fn a_drain_in_force_is_noted_once() {
    let quiet = k1(false, &json!({}));
    let cordoned = annotated(worker(0), CORDON, "true");
    let in_force = node(DRAIN, "slurm-operator: Pod (slurm/compute-0) was cordoned");
    let recorded = annotated(
        cordoned.clone(),
        REASON,
        "slurm-operator: Pod (slurm/compute-0) was cordoned",
    );
    let noted = annotated(recorded, SINCE, "2026-01-01T00:59:55Z");
    assert_eq!(steps(&on(&quiet, cordoned, in_force.clone())), ["label compute-0"]);
    assert_eq!(steps(&on(&quiet, noted.clone(), in_force.clone())), [""; 0]);
    let unreachable = node(
        DRAIN,
        "slurm-operator: Pod (slurm/compute-0) was cordoned : Not responding",
    );
    assert_eq!(steps(&on(&quiet, noted.clone(), unreachable)), [""; 0]);
    // Each slurmctld process needs it again.
    let before = begun(in_force.clone(), "2026-01-01T00:50:00Z");
    assert_eq!(steps(&on(&quiet, noted.clone(), before)), [""; 0]);
    let after = begun(in_force, "2026-01-01T00:59:57Z");
    assert_eq!(steps(&on(&quiet, noted, after)), ["label compute-0"]);
}

#[test]
fn a_drain_is_noted_after_the_start_of_the_slurmctld_that_took_it() {
    let started = "2026-01-01T01:00:00Z";
    let in_force = |knowledge| {
        let observed = observed_exactly("compute", vec![nodeset(&json!({ "replicas": 1 }))], knowledge);
        super::in_force_from(&observed, "2026-01-01T01:00:00.4Z".parse().unwrap())
    };
    // Slurm reports the start in whole seconds.
    assert_eq!(in_force(begun(node(OPEN, ""), started)), "2026-01-01T01:00:01.000Z");
    assert_eq!(in_force(node(OPEN, "")), "2026-01-01T01:00:01.000Z");
    assert_eq!(
        in_force(begun(node(OPEN, ""), "2026-01-01T00:10:00Z")),
        "2026-01-01T01:00:00.400Z"
    );
}

#[test]
fn a_drain_that_outlasted_slurmctld_is_noted_so_that_a_later_resume_is_respected() {
    let quiet = k1(false, &json!({}));
    let reason = "slurm-operator: Pod (slurm/compute-0) is pending termination for scale-in";
    let leaving = annotated(
        worker(0),
        "nodeset.slinky.slurm.net/leaving",
        "scale-in 2026-01-01T00:59:00Z",
    );
    let drained = annotated(annotated(leaving, REASON, reason), SINCE, "2026-01-01T00:59:10Z");
    let restarted = |knowledge| begun(knowledge, "2026-01-01T00:59:20Z");
    let scaled_in = |pod: &Value, knowledge| {
        let objects = vec![quiet.clone(), pod.clone()];
        steps(&planned(&json!({ "replicas": 0 }), objects, restarted(knowledge))).join("; ")
    };
    let busy = node(&["MIXED", "DRAIN", "DYNAMIC_NORM"], reason);
    assert_eq!(scaled_in(&drained, busy.clone()), "label compute-0");
    let noted = annotated(drained.clone(), SINCE, "2026-01-01T00:59:30Z");
    assert_eq!(scaled_in(&noted, busy), "");
    // A drain that was not seen after the restart may have been forgotten.
    assert_eq!(scaled_in(&drained, node(OPEN, "")), "drain compute-0");
    assert_eq!(scaled_in(&noted, node(OPEN, "")), "label compute-0");
    // Then it stays resumed, whichever slurmctld runs.
    let resumed = annotated(drained, RESUMED, "2026-01-01T00:59:15Z");
    assert_eq!(scaled_in(&resumed, node(OPEN, "")), "");
}

#[test]
fn the_reason_follows_the_cause_but_a_manual_reason_is_kept() {
    let quiet = k1(false, &json!({}));
    let cordoned = || annotated(annotated(worker(0), CORDON, "true"), SINCE, "2026-01-01T00:50:00Z");
    let recorded = annotated(cordoned(), REASON, "slurm-operator: something else");
    assert_eq!(
        steps(&on(&quiet, recorded, node(DRAIN, "slurm-operator: something else"))),
        ["drain compute-0"]
    );
    assert_eq!(
        steps(&on(&quiet, cordoned(), node(DRAIN, "slurm-operator: something else"))),
        [""; 0]
    );
    assert_eq!(steps(&on(&quiet, cordoned(), node(DRAIN, "broken fan"))), [""; 0]);
}
