//! Dead workers, and workers that may be alive.

mod records;
mod returns;

use serde_json::{Value, json};

use super::{super::tests::steps, *};
use crate::{
    cluster::Knowledge,
    nodeset::{
        fixture::{
            DRAINED, DRAINING, IDLE, controller, finished, host, known, marked, nodeset, observed_exactly, slurm_key,
            terminating, unknown, with, worker,
        },
        plan::{Plan, Wait, plan},
    },
};

fn not_ready(host: Value) -> Value {
    with(host, &[("/status/conditions/0/status", json!("Unknown"))])
}

fn tainted(host: Value) -> Value {
    with(
        host,
        &[(
            "/spec",
            json!({ "taints": [{ "key": OUT_OF_SERVICE, "effect": "NoExecute" }] }),
        )],
    )
}

fn ended(pod: Value) -> Value {
    let state = json!({ "terminated": { "exitCode": 0 } });
    let status =
        json!([{ "name": "slurmd", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state }]);
    with(pod, &[("/status/containerStatuses", status)])
}

/// The plan for one worker among these objects only.
fn planned(objects: Vec<Value>, status: Value, knowledge: Knowledge) -> Plan {
    let set = with(nodeset(&json!({ "replicas": 1 })), &[("/status", status)]);
    let all = [vec![controller(), slurm_key(), set], objects].concat();
    plan(&observed_exactly("compute", all, knowledge))
}

fn node(state: &[&str], reason: &str, reason_at: &str) -> Knowledge {
    let at: Timestamp = reason_at.parse().unwrap();
    let nodes = json!([{ "name": "compute-0", "state": state, "reason": reason,
        "reason_changed_at": { "set": true, "infinite": false, "number": at.as_second() } }]);
    let nodes = serde_json::from_value(nodes).unwrap();
    Knowledge::Known(crate::cluster::Seen::of_nodes(nodes, crate::nodeset::fixture::now()).into())
}

const DOWN: &[&str] = &["DOWN", "DYNAMIC_NORM"];

#[test]
fn only_proof_of_death_has_consequences() {
    let k1 = || host("k1");
    for (case, pod, node, expected) in [
        ("it runs", worker(0), Some(k1()), ""),
        ("its node does not answer", worker(0), Some(not_ready(k1())), ""),
        (
            "and its pod was deleted",
            terminating(worker(0)),
            Some(not_ready(k1())),
            "",
        ),
        ("a node that answers is in service", worker(0), Some(tainted(k1())), ""),
        ("containers that will start again", ended(worker(0)), Some(k1()), ""),
        (
            "the kubelet says so",
            finished(worker(0)),
            Some(k1()),
            "down compute-0, replace compute-0",
        ),
        (
            "its last container ended",
            terminating(ended(worker(0))),
            Some(k1()),
            "down compute-0, replace compute-0",
        ),
        ("its node is gone", worker(0), None, "down compute-0, replace compute-0"),
        (
            "its node is gone while it ended",
            terminating(worker(0)),
            None,
            "down compute-0, replace compute-0",
        ),
        (
            "its node is declared dead",
            worker(0),
            Some(tainted(not_ready(k1()))),
            "down compute-0, replace compute-0",
        ),
    ] {
        let plan = planned(
            [Some(pod), node].into_iter().flatten().collect(),
            json!(null),
            known(&[("compute-0", IDLE)], &[]),
        );
        assert_eq!(steps(&plan).join("; "), expected, "{case}");
    }
}

fn given_reason(down: &PlannedOrder) -> Option<&str> {
    let NodeOrder::Down { reason } = &down.order else {
        panic!("{down:?}")
    };
    reason.as_ref().map(Reason::as_str)
}

#[test]
fn a_node_is_set_down_once_and_a_manual_reason_is_kept() {
    let reason = |knowledge| {
        let plan = planned(vec![worker(0)], json!(null), knowledge);
        let [Effect::LoseWorker(WorkerLoss { down, death, .. })] = plan.effects.as_slice() else {
            panic!("{:?}", plan.effects)
        };
        assert_eq!(*death, death_of_node("k1", None).unwrap());
        down.as_ref()
            .map(|down| given_reason(down).unwrap_or("as it stands").to_owned())
    };
    let at = "2026-01-01T00:00:00Z";
    assert_eq!(
        reason(node(IDLE, "", at)).unwrap(),
        "slurm-operator: lost: Kubernetes node k1 is gone"
    );
    assert_eq!(reason(node(DRAINED, "broken fan", at)).unwrap(), "as it stands");
    let imitated = "slurm-operator: broken fan";
    assert_eq!(reason(node(DRAINED, imitated, at)).unwrap(), "as it stands");
    assert_eq!(reason(node(DOWN, "", at)), None);
    // Nodes from slurm.conf are left alone, and nothing is ordered without a snapshot.
    assert_eq!(reason(node(&["IDLE"], "", at)), None);
    assert_eq!(reason(unknown()), None);
}

#[test]
fn only_a_worker_that_leaves_without_a_plan_is_warned_about() {
    let at = "2026-01-01T00:00:00Z";
    let leaves = "slurm-operator: Pod (slurm/compute-0) is pending termination for scale-in";
    let deleted = || terminating(ended(worker(0)));
    let (ended, gone) = (
        "slurm-operator: lost: all its containers have ended",
        "slurm-operator: lost: Kubernetes node k1 is gone",
    );
    // Whether there is a warning, and the reason in Slurm.
    for (case, pod, host, slurm, expected) in [
        (
            "the operator removed it, and Slurm keeps its record",
            marked(deleted()),
            Some(host("k1")),
            node(DRAINED, leaves, at),
            (false, leaves),
        ),
        (
            "its pod was deleted while it was idle",
            deleted(),
            Some(host("k1")),
            node(IDLE, "", at),
            (false, "slurm-operator: Pod is terminating"),
        ),
        (
            "its pod was deleted, and jobs ended with it",
            deleted(),
            Some(host("k1")),
            node(DRAINING, leaves, at),
            (true, ended),
        ),
        (
            "its containers ended by themselves",
            finished(worker(0)),
            Some(host("k1")),
            node(IDLE, "", at),
            (true, ended),
        ),
        (
            "the operator removed it, and its machine went before its pod",
            marked(terminating(worker(0))),
            None,
            node(DRAINED, leaves, at),
            (false, leaves),
        ),
        (
            "its machine died while the operator waited for its jobs",
            marked(worker(0)),
            None,
            node(DRAINING, leaves, at),
            (true, gone),
        ),
        (
            "Kubernetes deletes the pods of a machine that does not answer",
            terminating(worker(0)),
            None,
            node(IDLE, "", at),
            (true, gone),
        ),
    ] {
        let plan = planned([Some(pod), host].into_iter().flatten().collect(), json!(null), slurm);
        let [Effect::LoseWorker(WorkerLoss { down, is_planned, .. })] = plan.effects.as_slice() else {
            panic!("{case}: {:?}", plan.effects)
        };
        let down = down.as_ref().unwrap();
        // Without a new reason the old one stays.
        let reason = given_reason(down).unwrap_or(&down.expect.reason);
        assert_eq!((!is_planned, reason), expected, "{case}");
    }
}

#[test]
fn a_name_is_not_used_while_its_last_worker_may_be_alive() {
    let noted = json!({ "nodeSetHash": "", "cutOff": { "compute-0": "k1" } });
    let settled = || host("k1");
    let just_back = with(
        settled(),
        &[("/status/conditions/0/lastTransitionTime", json!("2026-01-01T00:59:55Z"))],
    );
    for (case, node, expected) in [
        ("it does not answer", Some(not_ready(settled())), ""),
        ("it has just come back", Some(just_back), ""),
        ("it is back", Some(settled()), "create compute-0"),
        ("it is gone", None, "create compute-0"),
        (
            "it is declared dead",
            Some(tainted(not_ready(settled()))),
            "create compute-0",
        ),
    ] {
        let plan = planned(node.into_iter().collect(), noted.clone(), unknown());
        assert_eq!(steps(&plan).join("; "), expected, "{case}");
        let is_about_it = |wait: &Wait| {
            wait.message()
                .contains("its last worker may run jobs on Kubernetes node k1")
        };
        let held = plan.waits.iter().any(is_about_it);
        assert_eq!(held, expected.is_empty(), "{case}");
    }
    // The comment in Slurm names the last node too.
    let comment =
        r#"{"namespace":"slurm","podName":"compute-0","node":"k1","nodeSetName":"compute","nodeSetUID":"compute"}"#;
    let nodes = json!([{ "name": "compute-0", "state": IDLE, "comment": comment }]);
    let seen = crate::cluster::Seen::of_nodes(serde_json::from_value(nodes).unwrap(), crate::nodeset::fixture::now());
    let known = Knowledge::Known(seen.into());
    let plan = planned(vec![not_ready(settled())], json!(null), known.clone());
    assert_eq!(steps(&plan), [""; 0]);
    // The status keeps it for the time when Slurm does not respond.
    let all = vec![
        controller(),
        slurm_key(),
        nodeset(&json!({ "replicas": 1 })),
        not_ready(settled()),
    ];
    let kept = cut_off(&observed_exactly("compute", all, known));
    assert_eq!(kept, [("compute-0".to_owned(), "k1".to_owned())].into());
}

#[test]
fn the_record_of_an_unreachable_worker_ends_without_an_event() {
    let requeue = |back: &str| {
        let back = with(host("k1"), &[("/status/conditions/0/lastTransitionTime", json!(back))]);
        planned(vec![worker(0), back], json!(null), unknown()).requeue
    };
    assert_eq!(requeue("2026-01-01T00:59:20Z"), Some(Duration::from_secs(30)));
    let long_back = requeue("2026-01-01T00:50:00Z");
    assert!(long_back > Some(Duration::from_secs(30)), "{long_back:?}");
}

#[test]
fn an_unreachable_worker_is_recorded_until_it_is_dead_or_back() {
    let noted = |objects: Vec<Value>, status: Value| {
        let set = with(nodeset(&json!({ "replicas": 1 })), &[("/status", status)]);
        let all = [vec![controller(), slurm_key(), set], objects].concat();
        let noted = cut_off(&observed_exactly("compute", all, unknown()));
        noted
            .into_iter()
            .map(|(name, node)| format!("{name} on {node}"))
            .collect::<Vec<String>>()
            .join("; ")
    };
    let before = json!({ "nodeSetHash": "", "cutOff": { "compute-0": "k1" } });
    let away = || not_ready(host("k1"));
    assert_eq!(noted(vec![worker(0), host("k1")], json!(null)), "");
    assert_eq!(noted(vec![worker(0), away()], json!(null)), "compute-0 on k1");
    assert_eq!(noted(vec![away()], before.clone()), "compute-0 on k1");
    // Slurm does not respond, and the cache may be too old to show that the node is unreachable.
    assert_eq!(noted(vec![host("k1")], before.clone()), "compute-0 on k1");
    assert_eq!(noted(vec![], before.clone()), "");
    assert_eq!(noted(vec![finished(worker(0)), away()], before.clone()), "");
    let moved = with(worker(0), &[("/spec/nodeName", json!("k2"))]);
    assert_eq!(noted(vec![moved, away(), host("k2")], before), "");
}

#[test]
fn a_worker_whose_node_is_back_is_looked_at_again_once_it_counts_as_back() {
    let back = |since: &str| with(host("k1"), &[("/status/conditions/0/lastTransitionTime", json!(since))]);
    for (case, node, expected) in [
        ("it has just come back", back("2026-01-01T00:59:55Z"), Some(65)),
        ("it counts as back", back("2026-01-01T00:58:50Z"), None),
        ("it does not answer", not_ready(host("k1")), None),
    ] {
        let all = vec![
            controller(),
            slurm_key(),
            nodeset(&json!({ "replicas": 1 })),
            worker(0),
            node,
        ];
        let left = until_back(&observed_exactly("compute", all, unknown()));
        assert_eq!(left, expected.map(Duration::from_secs), "{case}");
    }
}
