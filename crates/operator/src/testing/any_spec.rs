//! Specs that the API server would store: whatever the schema of a kind lets through.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use proptest::{collection, option, prelude::*, sample, string::string_regex};
use serde_json::{Map, Value};

/// A spec of this kind.
pub(crate) fn any_spec(kind: &str) -> BoxedStrategy<Value> {
    let definition = api::crds().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    let version = definition.spec.versions.into_iter().next().unwrap();
    let schema = version.schema.and_then(|schema| schema.open_api_v3_schema).unwrap();
    any_value(&schema.properties.unwrap()["spec"])
}

fn any_value(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    let text = |pattern: &Option<String>| match pattern {
        Some(pattern) => string_regex(pattern.trim_start_matches('^').trim_end_matches('$'))
            .unwrap()
            .prop_map(Value::from)
            .boxed(),
        None => any_text().prop_map(Value::from).boxed(),
    };
    if schema.x_kubernetes_int_or_string == Some(true) {
        return prop_oneof![any::<i64>().prop_map(Value::from), text(&schema.pattern)].boxed();
    }
    if schema.x_kubernetes_preserve_unknown_fields == Some(true) {
        return any_overlay().boxed();
    }
    if let Some(words) = &schema.enum_ {
        return sample::select(words.iter().map(|word| word.0.clone()).collect::<Vec<_>>()).boxed();
    }
    match schema.type_.as_deref() {
        Some("boolean") => any::<bool>().prop_map(Value::from).boxed(),
        Some("integer") => prop_oneof![0..3_i64, any::<i32>().prop_map(i64::from)]
            .prop_map(Value::from)
            .boxed(),
        Some("string") => text(&schema.pattern),
        Some("array") => match &schema.items {
            Some(JSONSchemaPropsOrArray::Schema(item)) => {
                collection::vec(any_value(item), 0..3).prop_map(Value::from).boxed()
            }
            _ => Just(Value::from(Vec::<Value>::new())).boxed(),
        },
        _ => match &schema.additional_properties {
            Some(JSONSchemaPropsOrBool::Schema(value)) => {
                collection::btree_map("[a-z./-]{1,8}", any_value(value), 0..3)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect()))
                    .boxed()
            }
            _ => any_fields(schema),
        },
    }
}

fn any_fields(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    let required = schema.required.clone().unwrap_or_default();
    let mut fields = Just(Map::new()).boxed();
    for (name, field) in schema.properties.iter().flatten() {
        let (name, value) = (name.clone(), any_value(field));
        let value = if required.contains(&name) {
            value.prop_map(Some).boxed()
        } else {
            option::of(value).boxed()
        };
        fields = (fields, value)
            .prop_map(move |(mut fields, value)| {
                fields.extend(value.map(|value| (name.clone(), value)));
                fields
            })
            .boxed();
    }
    fields.prop_map(Value::Object).boxed()
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        // Names the tests have objects of.
        sample::select(vec!["slurm", "slurm-config", "slurm-auth-slurm", "files"]).prop_map(str::to_owned),
        "[a-z]([-a-z0-9]{0,10}[a-z0-9])?",
        "([A-Z][a-z]{1,6}=[a-z0-9,]{0,6}[ \\n]){0,3}",
        "\\PC{0,20}",
        "(.|\\n){0,8}",
    ]
}

/// Fields of containers, pods and Services, with values that are right or wrong.
fn any_overlay() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        sample::select(vec![
            "affinity",
            "args",
            "command",
            "containers",
            "env",
            "externalIPs",
            "externalName",
            "hostname",
            "image",
            "initContainers",
            "livenessProbe",
            "metadata",
            "name",
            "ports",
            "resources",
            "securityContext",
            "selector",
            "spec",
            "volumeMounts",
            "volumes",
        ])
        .prop_map(str::to_owned),
        "[a-zA-Z]{1,8}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(4, 24, 3, move |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            collection::btree_map(name.clone(), inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    });
    collection::btree_map("image|args|env|command|volumes|containers|[a-z]{1,6}", value, 0..4)
        .prop_map(|fields| Value::Object(fields.into_iter().collect()))
}
