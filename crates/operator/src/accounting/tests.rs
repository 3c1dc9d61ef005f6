//! The rules of an Accounting, as tests.

use api::{Accounting, AccountingStatus, ConditionStatus};
use k8s_openapi::api::core::v1::Secret;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    observe::{Observed, read},
    plan::Plan,
};
use crate::{
    defaults::Images,
    kind::{self, Kind as _},
    runtime::{Caches, Change, Delta, Key, State},
    testing::{any_spec::any_spec, keys::made_with_other_keys},
};

fn object(kind: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": kind,
        "metadata": { "name": "slurm", "namespace": "hpc", "uid": kind, "generation": 2 },
        "spec": spec,
    })
}

fn secret(name: &str, entry: &str, value: &str) -> Value {
    use base64::Engine as _;
    let value = base64::engine::general_purpose::STANDARD.encode(value);
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": "hpc" }, "data": { entry: value } })
}

fn accounting(more: &Value) -> Value {
    let mut spec = json!({
        "storageConfig": { "host": "mariadb", "username": "slurm", "passwordKeyRef": { "name": "mariadb", "key": "password" } },
    });
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    object("Accounting", &spec)
}

/// With a Controller whose keys it takes over.
fn cluster(more: &Value) -> Vec<Value> {
    vec![
        object("Controller", &json!({ "accountingRef": { "name": "slurm" } })),
        secret("slurm-auth-slurm", "slurm.key", "a"),
        secret("slurm-auth-jwt", "jwt.key", "b"),
        secret("mariadb", "password", "secret#1\n"),
        accounting(more),
    ]
}

fn observed(objects: Vec<Value>) -> Observed {
    let caches = Caches::of(objects);
    let images = Images {
        slurmdbd: "slurmdbd:default".to_owned(),
        ..Images::default()
    };
    read(caches.accountings.all().remove(0), &caches, images)
}

fn planned(objects: Vec<Value>) -> Plan {
    kind::plan::<Accounting>(&observed(objects)).1
}

fn build_status(observed: &Observed) -> AccountingStatus {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    kind::status::<Accounting>(observed, &kind::plan::<Accounting>(observed), None, &[], now)
}

fn status(objects: Vec<Value>) -> AccountingStatus {
    let observed = observed(objects);
    build_status(&observed)
}

fn condition(objects: Vec<Value>, type_: &str) -> (ConditionStatus, String, String) {
    let all = status(objects).conditions;
    let found = all.into_iter().find(|condition| condition.type_ == type_).unwrap();
    (found.status, found.reason, found.message)
}

fn conf(plan: &Plan) -> String {
    let data = plan.config.as_ref().and_then(|secret| secret.data.as_ref()).unwrap();
    String::from_utf8(data["slurmdbd.conf"].0.clone()).unwrap()
}

fn without(mut objects: Vec<Value>, name: &str) -> Vec<Value> {
    objects.retain(|object| object["metadata"]["name"] != name);
    objects
}

#[test]
fn an_accounting_with_its_controllers_keys() {
    let (findings, plan) = kind::plan::<Accounting>(&observed(cluster(&json!({}))));
    assert_eq!(findings, []);
    assert!(conf(&plan).contains("StoragePass=secret\\#1\n"), "{}", conf(&plan));
    insta::assert_yaml_snapshot!(json!([plan.service, plan.stateful_set]));
}

#[test]
fn what_is_missing_is_named_and_nothing_is_rolled() {
    for (missing, reason, words) in [
        (
            "mariadb",
            "SecretMissing",
            "spec.storageConfig.passwordKeyRef names entry \"password\" of Secret \"mariadb\"",
        ),
        (
            "slurm-auth-slurm",
            "SecretMissing",
            "spec.slurmKeyRef names entry \"slurm.key\"",
        ),
        (
            "slurm-auth-jwt",
            "SecretMissing",
            "spec.jwtKeyRef names entry \"jwt.key\"",
        ),
    ] {
        let objects = without(cluster(&json!({})), missing);
        let plan = planned(objects.clone());
        assert!(plan.stateful_set.is_none() && plan.config.is_none() && plan.service.is_some());
        let (status, said, message) = condition(objects, "Ready");
        assert_eq!((status, said.as_str()), (ConditionStatus::False, reason));
        assert!(message.contains(words), "{message}");
    }
    let mut other_key = cluster(&json!({}));
    other_key.push(made_with_other_keys("hpc", "Controller"));
    assert!(planned(other_key.clone()).stateful_set.is_none());
    let (_, reason, message) = condition(other_key, "Ready");
    assert_eq!(reason, "KeyMismatch");
    assert!(message.contains("has another slurm.key than the cluster"), "{message}");
    let mut alone = cluster(&json!({}));
    alone.remove(0);
    let (_, reason, message) = condition(alone, "Ready");
    assert_eq!(reason, "ControllerMissing");
    assert!(message.contains("spec.accountingRef"), "{message}");
    let (_, reason, _) = condition(
        cluster(&json!({ "jwksKeyRef": { "name": "jwks", "key": "jwks.json" } })),
        "Ready",
    );
    assert_eq!(reason, "ConfigMapMissing");
}

#[test]
fn another_password_is_another_pod() {
    let hash = |objects| {
        let set = planned(objects).stateful_set.and_then(|set| set.spec).unwrap();
        set.template.metadata.and_then(|meta| meta.annotations).unwrap()["slinky.slurm.net/slurmdbd-conf-hash"].clone()
    };
    let before = cluster(&json!({}));
    let mut after = without(before.clone(), "mariadb");
    after.push(secret("mariadb", "password", "other"));
    assert_ne!(hash(before), hash(after));
}

#[test]
fn a_password_that_does_not_fit_into_a_line_is_rejected() {
    let mut objects = without(cluster(&json!({})), "mariadb");
    objects.push(secret("mariadb", "password", "a\nStorageHost=b"));
    let (_, reason, message) = condition(objects, "Ready");
    assert_eq!(reason, "InvalidSpec");
    assert!(
        message.starts_with("spec.storageConfig.passwordKeyRef names a password that has a line break"),
        "{message}"
    );
}

#[test]
fn an_external_accounting_has_no_children_and_is_ready() {
    let objects = cluster(&json!({ "external": true, "externalConfig": { "host": "dbd.example.com" } }));
    let plan = planned(objects.clone());
    assert!(plan.external && plan.service.is_none() && plan.stateful_set.is_none() && plan.config.is_none());
    assert_eq!(condition(objects.clone(), "Ready").0, ConditionStatus::True);

    // If it does not respond, the condition has its address and the reason.
    let mut silent = observed(objects);
    silent.database_trouble = Some("Connection refused".to_owned());
    let said = build_status(&silent);
    let degraded = said.conditions.iter().find(|condition| condition.type_ == "Degraded");
    let message = &degraded.unwrap().message;
    assert!(
        message.contains("dbd.example.com:6819") && message.contains("Connection refused"),
        "{message}"
    );
}

#[test]
fn it_is_ready_when_its_pod_is_and_reports_why_it_is_not() {
    let mut objects = cluster(&json!({}));
    assert_eq!(condition(objects.clone(), "Ready").1, "Starting");
    let mut set = serde_json::to_value(planned(objects.clone()).stateful_set).unwrap();
    set["status"] = json!({ "replicas": 1, "currentRevision": "a", "updateRevision": "a" });
    objects.push(set.clone());
    let mut failing = observed(objects.clone());
    failing.log_errors = vec!["error: Access denied".to_owned(), "error: Trying again".to_owned()];
    let said = build_status(&failing);
    for type_ in ["Ready", "Degraded"] {
        let condition = said
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_)
            .unwrap();
        assert_eq!(condition.reason, "SlurmdbdFails");
        let words = "slurmdbd says: error: Access denied | error: Trying again";
        assert!(condition.message.starts_with(words), "{}", condition.message);
    }
    assert!(matches!(
        kind::state::<Accounting>(
            &observed(objects.clone()),
            &kind::plan::<Accounting>(&observed(objects.clone()))
        ),
        State::Progressing { .. }
    ));
    set["status"] = json!({ "replicas": 1, "availableReplicas": 1, "currentRevision": "a", "updateRevision": "a" });
    objects[5] = set;
    assert_eq!(condition(objects.clone(), "Ready").0, ConditionStatus::True);
    assert_eq!(condition(objects.clone(), "Degraded").0, ConditionStatus::False);

    // It answers, and has no database: Slurm runs on, and its administrator hears of it.
    let mut bereft = observed(objects);
    bereft.database_trouble = Some("Unable to connect to database".to_owned());
    let said = build_status(&bereft);
    let found = |type_: &str| {
        let condition = said.conditions.iter().find(|condition| condition.type_ == type_);
        condition
            .map(|condition| (condition.status.clone(), condition.reason.clone()))
            .unwrap()
    };
    assert_eq!(found("Ready").0, ConditionStatus::True);
    assert_eq!(found("Degraded"), (ConditionStatus::True, "DatabaseAway".to_owned()));
}

#[test]
fn an_accounting_whose_slurmctld_has_another_key_is_neither_ready_nor_healthy() {
    let mut objects = cluster(&json!({}));
    let mut set = serde_json::to_value(planned(objects.clone()).stateful_set).unwrap();
    set["status"] = json!({ "replicas": 1, "availableReplicas": 1, "currentRevision": "a", "updateRevision": "a" });
    objects.push(set);
    objects.push(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "slurm-accounting-0", "namespace": "hpc", "uid": "dbd", "labels": { "app.kubernetes.io/name": "slurmdbd" } },
        "spec": { "nodeName": "n1", "containers": [] },
    }));
    let caches = Caches::of(objects.clone());
    let controller = caches.controllers.all().remove(0);
    let reference = controller.slurm_key().unwrap();
    let their_key = caches.secrets.get("hpc", &reference.name).unwrap();
    let conditions = |own: &Observed| {
        let said = build_status(own);
        let said = said.conditions.into_iter();
        said.filter(|condition| ["Ready", "Degraded"].contains(&condition.type_.as_str()))
            .map(|condition| (condition.status, condition.reason, condition.message))
            .collect::<Vec<_>>()
    };

    // As slurmctld's sacctmgr says it.
    let mut refused = observed(objects.clone());
    refused.database_trouble =
        Some("sacctmgr: error: Sending PersistInit msg: Protocol authentication error".to_owned());
    refused.note_key_mismatch(None, Some((&their_key, &reference)));
    for (status, reason, message) in conditions(&refused) {
        let is_ready = status == ConditionStatus::True && reason != "KeyMismatch";
        assert!(reason == "KeyMismatch" && !is_ready, "{reason} {message}");
        assert!(
            message.contains("pod slurm-accounting-0 (node n1)") && message.contains("delete the pods"),
            "{message}"
        );
    }
    assert_eq!(refused.database_trouble, None);

    // Another trouble is no other key.
    let mut bereft = observed(objects.clone());
    bereft.database_trouble = Some("Unable to connect to database".to_owned());
    bereft.note_key_mismatch(None, Some((&their_key, &reference)));
    assert_eq!(bereft.key_mismatch, None);
    assert_eq!(conditions(&bereft)[1].1, "DatabaseAway");

    // A reference to another key is wrong before anybody was refused.
    let other: Secret = serde_json::from_value(secret("slurm-auth-slurm", "slurm.key", "other")).unwrap();
    let mut elsewhere = observed(objects);
    elsewhere.note_key_mismatch(None, Some((&other, &reference)));
    let message = elsewhere.key_mismatch.unwrap();
    assert!(
        message.contains("spec.slurmKeyRef") && message.contains("name that one"),
        "{message}"
    );
}

#[test]
fn it_depends_on_what_it_refers_to() {
    let caches = Caches::of(cluster(&json!({})));
    for name in ["slurm-auth-slurm", "slurm-auth-jwt", "mariadb"] {
        let secret = caches.secrets.get("hpc", name).unwrap();
        let change = Change::from(Delta::appeared(secret));
        assert_eq!(
            Accounting::references().affected(&change, &caches),
            [Key::new("hpc", "slurm")],
            "{name}"
        );
    }
    let controller = caches.controllers.all().remove(0);
    let change = Change::from(Delta::appeared(controller));
    assert_eq!(
        Accounting::references().affected(&change, &caches),
        [Key::new("hpc", "slurm")]
    );
}

proptest! {
    #[test]
    fn no_manifest_makes_a_plan_panic(spec in any_spec("Accounting")) {
        let mut objects = cluster(&json!({}));
        objects.pop();
        objects.push(object("Accounting", &spec));
        let observed = observed(objects);
        let _ = build_status(&observed);
    }
}

/// slurmdbd before 25.11 exits if its group can read slurmdbd.conf, as it can read every projected file.
#[test]
fn an_older_slurmdbd_has_files_that_only_it_can_read() {
    let pod_spec = |image: &str| {
        let plan = planned(cluster(&json!({ "slurmdbd": { "image": image } })));
        let set = serde_json::to_value(plan.stateful_set.unwrap()).unwrap();
        set["spec"]["template"]["spec"].clone()
    };
    let newer = pod_spec("slurmdbd:26.05-ubuntu26.04");
    assert_eq!(newer.get("initContainers"), None);
    assert_eq!(newer["containers"][0]["volumeMounts"][0]["name"], "slurm-etc");

    let older = pod_spec("slurmdbd:24.11-ubuntu24.04");
    let copying = &older["initContainers"][0];
    assert_eq!(copying["image"], "slurmdbd:24.11-ubuntu24.04");
    assert!(
        copying["command"][2].as_str().unwrap().starts_with("umask 077 && cp "),
        "{copying}"
    );
    let etc = |container: &Value| {
        let mounts = container["volumeMounts"].as_array().unwrap().iter();
        let mut etc = mounts.filter(|mount| mount["mountPath"] == "/etc/slurm");
        etc.next().unwrap()["name"].clone()
    };
    assert_eq!(etc(copying), etc(&older["containers"][0]));
    assert_eq!(copying["securityContext"]["allowPrivilegeEscalation"], false);
}
