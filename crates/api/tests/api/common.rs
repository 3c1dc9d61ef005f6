//! Objects of all kinds, for tests that treat kinds alike.

use std::{fs, path::Path};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use slurm_operator_api::{
    Accounting, Controller, LoginSet, NodeSet, Partition, Problems, RestApi, Token, Validate, crds,
};

/// Operations on an object of any kind.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Decodes and encodes again.
    pub(crate) round_trip: fn(Value) -> Result<Value, serde_json::Error>,
    /// Decodes and checks.
    pub(crate) check: fn(Value) -> Result<Problems, serde_json::Error>,
    /// Decodes two and checks the step from the first to the second.
    pub(crate) check_update: fn(Value, Value) -> Result<Problems, serde_json::Error>,
    /// Fields of the spec without a rule.
    pub(crate) free: &'static [&'static str],
}

pub(crate) static KINDS: [Kind; 7] = [
    kind::<Accounting>("Accounting"),
    kind::<Controller>("Controller"),
    kind::<LoginSet>("LoginSet"),
    kind::<NodeSet>("NodeSet"),
    kind::<Partition>("Partition"),
    kind::<RestApi>("RestApi"),
    kind::<Token>("Token"),
];

const fn kind<K: DeserializeOwned + Serialize + Validate>(name: &'static str) -> Kind {
    Kind {
        name,
        round_trip: |value| serde_json::to_value(serde_json::from_value::<K>(value)?),
        check: |value| Ok(serde_json::from_value::<K>(value)?.admit_create()),
        check_update: |old, new| Ok(serde_json::from_value::<K>(new)?.admit_update(&serde_json::from_value::<K>(old)?)),
        free: K::FREE,
    }
}

/// The kind of an object.
pub(crate) fn kind_of(object: &Value) -> &'static Kind {
    let name = object.get("kind").and_then(Value::as_str).unwrap();
    KINDS.iter().find(|kind| kind.name == name).unwrap()
}

/// The definition of a kind.
pub(crate) fn definition(kind: &str) -> CustomResourceDefinition {
    crds().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap()
}

/// The schema of a kind.
pub(crate) fn schema(kind: &str) -> JSONSchemaProps {
    let version = definition(kind).spec.versions.remove(0);
    version.schema.and_then(|schema| schema.open_api_v3_schema).unwrap()
}

/// The objects in a file of this crate's tests.
pub(crate) fn objects(file: impl AsRef<Path>) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    serde_saphyr::from_multiple(&fs::read_to_string(path).unwrap()).unwrap()
}
