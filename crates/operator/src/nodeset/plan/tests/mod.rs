//! The rules of a plan, one by one: here those about the number of workers.

mod any_spec;
mod objects;

use serde_json::{Value, json};
use slurm::agent::Reason;

use super::{Cause, Effect, JobEnd, Occupancy, Plan, PlannedOrder, Wait, WorkerLoss, WorkerRemoval, plan};
use crate::{
    cluster::NodeOrder,
    nodeset::fixture::{
        DRAINED, DRAINING, IDLE, begun, controller, finished, known, marked, nodeset, observed, planned, slurm_key,
        terminating, unknown, with, worker,
    },
};

/// The effects of a plan, in short.
pub(in crate::nodeset) fn steps(plan: &Plan) -> Vec<String> {
    plan.effects
        .iter()
        .map(|effect| match effect {
            Effect::AddFinalizer => "finalizer".to_owned(),
            Effect::RemoveFinalizer { because } => format!("let go{}", if because.is_some() { " early" } else { "" }),
            Effect::AdoptPod { pod } => format!("adopt {}", pod.name),
            Effect::LoseWorker(WorkerLoss { pod, down, .. }) => {
                let down = down.iter().map(|down| format!("down {}", down.node));
                let replaced = pod.iter().map(|pod| format!("replace {}", pod.name));
                down.chain(replaced).collect::<Vec<String>>().join(", ")
            }
            Effect::OrderNode { order, .. } => {
                let verb = match &order.order {
                    NodeOrder::Drain { .. } => "drain",
                    NodeOrder::Undrain => "undrain",
                    NodeOrder::Resume => "resume",
                    NodeOrder::PowerUp => "power up",
                    NodeOrder::PowerDown => "power down",
                    other => panic!("{other:?}"),
                };
                format!("{verb} {}", order.node)
            }
            Effect::CreateRecord(creation) => match creation.settings {
                Some(_) => format!("record {}", creation.node),
                None => format!("describe {}", creation.node),
            },
            Effect::DeleteRecord(order) => format!("forget {}", order.node),
            Effect::CreatePod { pod, .. } => format!("create {}", pod["metadata"]["name"].as_str().unwrap()),
            Effect::MarkLeaving { pod, leaving } => match leaving.map(|leaving| leaving.cause) {
                Some(Cause::ScaleIn) => format!("mark {}", pod.name),
                Some(cause) => format!("mark {} for {}", pod.name, cause.as_str()),
                None => format!("spare {}", pod.name),
            },
            Effect::Unprotect { pod, .. } => format!("unprotect {}", pod.name),
            Effect::EndJob(JobEnd { job, order, .. }) => format!("{order:?} {job}").to_lowercase(),
            Effect::EndStaleJobs { node, stale_jobs, .. } => match &stale_jobs.requeue {
                None => format!("down {node}"),
                Some(jobs) => format!("requeue({jobs:?}) {node}").to_lowercase(),
            },
            Effect::RemoveWorker(removal) => format!("remove {}", removal.pod.name),
            Effect::MarkPod { pod, .. } => format!("label {}", pod.name),
            Effect::Reserve { request, new } => {
                format!("{} {}", if *new { "reserve" } else { "change" }, request.name)
            }
            Effect::Unreserve { name } => format!("unreserve {name}"),
            Effect::OwnClaim { name, owned, .. } => format!("{} {name}", if *owned { "own" } else { "disown" }),
        })
        .collect()
}

/// The only order of a plan, which is a drain, and its reason.
pub(in crate::nodeset) fn only_drain(plan: &Plan) -> (&PlannedOrder, Option<&str>) {
    let [Effect::OrderNode { order, .. }] = plan.effects.as_slice() else {
        panic!("{:?}", plan.effects)
    };
    let NodeOrder::Drain { reason } = &order.order else {
        panic!("{order:?}")
    };
    (order, reason.as_ref().map(Reason::as_str))
}

fn replicas(count: u32) -> Value {
    json!({ "replicas": count })
}

#[test]
fn missing_workers_are_created_at_once_on_the_lowest_free_ordinals_without_slurm() {
    let plan = planned(&replicas(4), vec![worker(1)], unknown());
    assert_eq!(
        steps(&plan),
        ["create compute-0", "create compute-2", "create compute-3"]
    );
    assert_eq!(plan.waits, []);
    assert_eq!(plan.desired, 4);
}

#[test]
fn a_settled_set_has_nothing_to_do() {
    for knowledge in [unknown(), known(&[("compute-0", IDLE)], &[])] {
        assert_eq!(steps(&planned(&replicas(1), vec![worker(0)], knowledge)), [""; 0]);
    }
}

#[test]
fn the_finalizer_comes_first() {
    let mut objects = vec![controller(), slurm_key()];
    objects.push(with(nodeset(&replicas(1)), &[("/metadata/finalizers", json!([]))]));
    let plan = plan(&observed(objects, unknown()));
    assert_eq!(steps(&plan), ["finalizer", "create compute-0"]);
}

#[test]
fn a_failed_worker_is_replaced_under_its_own_number_without_asking_slurm() {
    let pods = vec![worker(0), finished(worker(1)), worker(2)];
    let plan = planned(&replicas(3), pods, unknown());
    assert_eq!(steps(&plan), ["replace compute-1"]);
    let plan = planned(&replicas(3), vec![worker(0), worker(2)], unknown());
    assert_eq!(steps(&plan), ["create compute-1"]);
}

#[test]
fn a_terminating_worker_keeps_its_ordinal() {
    let pods = vec![worker(0), terminating(worker(1)), worker(2)];
    let plan = planned(&replicas(3), pods.clone(), unknown());
    assert_eq!(steps(&plan), [""; 0]);
    assert_eq!(
        plan.waits,
        [Wait::Other(
            "pod compute-1 has to terminate before its successor is created".to_owned()
        )]
    );
    // It does not count as present either, or another worker would leave in its place.
    assert_eq!(steps(&planned(&replicas(2), pods, unknown())), [""; 0]);
}

#[test]
fn scaling_in_marks_then_drains_then_removes() {
    let idle: &[(&str, &[&str])] = &[("compute-0", IDLE), ("compute-1", IDLE)];
    let chosen = planned(&replicas(1), vec![worker(0), worker(1)], known(idle, &[]));
    assert_eq!(steps(&chosen), ["mark compute-1"]);

    let draining = planned(&replicas(1), vec![worker(0), marked(worker(1))], known(idle, &[]));
    assert_eq!(steps(&draining), ["drain compute-1"]);
    assert_eq!(
        only_drain(&draining).1,
        Some("slurm-operator: Pod (slurm/compute-1) is pending termination for scale-in")
    );

    let drained: &[(&str, &[&str])] = &[("compute-0", IDLE), ("compute-1", DRAINED)];
    let removed = planned(&replicas(1), vec![worker(0), marked(worker(1))], known(drained, &[]));
    assert_eq!(steps(&removed), ["remove compute-1"]);
}

#[test]
fn a_busy_worker_is_never_removed() {
    let nodes: &[(&str, &[&str])] = &[("compute-0", IDLE), ("compute-1", DRAINING)];
    let suspended: &[(&str, &[&str])] = &[("compute-0", IDLE), ("compute-1", DRAINED)];
    for (nodes, job) in [
        (nodes, &["RUNNING"][..]),
        (suspended, &["SUSPENDED"]),
        (suspended, &["COMPLETED", "COMPLETING"]),
    ] {
        let plan = planned(
            &replicas(1),
            vec![worker(0), marked(worker(1))],
            known(nodes, &[(7, job, "compute-1")]),
        );
        assert_eq!(steps(&plan), [""; 0], "{job:?}");
        let [Wait::Other(why)] = plan.waits.as_slice() else {
            panic!("{:?}", plan.waits)
        };
        assert!(why.starts_with("node compute-1 is drained and kept: job 7"), "{why}");
    }
}

#[test]
fn nothing_is_removed_without_a_snapshot() {
    let pods = vec![worker(0), marked(worker(1)), worker(2)];
    let plan = planned(&replicas(1), pods, unknown());
    // The choice needs no snapshot.
    assert_eq!(steps(&plan), ["mark compute-2"]);
    assert_eq!(
        plan.waits,
        [Wait::SlurmUnknown {
            why: "nobody answers".to_owned()
        }]
    );
}

#[test]
fn a_choice_is_kept() {
    // By rank compute-1 would leave, which has become unready since.
    let unready = with(worker(1), &[("/status/conditions/0/status", json!("False"))]);
    let idle: &[(&str, &[&str])] = &[("compute-0", IDLE), ("compute-1", IDLE), ("compute-2", IDLE)];
    let plan = planned(
        &replicas(2),
        vec![worker(0), unready, marked(worker(2))],
        known(idle, &[]),
    );
    assert_eq!(steps(&plan), ["drain compute-2"]);
}

#[test]
fn scaling_out_again_keeps_the_chosen() {
    let ours = |reason: &str| {
        let seen = json!([
            { "name": "compute-0", "state": IDLE },
            { "name": "compute-1", "state": DRAINED, "reason": reason },
        ]);
        let nodes = serde_json::from_value(seen).unwrap();
        crate::cluster::Knowledge::Known(std::sync::Arc::new(crate::cluster::Seen::of_nodes(
            nodes,
            jiff::Timestamp::UNIX_EPOCH,
        )))
    };
    let pods = || vec![worker(0), marked(worker(1))];
    let plan = planned(
        &replicas(2),
        pods(),
        ours("slurm-operator: Pod (slurm/compute-1) is pending termination for scale-in"),
    );
    assert_eq!(steps(&plan), ["spare compute-1", "undrain compute-1"]);
    // A manual drain is kept.
    assert_eq!(
        steps(&planned(&replicas(2), pods(), ours("broken fan"))),
        ["spare compute-1"]
    );
    // The reason identifies the operator's drain, so it can be reverted later.
    assert_eq!(steps(&planned(&replicas(2), pods(), unknown())), ["spare compute-1"]);
}

#[test]
fn a_foreign_drain_reason_is_kept() {
    let nodes = json!([{ "name": "compute-0", "state": ["DOWN", "DYNAMIC_NORM"], "reason": "broken fan" }]);
    let seen = crate::cluster::Seen::of_nodes(serde_json::from_value(nodes).unwrap(), jiff::Timestamp::UNIX_EPOCH);
    let plan = planned(
        &replicas(0),
        vec![marked(worker(0))],
        crate::cluster::Knowledge::Known(std::sync::Arc::new(seen)),
    );
    assert_eq!(only_drain(&plan).1, None, "theirs stays");
}

#[test]
fn a_worker_that_slurm_does_not_know_may_go_unless_its_machine_names_it() {
    let plan = planned(&replicas(0), vec![marked(worker(0))], known(&[], &[]));
    let [Effect::RemoveWorker(WorkerRemoval { occupancy, .. })] = plan.effects.as_slice() else {
        panic!("{:?}", plan.effects)
    };
    assert_eq!(*occupancy, Occupancy::Absent);
    let on_host = with(marked(worker(0)), &[("/spec/hostNetwork", json!(true))]);
    let plan = planned(&replicas(0), vec![on_host], known(&[], &[]));
    assert_eq!(steps(&plan), [""; 0]);
    assert!(matches!(plan.waits.as_slice(), [Wait::Other(why)] if why.contains("is drained and kept: ")));
}

#[test]
fn a_worker_that_may_be_about_to_register_is_waited_for() {
    let slurmd = |state: Value| {
        json!({ "phase": "Pending", "containerStatuses": [
            { "name": "slurmd", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state },
        ] })
    };
    let waiting = |reason: &str| ("/status", slurmd(json!({ "waiting": { "reason": reason } })));
    let running = |at: &str| ("/status", slurmd(json!({ "running": { "startedAt": at } })));
    let scheduled = |at: &str| {
        let condition = json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": at });
        ("/status", json!({ "phase": "Pending", "conditions": [condition] }))
    };
    let (young, old) = ("2026-01-01T00:58:01Z", "2026-01-01T00:57:59Z");
    let created = || ("/metadata/creationTimestamp", json!(young));
    let drained = ("/metadata/annotations/nodeset.slinky.slurm.net~1drained", json!(young));
    for (case, changes, goes) in [
        ("its slurmd has just started", vec![running(young)], false),
        ("its slurmd started two minutes ago", vec![running(old)], true),
        ("it was scheduled just now", vec![scheduled(young)], false),
        ("it was scheduled long ago", vec![scheduled(old)], true),
        (
            "slurmd is about to start",
            vec![created(), waiting("ContainerCreating")],
            false,
        ),
        ("it cannot start", vec![created(), waiting("ImagePullBackOff")], true),
        (
            "it is unscheduled",
            vec![created(), ("/spec/nodeName", Value::Null)],
            true,
        ),
        (
            "it has just become ready",
            vec![("/status/conditions/0/lastTransitionTime", json!(young))],
            false,
        ),
        (
            "it was registered, and its record is deleted",
            vec![created(), drained],
            true,
        ),
    ] {
        let plan = planned(&replicas(0), vec![with(marked(worker(0)), &changes)], known(&[], &[]));
        let expected: &[&str] = if goes { &["remove compute-0"] } else { &[] };
        assert_eq!(steps(&plan), expected, "{case}");
        assert!(plan.needs_jobs, "{case}");
        let [Wait::Other(wait)] = plan.waits.as_slice() else {
            assert!(goes, "{case}: {:?}", plan.waits);
            continue;
        };
        assert!(wait.contains("until 2026-01-01T01:00:01Z"), "{case}: {wait}");
    }
    // The agent makes a worker register that a restarted slurmctld has forgotten, drained or not.
    let drained = ("/metadata/annotations/nodeset.slinky.slurm.net~1drained", json!(old));
    for changes in [vec![running(old)], vec![running(old), drained]] {
        for (boot, expected) in [
            ("2026-01-01T00:58:00Z", &[][..]),
            ("2026-01-01T00:57:59Z", &["remove compute-0"]),
        ] {
            let pods = vec![with(marked(worker(0)), &changes)];
            let plan = planned(&replicas(0), pods, begun(known(&[], &[]), boot));
            assert_eq!(steps(&plan), expected, "{boot} {changes:?}");
        }
    }
}

#[test]
fn two_workers_on_their_machines_networks_never_share_a_machine() {
    let alone = |spec: &Value| {
        let plan = planned(spec, vec![], unknown());
        let pod = plan.effects.iter().find_map(|effect| match effect {
            Effect::CreatePod { pod, .. } => Some(pod.clone()),
            _ => None,
        });
        pod.unwrap()["spec"]["affinity"]["podAntiAffinity"].is_object()
    };
    let shares = json!({ "replicas": 1, "oversubscribeNode": true });
    assert!(!alone(&shares));
    let on_host = json!({ "replicas": 1, "oversubscribeNode": true, "template": { "spec": { "hostNetwork": true } } });
    assert!(alone(&on_host));
}

#[test]
fn orphans_with_our_name_are_adopted() {
    let orphan = with(worker(0), &[("/metadata/ownerReferences", json!([]))]);
    let plan = planned(&replicas(1), vec![orphan.clone()], unknown());
    assert_eq!(steps(&plan), ["adopt compute-0"]);
    let stranger = with(orphan, &[("/metadata/name", json!("other-0"))]);
    assert!(!steps(&planned(&replicas(1), vec![stranger], unknown())).contains(&"adopt other-0".to_owned()));
}

#[test]
fn a_deleted_set_is_emptied_by_the_same_steps() {
    let going = |pods: Vec<Value>, knowledge| {
        let mut objects = vec![controller(), slurm_key(), terminating(nodeset(&replicas(2)))];
        objects.extend(pods);
        plan(&observed(objects, knowledge))
    };
    let nodes: &[(&str, &[&str])] = &[("compute-0", IDLE), ("compute-1", DRAINED)];
    let pods = vec![worker(0), worker(1), finished(worker(2))];
    let plan = going(pods.clone(), known(nodes, &[]));
    assert_eq!(
        steps(&plan),
        ["replace compute-2", "drain compute-0", "remove compute-1"]
    );
    assert_eq!(steps(&going(pods, unknown())), ["replace compute-2"]);
    assert_eq!(steps(&going(vec![], unknown())), ["let go"]);
}

#[test]
fn a_deleted_set_does_not_wait_for_a_cluster_that_is_deleted_too() {
    for cluster in [vec![], vec![terminating(controller())]] {
        let mut objects = vec![terminating(nodeset(&replicas(1))), worker(0)];
        objects.extend(cluster);
        assert_eq!(steps(&plan(&observed(objects, unknown()))), ["let go early"]);
    }
}

#[test]
fn a_set_of_the_other_mode_is_replaced_without_loss() {
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "k1" } });
    let spec = json!({ "scalingMode": "DaemonSet" });
    let plan = planned(&spec, vec![node.clone(), worker(0)], known(&[("compute-0", IDLE)], &[]));
    let made = steps(&plan);
    assert!(
        matches!(made.as_slice(), [create] if create.starts_with("create compute-")),
        "{made:?}"
    );
    let Some(Effect::CreatePod { pod, .. }) = plan.effects.first() else {
        panic!()
    };
    assert_eq!(pod["spec"]["hostname"], "k1");
    // Once it exists, the old worker leaves by the usual steps.
    let daemon = with(
        worker(9),
        &[
            ("/metadata/name", pod["metadata"]["name"].clone()),
            (
                "/metadata/labels/nodeset.slinky.slurm.net~1pod-name",
                pod["metadata"]["name"].clone(),
            ),
            (
                "/metadata/labels/nodeset.slinky.slurm.net~1scaling-mode",
                json!("DaemonSet"),
            ),
            ("/metadata/labels/nodeset.slinky.slurm.net~1pod-hostname", json!("k1")),
        ],
    );
    let nodes: &[(&str, &[&str])] = &[("compute-0", IDLE), ("compute-9", IDLE)];
    let plan = planned(&spec, vec![node, worker(0), daemon], known(nodes, &[]));
    assert_eq!(steps(&plan), ["mark compute-0 for other-mode"]);
}

#[test]
fn in_daemon_mode_every_node_that_fits_has_one_worker() {
    let node = |name: &str, label: &str| json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": { "kind": label } } });
    let spec = json!({ "scalingMode": "DaemonSet", "template": { "spec": { "nodeSelector": { "kind": "gpu" } } } });
    let plan = planned(
        &spec,
        vec![node("k1.example.org", "gpu"), node("k2", "cpu"), node("k3", "gpu")],
        unknown(),
    );
    let hosts: Vec<&str> = plan
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::CreatePod { pod, .. } => pod["spec"]["hostname"].as_str(),
            _ => None,
        })
        .collect();
    assert_eq!(hosts, ["k1", "k3"]);
    assert_eq!(plan.desired, 2);
}
