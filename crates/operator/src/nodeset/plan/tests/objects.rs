//! Rules about pods, claims, revisions and names, and about NodeSets that are rejected.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    super::{Effect, MetadataPatch, RevisionPlan, Wait, WorkerRemoval, plan},
    replicas, steps,
};
use crate::{
    cluster::Knowledge,
    nodeset::fixture::{
        DRAINED, NAMESPACE, controller, finished, known, marked, nodeset, observed, planned, slurm_key, terminating,
        unknown, with, worker,
    },
    testing::keys::made_with_other_keys,
};

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
fn rejected_sets_report_why_and_leave_running_workers_alone() {
    let cases = [
        (
            vec![nodeset(&replicas(3)), slurm_key()],
            "ControllerMissing",
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
            "InvalidSpec",
            "spec.controllerRef.namespace",
        ),
        (
            vec![
                with(nodeset(&replicas(3)), &[("/spec/extraConf", json!("nonsense"))]),
                controller(),
                slurm_key(),
            ],
            "InvalidSpec",
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
                nodeset(&replicas(3)),
                controller(),
                slurm_key(),
                made_with_other_keys(NAMESPACE, "controller"),
            ],
            "KeyMismatch",
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
        let refused = plan.rejection.as_ref().unwrap();
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
    assert_eq!(of("b").rejection, None);
    let refused = of("a").rejection.unwrap();
    assert_eq!(refused.reason, "NodeSetNameTaken");
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
    assert!(
        matches!(plan.waits.as_slice(), [Wait::NameTaken(why)] if why.starts_with("the name \"compute-0\" is taken by"))
    );
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
        let [Effect::RemoveWorker(WorkerRemoval { claims, .. })] = plan.effects.as_slice() else {
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
    let names = |plan: &RevisionPlan| plan.delete.iter().map(|object| object.name.clone()).collect::<Vec<_>>();

    let fresh = history(0, "d");
    assert_eq!(fresh.create.as_ref().unwrap()["revision"], 4);
    assert_eq!(names(&fresh), ["compute-old", "compute-late"]);
    assert_eq!(names(&history(1, "d")), ["compute-old"]);

    // Reverted to an older revision, which is the newest again with its old hash.
    let back = history(9, "a");
    assert_eq!((back.hash.as_str(), &back.create), ("old", &None));
    assert_eq!(back.renumber, Some(("compute-old".to_owned(), 4)));
}

/// A NodeSet with sssd and without SSH, and the Secret with this sssd.conf in base64.
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
    let noted: Vec<(&str, &MetadataPatch)> = plan
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::MarkPod { pod, annotations, .. } if !annotations.is_empty() => {
                Some((pod.name.as_str(), annotations))
            }
            _ => None,
        })
        .collect();
    let expected = MetadataPatch::from([("slinky.slurm.net/sssd-conf-hash".to_owned(), Some(hash.to_owned()))]);
    assert_eq!(noted, [("compute-0", &expected)]);
    assert!(
        !plan
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::RemoveWorker(_) | Effect::OrderNode { .. }))
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

#[test]
fn a_worker_is_probed_as_its_release_allows_and_none_is_replaced_for_it() {
    let seen = |release| {
        let mut knowledge = known(&[], &[]);
        if let Knowledge::Known(seen) = &mut knowledge {
            Arc::make_mut(seen).release = release;
        }
        knowledge
    };
    let is_by_http = |tag: &str, knowledge: Knowledge| {
        let spec = json!({ "replicas": 1, "slurmd": { "image": format!("slurmd:{tag}") } });
        let plan = planned(&spec, vec![], knowledge);
        let pod = plan.effects.iter().find_map(|effect| match effect {
            Effect::CreatePod { pod, .. } => Some(pod),
            _ => None,
        });
        let slurmd = &pod.unwrap()["spec"]["containers"][0];
        assert_eq!(slurmd["startupProbe"]["failureThreshold"], 6);
        let probes = ["startupProbe", "readinessProbe"].map(|probe| slurmd[probe].get("httpGet").is_some());
        assert_eq!(probes[0], probes[1]);
        let by_scontrol = slurmd["readinessProbe"].pointer("/exec/command/0");
        assert_eq!(by_scontrol.is_none(), probes[0]);
        probes[0]
    };
    assert!(is_by_http("26.05-ubuntu26.04", unknown()));
    assert!(!is_by_http("24.11-ubuntu24.04", unknown()));
    // slurmd is never newer than slurmctld, whatever its tag is, and may be older.
    assert!(!is_by_http("26.05", seen(Some((24, 11)))));
    assert!(!is_by_http("24.11", seen(Some((26, 5)))));
    // The probe without HTTP works with every release.
    assert!(is_by_http("ours", seen(Some((26, 5)))));
    assert!(!is_by_http("ours", unknown()) && !is_by_http("ours", seen(None)));

    let steps_with = |release| {
        let spec = json!({ "replicas": 1, "slurmd": { "image": "slurmd:ours" } });
        steps(&planned(&spec, vec![worker(0)], seen(release)))
    };
    assert_eq!(steps_with(Some((24, 11))), steps_with(Some((26, 5))));
}
