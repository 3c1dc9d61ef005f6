//! The rules of a plan, one by one.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Cause, Effect, Plan, Standing, Wait, plan};
use crate::nodeset::fixture::{
    DRAINED, DRAINING, IDLE, controller, finished, known, marked, nodeset, observed, planned, slurm_key, terminating,
    unknown, with, worker,
};

/// What is done, in short.
pub(super) fn steps(plan: &Plan) -> Vec<String> {
    plan.effects
        .iter()
        .map(|effect| match effect {
            Effect::AddFinalizer => "finalizer".to_owned(),
            Effect::RemoveFinalizer { because } => format!("let go{}", if because.is_some() { " early" } else { "" }),
            Effect::AdoptPod { pod } => format!("adopt {}", pod.name),
            Effect::LoseWorker { pod, down, .. } => {
                let down = down.iter().map(|down| format!("down {}", down.node));
                let replaced = pod.iter().map(|pod| format!("replace {}", pod.name));
                down.chain(replaced).collect::<Vec<String>>().join(", ")
            }
            Effect::ResumeNode { node, .. } => format!("resume {node}"),
            Effect::DeleteRecord { node, .. } => format!("forget {node}"),
            Effect::CreatePod { pod, .. } => format!("create {}", pod["metadata"]["name"].as_str().unwrap()),
            Effect::MarkLeaving { pod, leaving } if leaving.cause == Cause::ScaleIn => format!("mark {}", pod.name),
            Effect::MarkLeaving { pod, leaving } => format!("mark {} for {}", pod.name, leaving.cause.as_str()),
            Effect::Spare { pod } => format!("spare {}", pod.name),
            Effect::UndrainNode { node, .. } => format!("undrain {node}"),
            Effect::Unprotect { pod, .. } => format!("unprotect {}", pod.name),
            Effect::DrainNode { node, .. } => format!("drain {node}"),
            Effect::EndJob { job, order, .. } => format!("{order:?} {job}").to_lowercase(),
            Effect::Disinherit { node, inherited, .. } => format!("{:?} {node}", inherited.remedy).to_lowercase(),
            Effect::RemoveWorker { pod, .. } => format!("remove {}", pod.name),
            Effect::MarkPod { pod, .. } => format!("label {}", pod.name),
            Effect::Reserve { request, new } => {
                format!("{} {}", if *new { "reserve" } else { "change" }, request.name)
            }
            Effect::Unreserve { name } => format!("unreserve {name}"),
            Effect::OwnClaim { name, owned, .. } => format!("{} {name}", if *owned { "own" } else { "disown" }),
        })
        .collect()
}

fn replicas(count: u32) -> Value {
    json!({ "replicas": count })
}

#[test]
fn missing_workers_are_made_all_at_once_on_the_lowest_free_numbers_without_asking_slurm() {
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
fn a_worker_on_its_way_out_holds_its_number() {
    let pods = vec![worker(0), terminating(worker(1)), worker(2)];
    let plan = planned(&replicas(3), pods.clone(), unknown());
    assert_eq!(steps(&plan), [""; 0]);
    assert_eq!(
        plan.waits,
        [Wait::Leaving {
            pod: "compute-1".to_owned()
        }]
    );
    // It is not counted as there either, or another one would go in its place.
    assert_eq!(steps(&planned(&replicas(2), pods, unknown())), [""; 0]);
}

#[test]
fn scaling_in_marks_then_drains_then_removes() {
    let idle: &[(&str, &[&str])] = &[("compute-0", IDLE), ("compute-1", IDLE)];
    let chosen = planned(&replicas(1), vec![worker(0), worker(1)], known(idle, &[]));
    assert_eq!(steps(&chosen), ["mark compute-1"]);

    let draining = planned(&replicas(1), vec![worker(0), marked(worker(1))], known(idle, &[]));
    assert_eq!(steps(&draining), ["drain compute-1"]);
    let Some(Effect::DrainNode { reason, .. }) = draining.effects.first() else {
        panic!()
    };
    assert_eq!(
        reason.as_deref(),
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
        let [Wait::Draining { node, why }] = plan.waits.as_slice() else {
            panic!("{:?}", plan.waits)
        };
        assert!(node == "compute-1" && why.starts_with("job 7"), "{why}");
    }
}

#[test]
fn nothing_is_removed_while_slurm_cannot_be_asked() {
    let pods = vec![worker(0), marked(worker(1)), worker(2)];
    let plan = planned(&replicas(1), pods, unknown());
    // The choice is Kubernetes' business and goes on.
    assert_eq!(steps(&plan), ["mark compute-2"]);
    assert_eq!(
        plan.waits,
        [Wait::SlurmUnknown {
            why: "nobody answers".to_owned()
        }]
    );
}

#[test]
fn a_choice_once_made_stands() {
    // By rank compute-1 would go, which has become unready since.
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
fn scaling_out_again_spares_the_chosen() {
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
    // What a person drained stays drained.
    assert_eq!(
        steps(&planned(&replicas(2), pods(), ours("broken fan"))),
        ["spare compute-1"]
    );
    // The reason tells that the drain is ours, so it can be undone later.
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
    let [Effect::DrainNode { reason, .. }] = plan.effects.as_slice() else {
        panic!("{:?}", plan.effects)
    };
    assert_eq!(*reason, None, "theirs stays");
}

#[test]
fn a_worker_that_slurm_does_not_know_may_go_unless_its_machine_names_it() {
    let plan = planned(&replicas(0), vec![marked(worker(0))], known(&[], &[]));
    let [Effect::RemoveWorker { standing, .. }] = plan.effects.as_slice() else {
        panic!("{:?}", plan.effects)
    };
    assert_eq!(*standing, Standing::Absent);
    let on_host = with(marked(worker(0)), &[("/spec/hostNetwork", json!(true))]);
    let plan = planned(&replicas(0), vec![on_host], known(&[], &[]));
    assert_eq!(steps(&plan), [""; 0]);
    assert!(matches!(plan.waits.as_slice(), [Wait::Draining { .. }]));
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
fn orphans_with_our_name_are_taken_in() {
    let orphan = with(worker(0), &[("/metadata/ownerReferences", json!([]))]);
    let plan = planned(&replicas(1), vec![orphan.clone()], unknown());
    assert_eq!(steps(&plan), ["adopt compute-0"]);
    let stranger = with(orphan, &[("/metadata/name", json!("other-0"))]);
    assert!(!steps(&planned(&replicas(1), vec![stranger], unknown())).contains(&"adopt other-0".to_owned()));
}

#[test]
fn labels_are_put_on_running_workers_and_replace_none() {
    let from_upstream = with(
        worker(0),
        &[
            ("/metadata/labels/slinky.slurm.net~1component", Value::Null),
            ("/metadata/labels/nodeset.slinky.slurm.net~1pod-protect", Value::Null),
        ],
    );
    let mut from_upstream = from_upstream;
    from_upstream["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .retain(|_, value| !value.is_null());
    let spec = json!({ "template": { "metadata": { "labels": { "team": "hpc" }, "annotations": { "a": "b" } } } });
    let plan = planned(&spec, vec![from_upstream], unknown());
    let [
        Effect::MarkPod {
            labels, annotations, ..
        },
    ] = plan.effects.as_slice()
    else {
        panic!("{:?}", plan.effects)
    };
    let added: Vec<&str> = labels.keys().map(String::as_str).collect();
    assert_eq!(
        added,
        [
            "nodeset.slinky.slurm.net/pod-protect",
            "slinky.slurm.net/component",
            "team"
        ]
    );
    assert_eq!(annotations["a"].as_deref(), Some("b"));
    let off = json!({ "workloadDisruptionProtection": false });
    assert_eq!(steps(&planned(&off, vec![worker(0)], unknown())), ["label compute-0"]);
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
fn refused_sets_say_why_and_leave_alone_what_runs() {
    let cases = [
        (
            vec![nodeset(&replicas(3)), slurm_key()],
            "ControllerNotFound",
            "there is none in this namespace",
        ),
        (
            vec![
                with(
                    nodeset(&replicas(3)),
                    &[("/spec/controllerRef/namespace", json!("other"))],
                ),
                controller(),
                slurm_key(),
            ],
            "OtherNamespace",
            "spec.controllerRef.namespace",
        ),
        (
            vec![
                with(nodeset(&replicas(3)), &[("/spec/extraConf", json!("nonsense"))]),
                controller(),
                slurm_key(),
            ],
            "BadValue",
            "spec.extraConf",
        ),
        (
            vec![nodeset(&replicas(3)), terminating(controller()), slurm_key()],
            "ControllerDeleted",
            "being deleted",
        ),
        (
            vec![nodeset(&replicas(3)), controller()],
            "SecretMissing",
            "slurm-auth-slurm",
        ),
        (
            vec![
                nodeset(
                    &json!({ "replicas": 3, "ssh": { "enabled": true, "sssdConfRef": { "name": "sssd", "key": "sssd.conf" } } }),
                ),
                controller(),
                slurm_key(),
            ],
            "SecretMissing",
            "sssd",
        ),
    ];
    for (mut objects, reason, words) in cases {
        objects.extend([worker(0), marked(worker(1)), finished(worker(2))]);
        let plan = plan(&observed(objects, known(&[("compute-1", DRAINED)], &[])));
        let refused = plan.refused.as_ref().unwrap();
        assert_eq!(refused.reason, reason);
        assert!(refused.message.contains(words), "{}", refused.message);
        assert_eq!(steps(&plan), [""; 0], "{reason}");
    }
}

#[test]
fn of_two_sets_with_one_name_in_slurm_the_younger_is_refused() {
    let named = |name: &str, created: &str| {
        with(
            nodeset(&json!({ "template": { "spec": { "hostname": "gpu-" } } })),
            &[
                ("/metadata/name", json!(name)),
                ("/metadata/uid", json!(name)),
                ("/metadata/creationTimestamp", json!(created)),
            ],
        )
    };
    let objects = || {
        vec![
            controller(),
            slurm_key(),
            named("a", "2026-01-01T00:00:01Z"),
            named("b", "2026-01-01T00:00:00Z"),
        ]
    };
    let of = |name: &str| plan(&crate::nodeset::fixture::observed_of(name, objects(), unknown()));
    assert_eq!(of("b").refused, None);
    let refused = of("a").refused.unwrap();
    assert_eq!(refused.reason, "NameTaken");
    assert!(
        refused.message.contains("\"b\"") && refused.message.contains("\"gpu\""),
        "{}",
        refused.message
    );
}

#[test]
fn a_node_name_of_another_set_is_not_used_twice() {
    let other = with(
        worker(0),
        &[
            ("/metadata/name", json!("other-0")),
            ("/metadata/labels/app.kubernetes.io~1instance", json!("other")),
            ("/metadata/ownerReferences/0/uid", json!("other")),
        ],
    );
    let plan = planned(&replicas(2), vec![other], unknown());
    assert_eq!(steps(&plan), ["create compute-1"]);
    assert!(matches!(plan.waits.as_slice(), [Wait::NameTaken { name, .. }] if name == "compute-0"));
}

#[test]
fn claims_are_made_with_the_worker_and_go_only_with_a_scale_in() {
    let spec = |deleted: &str, scaled: &str, replicas: u32| {
        json!({
            "replicas": replicas,
            "volumeClaimTemplates": [{ "metadata": { "name": "scratch" }, "spec": { "accessModes": ["ReadWriteOnce"] } }],
            "persistentVolumeClaimRetentionPolicy": { "whenDeleted": deleted, "whenScaled": scaled },
        })
    };
    let plan = planned(&spec("Retain", "Retain", 1), vec![], unknown());
    let [Effect::CreatePod { pod, claims }] = plan.effects.as_slice() else {
        panic!("{:?}", plan.effects)
    };
    assert_eq!(claims[0]["metadata"]["name"], "scratch-compute-0");
    assert_eq!(claims[0]["metadata"].get("ownerReferences"), None);
    assert_eq!(
        pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"],
        "scratch-compute-0"
    );

    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "namespace": "slurm", "name": "scratch-compute-0", "uid": "claim",
            "labels": { "app.kubernetes.io/name": "slurmd", "app.kubernetes.io/instance": "compute" },
        },
        "spec": {},
    });
    let plan = planned(&spec("Delete", "Retain", 1), vec![worker(0), claim.clone()], unknown());
    assert_eq!(steps(&plan), ["own scratch-compute-0"]);
    let made_by_hand = with(claim.clone(), &[("/metadata/labels", json!({}))]);
    let plan = planned(&spec("Delete", "Retain", 1), vec![worker(0), made_by_hand], unknown());
    assert_eq!(steps(&plan), [""; 0]);
    let owned = with(
        claim.clone(),
        &[(
            "/metadata/ownerReferences",
            json!([{
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "compute", "uid": "compute", "controller": true,
            }]),
        )],
    );
    let plan = planned(&spec("Retain", "Retain", 1), vec![worker(0), owned], unknown());
    assert_eq!(steps(&plan), ["disown scratch-compute-0"]);

    for (scaled, gone) in [("Retain", vec![]), ("Delete", vec!["scratch-compute-0"])] {
        let drained = known(&[("compute-0", DRAINED)], &[]);
        let plan = planned(
            &spec("Retain", scaled, 0),
            vec![marked(worker(0)), claim.clone()],
            drained,
        );
        let [Effect::RemoveWorker { claims, .. }] = plan.effects.as_slice() else {
            panic!("{:?}", plan.effects)
        };
        assert_eq!(*claims, gone);
    }
}

#[test]
fn history_keeps_what_pods_use_and_what_the_limit_allows() {
    let revision = |hash: &str, number: i64, image: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": number,
            "metadata": {
                "namespace": "slurm", "name": format!("compute-{hash}"), "uid": hash,
                "labels": { "controller.kubernetes.io/hash": hash },
                "ownerReferences": [{ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "compute", "uid": "compute", "controller": true }],
            },
            "data": { "spec": { "slurmd": { "image": image }, "ordinalPadding": 0, "oversubscribeNode": false } },
        })
    };
    let old_pod = with(
        worker(0),
        &[("/metadata/labels/controller.kubernetes.io~1hash", json!("used"))],
    );
    let history = |limit: u32, image: &str| {
        let spec = json!({ "revisionHistoryLimit": limit, "slurmd": { "image": image } });
        let objects = vec![
            revision("old", 1, "a"),
            revision("used", 2, "b"),
            revision("late", 3, "c"),
            old_pod.clone(),
        ];
        planned(&spec, objects, unknown()).revision.unwrap()
    };
    let names = |plan: &super::RevisionPlan| plan.delete.iter().map(|object| object.name.clone()).collect::<Vec<_>>();

    let fresh = history(0, "d");
    assert_eq!(fresh.create.as_ref().unwrap()["revision"], 4);
    assert_eq!(names(&fresh), ["compute-old", "compute-late"]);
    assert_eq!(names(&history(1, "d")), ["compute-old"]);

    // Back to an older one: it is the newest again, under the hash it had.
    let back = history(9, "a");
    assert_eq!((back.hash.as_str(), &back.create), ("old", &None));
    assert_eq!(back.renumber, Some(("compute-old".to_owned(), 4)));
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
    // Once it is there, the old one goes by the usual steps.
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

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        let field = prop_oneof![
            Just("name"),
            Just("containers"),
            Just("affinity"),
            Just("podAntiAffinity"),
            Just("env"),
            Just("resources"),
            Just("limits"),
            Just("cpu"),
            Just("memory"),
            Just("volumes"),
            Just("metadata"),
            Just("hostname"),
            Just("args"),
            Just("requiredDuringSchedulingIgnoredDuringExecution"),
            Just("tolerations"),
            Just("nodeSelector"),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(field.prop_map(str::to_owned), inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn any_object() -> impl Strategy<Value = Value> {
    any_json().prop_map(|value| {
        if value.is_object() {
            value
        } else {
            json!({ "x": value })
        }
    })
}

prop_compose! {
    fn any_spec()(
        replicas in prop::option::of(-3..40_i32),
        mode in prop::option::of("StatefulSet|DaemonSet|[a-z]{1,4}"),
        slurmd in prop::option::of(any_object()),
        logfile in prop::option::of(any_object()),
        template in prop::option::of(any_object()),
        hostname in prop::option::of(".{0,8}"),
        extra_conf in prop::option::of(".{0,30}"),
        padding in prop::option::of(any::<i64>()),
        claims in prop::option::of(prop::collection::vec(any_object(), 0..3)),
        limit in prop::option::of(any::<i32>()),
    ) -> Value {
        let mut spec = json!({ "controllerRef": { "name": "slurm" } });
        for (field, value) in [
            ("replicas", json!(replicas)), ("scalingMode", json!(mode)), ("slurmd", json!(slurmd)), ("logfile", json!(logfile)),
            ("extraConf", json!(extra_conf)), ("ordinalPadding", json!(padding)), ("volumeClaimTemplates", json!(claims)),
            ("revisionHistoryLimit", json!(limit)),
        ] {
            if !value.is_null() {
                spec[field] = value;
            }
        }
        if let Some(mut template) = template {
            if let Some(hostname) = hostname {
                template["hostname"] = json!(hostname);
            }
            spec["template"] = json!({ "spec": template });
        }
        spec
    }
}

/// A NodeSet whose workers know users without ssh, and the Secret with this sssd.conf in base64.
fn with_users(replicas: u32, sssd_conf: &str) -> (Value, Value) {
    let ssh = json!({ "enabled": false, "sssdConfRef": { "name": "sssd", "key": "sssd.conf" } });
    let data = json!({ "sssd.conf": sssd_conf });
    let secret = with(slurm_key(), &[("/metadata/name", json!("sssd")), ("/data", data)]);
    (json!({ "replicas": replicas, "ssh": ssh }), secret)
}

#[test]
fn a_changed_sssd_conf_is_noted_on_workers_that_take_it_and_replaces_none() {
    let (spec, secret) = with_users(3, "YQ==");
    let hash = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
    let taking = |ordinal: u32, noted: &str| {
        let volumes = json!([{ "name": "sssd-conf-used", "emptyDir": {} }]);
        let mut pod = with(worker(ordinal), &[("/spec/volumes", volumes)]);
        pod["metadata"]["annotations"]["slinky.slurm.net/sssd-conf-hash"] = noted.into();
        pod
    };
    let plan = planned(
        &spec,
        vec![secret, taking(0, "old"), taking(1, hash), worker(2)],
        unknown(),
    );
    let noted: Vec<(&str, &super::Marks)> = plan
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::MarkPod { pod, annotations, .. } if !annotations.is_empty() => {
                Some((pod.name.as_str(), annotations))
            }
            _ => None,
        })
        .collect();
    let expected = super::Marks::from([("slinky.slurm.net/sssd-conf-hash".to_owned(), Some(hash.to_owned()))]);
    assert_eq!(noted, [("compute-0", &expected)]);
    assert!(
        !plan
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::RemoveWorker { .. } | Effect::DrainNode { .. }))
    );
}

#[test]
fn workers_without_ssh_know_the_users_if_an_sssd_conf_is_named() {
    let (spec, secret) = with_users(1, "YQ==");
    let plan = planned(&spec, vec![secret], unknown());
    assert!(plan.ssh_config.is_none());
    let pod = plan.effects.iter().find_map(|effect| match effect {
        Effect::CreatePod { pod, .. } => Some(pod),
        _ => None,
    });
    let mounts = pod.unwrap()["spec"]["containers"][0]["volumeMounts"].clone();
    let paths: Vec<&str> = mounts
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["mountPath"].as_str().unwrap())
        .collect();
    assert!(
        paths.contains(&"/etc/sssd/sssd.conf") && !paths.contains(&"/etc/ssh/sshd_config"),
        "{paths:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// And everything planned can be read as what it is said to be.
    #[test]
    fn no_spec_makes_a_plan_panic(spec in any_spec(), replaced in any::<bool>()) {
        let mut pods = vec![worker(0), marked(worker(1))];
        if replaced {
            pods.push(finished(worker(2)));
        }
        pods.push(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "k1" } }));
        let mut objects = vec![controller(), slurm_key(), with(nodeset(&json!({})), &[("/spec", spec)])];
        objects.extend(pods);
        let observed = observed(objects, known(&[("compute-1", DRAINED)], &[]));
        let plan = plan(&observed);
        crate::nodeset::status::status(&observed, &plan, None);
        // Also what validation would have kept away from it.
        let blueprint = crate::nodeset::build::Blueprint {
            nodeset: &observed.nodeset,
            controller: observed.controller.as_deref().unwrap(),
            images: &observed.images,
            cluster_domain: "cluster.local",
            revision: "x",
            ssh: &crate::nodeset::build::SshFiles::default(),
            slurm_key: None,
        };
        let place = crate::nodeset::build::Place::of_ordinal(&observed.nodeset, 7, None);
        crate::nodeset::build::build_pod(&blueprint, &place);
        crate::nodeset::build::build_claims(&observed.nodeset, &place);
        for effect in &plan.effects {
            if let Effect::CreatePod { pod, claims } = effect {
                prop_assert!(serde_json::from_value::<k8s_openapi::api::core::v1::Pod>(*pod.clone()).is_ok(), "{pod}");
                for claim in claims {
                    let claim = serde_json::from_value::<k8s_openapi::api::core::v1::PersistentVolumeClaim>(claim.clone());
                    prop_assert!(claim.is_ok());
                }
            }
        }
    }
}
