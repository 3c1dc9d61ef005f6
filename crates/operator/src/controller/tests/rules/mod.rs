//! Tests of a Controller's rules.

mod delivery;
mod external;
mod object;
mod pods;

use std::sync::Arc;

use api::{Accounting, ConditionStatus, Controller, NodeSet};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use serde_json::{Value, json};
use slurm::revision::Digest;

use super::{
    super::{
        plan::{Effect, Plan, plan},
        status::build_status,
    },
    UID, config_map, controller, keys, node_set, observed, planned, pod, secret, slurm_conf, written,
};
use crate::{
    cluster::{
        deliver::{Goal, LiveRevision, Report, State},
        external::View,
    },
    configuration::{ConfigState, DeliveryChange, render::read_bundle},
    fault::Fault,
    runtime::{Caches, Change, Delta, Key, Object},
};

pub(super) const NOW: &str = "2026-01-02T00:00:00Z";

pub(super) fn with_keys(spec: &Value) -> Vec<Value> {
    let mut objects = keys();
    objects.push(controller(spec));
    objects
}

/// The objects of a running cluster, with its pod.
pub(super) fn running(spec: &Value) -> Vec<Value> {
    let mut objects = with_keys(spec);
    objects.extend(written(&planned(objects.clone())));
    let mut pod = pod(0);
    pod["metadata"]["labels"]["controller.slinky.slurm.net/active"] = "true".into();
    objects.push(pod);
    if bundled(&objects).is_some() {
        let plan = plan(&observed(objects.clone(), live_as_bundled(&objects)));
        replace(&mut objects, written(&plan));
    }
    objects
}

/// Replaces the objects of the same kind and name.
pub(super) fn replace(objects: &mut Vec<Value>, new: Vec<Value>) {
    let is_same = |one: &Value, other: &Value| {
        one["kind"] == other["kind"] && one["metadata"]["name"] == other["metadata"]["name"]
    };
    objects.retain(|old| !new.iter().any(|new| is_same(old, new)));
    objects.extend(new);
}

/// The same cluster with another spec.
pub(super) fn changed(mut objects: Vec<Value>, spec: &Value) -> Vec<Value> {
    let controller = objects
        .iter_mut()
        .find(|object| object["kind"] == "Controller")
        .unwrap();
    controller["spec"] = spec.clone();
    objects
}

pub(super) fn annotated(mut objects: Vec<Value>, key: &str, value: &str) -> Vec<Value> {
    let controller = objects
        .iter_mut()
        .find(|object| object["kind"] == "Controller")
        .unwrap();
    controller["metadata"]["annotations"][key] = value.into();
    objects
}

pub(super) fn report(live: Option<LiveRevision>, state: State) -> Report {
    Report {
        pod: "pod-0".to_owned(),
        live,
        state,
        ..Report::default()
    }
}

/// The report about a cluster that runs with its bundle.
pub(super) fn live_as_bundled(objects: &[Value]) -> Report {
    let (sequence, digest) = bundled(objects).unwrap();
    report(Some(LiveRevision { sequence, digest }), State::Done)
}

pub(super) fn bundled(objects: &[Value]) -> Option<(u64, Digest)> {
    let bundle = objects
        .iter()
        .find(|object| object["metadata"]["name"] == "slurm-bundle")?;
    let revision = read_bundle(&serde_json::from_value(bundle.clone()).unwrap())?;
    Some((revision.sequence, revision.digest()))
}

pub(super) fn condition(objects: Vec<Value>, report: Report, type_: &str) -> (ConditionStatus, String, String) {
    let observed = observed(objects, report);
    let plan = plan(&observed);
    let status = build_status(&observed, &plan, None, NOW.parse().unwrap());
    let condition = status
        .conditions
        .into_iter()
        .find(|condition| condition.type_ == type_)
        .unwrap();
    (condition.status, condition.reason, condition.message)
}

fn template(plan: &Plan) -> Value {
    serde_json::to_value(plan.stateful_set.as_ref().unwrap()).unwrap()["spec"]["template"].clone()
}

pub(super) fn pushes(plan: &Plan) -> Vec<Digest> {
    match &plan.configuration.delivery {
        DeliveryChange::Deliver(wanted) => vec![wanted.digest],
        _ => Vec::new(),
    }
}

#[test]
fn a_new_controller_gets_keys_first_and_everything_else_once_they_exist() {
    let first = planned(vec![controller(&json!({}))]);
    let names: Vec<&str> = first.keys.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["slurm-auth-slurm", "slurm-auth-jwt"]);
    assert!(first.stateful_set.is_none());

    let second = planned(with_keys(&json!({})));
    assert_eq!(second.keys, []);
    assert_eq!(second.findings, []);
    assert_eq!(second.services.len(), 2);
    assert_eq!(second.configuration.config_maps.len(), 2);
    assert!(second.stateful_set.is_some());
    assert!(matches!(
        second.configuration.state,
        ConfigState::Written { sequence: 1, .. }
    ));
}

#[test]
fn an_existing_key_is_never_replaced_and_a_referenced_one_never_generated() {
    let plan = planned(vec![
        controller(&json!({ "slurmKeyRef": { "name": "mine", "key": "k" } })),
        secret("slurm-auth-jwt", "other-entry", "YQ=="),
    ]);
    assert_eq!(plan.keys, []);
    let messages: Vec<&str> = plan.findings.iter().map(|fault| fault.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "spec.slurmKeyRef.name names Secret \"mine\", which does not exist; create it, or remove the reference to have a key generated",
            "spec.jwtKeyRef.key names entry \"jwt.key\", which Secret \"slurm-auth-jwt\" does not have or has empty; add it, or name another one",
        ]
    );
}

#[test]
fn a_missing_key_does_not_change_the_running_pod() {
    let mut objects = running(&json!({}));
    objects.retain(|object| object["metadata"]["name"] != "slurm-auth-slurm");
    let objects = changed(
        objects,
        &json!({ "slurmKeyRef": { "name": "slurm-auth-slurm", "key": "slurm.key" } }),
    );
    assert!(planned(objects.clone()).stateful_set.is_none());
    let (status, reason, message) = condition(objects, Report::default(), "Ready");
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "SecretMissing"));
    assert!(message.starts_with("spec.slurmKeyRef.name names Secret"), "{message}");
}

#[test]
fn node_sets_are_rendered_as_in_the_table() {
    for (partition, line) in [
        (
            json!({ "enabled": true, "config": "" }),
            Some("PartitionName=foo Nodes=foo "),
        ),
        (
            json!({ "enabled": true, "config": "Default=YES" }),
            Some("PartitionName=foo Nodes=foo Default=YES"),
        ),
        (
            json!({ "enabled": true, "config": "MaxTime=24:00:00 Default=YES" }),
            Some("PartitionName=foo Nodes=foo MaxTime=24:00:00 Default=YES"),
        ),
        (json!({ "enabled": false, "config": "Default=YES" }), None),
        (json!({}), Some("PartitionName=foo Nodes=foo ")),
    ] {
        let mut objects = with_keys(&json!({}));
        objects.push(node_set("foo", NOW, json!({ "partition": partition })));
        let conf = slurm_conf(&planned(objects));
        assert!(conf.contains("\nNodeSet=foo Feature=foo\n"), "{conf}");
        let found = conf.lines().find(|line| line.starts_with("PartitionName="));
        assert_eq!(found, line, "{partition}");
    }
}

#[test]
fn the_host_name_prefix_is_the_name_in_slurm_and_node_sets_are_sorted_by_their_own_names() {
    let mut objects = with_keys(&json!({}));
    objects.push(node_set(
        "b",
        NOW,
        json!({ "template": { "spec": { "hostname": "aaa-" } } }),
    ));
    objects.push(node_set("a", NOW, json!({})));
    objects.push(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": { "name": "c", "namespace": "hpc" },
        "spec": { "controllerRef": { "name": "slurm", "namespace": "elsewhere" } },
    }));
    let conf = slurm_conf(&planned(objects));
    let sets: Vec<&str> = conf.lines().filter(|line| line.starts_with("NodeSet=")).collect();
    assert_eq!(sets, ["NodeSet=a Feature=a", "NodeSet=aaa Feature=aaa"]);
}

#[test]
fn the_younger_of_two_node_sets_with_one_name_is_left_out() {
    let mut objects = with_keys(&json!({}));
    objects.push(node_set(
        "old",
        "2026-01-01T00:00:00Z",
        json!({ "template": { "spec": { "hostname": "gpu-" } } }),
    ));
    let before = slurm_conf(&planned(objects.clone()));
    let young = json!({ "template": { "spec": { "hostname": "gpu-" } }, "partition": { "config": "Default=YES" } });
    objects.push(node_set("a-young-one", "2026-01-02T00:00:00Z", young));
    let plan = planned(objects.clone());
    assert_eq!(slurm_conf(&plan), before);
    assert!(plan.stateful_set.is_some());
    let (status, reason, message) = condition(objects, Report::default(), "Degraded");
    assert_eq!((status, reason.as_str()), (ConditionStatus::True, "NodeSetNameTaken"));
    assert!(
        message.contains("\"a-young-one\" is left out") && message.contains("\"old\" is older"),
        "{message}"
    );
}

#[test]
fn a_missing_reference_is_named_and_the_running_configuration_is_kept() {
    for (spec, field, reason) in [
        (
            json!({ "configFileRefs": [{ "name": "x" }] }),
            "spec.configFileRefs[0].name",
            "ConfigMapMissing",
        ),
        (
            json!({ "prologScriptRefs": [{ "name": "x" }] }),
            "spec.prologScriptRefs[0].name",
            "ConfigMapMissing",
        ),
        (
            json!({ "jwksKeyRef": { "name": "x", "key": "k" } }),
            "spec.jwksKeyRef.name",
            "ConfigMapMissing",
        ),
        (
            json!({ "accountingRef": { "name": "x" } }),
            "spec.accountingRef.name",
            "AccountingMissing",
        ),
    ] {
        let objects = running(&json!({}));
        let before = slurm_conf(&planned(objects.clone()));
        let live = bundled(&objects).unwrap().1;
        let objects = changed(objects, &spec);
        let plan = planned(objects.clone());
        assert_eq!(slurm_conf(&plan), before, "{spec}");
        assert_eq!(pushes(&plan), [live]);
        let (status, found, message) = condition(objects, Report::default(), "Ready");
        assert_eq!((status, found.as_str()), (ConditionStatus::False, reason));
        assert!(
            message.starts_with(field) && message.contains("does not exist; create it"),
            "{message}"
        );
    }
}

#[test]
fn without_a_configuration_no_pod_is_created() {
    let plan = planned(with_keys(&json!({ "accountingRef": { "name": "x" } })));
    assert!(plan.stateful_set.is_none() && plan.configuration.config_maps.is_empty());
    assert_eq!(plan.services.len(), 2);
}

#[test]
fn files_and_scripts_of_config_maps_are_in_the_revision() {
    let mut objects = with_keys(&json!({
        "configFileRefs": [{ "name": "files" }],
        "prologScriptRefs": [{ "name": "scripts" }],
        "jwksKeyRef": { "name": "jwks", "key": "set" },
    }));
    objects.push(config_map(
        "files",
        &json!({ "gres.conf": "AutoDetect=off\n", "cgroup.conf": "CgroupPlugin=disabled\n" }),
    ));
    objects.push(config_map("scripts", &json!({ "p.sh": "#!/bin/sh\n" })));
    objects.push(config_map("jwks", &json!({ "set": "{}" })));
    let plan = planned(objects);
    assert_eq!(plan.findings, []);
    let revision = plan.configuration.config_maps.iter().find_map(read_bundle).unwrap();
    let files: Vec<(&str, bool)> = revision
        .files
        .iter()
        .map(|(name, file)| (name.as_str(), file.executable))
        .collect();
    assert_eq!(
        files,
        [
            ("cgroup.conf", false),
            ("gres.conf", false),
            ("jwks.json", false),
            ("p.sh", true),
            ("slurm.conf", false)
        ]
    );
    assert!(slurm_conf(&plan).contains("\nProlog=p.sh\n"));
    let listed: Vec<&String> = plan
        .configuration
        .config_maps
        .iter()
        .filter(|map| map.metadata.name.as_deref() == Some("slurm-config"))
        .filter_map(|map| map.data.as_ref())
        .flat_map(|data| data.keys())
        .collect();
    assert_eq!(listed, ["slurm.conf"], "a user's cgroup.conf is in their own ConfigMap");
}

#[test]
fn duplicate_files_and_files_of_the_operator_are_rejected() {
    for (one, other, part) in [
        (
            json!({ "x.conf": "1" }),
            json!({ "x.conf": "2" }),
            "differs from that of ConfigMap \"one\"; rename one of the two",
        ),
        (json!({ "slurm.conf": "" }), json!({}), "move its lines to extraConf"),
        (json!({ "slurm.key": "" }), json!({}), "belongs in spec.slurmKeyRef"),
    ] {
        let mut objects = with_keys(&json!({ "configFileRefs": [{ "name": "one" }, { "name": "two" }] }));
        objects.push(config_map("one", &one));
        objects.push(config_map("two", &other));
        let [fault] = planned(objects).findings.try_into().unwrap();
        assert_eq!(fault.reason, "BadFile");
        assert!(fault.message.contains(part), "{}", fault.message);
    }
}

#[test]
fn a_partition_that_extra_conf_defines_too_is_held() {
    let mut objects = with_keys(&json!({ "extraConf": "PartitionName=foo Nodes=ALL\n" }));
    objects.push(node_set("foo", NOW, json!({ "partition": {} })));
    let (_, reason, message) = condition(objects, Report::default(), "Ready");
    assert_eq!(reason, "ConfigRejected");
    assert!(
        message.starts_with(
            "NodeSet \"foo\" spec.partition: spec.extraConf line 1: PartitionName=foo is defined a second time"
        ),
        "{message}"
    );
}

#[test]
fn an_invalid_spec_changes_nothing() {
    let objects = changed(
        running(&json!({})),
        &json!({ "slurmctld": { "args": "-v" }, "ha": { "enabled": true } }),
    );
    let plan = planned(objects.clone());
    assert!(plan.stateful_set.is_none() && plan.services.is_empty() && plan.configuration.config_maps.is_empty());
    assert!(plan.keep.is_none() && plan.effects.is_empty());
    let (status, reason, message) = condition(objects, Report::default(), "Ready");
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "InvalidSpec"));
    assert!(message.contains("spec.slurmctld.args is a string"), "{message}");
}

#[test]
fn the_younger_of_two_controllers_with_one_cluster_name_is_rejected_until_the_older_is_deleted() {
    let mut older = controller(&json!({ "clusterName": "c" }));
    older["metadata"]["name"] = "older".into();
    older["metadata"]["uid"] = "other".into();
    older["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z".into();
    let mut objects = with_keys(&json!({ "clusterName": "c" }));
    objects.push(older.clone());
    let (_, reason, message) = condition(objects.clone(), Report::default(), "Ready");
    assert_eq!(reason, "ClusterNameTaken");
    assert!(
        message.contains("the older Controller hpc/older has; set another one"),
        "{message}"
    );
    objects.pop();
    assert_eq!(planned(objects.clone()).findings, []);

    // Controllers in other namespaces share nothing.
    older["metadata"]["namespace"] = "elsewhere".into();
    objects.push(older);
    assert_eq!(planned(objects).findings, []);
}

#[test]
fn the_name_of_a_running_cluster_cannot_be_changed() {
    let objects = changed(running(&json!({})), &json!({ "clusterName": "other" }));
    let (_, reason, message) = condition(objects, Report::default(), "Ready");
    assert_eq!(reason, "ClusterNameChanged");
    assert!(message.contains("set it back"), "{message}");
}

#[test]
fn a_manually_changed_cluster_name_in_the_configuration_is_restored() {
    let mut objects = running(&json!({}));
    let config = objects
        .iter_mut()
        .find(|object| object["metadata"]["name"] == "slurm-config")
        .unwrap();
    config["data"]["slurm.conf"] = "ClusterName=other\n".into();
    let plan = planned(objects);
    assert_eq!(plan.findings, []);
    assert!(
        slurm_conf(&plan).contains("ClusterName=hpc_slurm"),
        "{}",
        slurm_conf(&plan)
    );
}

#[test]
fn the_storage_of_a_running_cluster_cannot_be_changed() {
    for spec in [
        json!({ "persistence": { "enabled": false } }),
        json!({ "persistence": { "existingClaim": "x" } }),
    ] {
        let plan = planned(changed(running(&json!({})), &spec));
        assert!(plan.stateful_set.is_none());
        assert!(
            plan.findings[0]
                .message
                .starts_with("spec.persistence cannot be changed"),
            "{:?}",
            plan.findings
        );
    }
    assert_eq!(
        planned(running(&json!({ "persistence": { "enabled": false } }))).findings,
        []
    );
}

#[test]
fn a_converged_cluster_plans_what_it_has() {
    let objects = running(&json!({ "extraConf": "SchedulerParameters=defer" }));
    let report = live_as_bundled(&objects);
    let plan = plan(&observed(objects.clone(), report));
    assert!(matches!(
        plan.configuration.state,
        ConfigState::Applied { sequence: 1, .. }
    ));
    for object in written(&plan) {
        assert!(objects.contains(&object), "{object}");
    }
    assert!(
        !plan
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::LabelActive { .. } | Effect::DeleteStatefulSet { .. }))
    );
}
