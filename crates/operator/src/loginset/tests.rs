//! The rules of a LoginSet, as tests.

use api::{ConditionStatus, LoginSet, LoginSetStatus};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    observe::{Observed, read},
    plan::Plan,
};
use crate::{
    defaults::Images,
    kind::{self, Kind as _},
    runtime::{Caches, Change, Delta, Failure, Key},
    testing::{any_spec::any_spec, keys::made_with_other_keys},
};

fn object(kind: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": kind,
        "metadata": { "name": "slurm", "namespace": "hpc", "uid": kind, "generation": 2 },
        "spec": spec,
    })
}

fn login_set(spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["controllerRef"] = json!({ "name": "slurm" });
    spec["sssdConfRef"] = json!({ "name": "sssd", "key": "sssd.conf" });
    object("LoginSet", &spec)
}

fn secret(name: &str, entries: &[&str], value: &str) -> Value {
    let data: serde_json::Map<String, Value> = entries
        .iter()
        .map(|entry| ((*entry).to_owned(), json!(value)))
        .collect();
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": "hpc" }, "data": data })
}

const HOST_KEYS: [&str; 6] = [
    "ssh_host_rsa_key",
    "ssh_host_rsa_key.pub",
    "ssh_host_ed25519_key",
    "ssh_host_ed25519_key.pub",
    "ssh_host_ecdsa_key",
    "ssh_host_ecdsa_key.pub",
];

/// `[sssd]` and an end of line.
const SSSD_CONF: &str = "W3Nzc2RdCg==";

fn cluster() -> Vec<Value> {
    vec![
        object("Controller", &json!({})),
        secret("slurm-auth-slurm", &["slurm.key"], "YQ=="),
        secret("sssd", &["sssd.conf"], SSSD_CONF),
        secret("slurm-ssh-host-keys", &HOST_KEYS, "YQ=="),
    ]
}

fn observed(objects: Vec<Value>) -> Observed {
    let caches = Caches::of(objects);
    let images = Images {
        login: "login:default".to_owned(),
        ..Images::default()
    };
    let login_set = caches.login_sets.all().remove(0);
    read(login_set, &caches, images, "cluster.local".to_owned())
}

fn with(mut objects: Vec<Value>, spec: &Value) -> Vec<Value> {
    objects.push(login_set(spec));
    objects
}

fn planned(objects: Vec<Value>) -> Plan {
    kind::plan::<LoginSet>(&observed(objects)).1
}

fn status_of(observed: &Observed, failure: Option<&Failure>) -> LoginSetStatus {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    kind::status::<LoginSet>(observed, &kind::plan::<LoginSet>(observed), failure, &[], now)
}

fn condition(status: LoginSetStatus, type_: &str) -> (ConditionStatus, String, String) {
    let mut conditions = status.conditions.into_iter();
    let found = conditions.find(|condition| condition.type_ == type_).unwrap();
    (found.status, found.reason, found.message)
}

fn ready(objects: Vec<Value>) -> (ConditionStatus, String, String) {
    condition(status_of(&observed(objects), None), "Ready")
}

/// With the Deployment that is planned, and all of its pods.
fn deployed(mut objects: Vec<Value>) -> Vec<Value> {
    let mut deployment = serde_json::to_value(planned(objects.clone()).deployment).unwrap();
    deployment["status"] = json!({ "replicas": 1, "availableReplicas": 1, "updatedReplicas": 1 });
    objects.push(deployment);
    objects.push(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "slurm-1", "namespace": "hpc", "uid": "u", "labels": {
            "app.kubernetes.io/name": "login", "app.kubernetes.io/instance": "slurm",
        } },
    }));
    objects
}

fn template(objects: Vec<Value>) -> Value {
    serde_json::to_value(planned(objects).deployment.unwrap().spec.unwrap().template).unwrap()
}

#[test]
fn a_minimal_login_set() {
    let (findings, plan) = kind::plan::<LoginSet>(&observed(with(cluster(), &json!({}))));
    assert_eq!(findings, []);
    assert!(!plan.makes_host_keys);
    insta::assert_yaml_snapshot!(json!([plan.service, plan.ssh_config, plan.deployment]));
}

#[test]
fn host_keys_are_made_once_and_pods_wait_for_them() {
    let mut objects = cluster();
    objects.pop();
    let plan = planned(with(objects.clone(), &json!({})));
    assert!(plan.makes_host_keys && plan.deployment.is_none() && plan.ssh_config.is_some());
    objects.push(secret("slurm-ssh-host-keys", &HOST_KEYS[..5], "YQ=="));
    let plan = planned(with(objects.clone(), &json!({})));
    assert!(!plan.makes_host_keys && plan.deployment.is_none());
    let (_, reason, message) = ready(with(objects, &json!({})));
    assert_eq!(reason, "HostKeysIncomplete");
    assert!(message.contains("has no \"ssh_host_ecdsa_key.pub\""), "{message}");
}

#[test]
fn what_is_missing_is_named_and_nothing_is_rolled() {
    let without = |name: &str| {
        let mut objects = cluster();
        objects.retain(|object| object["metadata"]["name"] != name);
        objects
    };
    let mut no_entry = without("sssd");
    no_entry.push(secret("sssd", &["other"], "YQ=="));
    let mut unreadable = without("sssd");
    unreadable.push(secret("sssd", &["sssd.conf"], "YQ=="));
    let mut other_key = cluster();
    other_key.push(made_with_other_keys("hpc", "Controller"));
    for (objects, reason, words) in [
        (
            other_key,
            "KeyMismatch",
            "Secret \"slurm-auth-slurm\" has another slurm.key than the cluster runs with",
        ),
        (
            without("slurm"),
            "ControllerMissing",
            "names Controller \"slurm\", which does not exist",
        ),
        (
            without("slurm-auth-slurm"),
            "SecretMissing",
            "Secret \"slurm-auth-slurm\", which does not exist",
        ),
        (
            without("sssd"),
            "SecretMissing",
            "Secret \"sssd\", which does not exist",
        ),
        (
            no_entry,
            "SecretMissing",
            "entry \"sssd.conf\" of Secret \"sssd\", which is absent or empty there",
        ),
        (unreadable, "SssdConfInvalid", "has \"a\" in line 1"),
    ] {
        let plan = planned(with(objects.clone(), &json!({})));
        assert!(plan.deployment.is_none() && plan.service.is_some(), "{reason}");
        let (status, said, message) = ready(with(objects, &json!({})));
        assert_eq!((status, said.as_str()), (ConditionStatus::False, reason));
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn an_invalid_key_changes_nothing() {
    let objects = with(
        cluster(),
        &json!({ "rootSshAuthorizedKeys": "# me\nssh-ed25519 oops\n" }),
    );
    let plan = planned(objects.clone());
    assert!(plan.deployment.is_none() && plan.ssh_config.is_none());
    let (_, reason, message) = ready(objects);
    assert_eq!(reason, "InvalidSpec");
    assert!(
        message.starts_with("spec.rootSshAuthorizedKeys has \"ssh-ed25519 oops\" in line 2"),
        "{message}"
    );
}

#[test]
fn changed_files_roll_no_pod_but_are_noted_on_it() {
    let before = deployed(with(cluster(), &json!({})));
    let first = planned(before.clone());
    assert_eq!(first.notes.len(), 1);
    let mut after = before.clone();
    after.retain(|object| object["kind"] != "LoginSet" && object["metadata"]["name"] != "sssd");
    after.push(secret("sssd", &["sssd.conf"], "W3Nzc2RdCmE9YQo="));
    after.push(login_set(&json!({ "extraSshdConfig": "AllowTcpForwarding no" })));
    let second = planned(after.clone());
    assert_eq!(second.deployment, first.deployment);
    assert_ne!(second.notes, first.notes);
    let (_, patch) = &second.notes[0];
    for object in &mut after {
        if object["kind"] == "Pod" {
            let annotations = &patch["metadata"]["annotations"];
            for key in ["slinky.slurm.net/sshd-conf-hash", "slinky.slurm.net/sssd-conf-hash"] {
                assert!(annotations[key].is_string(), "{key}");
            }
            object["metadata"]["annotations"] = annotations.clone();
        }
    }
    assert_eq!(planned(after).notes, []);
}

#[test]
fn another_key_of_slurm_rolls_the_pods() {
    let mut objects = cluster();
    objects[1] = secret("slurm-auth-slurm", &["slurm.key"], "Yg==");
    assert_ne!(
        template(with(objects, &json!({}))),
        template(with(cluster(), &json!({})))
    );
}

#[test]
fn options_for_sackd_keep_its_server() {
    let options = |value: &str| {
        let spec = json!({ "login": { "env": [{ "name": "SACKD_OPTIONS", "value": value }] } });
        template(with(cluster(), &spec))["spec"]["containers"][0]["env"][0]["value"].clone()
    };
    assert_eq!(options("-vv"), "--conf-server slurm-controller.hpc:6817 -vv");
    assert_eq!(options("--conf-server other"), "--conf-server other");
}

#[test]
fn sshd_listens_on_a_port_named_login() {
    let spec = json!({ "login": { "ports": [{ "name": "login", "containerPort": 2222 }] } });
    let plan = planned(with(cluster(), &spec));
    let config = plan.ssh_config.unwrap().data.unwrap();
    assert!(config["sshd_config"].contains("\nPort 2222\n"));
    let ports = &template(with(cluster(), &spec))["spec"]["containers"][0]["ports"];
    assert_eq!(
        *ports,
        json!([{ "containerPort": 2222, "name": "login", "protocol": "TCP" }])
    );
}

#[test]
fn it_is_ready_when_its_pods_are_and_reports_their_complaints() {
    let objects = with(cluster(), &json!({}));
    assert_eq!(ready(objects.clone()).1, "Starting");
    let mut observed = observed(deployed(objects));
    let status = status_of(&observed, None);
    assert_eq!((status.replicas, status.observed_generation), (1, Some(2)));
    assert_eq!(
        status.selector,
        "app.kubernetes.io/instance=slurm,app.kubernetes.io/name=login"
    );
    assert_eq!(condition(status, "Degraded").0, ConditionStatus::False);

    observed.complaints = vec!["directory unreachable: ldap:389".to_owned()];
    let status = status_of(&observed, None);
    assert_eq!(condition(status.clone(), "Ready").0, ConditionStatus::True);
    let (degraded, reason, message) = condition(status, "Degraded");
    assert_eq!((degraded, reason.as_str()), (ConditionStatus::True, "LoginImpaired"));
    assert!(message.contains("ldap:389"), "{message}");

    // Without slurmctld's key no command works there: that comes first.
    observed.key_mismatch = Some("pod login-x".to_owned());
    let (degraded, reason, message) = condition(status_of(&observed, None), "Degraded");
    assert_eq!((degraded, reason.as_str()), (ConditionStatus::True, "KeyMismatch"));
    assert_eq!(message, "pod login-x");
}

#[test]
fn a_taken_port_is_reported_in_the_api_servers_words() {
    let failure = Failure {
        reason: "ChildRefused",
        message: "provided port is already allocated".to_owned(),
    };
    let status = status_of(&observed(deployed(with(cluster(), &json!({})))), Some(&failure));
    let (ready, reason, message) = condition(status, "Ready");
    assert_eq!((ready, reason.as_str()), (ConditionStatus::False, "ChildRefused"));
    assert!(message.contains("already allocated"));
}

#[test]
fn a_taken_name_is_reported_before_everything_else() {
    let failure = Failure {
        reason: "NameTaken",
        message: "Service hpc/login already exists and has no owner".to_owned(),
    };
    let without_controller = |object: &Value| object["kind"] != "Controller";
    let objects = with(cluster(), &json!({}))
        .into_iter()
        .filter(without_controller)
        .collect();
    let status = status_of(&observed(objects), Some(&failure));
    for type_ in ["Ready", "Degraded"] {
        let (_, reason, message) = condition(status.clone(), type_);
        assert_eq!(reason, "NameTaken");
        assert!(
            message.starts_with(&failure.message) && message.contains("which does not exist"),
            "{message}"
        );
    }
}

#[test]
fn none_at_all_is_a_number_too() {
    let plan = planned(with(cluster(), &json!({ "replicas": 0 })));
    assert_eq!(plan.deployment.unwrap().spec.unwrap().replicas, Some(0));
}

#[test]
fn a_new_default_image_rolls_nothing() {
    let objects = deployed(with(cluster(), &json!({})));
    let before = planned(objects.clone()).deployment;
    let mut observed = observed(objects);
    observed.images.login = "login:newer".to_owned();
    assert_eq!(kind::plan::<LoginSet>(&observed).1.deployment, before);
}

#[test]
fn it_depends_on_its_controller_its_files_and_its_pods() {
    let caches = Caches::of(deployed(with(cluster(), &json!({}))));
    let is_heard = |change: Change| {
        let heard = LoginSet::references().affected(&change, &caches);
        assert_eq!(heard, [Key::new("hpc", "slurm")], "{change:?}");
    };
    is_heard(Change::from(Delta::appeared(caches.login_sets.all().remove(0))));
    is_heard(Change::from(Delta::appeared(caches.controllers.all().remove(0))));
    is_heard(Change::from(Delta::appeared(caches.pods.all().remove(0))));
    for name in ["sssd", "slurm-auth-slurm"] {
        is_heard(Change::from(Delta::appeared(caches.secrets.get("hpc", name).unwrap())));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_manifest_makes_a_plan_panic(spec in any_spec("LoginSet"), controller in any_spec("Controller")) {
        let mut objects = cluster();
        objects.remove(0);
        objects.push(object("Controller", &controller));
        objects.push(login_set(&spec));
        let observed = observed(objects);
        let plan = kind::plan::<LoginSet>(&observed);
        status_of(&observed, None);
        kind::state::<LoginSet>(&observed, &plan);
    }
}
