//! The rules of the two views, one by one.

mod addresses;

use jiff::SignedDuration;
use serde_json::{Value, json};
use slurm::rest::Observation;

use super::{Mirror, MirrorMemory, PodChange, TopologyRequest, mirror};
use crate::{
    cluster::{Knowledge, Seen},
    nodeset::fixture::{controller, finished, nodeset, now, observed, slurm_key, terminating, unknown, with, worker},
};

const COMMENT: &str =
    r#"{"namespace":"slurm","podName":"compute-0","node":"k1","nodeSetName":"compute","nodeSetUID":"compute"}"#;

pub(super) fn host(annotations: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "k1", "uid": "k1", "annotations": annotations } })
}

/// A fully described Slurm node, with these changes.
pub(super) fn node(changes: &Value) -> Value {
    let mut node = json!({ "name": "compute-0", "state": ["IDLE", "DYNAMIC_NORM"], "comment": COMMENT,
        "features": ["compute"], "active_features": ["compute"] });
    for (field, value) in changes.as_object().unwrap() {
        node[field] = value.clone();
    }
    node
}

pub(super) fn known(nodes: Vec<Value>, jobs: Vec<Value>) -> Knowledge {
    let observation = Observation {
        nodes: nodes
            .into_iter()
            .map(|node| serde_json::from_value(node).unwrap())
            .collect(),
        jobs: jobs
            .into_iter()
            .map(|job| serde_json::from_value(job).unwrap())
            .collect(),
        process: None,
    };
    Knowledge::Known(std::sync::Arc::new(Seen::new(
        observation,
        now(),
        crate::cluster::Source::Agent,
    )))
}

fn seen(changes: &Value) -> Knowledge {
    known(vec![node(changes)], vec![])
}

/// A pod with the conditions of an idle node.
fn idle_pod() -> Value {
    conditioned(worker(0), &[("SlurmNodeStateIdle", "")])
}

fn conditioned(mut pod: Value, conditions: &[(&str, &str)]) -> Value {
    let list = pod["status"]["conditions"].as_array_mut().unwrap();
    list.extend(conditions.iter().map(
        |(type_, message)| json!({ "type": type_, "status": "True", "message": message, "lastTransitionTime": "2026-01-01T00:02:00Z" }),
    ));
    pod
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

pub(super) const TOPOLOGY: &str = "topology.slinky.slurm.net/spec";
pub(super) const FEATURES: &str = "features.slinky.slurm.net/spec";
const DEADLINE: &str = "nodeset.slinky.slurm.net/pod-deadline";

struct Scene {
    spec: Value,
    pod: Value,
    host: Value,
    knowledge: Knowledge,
    memory: MirrorMemory,
}

impl Default for Scene {
    fn default() -> Self {
        Self {
            spec: json!({ "replicas": 1 }),
            pod: idle_pod(),
            host: host(&json!({})),
            knowledge: seen(&json!({})),
            memory: MirrorMemory::default(),
        }
    }
}

impl Scene {
    fn mirror(self) -> Mirror<'static> {
        let objects = vec![controller(), slurm_key(), nodeset(&self.spec), self.pod, self.host];
        // A test has few scenes.
        let observed = Box::leak(Box::new(observed(objects, self.knowledge)));
        mirror(observed, &self.memory)
    }

    /// The writes, in short.
    fn steps(self) -> Vec<String> {
        steps(&self.mirror())
    }
}

fn steps(mirror: &Mirror<'_>) -> Vec<String> {
    let writes = mirror.pod_writes.iter().map(|(_, change)| match change {
        PodChange::Conditions(conditions) => {
            let said = conditions.iter().map(|condition| {
                let name = condition.type_.strip_prefix("SlurmNodeState").unwrap();
                format!("{name}={}", condition.message.as_deref().unwrap())
            });
            format!("conditions {}", said.collect::<Vec<_>>().join(" "))
        }
        PodChange::Annotations(marks) => {
            let marks = marks.iter().map(|(key, value)| {
                let key = key.rsplit_once('.').map_or("", |_| key.split('.').next().unwrap());
                format!("{key}={}", value.as_deref().unwrap_or("-"))
            });
            format!("annotations {}", marks.collect::<Vec<_>>().join(" "))
        }
    });
    let node_updates = mirror.node_updates.iter().map(|(worker, description)| {
        let description = serde_json::to_string(description).unwrap();
        format!("tell {} {description}", worker.slurm_name().unwrap())
    });
    writes.chain(node_updates).collect()
}

pub(super) fn seconds(count: i64) -> SignedDuration {
    SignedDuration::from_secs(count)
}

#[test]
fn equal_values_are_not_written() {
    assert_eq!(Scene::default().steps(), [""; 0]);
}

#[test]
fn a_state_becomes_conditions_with_slurms_reason() {
    for (state, said) in [
        (json!(["ALLOCATED"]), "Allocated=why"),
        (json!(["DOWN", "NOT_RESPONDING"]), "Down=why NotResponding=why"),
        (json!(["ERROR"]), "Error=why"),
        (json!(["FUTURE"]), "Future=why"),
        (json!(["IDLE", "DRAIN", "DYNAMIC_NORM"]), "Idle=why Drain=why"),
        (
            json!(["MIXED", "COMPLETING", "DRAIN", "UNDRAIN"]),
            "Mixed=why Completing=why Drain=why Undrain=why",
        ),
        (
            json!(["IDLE", "FAIL", "INVALID", "INVALID_REG"]),
            "Idle=why Fail=why Invalid=why InvalidReg=why",
        ),
        (
            json!(["UNKNOWN", "MAINTENANCE", "RESERVED", "PLANNED"]),
            "Unknown=why Maintenance=why",
        ),
        (json!(["LEVITATING", "DRAIN"]), "Drain=why"),
    ] {
        let scene = Scene {
            knowledge: seen(&json!({ "state": state, "reason": "why" })),
            ..Scene::default()
        };
        assert_eq!(scene.steps(), [format!("conditions {said}")]);
    }
}

#[test]
fn conditions_go_with_the_node() {
    let scene = Scene {
        knowledge: known(vec![], vec![]),
        ..Scene::default()
    };
    assert_eq!(scene.steps(), ["conditions "]);
    let finished = Scene {
        pod: finished(idle_pod()),
        knowledge: known(vec![], vec![]),
        ..Scene::default()
    };
    assert_eq!(finished.steps(), [""; 0], "a pod that has ended keeps its last words");
}

#[test]
fn conditions_outlive_a_short_silence_of_slurm_and_no_long_one() {
    for (since, expected) in [
        (None, &[][..]),
        (Some("2026-01-01T00:59:00Z"), &[]),
        (Some("2026-01-01T00:58:00Z"), &["conditions "]),
    ] {
        let mut set = nodeset(&json!({ "replicas": 1 }));
        if let Some(since) = since {
            set["status"] = json!({ "conditions": [{ "type": "SlurmReachable", "status": "False", "reason": "NotAnswering",
                "message": "", "lastTransitionTime": since }] });
        }
        let pod = annotated(idle_pod(), DEADLINE, "2026-01-01T02:00:00Z");
        let objects = vec![controller(), slurm_key(), set, pod, host(&json!({ (FEATURES): "a" }))];
        let observed = observed(objects, unknown());
        let mirror = mirror(&observed, &MirrorMemory::default());
        assert_eq!(steps(&mirror), expected, "{since:?}");
        assert_eq!(mirror.requeue.is_some(), since == Some("2026-01-01T00:59:00Z"));
    }
}

#[test]
fn a_pod_is_written_at_most_every_five_seconds() {
    for (ago, written) in [(0, false), (4, false), (5, true), (60, true)] {
        let mut memory = MirrorMemory::default();
        memory.entry("uid-compute-0".to_owned()).or_default().written = Some(now() - seconds(ago));
        let mirror = Scene {
            knowledge: seen(&json!({ "state": ["MIXED"] })),
            memory,
            ..Scene::default()
        }
        .mirror();
        assert_eq!(mirror.pod_writes.len(), usize::from(written), "{ago}");
        let left = mirror.requeue.map(|left| left.as_secs());
        assert_eq!(left, (!written).then(|| u64::try_from(5 - ago).unwrap()), "{ago}");
    }
}

#[test]
fn the_deadline_is_that_of_the_last_job_and_ends_with_it() {
    let job = |limit: u64| {
        json!({ "job_id": 7, "job_state": ["RUNNING"], "nodes": "compute-0",
            "start_time": { "set": true, "number": now().as_second() }, "time_limit": { "set": true, "number": limit } })
    };
    let busy = |jobs| known(vec![node(&json!({ "state": ["MIXED"] }))], jobs);
    let pod = || conditioned(worker(0), &[("SlurmNodeStateMixed", "")]);
    let steps = |pod: Value, knowledge| {
        Scene {
            pod,
            knowledge,
            ..Scene::default()
        }
        .steps()
    };
    let set = ["annotations nodeset=2026-01-01T02:00:00Z"];
    assert_eq!(steps(pod(), busy(vec![job(60)])), set);
    let with_deadline = || annotated(pod(), DEADLINE, "2026-01-01T02:00:00Z");
    assert_eq!(steps(with_deadline(), busy(vec![job(60), job(5)])), [""; 0]);
    assert_eq!(steps(with_deadline(), busy(vec![])), ["annotations nodeset=-"]);
    // A second write waits for its turn.
    let idle_again = Scene {
        pod: with_deadline(),
        ..Scene::default()
    }
    .mirror();
    assert_eq!(super::tests::steps(&idle_again), ["conditions Idle="]);
    assert!(idle_again.requeue.is_some());
    // Unread jobs do not mean that there are none.
    let Knowledge::Known(seen) = busy(vec![]) else { panic!() };
    let unread = Seen {
        jobs: None,
        job_summary: None,
        ..Seen::clone(&seen)
    };
    assert_eq!(
        steps(with_deadline(), Knowledge::Known(std::sync::Arc::new(unread))),
        [""; 0]
    );
    assert_eq!(steps(with_deadline(), unknown()), [""; 0]);
}

#[test]
fn the_comment_names_the_owner_also_of_a_node_that_is_down() {
    let told = format!(
        "tell compute-0 {}",
        serde_json::to_string(&json!({ "comment": COMMENT })).unwrap()
    );
    for comment in [
        "",
        "mine",
        r#"{"namespace":"slurm","podName":"compute-0","node":"k1"}"#,
        r#"{"namespace":"slurm","podName":"compute-0","node":"k2","nodeSetName":"compute","nodeSetUID":"compute"}"#,
    ] {
        let scene = Scene {
            pod: conditioned(
                worker(0),
                &[("SlurmNodeStateDown", ""), ("SlurmNodeStateNotResponding", "")],
            ),
            knowledge: seen(&json!({ "comment": comment, "state": ["DOWN", "NOT_RESPONDING"] })),
            ..Scene::default()
        };
        assert_eq!(scene.steps(), [told.as_str()], "{comment}");
    }
    let going = with(terminating(idle_pod()), &[("/status/podIP", json!("10.0.0.1"))]);
    for (pod, address, comment, expected) in [
        // It was deleted right after it registered; the comment names its owner afterwards.
        (going.clone(), "10.0.0.1", "", vec![told.as_str()]),
        (going.clone(), "10.0.0.2", "", vec![]),
        (
            going,
            "10.0.0.1",
            r#"{"namespace":"slurm","podName":"another"}"#,
            vec![],
        ),
        // The record is still the predecessor's.
        (with(idle_pod(), &[("/status/phase", json!("Pending"))]), "", "", vec![]),
    ] {
        let scene = Scene {
            pod,
            knowledge: seen(&json!({ "comment": comment, "address": address })),
            ..Scene::default()
        };
        assert_eq!(scene.steps(), expected, "{address} {comment}");
    }
}

#[test]
fn nothing_is_sent_twice_on_the_same_snapshot() {
    let mut memory = MirrorMemory::default();
    memory.entry("uid-compute-0".to_owned()).or_default().updated = Some(now());
    let scene = Scene {
        knowledge: seen(&json!({ "comment": "" })),
        memory,
        ..Scene::default()
    };
    assert_eq!(scene.steps(), [""; 0]);
}

#[test]
fn features_of_the_kubernetes_node_are_added_and_removed_and_others_stay() {
    for (annotation, available, active, told) in [
        (None, &["compute"][..], &["compute"][..], None),
        (
            Some("fast, big,,fast"),
            &["compute"],
            &["compute"],
            Some((
                &["compute", "k8s/big", "k8s/fast"][..],
                &["compute", "k8s/big", "k8s/fast"][..],
            )),
        ),
        (Some("a=b"), &["compute", "k8s/a=b"], &["compute", "k8s/a=b"], None),
        (
            Some("a"),
            &["k8s/a", "compute"],
            &["compute"],
            Some((&["compute", "k8s/a"], &["compute", "k8s/a"])),
        ),
        (
            Some("a"),
            &["compute", "k8s/old"],
            &["k8s/old"],
            Some((&["compute", "k8s/a"], &["k8s/a"])),
        ),
        (
            Some(""),
            &["compute", "plugin", "k8s/old"],
            &["compute"],
            Some((&["compute", "plugin"], &["compute"])),
        ),
        (
            None,
            &["compute", "k8s/old"],
            &["compute", "k8s/old"],
            Some((&["compute"], &["compute"])),
        ),
    ] {
        let scene = Scene {
            host: host(&annotation.map_or(json!({}), |features| json!({ (FEATURES): features }))),
            knowledge: seen(&json!({ "features": available, "active_features": active })),
            ..Scene::default()
        };
        let expected: Vec<String> = told
            .map(|(available, active)| {
                let features = json!({ "available": available, "active": active });
                let features = format!(
                    r#"{{"available":{},"active":{}}}"#,
                    features["available"], features["active"]
                );
                format!(r#"tell compute-0 {{"features":{features}}}"#)
            })
            .into_iter()
            .collect();
        assert_eq!(scene.steps(), expected, "{annotation:?} {available:?} {active:?}");
    }
}

#[test]
fn a_feature_that_is_none_is_named_and_holds_up_nothing_else() {
    let mirror = Scene {
        host: host(&json!({ (FEATURES): "a\u{7}b" })),
        knowledge: seen(&json!({ "comment": "" })),
        ..Scene::default()
    }
    .mirror();
    assert_eq!(mirror.node_updates.len(), 1, "the comment");
    assert!(
        mirror.complaints[0].contains(FEATURES) && mirror.complaints[0].contains("\"k1\""),
        "{:?}",
        mirror.complaints
    );
}

mod topology {
    use super::*;

    fn tell(place: &str) -> String {
        format!(r#"tell compute-0 {{"topology":"{place}"}}"#)
    }

    fn placed(place: &str) -> Value {
        annotated(idle_pod(), TOPOLOGY, place)
    }

    #[test]
    fn a_topology_is_written_to_the_pod_then_sent_then_left_alone() {
        let steps = |pod: Value, current: &str| {
            Scene {
                pod,
                host: host(&json!({ (TOPOLOGY): "default:s1" })),
                knowledge: seen(&json!({ "topology": current })),
                ..Scene::default()
            }
            .steps()
        };
        assert_eq!(steps(idle_pod(), ""), ["annotations topology=default:s1"]);
        assert_eq!(steps(placed("default:s1"), ""), [tell("default:s1")]);
        assert_eq!(steps(placed("default:s1"), "default:s1"), [""; 0]);
        assert_eq!(
            steps(placed("default:s2"), "default:s2"),
            ["annotations topology=default:s1"]
        );
    }

    #[test]
    fn a_place_is_taken_back_with_the_annotation_and_only_if_it_came_from_one() {
        let steps = |pod: Value, current: &str, extra: &str| {
            Scene {
                spec: json!({ "replicas": 1, "extraConf": extra }),
                pod,
                knowledge: seen(&json!({ "topology": current })),
                ..Scene::default()
            }
            .steps()
        };
        // Set by slurm.conf, topology.yaml or an administrator.
        assert_eq!(steps(idle_pod(), "default:s9", ""), [""; 0]);
        assert_eq!(steps(idle_pod(), "default:s9", "Topology=default:s9"), [""; 0]);
        // Set by an annotation that is gone.
        assert_eq!(steps(placed("default:s1"), "default:s1", ""), [tell("")]);
        assert_eq!(steps(placed("default:s1"), "", ""), ["annotations topology=-"]);
        let back = "Weight=5 topology=default:s9";
        assert_eq!(steps(placed("default:s1"), "default:s1", back), [tell("default:s9")]);
        assert_eq!(
            steps(placed("default:s1"), "default:s9", back),
            ["annotations topology=-"]
        );
        // Upstream writes an empty one, which means nothing.
        assert_eq!(steps(placed(""), "default:s9", ""), [""; 0]);
    }

    #[test]
    fn without_the_kubernetes_node_nothing_is_known_about_it() {
        let pod = with(placed("default:s1"), &[("/spec/nodeName", json!("k2"))]);
        let steps = Scene {
            pod,
            knowledge: seen(
                &json!({ "topology": "default:s1", "comment": COMMENT.replace("k1", "k2"), "features": ["k8s/a"] }),
            ),
            ..Scene::default()
        }
        .steps();
        assert_eq!(steps, [""; 0]);
    }

    fn asked(ago: i64, refused: Option<&str>) -> MirrorMemory {
        let mut memory = MirrorMemory::default();
        memory.entry("uid-compute-0".to_owned()).or_default().topology = Some(TopologyRequest {
            place: "default:s1".to_owned(),
            at: now() - seconds(ago),
            refused: refused.map(str::to_owned),
        });
        memory
    }

    #[test]
    fn a_refused_place_is_named_and_not_asked_for_again_at_once() {
        for (ago, expected) in [(1, vec![]), (299, vec![]), (300, vec![tell("default:s1")])] {
            let mirror = Scene {
                pod: placed("default:s1"),
                host: host(&json!({ (TOPOLOGY): "default:s1", (FEATURES): "a" })),
                knowledge: seen(&json!({ "features": ["k8s/a"], "active_features": ["k8s/a"] })),
                memory: asked(ago, Some("no such switch")),
                ..Scene::default()
            }
            .mirror();
            assert_eq!(steps(&mirror), expected, "{ago}");
            let [complaint] = mirror.complaints.as_slice() else {
                panic!("{:?}", mirror.complaints)
            };
            for word in [
                TOPOLOGY,
                "\"k1\"",
                "\"compute-0\"",
                "default:s1",
                "no such switch",
                "topology.yaml",
            ] {
                assert!(complaint.contains(word), "{complaint}");
            }
        }
    }

    #[test]
    fn a_topology_that_slurm_stores_differently_is_not_requested_on_and_on() {
        for (ago, current, expected) in [
            (1, "default:root:s1", vec![]),
            (300, "default:root:s1", vec![tell("default:s1")]),
            // Lost, as by a slurmctld that was killed.
            (1, "", vec![tell("default:s1")]),
            // The snapshot is older.
            (0, "", vec![]),
        ] {
            let steps = Scene {
                pod: placed("default:s1"),
                host: host(&json!({ (TOPOLOGY): "default:s1" })),
                knowledge: seen(&json!({ "topology": current })),
                memory: asked(ago, None),
                ..Scene::default()
            }
            .steps();
            assert_eq!(steps, expected, "{ago} {current}");
        }
    }
}
