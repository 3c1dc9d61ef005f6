//! Tests of a Controller's rules.

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
        ExternalState,
        deliver::{Goal, LiveRevision, Report, State, Wanted},
        external::{Unfit, View},
    },
    configuration::{ConfigState, DeliveryChange, render::read_bundle},
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
    plan.effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Deliver(DeliveryChange::Deliver(wanted)) => Some(wanted.digest),
            _ => None,
        })
        .collect()
}

#[test]
fn a_new_controller_gets_keys_first_and_everything_else_once_they_exist() {
    let first = planned(vec![controller(&json!({}))]);
    let names: Vec<&str> = first.keys.iter().map(|key| key.secret.as_str()).collect();
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

#[test]
fn a_change_is_written_once_slurmctld_runs_with_it() {
    let objects = running(&json!({}));
    let before = live_as_bundled(&objects);
    let old = slurm_conf(&planned(objects.clone()));
    let objects = changed(objects, &json!({ "extraConf": "SchedulerParameters=defer" }));

    let pushing = plan(&observed(objects.clone(), before));
    let [wanted] = pushes(&pushing).try_into().unwrap();
    assert_eq!(
        slurm_conf(&pushing),
        old,
        "the bundle and -config are kept until the agent has accepted"
    );
    assert_eq!(
        pushing.configuration.state,
        ConfigState::Pushing {
            digest: wanted,
            pod: "slurm-controller-0".to_owned()
        }
    );

    let accepted = plan(&observed(
        objects,
        report(
            Some(LiveRevision {
                sequence: 2,
                digest: wanted,
            }),
            State::Done,
        ),
    ));
    assert!(slurm_conf(&accepted).contains("SchedulerParameters=defer"));
    let revision = accepted.configuration.config_maps.iter().find_map(read_bundle).unwrap();
    assert_eq!((revision.sequence, revision.digest()), (2, wanted));
    assert_eq!(
        pushing.stateful_set, accepted.stateful_set,
        "a change of the configuration does not change the pod"
    );
}

#[test]
fn before_any_pod_has_started_a_change_is_written_at_once() {
    let mut objects = running(&json!({}));
    objects.retain(|object| object["kind"] != "Pod");
    let plan = planned(changed(objects, &json!({ "extraConf": "SchedulerParameters=defer" })));
    assert!(matches!(
        plan.configuration.state,
        ConfigState::Written { sequence: 2, .. }
    ));
    assert!(slurm_conf(&plan).contains("defer"));
}

#[test]
fn a_change_waits_while_the_agent_is_unreachable() {
    let mut objects = changed(
        running(&json!({})),
        &json!({ "extraConf": "SchedulerParameters=defer" }),
    );
    let pod = objects.iter_mut().find(|object| object["kind"] == "Pod").unwrap();
    pod["status"]["initContainerStatuses"][0]["state"] = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
    let plan = planned(objects.clone());
    assert!(!slurm_conf(&plan).contains("defer"));
    assert!(plan.effects.contains(&Effect::Deliver(DeliveryChange::Pause)));
    let (status, reason, _) = condition(objects, Report::default(), "ConfigurationApplied");
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "AgentAway"));
}

#[test]
fn a_rejection_is_reported_with_slurmctlds_message() {
    let objects = running(&json!({}));
    let live = live_as_bundled(&objects).live;
    let objects = changed(objects, &json!({ "extraConf": "SchedulerParameters=nonsense" }));
    let [digest] = pushes(&planned(objects.clone())).try_into().unwrap();
    let mut refused = report(live, State::Done);
    refused.refusals = Arc::new([(digest, "unrecognized word: nonsense".to_owned())].into());
    let plan = plan(&observed(objects.clone(), refused.clone()));
    assert!(!slurm_conf(&plan).contains("nonsense"));
    assert_eq!(pushes(&plan), [live.unwrap().digest]);
    for type_ in ["Ready", "ConfigurationApplied"] {
        let (status, reason, message) = condition(objects.clone(), refused.clone(), type_);
        assert_eq!((status, reason.as_str()), (ConditionStatus::False, "ConfigRejected"));
        assert!(message.contains("unrecognized word: nonsense"), "{message}");
    }
}

#[test]
fn a_corrupt_bundle_is_written_again_from_the_live_revision() {
    let mut objects = running(&json!({}));
    let report = live_as_bundled(&objects);
    let expected = bundled(&objects);
    let bundle = objects
        .iter_mut()
        .find(|object| object["metadata"]["name"] == "slurm-bundle")
        .unwrap();
    bundle["binaryData"]["bundle"] = "AAAA".into();
    let plan = plan(&observed(objects, report));
    assert_eq!(bundled(&written(&plan)), expected);
}

#[test]
fn a_new_leader_repeats_the_status_until_it_has_polled() {
    let mut objects = running(&json!({}));
    let observed_now = observed(objects.clone(), live_as_bundled(&objects));
    let status = build_status(&observed_now, &plan(&observed_now), None, NOW.parse().unwrap());
    objects
        .iter_mut()
        .find(|object| object["kind"] == "Controller")
        .unwrap()["status"] = serde_json::to_value(&status).unwrap();
    let observed_later = observed(objects, Report::default());
    let later = build_status(
        &observed_later,
        &plan(&observed_later),
        None,
        "2026-02-02T00:00:00Z".parse().unwrap(),
    );
    assert_eq!(later, status);
}

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

#[test]
fn a_new_key_changes_the_pod() {
    let objects = running(&json!({}));
    let before = template(&planned(objects.clone()));
    let mut rotated = objects;
    rotated.retain(|object| object["metadata"]["name"] != "slurm-auth-slurm");
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
                _ => None,
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
    let wanted = plan.effects.iter().filter_map(|effect| match effect {
        Effect::Deliver(DeliveryChange::Deliver(wanted)) => Some(wanted),
        _ => None,
    });
    let names = |wanted: &Wanted| {
        let standbys = wanted.standbys.iter().map(|target| target.pod.clone());
        (wanted.target.pod.clone(), standbys.collect())
    };
    wanted.map(|wanted| names(wanted)).collect()
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

#[test]
fn an_external_controller_has_a_slurm_conf_and_nothing_else() {
    let plan = planned(vec![controller(&json!({
        "external": true, "externalConfig": { "host": "ctl.example.com", "port": 6817 }, "extraConf": "X=1",
    }))]);
    assert_eq!(plan.findings, []);
    assert!(plan.services.is_empty() && plan.stateful_set.is_none() && plan.keys.is_empty());
    let conf = slurm_conf(&plan);
    assert!(
        conf.contains("SlurmctldHost=ctl.example.com\n") && !conf.contains("X=1"),
        "{conf}"
    );
    assert!(plan.keep.unwrap().stateful_sets.is_empty());
}

#[test]
fn the_port_of_an_external_slurmctld_is_optional() {
    let plan = planned(vec![controller(&json!({
        "external": true, "externalConfig": { "host": "ctl.example.com" },
    }))]);
    assert!(slurm_conf(&plan).contains("SlurmctldPort=6817\n"));
}

#[test]
fn fields_without_effect_on_an_external_slurmctld_are_named() {
    let message = |objects| condition(objects, Report::default(), "ConfigurationApplied").2;
    let external = |extra: &str| {
        controller(&json!({ "external": true, "externalConfig": { "host": "ctl.example.com" }, "extraConf": extra }))
    };
    let quiet = message(vec![external("")]);
    assert!(!quiet.contains("have no effect"), "{quiet}");
    let set = node_set("gpu", NOW, json!({ "partition": { "enabled": true } }));
    let named = message(vec![external("X=1"), set]);
    assert!(
        named.contains("have no effect: spec.extraConf, spec.partition of NodeSet \"gpu\";"),
        "{named}"
    );
}

#[test]
fn missing_requirements_of_an_external_slurmctld_are_reported_and_change_nothing() {
    let spec = json!({ "external": true, "externalConfig": { "host": "ctl.example.com" } });
    let mut observed = observed(vec![controller(&spec)], Report::default());
    let polled = |unfit| {
        Arc::new(View {
            unfit,
            cluster: Err("not polled".to_owned()),
            at: NOW.parse().unwrap(),
        })
    };
    observed.snapshot.external = ExternalState::Polled(polled(Some(Unfit {
        reason: "RequirementMissing",
        message: "it lacks configless".to_owned(),
    })));
    let unfit = plan(&observed);
    let status = build_status(&observed, &unfit, None, NOW.parse().unwrap());
    for type_ in ["Ready", "Degraded"] {
        let condition = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_)
            .unwrap();
        assert_eq!(condition.reason, "RequirementMissing");
        assert_eq!(condition.message, "it lacks configless");
    }
    assert!(!slurm_conf(&unfit).is_empty());
    observed.snapshot.external = ExternalState::Polled(polled(None));
    let fit = plan(&observed);
    let status = build_status(&observed, &fit, None, NOW.parse().unwrap());
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .unwrap();
    assert_eq!(ready.message, "external slurmctld responds at ctl.example.com:6817");
}

#[test]
fn with_config_update_restart_a_change_restarts_slurmctld() {
    let spec = |extra: &str| json!({ "configUpdate": "Restart", "extraConf": extra });
    let objects = running(&spec("SchedulerTimeSlice=10"));
    let report = live_as_bundled(&objects);
    let before = template(&plan(&observed(objects.clone(), report.clone())));
    let hash = |template: &Value| template["metadata"]["annotations"]["slinky.slurm.net/slurm-config-hash"].clone();
    assert!(hash(&before).is_string());
    let objects = changed(objects, &spec("SchedulerTimeSlice=20"));

    // A dry run comes first; while no agent can make one, nothing is changed.
    for state in [State::Done, State::Away { why: "x".to_owned() }] {
        let report = Report {
            state,
            ..report.clone()
        };
        let untried = plan(&observed(objects.clone(), report));
        assert_eq!(hash(&template(&untried)), hash(&before));
        assert!(slurm_conf(&untried).contains("SchedulerTimeSlice=10"));
        assert_eq!(goals(&untried), [Goal::Checked]);
        assert!(!matches!(untried.configuration.state, ConfigState::Restarting { .. }));
    }
    let wanted = pushes(&plan(&observed(objects.clone(), report.clone())));
    let tried = Report {
        checked: wanted.first().copied(),
        ..report.clone()
    };
    let after = plan(&observed(objects.clone(), tried));
    assert_ne!(hash(&template(&after)), hash(&before));
    assert!(slurm_conf(&after).contains("SchedulerTimeSlice=20"));
    assert_eq!(goals(&after), [Goal::Checked], "the check is remembered");
    assert!(matches!(after.configuration.state, ConfigState::Restarting { .. }));

    // While no agent runs, as in a starting pod, no dry run is possible.
    let mut agentless = objects;
    for object in &mut agentless {
        if object["kind"] == "Pod" {
            object["status"]["initContainerStatuses"][0]["state"] = json!({ "waiting": {} });
        }
    }
    let waiting = plan(&observed(agentless, Report::default()));
    assert_eq!(hash(&template(&waiting)), hash(&before));
    assert!(matches!(waiting.configuration.state, ConfigState::Away { .. }));
}

fn goals(plan: &Plan) -> Vec<Goal> {
    plan.effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Deliver(DeliveryChange::Deliver(wanted)) => Some(wanted.goal),
            _ => None,
        })
        .collect()
}

#[test]
fn the_status_has_the_observed_generation_unless_the_definitions_would_drop_it() {
    let mut observed = observed(with_keys(&json!({})), Report::default());
    let status = build_status(&observed, &plan(&observed), None, NOW.parse().unwrap());
    assert_eq!(status.observed_generation, Some(1));
    observed.outdated = vec!["controllers.slinky.slurm.net".to_owned()];
    let status = build_status(&observed, &plan(&observed), None, NOW.parse().unwrap());
    assert_eq!(status.observed_generation, None);
    assert!(
        status
            .conditions
            .iter()
            .any(|condition| condition.type_ == "CRDsOutdated")
    );
}

#[test]
fn a_controller_is_woken_by_changes_of_all_its_inputs() {
    let spec = json!({
        "slurmKeyRef": { "name": "k", "key": "k" },
        "configFileRefs": [{ "name": "files" }], "epilogSlurmctldScriptRefs": [{ "name": "scripts" }],
        "jwksKeyRef": { "name": "jwks", "key": "k" }, "accountingRef": { "name": "acct" },
        "persistence": { "existingClaim": "state" },
    });
    let mut caches_objects = running(&spec);
    caches_objects.extend(keys());
    let caches = Caches::of(caches_objects);
    let me = Key::new("hpc", "slurm");
    let hears = |change: Change| super::super::references::interested(&change, &caches).contains(&me);
    for name in ["files", "scripts", "jwks"] {
        assert!(hears(appeared::<ConfigMap>(config_map(name, &json!({})))), "{name}");
    }
    assert!(!hears(appeared::<ConfigMap>(config_map("other", &json!({})))));
    for name in ["k", "slurm-auth-jwt"] {
        assert!(hears(appeared::<Secret>(secret(name, "k", ""))), "{name}");
    }
    assert!(!hears(appeared::<Secret>(secret("other", "k", ""))));
    assert!(hears(appeared::<NodeSet>(node_set("n", NOW, json!({})))));
    assert!(hears(appeared::<Pod>(pod(0))));
    let named =
        |kind: &str, name: &str| json!({ "kind": kind, "metadata": { "name": name, "namespace": "hpc" }, "spec": {} });
    assert!(hears(appeared::<Accounting>(named("Accounting", "acct"))));
    assert!(hears(appeared::<PersistentVolumeClaim>(named(
        "PersistentVolumeClaim",
        "state"
    ))));
    let owned = json!({ "metadata": { "name": "slurm-controller", "namespace": "hpc", "ownerReferences": [{
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "name": "slurm", "uid": UID, "controller": true,
    }] } });
    assert!(hears(appeared::<Service>(owned.clone())));
    assert!(hears(appeared::<ConfigMap>(owned.clone())));
    assert!(hears(appeared::<Secret>(owned)));
    let mut rival = controller(&json!({ "clusterName": "hpc_slurm" }));
    rival["metadata"]["name"] = "rival".into();
    assert!(hears(appeared::<Controller>(rival)));
}

fn appeared<K: Object>(object: Value) -> Change {
    let object: K = serde_json::from_value(object).unwrap();
    Delta::appeared(std::sync::Arc::new(object)).into()
}

#[test]
fn a_deleted_controller_is_left_to_garbage_collection() {
    let mut objects = running(&json!({}));
    objects
        .iter_mut()
        .find(|object| object["kind"] == "Controller")
        .unwrap()["metadata"]["deletionTimestamp"] = NOW.into();
    let plan = planned(objects);
    assert!(plan.stateful_set.is_none() && plan.services.is_empty() && plan.keep.is_none());
}

#[test]
fn the_seeds_controller_without_settings_is_complete() {
    let plan = planned(with_keys(
        &json!({ "extraConf": "PartitionName=all Nodes=ALL Default=NO\n" }),
    ));
    assert_eq!(plan.findings, []);
    let controller: Controller = serde_json::from_value(controller(&json!({}))).unwrap();
    assert_eq!(controller.cluster_name(), "hpc_slurm");
    let claim = &serde_json::to_value(plan.stateful_set).unwrap()["spec"]["volumeClaimTemplates"][0]["spec"];
    assert_eq!(
        *claim,
        json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "4Gi" } } })
    );
}

#[test]
fn a_service_monitor_is_created_if_metrics_are_enabled_and_the_kind_exists() {
    let metrics = |enabled: bool, monitor: bool| json!({ "metrics": { "enabled": enabled, "serviceMonitor": { "enabled": monitor } } });
    let cases = [
        // Metrics, ServiceMonitor, kind known: created, faults.
        (true, true, true, true, 0),
        (true, true, false, false, 1),
        (true, false, true, false, 0),
        (false, true, true, false, 0),
    ];
    for (enabled, monitor, known, made, faults) in cases {
        let mut observed = observed(with_keys(&metrics(enabled, monitor)), Report::default());
        observed.has_service_monitors = known;
        let plan = plan(&observed);
        let case = (enabled, monitor, known);
        assert_eq!(plan.service_monitor.is_some(), made, "{case:?}");
        assert_eq!(plan.keep.unwrap().service_monitors.len(), usize::from(made), "{case:?}");
        assert_eq!(plan.findings.len(), faults, "{case:?}: {:?}", plan.findings);
        assert!(plan.stateful_set.is_some(), "{case:?}: the rest is not affected");
    }
}

#[test]
fn an_endpoint_without_intervals_uses_those_of_the_service_monitor() {
    let plan = planned(with_keys(&json!({ "metrics": { "enabled": true, "serviceMonitor": {
        "enabled": true, "interval": "30s", "scrapeTimeout": "25s", "labels": { "release": "prometheus" },
        "endpoints": [{ "path": "/metrics/jobs" }, { "path": "/metrics/nodes", "interval": "1m" }],
    } } })));
    let monitor = plan.service_monitor.unwrap();
    assert_eq!(monitor.metadata.name.as_deref(), Some("slurm-controller"));
    assert_eq!(monitor.metadata.labels.unwrap()["release"], "prometheus");
    let relabelings =
        json!([{ "action": "keep", "sourceLabels": ["__meta_kubernetes_service_name"], "regex": "slurm-controller" }]);
    assert_eq!(
        monitor.spec,
        json!({
            "namespaceSelector": { "matchNames": ["hpc"] },
            "selector": { "matchLabels": { "app.kubernetes.io/name": "slurmctld", "app.kubernetes.io/instance": "slurm" } },
            "endpoints": [
                { "port": "slurmctld", "scheme": "http", "path": "/metrics/jobs", "interval": "30s", "scrapeTimeout": "25s", "relabelings": relabelings },
                { "port": "slurmctld", "scheme": "http", "path": "/metrics/nodes", "interval": "1m", "scrapeTimeout": "25s", "relabelings": relabelings },
            ],
        })
    );
}

#[test]
fn without_endpoints_all_metrics_of_slurmctld_are_collected() {
    let plan = planned(with_keys(
        &json!({ "metrics": { "enabled": true, "serviceMonitor": { "enabled": true } } }),
    ));
    let spec = plan.service_monitor.unwrap().spec;
    let paths: Vec<_> = spec["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|endpoint| &endpoint["path"])
        .collect();
    assert_eq!(
        paths,
        [
            "/metrics/jobs",
            "/metrics/nodes",
            "/metrics/partitions",
            "/metrics/scheduler"
        ]
    );
}
