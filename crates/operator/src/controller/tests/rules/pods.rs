//! The StatefulSet of slurmctld.

use slurm::agent::Superseded;

use super::*;
use crate::cluster::{Knowledge, Seen};

#[test]
fn a_restart_trigger_changes_the_pod_and_annotations_of_helm_and_kubectl_do_not() {
    let objects = running(&json!({}));
    let before = template(&planned(objects.clone()));
    for note in [
        "meta.helm.sh/release-name",
        "kubectl.kubernetes.io/last-applied-configuration",
    ] {
        assert_eq!(
            template(&planned(annotated(objects.clone(), note, "x"))),
            before,
            "{note}"
        );
    }
    let restarted = planned(annotated(objects.clone(), "restart-trigger", "1"));
    assert_eq!(template(&restarted)["metadata"]["annotations"]["restart-trigger"], "1");

    let mut labelled = objects;
    labelled
        .iter_mut()
        .find(|object| object["kind"] == "Controller")
        .unwrap()["metadata"]["labels"] = json!({ "app.kubernetes.io/managed-by": "Helm" });
    assert_eq!(template(&planned(labelled)), before);
}

#[test]
fn an_upgrade_of_the_operator_restarts_nothing_and_applies_at_the_next_restart() {
    let upgraded = |objects: Vec<Value>| {
        let mut observed = observed(objects, Report::default());
        observed.images.operator = "operator:2".to_owned();
        observed.images.slurmctld = "slurmctld:newer".to_owned();
        template(&plan(&observed))
    };
    let objects = running(&json!({}));
    let before = template(&planned(objects.clone()));
    assert_eq!(upgraded(objects.clone()), before);
    let restarted = upgraded(annotated(objects.clone(), "restart-trigger", "1"));
    assert_eq!(restarted["spec"]["initContainers"][0]["image"], "operator:2");
    assert_eq!(restarted["spec"]["containers"][0]["image"], "slurmctld:newer");

    // A template of another release is kept, whatever this one would build.
    let mut older = objects;
    let set = older.iter_mut().find(|object| object["kind"] == "StatefulSet").unwrap();
    set["metadata"]["annotations"]["slinky.slurm.net/template-version"] = "0".into();
    set["spec"]["template"]["spec"]["initContainers"] = json!([]);
    let kept = set["spec"]["template"].clone();
    assert_eq!(upgraded(older)["spec"]["containers"], kept["spec"]["containers"]);
}

/// The charts named an image for `logfile` before they left it to the operator.
#[test]
fn a_chart_that_leaves_out_the_image_of_logfile_restarts_nothing() {
    let image = "docker.io/library/alpine:latest";
    let logfile = json!({ "image": image, "imagePullPolicy": "IfNotPresent", "resources": {} });
    let mut objects = running(&json!({ "logfile": logfile }));
    let before = template(&planned(objects.clone()));
    let is_controller = |object: &&mut Value| object["kind"] == "Controller";
    let controller = objects.iter_mut().find(is_controller).unwrap();
    controller["spec"]["logfile"].as_object_mut().unwrap().remove("image");
    assert_eq!(template(&planned(objects.clone())), before);
    let restarted = template(&planned(annotated(objects, "restart-trigger", "1")));
    assert!(
        !restarted.to_string().contains(image),
        "the next restart uses no such image"
    );
}

#[test]
fn no_probe_kills_a_slurmctld_that_the_agent_supervises() {
    let probes = |slurmctld: Value| {
        let template = template(&planned(running(&json!({ "slurmctld": slurmctld }))));
        let slurmctld = &template["spec"]["containers"][0];
        ["startupProbe", "livenessProbe"].map(|field| slurmctld[field].clone())
    };
    assert_eq!(probes(json!({})), [Value::Null, Value::Null]);
    assert_eq!(probes(json!({ "livenessProbe": {} })), [Value::Null, Value::Null]);
    let upstream = json!({
        "httpGet": { "path": "/livez", "port": "slurmctld" }, "failureThreshold": 6, "periodSeconds": 10,
    });
    let [startup, liveness] = probes(json!({ "livenessProbe": { "failureThreshold": 60 } }));
    assert_eq!(startup, Value::Null);
    let mut merged = upstream.clone();
    merged["failureThreshold"] = 60.into();
    assert_eq!(liveness, merged, "a user's probe wins");
    assert_eq!(
        probes(json!({ "command": ["slurmctld"] })),
        [upstream.clone(), upstream]
    );
}

#[test]
fn slurmctld_is_probed_as_its_release_allows_and_restarts_for_it_at_most_once() {
    let probe = |objects: &[Value], release: Option<(u16, u16)>| {
        let mut observed = observed(objects.to_vec(), Report::default());
        let seen = Seen {
            release,
            ..Seen::default()
        };
        observed.snapshot.knowledge = Knowledge::Known(Arc::new(seen));
        template(&plan(&observed))["spec"]["containers"][0]["readinessProbe"].clone()
    };
    let by_http = json!({ "httpGet": { "path": "/readyz", "port": "slurmctld" } });
    let by_connection = json!({ "tcpSocket": { "port": "slurmctld" } });
    let with_tag = |tag: &str| running(&json!({ "slurmctld": { "image": format!("slurmctld:{tag}") } }));
    for (tag, release, expected) in [
        ("26.05-ubuntu26.04", None, &by_http),
        ("ours", None, &by_http),
        ("ours", Some((26, 5)), &by_http),
        ("ours", Some((24, 11)), &by_connection),
        // What responds is known better than what a tag says.
        ("26.05", Some((24, 11)), &by_connection),
        ("24.11-ubuntu24.04", None, &by_connection),
    ] {
        assert_eq!(probe(&with_tag(tag), release), *expected, "{tag} {release:?}");
    }

    // A probe that works with every release stays until there is another reason for a restart.
    let mut objects = with_tag("ours");
    let set = objects
        .iter_mut()
        .find(|object| object["kind"] == "StatefulSet")
        .unwrap();
    set["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] = by_connection.clone();
    for release in [None, Some((24, 11)), Some((26, 5))] {
        assert_eq!(probe(&objects, release), by_connection);
    }
    let controller = objects
        .iter_mut()
        .find(|object| object["kind"] == "Controller")
        .unwrap();
    controller["spec"]["slurmctld"]["image"] = "slurmctld:26.05".into();
    assert_eq!(
        probe(&objects, Some((24, 11))),
        by_http,
        "the next pod has another release"
    );
}

#[test]
fn a_key_that_is_deleted_or_changed_under_a_running_cluster_changes_nothing() {
    for (name, entry, words) in [
        ("slurm-auth-slurm", "slurm.key", "and then the pods of the workers"),
        ("slurm-auth-jwt", "jwt.key", "delete StatefulSet \"slurm-controller\""),
    ] {
        let mut objects = running(&json!({}));
        objects.retain(|object| object["metadata"]["name"] != name);
        let held = |objects: &[Value], reason: &str, words: &str| {
            let plan = plan(&observed(objects.to_vec(), live_as_bundled(objects)));
            let finding = plan.findings.iter().find(|finding| finding.reason == reason).unwrap();
            assert!(finding.message.contains(words), "{}", finding.message);
            assert!(plan.stateful_set.is_none() && plan.keys.is_empty(), "{name}");
            // A reconfigure would make slurmctld read the new key.
            assert!(pushes(&plan).is_empty(), "{name}");
        };
        held(&objects, "SecretMissing", "create it again with the same key");
        objects.push(secret(name, entry, "bmV3"));
        held(&objects, "KeyMismatch", words);
    }
}

#[test]
fn a_new_key_changes_the_pod_once_the_stateful_set_is_deleted() {
    let objects = running(&json!({}));
    let before = template(&planned(objects.clone()));
    let mut rotated = objects;
    rotated.retain(|object| object["metadata"]["name"] != "slurm-auth-slurm" && object["kind"] != "StatefulSet");
    rotated.push(secret("slurm-auth-slurm", "slurm.key", "bmV3"));
    let after = template(&planned(rotated));
    let hash = "slinky.slurm.net/slurm-key-hash";
    assert_ne!(
        before["metadata"]["annotations"][hash],
        after["metadata"]["annotations"][hash]
    );
}

#[test]
fn a_users_own_command_is_used_and_reported() {
    let spec = json!({ "slurmctld": { "command": ["/usr/sbin/slurmctld", "-D"], "args": ["-v"] } });
    let objects = with_keys(&spec);
    let slurmctld = &template(&planned(objects.clone()))["spec"]["containers"][0];
    assert_eq!(slurmctld["command"], json!(["/usr/sbin/slurmctld", "-D"]));
    assert_eq!(slurmctld["args"], json!(["-v"]));
    let (status, reason, _) = condition(objects, Report::default(), "Supervised");
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "OwnCommand"));
}

#[test]
fn options_in_the_environment_and_arguments_both_reach_slurmctld() {
    let spec =
        json!({ "slurmctld": { "args": ["-i"], "env": [{ "name": "SLURMCTLD_OPTIONS", "value": "-v  -L /x" }] } });
    let slurmctld = &template(&planned(with_keys(&spec)))["spec"]["containers"][0];
    assert_eq!(slurmctld["args"], json!(["-i"]));
    let script = slurmctld["command"][2].as_str().unwrap();
    let output = std::process::Command::new("sh")
        .args([
            "-c",
            &script.replace("exec /opt/slurm-agent/slurm-agent", "printf '%s|'"),
            "slurmctld",
            "-i",
            "-f 'a b'",
        ])
        .env("SLURMCTLD_OPTIONS", "-v  -L /x")
        .output()
        .unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output, "supervise|--|slurmctld|--systemd|-v|-L|/x|-i|-f|a b|");
}

#[test]
fn overrides_of_slurmctld_apply_to_the_agent_too() {
    let spec = json!({ "slurmctld": {
        "image": "mine", "env": [{ "name": "A", "value": "1" }], "securityContext": { "runAsUser": 0, "runAsNonRoot": false },
        "volumeMounts": [{ "name": "x", "mountPath": "/x" }], "resources": { "limits": { "cpu": 2 } },
    } });
    let template = template(&planned(with_keys(&spec)));
    for container in [1, 2] {
        let container = &template["spec"]["initContainers"][container];
        assert_eq!(container["image"], "mine");
        assert_eq!(container["securityContext"]["runAsUser"], 0);
        assert!(
            container["env"]
                .as_array()
                .unwrap()
                .contains(&json!({ "name": "A", "value": "1" }))
        );
        assert!(
            container["volumeMounts"]
                .as_array()
                .unwrap()
                .contains(&json!({ "name": "x", "mountPath": "/x" }))
        );
        assert!(container.get("resources").is_none());
    }
    assert_eq!(template["spec"]["containers"][0]["resources"]["limits"]["cpu"], "2");
}

#[test]
fn overrides_of_slurmctld_cannot_replace_settings_of_the_agent() {
    let spec = json!({ "slurmctld": {
        "env": [{ "name": "SLURM_AGENT_STATE_DIR", "value": "/x" }, { "name": "SLURM_AGENT_POD_UID", "value": "x" }],
        "volumeMounts": [{ "name": "x", "mountPath": "/etc/slurm-bundle" }],
    } });
    let template = template(&planned(with_keys(&spec)));
    for (container, field, key) in [(1, "env", "name"), (2, "env", "name"), (1, "volumeMounts", "mountPath")] {
        let items = template["spec"]["initContainers"][container][field].as_array().unwrap();
        let keys: Vec<&str> = items.iter().map(|item| item[key].as_str().unwrap()).collect();
        let once: std::collections::BTreeSet<&str> = keys.iter().copied().collect();
        assert_eq!(keys.len(), once.len(), "each once: {keys:?}");
        let theirs = |item: &&serde_json::Value| item["value"] == "/x" || item["name"] == "x";
        assert_eq!(items.iter().find(theirs), None, "{items:?}");
    }
}

#[test]
fn pods_of_another_operator_are_kept_until_a_restart_is_requested() {
    let mut objects = running(&json!({}));
    let pod = objects.iter_mut().find(|object| object["kind"] == "Pod").unwrap();
    pod["spec"]["initContainers"] = json!([]);
    let partition = |plan: &Plan| {
        let spec = plan.stateful_set.as_ref().and_then(|set| set.spec.clone()).unwrap();
        spec.update_strategy
            .and_then(|strategy| strategy.rolling_update)
            .and_then(|update| update.partition)
    };
    assert_eq!(partition(&planned(objects.clone())), Some(1));
    let (status, reason, message) = condition(objects.clone(), Report::default(), "Supervised");
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "AgentMissing"));
    assert!(message.contains("restart-trigger=1"), "{message}");
    assert_eq!(partition(&planned(annotated(objects, "restart-trigger", "1"))), Some(0));
}

#[test]
fn an_old_agent_is_reported_with_the_remedy() {
    let old = Report {
        old_agent: Some("pod slurm-controller-0 (release 0.1.0, protocol 1)".to_owned()),
        ..Report::default()
    };
    let (status, reason, message) = condition(running(&json!({})), old, "Degraded");
    assert_eq!((status, reason.as_str()), (ConditionStatus::True, "AgentOutdated"));
    for part in ["pod slurm-controller-0 (release 0.1.0, protocol 1)", "restart-trigger="] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_pod_that_never_starts_slurmctld_again_is_replaced_once_its_successor_is_gone() {
    let objects = running(&json!({}));
    let planned = |uid: &str, responds| {
        let mut observed = observed(objects.clone(), live_as_bundled(&objects));
        let by = "later".to_owned();
        observed.snapshot.superseded = Some((uid.to_owned(), Superseded { by, responds }));
        plan(&observed)
    };
    let deleted = |plan: &Plan| {
        plan.effects.iter().find_map(|effect| match effect {
            Effect::DeletePod { pod, uid, .. } => Some((pod.clone(), uid.clone())),
            _ => None,
        })
    };
    let gone = planned("pod-0", false);
    assert_eq!(
        deleted(&gone),
        Some(("slurm-controller-0".to_owned(), "pod-0".to_owned()))
    );
    let alive = planned("pod-0", true);
    assert_eq!(deleted(&alive), None);
    let reported = alive.findings.iter().find(|finding| finding.reason == "PodSuperseded");
    let message = &reported.unwrap().message;
    assert!(message.contains("kubectl delete pod slurm-controller-0"), "{message}");
    let other = planned("a pod before it", false);
    assert_eq!(deleted(&other), None, "the report is about another pod");
}

#[test]
fn a_stateful_set_that_cannot_be_changed_in_place_is_replaced() {
    let mut objects = running(&json!({}));
    objects
        .iter_mut()
        .find(|object| object["kind"] == "StatefulSet")
        .unwrap()["spec"]["serviceName"] = "slurm-controller".into();
    let plan = planned(objects);
    assert!(plan.stateful_set.is_none());
    assert!(
        plan.effects
            .iter()
            .any(|effect| matches!(effect, Effect::DeleteStatefulSet { uid, .. } if uid == "set"))
    );
}

#[test]
fn objects_of_other_owners_are_neither_read_nor_replaced() {
    let mut objects = running(&json!({}));
    for object in &mut objects {
        if object["kind"] == "StatefulSet" {
            object["spec"]["serviceName"] = "theirs".into();
        }
        if object["kind"] == "StatefulSet" || object["kind"] == "ConfigMap" {
            object["metadata"]["ownerReferences"] = json!([]);
        }
    }
    let seen = observed(objects.clone(), Report::default());
    assert!(seen.stateful_set.is_none() && seen.inputs.pods.is_empty());
    assert!(seen.inputs.bundle.is_none() && seen.inputs.config.is_none());
    let plan = planned(objects);
    assert!(
        !plan
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::DeleteStatefulSet { .. }))
    );
}

#[test]
fn clients_are_routed_to_the_active_slurmctld() {
    let labels = |plan: &Plan| -> Vec<(String, bool)> {
        plan.effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::LabelActive { pod, active, .. } => Some((pod.clone(), *active)),
                Effect::DeleteStatefulSet { .. } | Effect::DeletePod { .. } => None,
            })
            .collect()
    };
    // A single slurmctld is active as soon as its pod exists.
    let mut single = running(&json!({}));
    single.retain(|object| object["kind"] != "Pod");
    single.push(pod(0));
    assert_eq!(labels(&planned(single)), [("slurm-controller-0".to_owned(), true)]);

    let ha = json!({ "ha": { "enabled": true }, "persistence": { "existingClaim": "shared" } });
    let mut several = running(&ha);
    several.push(pod(1));
    assert_eq!(labels(&planned(several.clone())), []);
    let failed_over = Report {
        active: Some("slurm-controller-1".to_owned()),
        ..Report::default()
    };
    let plan = plan(&observed(several, failed_over));
    assert_eq!(
        labels(&plan),
        [
            ("slurm-controller-0".to_owned(), false),
            ("slurm-controller-1".to_owned(), true)
        ]
    );
    assert_eq!(
        targets(&plan),
        [("slurm-controller-1".to_owned(), vec!["slurm-controller-0".to_owned()])]
    );
}

/// The pod a plan pushes the configuration to, and its standbys.
fn targets(plan: &Plan) -> Vec<(String, Vec<String>)> {
    let DeliveryChange::Deliver(wanted) = &plan.configuration.delivery else {
        return Vec::new();
    };
    let standbys = wanted.standbys.iter().map(|target| target.pod.clone());
    vec![(wanted.target.pod.clone(), standbys.collect())]
}

#[test]
fn a_standby_gets_no_revision_before_the_active_slurmctld() {
    let ha = json!({ "ha": { "enabled": true }, "persistence": { "existingClaim": "shared" } });
    let mut objects = running(&ha);
    objects.push(pod(1));
    for object in &mut objects {
        if object["metadata"]["name"] == "slurm-controller-0" {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
    }
    let plan = plan(&observed(objects, Report::default()));
    assert_eq!(targets(&plan), []);
    assert!(
        matches!(plan.configuration.state, ConfigState::Away { .. }),
        "{:?}",
        plan.configuration.state
    );
}

#[test]
fn a_shared_claim_that_only_one_node_can_mount_is_rejected() {
    let ha = json!({ "ha": { "enabled": true }, "persistence": { "existingClaim": "shared" } });
    let mut objects = with_keys(&ha);
    objects.push(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "shared", "namespace": "hpc" },
        "spec": { "accessModes": ["ReadWriteOnce"] },
    }));
    let (_, reason, message) = condition(objects.clone(), Report::default(), "Ready");
    assert_eq!(reason, "BadClaim");
    assert!(message.contains("ReadWriteMany"), "{message}");
    assert!(planned(objects).stateful_set.is_none());
}
