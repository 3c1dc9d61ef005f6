//! Slurm's records of nodes whose pods are gone.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    cluster::{Knowledge, Seen},
    nodeset::{
        fixture::{
            controller, host, nodeset, now, observed_after, observed_exactly, slurm_key, terminating, unknown, with,
            worker,
        },
        plan::{Effect, LastSeen, WorkerLoss, cut_off, plan, tests::steps, vanished_since, without_pod},
    },
};

const DOWN: &[&str] = &["DOWN", "DYNAMIC_NORM"];
const IDLE: &[&str] = &["IDLE", "DYNAMIC_NORM"];
const LOST: &str = "slurm-operator: lost: Kubernetes node k1 is gone";

fn record(state: &[&str], reason: &str, uid: &str) -> Value {
    let comment = format!(
        r#"{{"namespace":"slurm","podName":"compute-7","node":"k1","nodeSetName":"compute","nodeSetUID":"{uid}"}}"#
    );
    json!({ "name": "compute-7", "state": state, "reason": reason, "comment": comment })
}

fn known(record: &Value, jobs: &Value) -> Knowledge {
    let observation = slurm::rest::Observation {
        nodes: vec![serde_json::from_value(record.clone()).unwrap()],
        jobs: serde_json::from_value(jobs.clone()).unwrap(),
        process: Some(slurm::rest::Process { boot_time: 1 }),
    };
    Knowledge::Known(Seen::new(observation, now(), crate::cluster::Source::Agent).into())
}

fn done(set: Value, hosts: Vec<Value>, record: &Value, jobs: &Value) -> String {
    let all = [vec![controller(), slurm_key(), set], hosts].concat();
    steps(&plan(&observed_exactly("compute", all, known(record, jobs)))).join("; ")
}

#[test]
fn records_without_pods_go_by_policy() {
    let by_hook = "slurm-operator: Pod is terminating : Not responding";
    let set = |policy: &str| nodeset(&json!({ "replicas": 0, "pruneSlurmNodeRecords": policy }));
    let by_plan = "slurm-operator: Pod (slurm/compute-7) is pending termination for scale-in";
    for (policy, record, expected) in [
        ("NodeNotFound", record(DOWN, LOST, "compute"), "forget compute-7"),
        ("Never", record(DOWN, LOST, "compute"), ""),
        // A record that stayed for a job is deleted later.
        ("Never", record(DOWN, by_plan, "compute"), "forget compute-7"),
        ("Never", record(DOWN, by_hook, "compute"), "forget compute-7"),
        // It is dead, and is set down first.
        ("Never", record(IDLE, "", "compute"), "down compute-7"),
        ("NodeNotFound", record(DOWN, LOST, "another"), ""),
        ("NodeNotFound", record(&["DOWN"], LOST, "compute"), ""),
    ] {
        assert_eq!(
            done(set(policy), vec![], &record, &json!([])),
            expected,
            "{policy} {record}"
        );
    }
    // slurmctld was killed when it had saved the drain, and neither the comment nor the deletion.
    for (pod, comment, expected) in [
        ("slurm/compute-7", "", "forget compute-7"),
        ("slurm/compute-7", "a person's", ""),
        ("slurm/compute-big-7", "", ""),
        ("other/compute-7", "", ""),
    ] {
        let reason = format!("slurm-operator: Pod ({pod}) is pending termination for scale-in");
        let mut record = record(DOWN, &reason, "compute");
        record["comment"] = json!(comment);
        let done = done(set("Never"), vec![], &record, &json!([]));
        assert_eq!(done, expected, "{pod} {comment}");
    }
    // Its machine exists and may be alive.
    let alive = done(
        set("NodeNotFound"),
        vec![host("k1")],
        &record(DOWN, "Not responding", "compute"),
        &json!([]),
    );
    assert_eq!(alive, "");
}

#[test]
fn a_kept_record_is_set_down_as_planned_when_its_machine_is_gone() {
    let by_plan = "slurm-operator: Pod (slurm/compute-7) is pending termination for scale-in";
    let (drained, busy) = (&["IDLE", "DRAIN", "DYNAMIC_NORM"], &["MIXED", "DRAIN", "DYNAMIC_NORM"]);
    for (record, expected) in [
        (record(drained, by_plan, "compute"), (true, by_plan)),
        (record(busy, by_plan, "compute"), (false, LOST)),
        (record(IDLE, "", "compute"), (false, LOST)),
    ] {
        let set = nodeset(&json!({ "replicas": 0 }));
        let objects = vec![controller(), slurm_key(), set];
        let plan = plan(&observed_exactly("compute", objects, known(&record, &json!([]))));
        let [
            Effect::LoseWorker(WorkerLoss {
                down: Some(down),
                is_planned,
                ..
            }),
        ] = plan.effects.as_slice()
        else {
            panic!("{record}: {:?}", plan.effects)
        };
        // Without a new reason the old one stays.
        let reason = super::given_reason(down).unwrap_or(&down.expect.reason);
        assert_eq!((*is_planned, reason), expected, "{record}");
    }
}

#[test]
fn a_record_that_may_be_needed_is_looked_at_again_soon() {
    let requeue = |policy: &str| {
        let set = nodeset(&json!({ "replicas": 0, "pruneSlurmNodeRecords": policy }));
        let lost = record(DOWN, LOST, "compute");
        let objects = vec![controller(), slurm_key(), set];
        plan(&observed_exactly("compute", objects, known(&lost, &json!([])))).requeue
    };
    assert_eq!(requeue("NodeNotFound"), Some(super::super::RECORD_REQUEUE));
    assert!(requeue("Never") > Some(super::super::RECORD_REQUEUE));
}

#[test]
fn a_record_that_a_new_worker_will_have_stays() {
    let set = nodeset(&json!({ "replicas": 8, "pruneSlurmNodeRecords": "NodeNotFound" }));
    assert!(!done(set, vec![], &record(DOWN, LOST, "compute"), &json!([])).contains("forget"));
}

#[test]
fn in_daemon_mode_a_record_is_deleted_when_its_machine_has_another_name() {
    let set = nodeset(
        &json!({ "scalingMode": "DaemonSet", "pruneSlurmNodeRecords": "NodeNotFound",
        "template": { "spec": { "nodeSelector": { "a": "b" } } } }),
    );
    let lost = record(DOWN, "Not responding", "compute");
    assert_eq!(
        done(set.clone(), vec![host("k1")], &lost, &json!([])),
        "forget compute-7"
    );
    let mut named = host("k1");
    named["metadata"]["annotations"] = json!({ "nodeset.slinky.slurm.net/hostname-override": "compute-7" });
    assert_eq!(done(set, vec![named], &lost, &json!([])), "");
}

#[test]
fn a_deleted_set_takes_its_records_along() {
    let set = terminating(nodeset(&json!({ "replicas": 0 })));
    let lost = record(DOWN, LOST, "compute");
    for (jobs, expected) in [
        (json!([]), "forget compute-7"),
        // The record stays, and the NodeSet does not wait for it.
        (
            json!([{ "job_id": 7, "job_state": ["PENDING"], "nodes": "", "required_nodes": "compute-7" }]),
            "let go",
        ),
        (
            json!([{ "job_id": 7, "job_state": ["RUNNING"], "nodes": "compute-7" }]),
            "",
        ),
    ] {
        assert_eq!(done(set.clone(), vec![], &lost, &jobs), expected, "{jobs}");
    }
}

#[test]
fn a_record_that_a_worker_of_another_set_has_taken_over_is_left_alone() {
    let foreign = |hostname: &str| {
        with(
            worker(7),
            &[
                ("/metadata/name", json!("other-7")),
                ("/metadata/labels/app.kubernetes.io~1instance", json!("other")),
                ("/metadata/ownerReferences/0/uid", json!("other")),
                ("/spec/hostname", json!(hostname)),
                ("/spec/nodeName", json!("k2")),
            ],
        )
    };
    let set = || nodeset(&json!({ "replicas": 0, "pruneSlurmNodeRecords": "NodeNotFound" }));
    for (hostname, state, expected) in [
        ("compute-7", IDLE, ""),
        ("compute-7", DOWN, ""),
        ("compute-8", IDLE, "down compute-7"),
        ("compute-8", DOWN, "forget compute-7"),
    ] {
        let objects = vec![foreign(hostname), host("k2")];
        let done = done(set(), objects, &record(state, LOST, "compute"), &json!([]));
        assert_eq!(done, expected, "{hostname} {state:?}");
    }
}

#[test]
fn a_name_is_not_used_again_before_kubernetes_has_noticed_that_its_node_is_unreachable() {
    let drained = &["IDLE", "DRAIN", "DYNAMIC_NORM"][..];
    let busy = &["ALLOCATED", "DRAIN", "DYNAMIC_NORM"][..];
    let (k1, soon, later) = (vec![host("k1")], "2026-01-01T00:59:01Z", "2026-01-01T00:58:59Z");
    let cordoned = "slurm-operator: Node (k1) was cordoned, Pod (slurm/compute-0) must be cordoned";
    for (case, (state, reason), hosts, since, expected) in [
        ("it may be alive", (IDLE, ""), k1.clone(), soon, ""),
        ("it may have jobs", (busy, ""), k1.clone(), soon, ""),
        (
            "Kubernetes has noticed nothing",
            (IDLE, ""),
            k1.clone(),
            later,
            "create compute-0",
        ),
        ("it ended", (DOWN, cordoned), k1.clone(), soon, "create compute-0"),
        ("it was cordoned", (drained, cordoned), k1.clone(), soon, ""),
        ("a person drained it", (drained, "RMA"), k1.clone(), soon, ""),
        ("a person set it down", (DOWN, "RMA"), k1.clone(), soon, ""),
        ("Slurm misses it", (DOWN, "Not responding"), k1, soon, ""),
        (
            "its node is gone",
            (IDLE, ""),
            vec![],
            soon,
            "down compute-0; create compute-0",
        ),
    ] {
        let mut record = record(state, reason, "compute");
        record["name"] = json!("compute-0");
        let all = [
            vec![controller(), slurm_key(), nodeset(&json!({ "replicas": 1 }))],
            hosts,
        ]
        .concat();
        let mut observed = observed_exactly("compute", all, known(&record, &json!([])));
        let before = [("compute-0".to_owned(), since.parse().unwrap())].into();
        observed.without_pod = without_pod(&observed, &before);
        let plan = plan(&observed);
        let mut done = steps(&plan);
        done.sort_by_key(|step| step.starts_with("create"));
        assert_eq!(done.join("; "), expected, "{case}");
        assert_eq!(plan.waits.len(), usize::from(expected.is_empty()), "{case}");
        let without_history = without_pod(&observed, &BTreeMap::new());
        assert_eq!(without_history.get("compute-0"), Some(&now()));
    }
}

#[test]
fn the_name_of_a_pod_that_was_seen_ended_is_used_at_once() {
    let mut seen = record(&["IDLE", "DRAIN", "DYNAMIC_NORM"], "RMA", "compute");
    seen["name"] = json!("compute-0");
    let observe = |before: &BTreeMap<String, LastSeen>, pods: Vec<Value>| {
        let set = nodeset(&json!({ "replicas": 1 }));
        let all = [vec![controller(), slurm_key(), set, host("k1")], pods].concat();
        observed_after(before, "compute", all, known(&seen, &json!([])))
    };
    for (state, expected) in [
        (json!({ "running": {} }), vec![]),
        (json!({ "terminated": { "exitCode": 0 } }), vec!["create compute-0"]),
    ] {
        let statuses = json!([{ "name": "slurmd", "state": state }]);
        let ending = with(terminating(worker(0)), &[("/status/containerStatuses", statuses)]);
        let first = observe(&BTreeMap::new(), vec![ending]);
        let mut gone = observe(&first.last_seen, vec![]);
        gone.without_pod = without_pod(&gone, &BTreeMap::new());
        assert_eq!(steps(&plan(&gone)), expected, "{state}");
        let successor = observe(&gone.last_seen, vec![worker(0)]);
        assert_eq!(successor.last_seen["compute-0"], LastSeen::On("k1".to_owned()));
    }
}

/// The machine with slurmctld and its agent fails just after a worker was removed.
#[test]
fn a_record_whose_deletion_was_forgotten_is_deleted_again() {
    let observe = |before: &BTreeMap<String, LastSeen>, pods: Vec<Value>, record: &Value| {
        let set = nodeset(&json!({ "replicas": 0 }));
        let all = [vec![controller(), slurm_key(), set, host("k1")], pods].concat();
        observed_after(before, "compute", all, known(record, &json!([])))
    };
    let statuses = json!([{ "name": "slurmd", "state": { "terminated": { "exitCode": 0 } } }]);
    let ending = with(terminating(worker(7)), &[("/status/containerStatuses", statuses)]);
    let mut forgotten = record(DOWN, "Not responding", "compute");
    forgotten["comment"] = json!("");
    let first = observe(&BTreeMap::new(), vec![ending], &forgotten);
    for (before, expected) in [(&first.last_seen, vec!["forget compute-7"]), (&BTreeMap::new(), vec![])] {
        let again = observe(before, vec![], &forgotten);
        assert_eq!(steps(&plan(&again)), expected);
    }
    // Slurm misses it minutes later, and operators may have restarted by then.
    let mut idle = record(IDLE, "", "compute");
    idle["comment"] = json!("");
    let again = observe(&first.last_seen, vec![], &idle);
    assert_eq!(steps(&plan(&again)), ["forget compute-7"]);
    let mut of_a_person = forgotten;
    of_a_person["comment"] = json!("mine");
    assert_eq!(steps(&plan(&observe(&first.last_seen, vec![], &of_a_person))), [""; 0]);
}

/// Slurm stops responding before Kubernetes notices that the node is unreachable, as when slurmctld was on the same node.
#[test]
fn the_place_of_a_pod_that_is_gone_is_kept_before_kubernetes_notices() {
    let k1 = || host("k1");
    let away = with(k1(), &[("/status/conditions/0/status", json!("Unknown"))]);
    let observe = |objects: Vec<Value>, noted: Value, knowledge, now: &str| {
        let status = json!({ "nodeSetHash": "", "cutOff": noted });
        let set = with(nodeset(&json!({ "replicas": 1 })), &[("/status", status)]);
        let all = [vec![controller(), slurm_key(), set], objects].concat();
        let mut observed = observed_exactly("compute", all, knowledge);
        observed.now = now.parse().unwrap();
        observed
    };
    let mut seen = record(IDLE, "", "compute");
    seen["name"] = json!("compute-0");
    let kept = json!({ "compute-0": "k1" });
    let (start, soon) = ("2026-01-01T01:00:00Z", "2026-01-01T01:00:30Z");
    let later = "2026-01-01T01:02:00Z";

    let mut first = observe(vec![k1()], json!({}), known(&seen, &json!([])), start);
    first.without_pod = without_pod(&first, &BTreeMap::new());
    assert_eq!(json!(cut_off(&first)), kept);
    // Also a new leader does not use the name.
    for memory in [first.without_pod.clone(), BTreeMap::new()] {
        let mut silent = observe(vec![k1()], kept.clone(), unknown(), soon);
        silent.without_pod = without_pod(&silent, &memory);
        assert_eq!(steps(&plan(&silent)), [""; 0]);
        assert_eq!(json!(cut_off(&silent)), kept);
        let mut missed = observe(vec![away.clone()], kept.clone(), unknown(), later);
        missed.without_pod = without_pod(&missed, &silent.without_pod);
        assert_eq!(steps(&plan(&missed)), [""; 0]);
        assert_eq!(json!(cut_off(&missed)), kept);
        let mut well = observe(vec![k1()], kept.clone(), unknown(), later);
        well.without_pod = without_pod(&well, &silent.without_pod);
        assert_eq!(steps(&plan(&well)), ["create compute-0"]);
        // The API server may show that the node is unreachable before the cache does, and the place is needed to ask it again.
        assert_eq!(json!(cut_off(&well)), kept);
    }
    // A worker that exists is where it is.
    let pod = observe(vec![worker(0), k1()], kept, unknown(), soon);
    assert_eq!(without_pod(&pod, &first.without_pod), [].into());
}

/// slurmctld is away, a node is cut off, and a person deletes the pod there by force before Kubernetes notices.
#[test]
fn the_name_of_a_pod_that_was_seen_on_a_node_is_not_reused_while_that_is_unreachable() {
    let away = with(host("k1"), &[("/status/conditions/0/status", json!("Unknown"))]);
    let observe = |before: &BTreeMap<String, LastSeen>, objects: Vec<Value>, now: &str| {
        let status = json!({ "nodeSetHash": "", "replicas": 1 });
        let set = with(nodeset(&json!({ "replicas": 1 })), &[("/status", status)]);
        let all = [vec![controller(), slurm_key(), set], objects].concat();
        let mut observed = observed_after(before, "compute", all, unknown());
        observed.now = now.parse().unwrap();
        observed
    };
    let first = observe(&BTreeMap::new(), vec![worker(0), host("k1")], "2026-01-01T01:00:00Z");
    for (host, expected) in [(away, vec![]), (host("k1"), vec!["create compute-0"])] {
        let gone = observe(&first.last_seen, vec![host], "2026-01-01T01:02:00Z");
        assert_eq!(steps(&plan(&gone)), expected);
        assert_eq!(json!(cut_off(&gone)), json!({ "compute-0": "k1" }));
    }
}

/// A pod was deleted by force while no operator led, and the new leader has not heard of Slurm yet.
#[test]
fn a_new_leader_reserves_the_names_of_pods_that_vanished_until_slurm_responds() {
    let observe = |counted: u32, knowledge, now: &str| {
        let status = json!({ "nodeSetHash": "", "replicas": counted });
        let set = with(nodeset(&json!({ "replicas": 2 })), &[("/status", status)]);
        let all = vec![controller(), slurm_key(), set, worker(0), host("k1")];
        let mut observed = observed_exactly("compute", all, knowledge);
        observed.now = now.parse().unwrap();
        observed
    };
    let (start, soon, later) = ("2026-01-01T01:00:00Z", "2026-01-01T01:00:30Z", "2026-01-01T01:01:01Z");
    let mut scaled_out = observe(1, unknown(), start);
    scaled_out.vanished_since = vanished_since(&scaled_out, None);
    assert_eq!(steps(&plan(&scaled_out)), ["create compute-1"], "it never existed");

    let mut first = observe(2, unknown(), start);
    first.vanished_since = vanished_since(&first, None);
    assert_eq!(steps(&plan(&first)), [""; 0]);
    // The status counts the pods that are left.
    let mut second = observe(1, unknown(), soon);
    second.vanished_since = vanished_since(&second, first.vanished_since);
    assert_eq!(steps(&plan(&second)), [""; 0]);
    let mut third = observe(1, unknown(), later);
    third.vanished_since = vanished_since(&third, second.vanished_since);
    assert_eq!(
        steps(&plan(&third)),
        ["create compute-1"],
        "Kubernetes has noticed outages by now"
    );
    let responds = observe(1, known(&record(IDLE, "", "compute"), &json!([])), soon);
    assert_eq!(
        vanished_since(&responds, first.vanished_since),
        None,
        "records show the names"
    );
}
