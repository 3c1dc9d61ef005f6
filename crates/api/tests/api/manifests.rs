//! Manifests that use every field, of real clusters and from users' documents.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray};
use serde_json::Value;

use crate::common::{KINDS, kind_of, objects, schema};

const FULL: [&str; 7] = [
    "accounting",
    "controller",
    "loginset",
    "nodeset",
    "partition",
    "restapi",
    "token",
];

const GIVEN: [&str; 6] = [
    "given/seeds.yaml",
    "given/upstream-a-default.yaml",
    "given/upstream-b-full.yaml",
    "given/upstream-c-ha.yaml",
    "given/upstream-d-hybrid.yaml",
    "given/upstream-e-nodes.yaml",
];

#[test]
fn our_types_lose_nothing() {
    for name in FULL {
        for object in objects(format!("manifests/{name}.yaml")) {
            let again = (kind_of(&object).round_trip)(object.clone()).unwrap();
            assert_eq!(again, object, "{name}");
        }
    }
}

#[test]
fn every_field_is_in_a_manifest() {
    for name in FULL {
        let object = objects(format!("manifests/{name}.yaml")).remove(0);
        let schema = schema(kind_of(&object).name);
        let mut missing = BTreeSet::new();
        for part in ["spec", "status"] {
            missing_fields(
                &mut missing,
                part,
                &schema.properties.as_ref().unwrap()[part],
                &object[part],
            );
        }
        assert_eq!(missing, BTreeSet::new(), "add these to tests/manifests/{name}.yaml");
    }
    assert_eq!(FULL.len(), KINDS.len());
}

fn missing_fields(missing: &mut BTreeSet<String>, path: &str, schema: &JSONSchemaProps, value: &Value) {
    for (name, field) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        match value.get(name) {
            Some(value) => missing_fields(missing, &path, field, value),
            None => {
                missing.insert(path);
            }
        }
    }
    if let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items {
        missing_fields(missing, &format!("{path}[]"), item, &value[0]);
    }
}

#[test]
fn full_manifests_pass_the_checks_except_for_listed_problems() {
    for name in FULL {
        for object in objects(format!("manifests/{name}.yaml")) {
            let problems = (kind_of(&object).check)(object).unwrap();
            let said: Vec<_> = problems.iter().map(|problem| problem.field.clone()).collect();
            match name {
                "controller" => assert_eq!(said, ["spec.slurmctld.fieldOfANewerKubernetes"]),
                "partition" => assert_eq!(
                    said,
                    [
                        "spec.defMemPerNode",
                        "spec.maxMemPerNode",
                        "spec.denyAccounts",
                        "spec.denyQos"
                    ]
                ),
                _ => assert_eq!(said, Vec::<String>::new(), "{name}"),
            }
        }
    }
}

#[test]
fn objects_of_upstream_and_of_users_documents_are_accepted() {
    for file in GIVEN {
        for object in objects(file) {
            let kind = kind_of(&object);
            let problems = (kind.check)(object.clone()).unwrap();
            assert!(problems.is_ok(), "{file}, {}: {problems}", kind.name);
            let again = (kind.round_trip)(object.clone()).unwrap();
            assert_eq!(
                without_nulls(again["spec"].clone()),
                without_nulls(object["spec"].clone()),
                "{file}"
            );
        }
    }
}

/// A null in a field of ours means the same as an absent field. Inside an overlay a null is kept, but golden objects
/// have none that matter.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name, without_nulls(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

#[test]
fn a_null_in_an_overlay_is_kept() {
    let object = objects("given/upstream-a-default.yaml").remove(0);
    let again = (kind_of(&object).round_trip)(object).unwrap();
    assert_eq!(
        again["spec"]["template"]["spec"].get("imagePullSecrets"),
        Some(&Value::Null)
    );
}
