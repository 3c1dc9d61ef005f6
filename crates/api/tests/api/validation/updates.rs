//! Which changes of an object are rejected.

use serde_json::{Value, json};
use slurm_operator_api::Problems;

use super::{check, errors, object, warnings};
use crate::common::{Kind, kind_of};

fn check_step(old: Value, new: Value) -> Problems {
    let Kind { check_update, .. } = kind_of(&old);
    check_update(old, new).unwrap()
}

/// The errors of the step from one spec to another.
fn step(kind: &str, old: &Value, new: &Value) -> Vec<String> {
    errors(&check_step(object(kind, old), object(kind, new)))
}

#[test]
fn the_identity_of_a_cluster_is_immutable() {
    let key = |field: &str, name: &str, key: &str| json!({ field: { "name": name, "key": key } });
    let step = |old: &Value, new: &Value| step("Controller", old, new);
    assert_eq!(
        step(&json!({ "clusterName": "a" }), &json!({ "clusterName": "b" })),
        ["spec.clusterName"]
    );
    assert_eq!(
        step(&key("slurmKeyRef", "a", "k"), &key("slurmKeyRef", "b", "k")),
        ["spec.slurmKeyRef.name"]
    );
    assert_eq!(
        step(&key("jwtKeyRef", "a", "k"), &key("jwtKeyRef", "a", "l")),
        ["spec.jwtKeyRef"]
    );
    let persistence = |persistence: Value| json!({ "persistence": persistence });
    assert_eq!(
        step(&json!({}), &persistence(json!({ "enabled": false }))),
        ["spec.persistence.enabled"]
    );
    let claim = |name: &str| persistence(json!({ "existingClaim": name }));
    assert_eq!(step(&claim("a"), &claim("b")), ["spec.persistence.existingClaim"]);
}

#[test]
fn a_change_to_an_equivalent_spec_is_accepted() {
    let key = |field: &str, key: &str| json!({ field: { "name": "a", "key": key } });
    let none = Vec::<String>::new();
    assert_eq!(
        step("Controller", &json!({}), &json!({ "clusterName": "slurm_compute" })),
        none
    );
    assert_eq!(
        step("Controller", &json!({}), &json!({ "persistence": { "enabled": true } })),
        none
    );
    assert_eq!(
        step("Controller", &key("jwtHs256KeyRef", "k"), &key("jwtKeyRef", "k")),
        none
    );
    assert_eq!(
        step("Controller", &key("slurmKeyRef", "k"), &key("slurmKeyRef", "l")),
        none,
        "the key may change"
    );
    assert_eq!(
        step(
            "NodeSet",
            &json!({}),
            &json!({ "controllerRef": { "name": "slurm", "namespace": "slurm" } })
        ),
        none
    );
    assert_eq!(
        step("NodeSet", &json!({}), &json!({ "volumeClaimTemplates": [] })),
        none
    );
}

#[test]
fn the_references_to_controller_and_key_are_immutable() {
    let controller = |name: &str| json!({ "controllerRef": { "name": name } });
    assert_eq!(
        step("NodeSet", &controller("a"), &controller("b")),
        ["spec.controllerRef.name"]
    );
    assert_eq!(
        step("LoginSet", &controller("a"), &controller("b")),
        ["spec.controllerRef.name"]
    );
    assert_eq!(
        step("RestApi", &controller("a"), &controller("b")),
        Vec::<String>::new(),
        "it keeps no state"
    );
    let claims = |name: &str| json!({ "volumeClaimTemplates": [{ "metadata": { "name": name } }] });
    assert_eq!(
        step("NodeSet", &claims("a"), &claims("b")),
        ["spec.volumeClaimTemplates"]
    );
    let key = |name: &str| json!({ "jwtKeyRef": { "name": name, "key": "k" } });
    for kind in ["Accounting", "Token"] {
        assert_eq!(step(kind, &key("a"), &key("b")), ["spec.jwtKeyRef"], "{kind}");
    }
}

#[test]
fn an_existing_error_does_not_reject_another_change() {
    let before = object("NodeSet", &json!({ "extraConf": "big", "replicas": 1 }));
    let after = object("NodeSet", &json!({ "extraConf": "big", "replicas": 2 }));
    assert!(!check(before.clone()).is_ok());
    let problems = check_step(before.clone(), after);
    assert_eq!(
        (errors(&problems), warnings(&problems)),
        (vec![], vec!["spec.extraConf".to_owned()])
    );
    let worse = object("NodeSet", &json!({ "extraConf": "huge" }));
    assert_eq!(errors(&check_step(before, worse)), ["spec.extraConf"]);
}

#[test]
fn an_object_that_is_being_deleted_is_not_checked() {
    let before = object("NodeSet", &json!({}));
    let mut after = object("NodeSet", &json!({ "controllerRef": { "name": "" } }));
    after["metadata"]["deletionTimestamp"] = "2026-11-15T03:11:38Z".into();
    assert_eq!(check_step(before, after).iter().count(), 0);
}

#[test]
fn a_long_name_of_an_existing_cluster_is_accepted() {
    let long = object("Controller", &json!({ "clusterName": "x".repeat(41) }));
    assert!(!check(long.clone()).is_ok());
    assert!(check_step(long.clone(), long).is_ok());
}
