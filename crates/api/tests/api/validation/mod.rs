//! Checks beyond the schema: what is rejected, the field and the message.

mod inputs;
mod nodeset;
mod objects;
mod updates;

use serde_json::{Value, json};
use slurm_operator_api::Problems;

use crate::common::{Kind, kind_of};

/// The smallest valid object of a kind, with `spec` merged over it.
fn object(kind: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "slinky.slurm.net/v1beta1",
        "kind": kind,
        "metadata": { "name": "compute", "namespace": "slurm" },
        "spec": match kind {
            "NodeSet" | "RestApi" => json!({ "controllerRef": { "name": "slurm" } }),
            "LoginSet" => json!({ "controllerRef": { "name": "slurm" }, "sssdConfRef": { "name": "sssd", "key": "sssd.conf" } }),
            "Accounting" => json!({ "storageConfig": { "host": "db", "passwordKeyRef": { "name": "db", "key": "password" } } }),
            "Token" => json!({ "username": "alice", "jwtKeyRef": { "name": "jwt", "key": "jwt.key" } }),
            _ => json!({}),
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object
}

fn named(name: &str, mut object: Value) -> Value {
    object["metadata"]["name"] = name.into();
    object
}

fn check(object: Value) -> Problems {
    let Kind { check, .. } = kind_of(&object);
    check(object).unwrap()
}

fn errors(problems: &Problems) -> Vec<String> {
    problems.errors().map(|problem| problem.field.clone()).collect()
}

fn warnings(problems: &Problems) -> Vec<String> {
    problems.warnings().map(|problem| problem.field.clone()).collect()
}

/// Fails unless the smallest object of this kind with this spec has exactly one error, and that one at this field.
fn refused(kind: &str, spec: &Value, field: &str) {
    let problems = check(object(kind, spec));
    assert_eq!(errors(&problems), [field], "{kind} {spec}: {problems}");
}
