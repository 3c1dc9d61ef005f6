//! Workers that are back, and ready workers that Slurm does not have.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{DOWN, node, not_ready, planned};
use crate::{
    cluster::Knowledge,
    nodeset::{
        fixture::{IDLE, controller, host, known, nodeset, observed_exactly, running_since, slurm_key, with, worker},
        plan::{plan, tests::steps},
    },
};

#[test]
fn a_node_whose_worker_is_back_is_resumed_unless_it_was_set_down_manually() {
    // The worker has been ready since 00:01.
    let (before, just_now, while_ago) = ("2026-01-01T00:00:30Z", "2026-01-01T00:59:50Z", "2026-01-01T00:50:00Z");
    let ours = "slurm-operator: lost: Kubernetes node k9 is gone";
    for (state, reason, at, expected) in [
        (DOWN, ours, before, "resume compute-0"),
        (
            &["DOWN", "DRAIN", "DYNAMIC_NORM"],
            "slurm-operator: Pod is terminating",
            before,
            "resume compute-0",
        ),
        (DOWN, "Not responding", before, "resume compute-0"),
        (DOWN, "Node unexpectedly rebooted", before, "resume compute-0"),
        // Kubernetes may be about to notice an outage too.
        (DOWN, "Not responding", just_now, ""),
        (DOWN, "Not responding", while_ago, "resume compute-0"),
        (DOWN, "broken fan", before, ""),
        (DOWN, "", before, ""),
        (IDLE, "", before, ""),
    ] {
        let plan = planned(vec![worker(0), host("k1")], json!(null), node(state, reason, at));
        assert_eq!(steps(&plan).join("; "), expected, "{state:?} {reason} {at}");
    }
    let starting = with(worker(0), &[("/status/conditions/0/status", json!("False"))]);
    for objects in [vec![starting, host("k1")], vec![worker(0), not_ready(host("k1"))]] {
        assert_eq!(steps(&planned(objects, json!(null), node(DOWN, ours, before))), [""; 0]);
    }
}

#[test]
fn a_node_is_resumed_only_where_its_worker_is() {
    let (before, after) = ("2026-01-01T00:09:00Z", "2026-01-01T00:10:01Z");
    let lost = "slurm-operator: lost: Kubernetes node k9 is gone";
    for (case, address, started, expected) in [
        ("another slurmd was there", "10.0.0.9", before, ""),
        ("it is there", "10.0.0.1", before, "resume compute-0"),
        (
            "it was there, on a network of its own",
            "10.0.0.9",
            after,
            "resume compute-0",
        ),
        ("Slurm looks the address up", "compute-0", before, "resume compute-0"),
    ] {
        let started: Timestamp = started.parse().unwrap();
        let pod = running_since(worker(0), "2026-01-01T00:10:00Z");
        let pod = with(pod, &[("/status/podIP", json!("10.0.0.1"))]);
        let Knowledge::Known(seen) = node(DOWN, lost, before) else {
            panic!("it is known")
        };
        let mut seen = crate::cluster::Seen::clone(&seen);
        let record = seen.nodes.get_mut("compute-0").unwrap();
        record.address = address.to_owned();
        record.slurmd_start_time =
            serde_json::from_value(json!({ "set": true, "number": started.as_second() })).unwrap();
        let plan = planned(vec![pod, host("k1")], json!(null), Knowledge::Known(seen.into()));
        assert_eq!(steps(&plan).join("; "), expected, "{case}");
    }
}

#[test]
fn workers_that_slurm_does_not_know_are_replaced_one_first_then_as_many_as_may_be_missing() {
    let replaced = |pods: Vec<Value>, nodes: &[(&str, &[&str])]| {
        let set = nodeset(&json!({ "replicas": 4, "updateStrategy": { "rollingUpdate": { "maxUnavailable": 2 } } }));
        let all = [vec![controller(), slurm_key(), host("k1"), set], pods].concat();
        steps(&plan(&observed_exactly("compute", all, known(nodes, &[])))).len()
    };
    let four = || (0..4).map(worker).collect::<Vec<Value>>();
    assert_eq!(replaced(four(), &[]), 1);
    let one_known: &[(&str, &[&str])] = &[("compute-0", IDLE)];
    assert_eq!(replaced(four(), one_known), 2);
    // A worker that has just become ready counts.
    let young = with(
        worker(0),
        &[("/status/conditions/0/lastTransitionTime", json!("2026-01-01T00:59:50Z"))],
    );
    assert_eq!(replaced([vec![young], four().split_off(1)].concat(), one_known), 1);
    let on_host = |pod| with(pod, &[("/spec/hostNetwork", json!(true))]);
    assert_eq!(replaced(four().into_iter().map(on_host).collect(), &[]), 0);
}

#[test]
fn a_worker_that_slurm_does_not_know_is_looked_at_again_when_its_time_is_over() {
    let set = nodeset(&json!({ "replicas": 1 }));
    let ready = [("/status/conditions/0/lastTransitionTime", json!("2026-01-01T00:59:50Z"))];
    let all = vec![controller(), slurm_key(), host("k1"), set, with(worker(0), &ready)];
    let plan = plan(&observed_exactly("compute", all, known(&[], &[])));
    assert_eq!(steps(&plan).len(), 0, "{:?}", plan.effects);
    assert_eq!(plan.requeue, Some(Duration::from_secs(110)));
}
