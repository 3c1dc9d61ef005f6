//! All children of several Controllers, as they are sent to the API server.

use serde_json::{Value, json};

use super::{config_map, controller, keys, node_set, planned, written};

const CREATED: &str = "2026-01-01T00:00:00Z";

fn children(objects: Vec<Value>) -> Vec<Value> {
    let plan = planned(objects);
    assert_eq!(plan.findings, []);
    let mut children = written(&plan);
    for child in &mut children {
        // Compressed, and covered by other tests.
        if child["binaryData"]["bundle"].is_string() {
            child["binaryData"]["bundle"] = "<bundle>".into();
            child["binaryData"]["bundle.sig"] = "<signature>".into();
            child["data"]["inputs"] = "<inputs>".into();
        }
    }
    children
}

fn with_keys(spec: &Value) -> Vec<Value> {
    let mut objects = keys();
    objects.push(controller(spec));
    objects
}

#[test]
fn a_controller_without_a_word() {
    insta::assert_yaml_snapshot!(children(with_keys(&json!({}))));
}

#[test]
fn a_controller_with_everything() {
    let mut objects = with_keys(&json!({
        "clusterName": "full",
        "configFileRefs": [{ "name": "files" }],
        "epilogSlurmctldScriptRefs": [{ "name": "scripts" }],
        "extraConf": "SchedulerParameters=defer\nSlurmctldParameters=idle_on_node_suspend\n",
        "jwksKeyRef": { "name": "jwks", "key": "set" },
        "metrics": { "enabled": true },
        "persistence": { "storageClassName": "fast", "resources": { "requests": { "storage": "1Gi" } } },
        "reconfigure": { "resources": { "limits": { "memory": "64Mi" } } },
        "service": { "metadata": { "annotations": { "lb": "internal" } }, "nodePort": 30817, "spec": { "type": "NodePort" } },
        "slurmctld": { "image": "mine", "args": ["-v"], "resources": { "requests": { "cpu": 1 } } },
        "logfile": { "image": "busybox" },
        "template": {
            "metadata": { "labels": { "team": "hpc" }, "annotations": { "note": "x" } },
            "spec": {
                "initContainers": [{ "name": "wait", "image": "busybox" }],
                "nodeSelector": { "disk": "ssd" },
                "securityContext": { "runAsNonRoot": false },
                "tolerations": [{ "key": "control", "operator": "Exists" }],
                "volumes": [{ "name": "extra", "emptyDir": {} }],
            },
        },
    }));
    objects.push(config_map("files", &json!({ "gres.conf": "AutoDetect=off\n" })));
    objects.push(config_map("scripts", &json!({ "e.sh": "#!/bin/sh\n" })));
    objects.push(config_map("jwks", &json!({ "set": "{}" })));
    objects.push(node_set(
        "cpu",
        CREATED,
        json!({ "partition": { "config": "Default=YES" } }),
    ));
    insta::assert_yaml_snapshot!(children(objects));
}

#[test]
fn a_controller_with_a_standby() {
    insta::assert_yaml_snapshot!(children(with_keys(&json!({
        "ha": { "enabled": true }, "persistence": { "existingClaim": "shared" },
    }))));
}

#[test]
fn a_controller_without_persistence_and_with_its_own_command() {
    insta::assert_yaml_snapshot!(children(with_keys(&json!({
        "persistence": { "enabled": false }, "slurmctld": { "command": ["slurmctld", "-D"] },
    }))));
}
