//! Our types accept everything that the API server accepts, lose nothing and do not panic.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use proptest::{collection, option, prelude::*, sample, string::string_regex};
use serde_json::{Map, Value, json};
use slurm_operator_api::time::{GoDuration, Timestamp};

use crate::common::{KINDS, Kind, schema};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn values_that_the_schema_accepts_are_decoded_and_kept((kind, object) in valid_object()) {
        let again = (kind.round_trip)(object.clone());
        prop_assert!(again.is_ok(), "{}: {again:?}", kind.name);
        prop_assert_eq!(without_nulls(&again.unwrap()["spec"]), without_nulls(&object["spec"]));
    }

    #[test]
    fn checks_never_panic_and_an_unchanged_object_is_accepted((kind, object) in valid_object()) {
        (kind.check)(object.clone()).unwrap();
        let stays = (kind.check_update)(object.clone(), object).unwrap();
        prop_assert!(stays.is_ok(), "{stays}");
    }

    #[test]
    fn any_change_is_checked_without_panic((kind, old) in valid_object(), (_, new) in valid_object()) {
        let _ = (kind.check_update)(old, new);
    }

    #[test]
    fn a_damaged_object_is_rejected_or_decoded((kind, object) in valid_object(), place in any::<sample::Index>(), scrap in any_json()) {
        let mut damaged = object;
        let places = count(&damaged["spec"]);
        replace(&mut damaged["spec"], &mut place.index(places), &scrap);
        let _ = (kind.check)(damaged);
    }

    #[test]
    fn any_json_is_rejected_or_decoded(scrap in any_json(), spec in any_json()) {
        for kind in &KINDS {
            let _ = (kind.check)(scrap.clone());
            let _ = (kind.check)(json!({ "metadata": { "name": "x" }, "spec": spec.clone() }));
        }
    }

    #[test]
    fn times_are_read_without_panic(text in "\\PC*|[-+0-9.hmsun\u{b5}T:Z]*") {
        let _ = GoDuration::from(text.as_str()).length();
        let _ = Timestamp::from(text.as_str()).instant();
    }
}

/// An object of any kind that the API server would store.
fn valid_object() -> impl Strategy<Value = (&'static Kind, Value)> {
    (0..KINDS.len()).prop_flat_map(|index| {
        let kind = &KINDS[index];
        let properties = schema(kind.name).properties.unwrap();
        let name = prop_oneof!["[a-z]([-a-z0-9]{0,70}[a-z0-9])?", "[a-z0-9.]{1,20}"];
        let namespace = prop_oneof![Just("slurm".to_owned()), "[a-z]{1,12}"];
        (
            value_of(&properties["spec"]),
            option::of(value_of(&properties["status"])),
            name,
            namespace,
        )
            .prop_map(move |(spec, status, name, namespace)| {
                let mut object = json!({
                    "apiVersion": "slinky.slurm.net/v1beta1",
                    "kind": kind.name,
                    "metadata": { "name": name, "namespace": namespace },
                    "spec": spec,
                });
                if let Some(status) = status {
                    object["status"] = status;
                }
                (kind, object)
            })
    })
}

/// A value that this schema accepts.
fn value_of(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    let value = plain_value_of(schema);
    if schema.nullable == Some(true) {
        prop_oneof![9 => value, 1 => Just(Value::Null)].boxed()
    } else {
        value
    }
}

fn plain_value_of(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    if schema.x_kubernetes_int_or_string == Some(true) {
        return prop_oneof![any::<i64>().prop_map(Value::from), text_like(schema.pattern.as_deref())].boxed();
    }
    if schema.x_kubernetes_preserve_unknown_fields == Some(true) {
        return any_object().prop_map(Value::Object).boxed();
    }
    if let Some(words) = &schema.enum_ {
        return sample::select(words.iter().map(|word| word.0.clone()).collect::<Vec<_>>()).boxed();
    }
    match (schema.type_.as_deref(), schema.format.as_deref()) {
        (Some("boolean"), _) => any::<bool>().prop_map(Value::from).boxed(),
        (Some("integer"), format) => {
            let minimum = schema.minimum;
            let number = if format == Some("int32") { any::<i32>().prop_map(i64::from).boxed() } else { any::<i64>().boxed() };
            number.prop_map(move |number| Value::from(if minimum.is_some() { number.saturating_abs().max(1) } else { number })).boxed()
        }
        (Some("string"), Some("date-time")) => {
            "[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9][Tt][0-2][0-9]:[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,12})?([Zz]|[-+][0-9]{2}:[0-9]{2})"
                .prop_map(Value::from)
                .boxed()
        }
        (Some("string"), _) => text_like(schema.pattern.as_deref()),
        (Some("array"), _) => {
            let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items else { panic!("an array has items") };
            collection::vec(value_of(item), 0..3).prop_map(Value::from).boxed()
        }
        (Some("object"), _) => match &schema.additional_properties {
            Some(JSONSchemaPropsOrBool::Schema(value)) => collection::btree_map("[a-z./-]{1,12}", value_of(value), 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect()))
                .boxed(),
            _ => object_of(schema),
        },
        other => panic!("a schema without a type: {other:?}"),
    }
}

fn object_of(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    let required = schema.required.clone().unwrap_or_default();
    let mut fields = Just(Map::new()).boxed();
    for (name, field) in schema.properties.iter().flatten() {
        let name = name.clone();
        let value = value_of(field);
        let value = if required.contains(&name) {
            value.prop_map(Some).boxed()
        } else {
            option::of(value).boxed()
        };
        let default = field.default.as_ref().map(|default| default.0.clone());
        fields = (fields, value)
            .prop_map(move |(mut fields, value)| {
                // The API server sets a default for an absent field.
                if let Some(value) = value.or_else(|| default.clone()) {
                    fields.insert(name.clone(), value);
                }
                fields
            })
            .boxed();
    }
    fields.prop_map(Value::Object).boxed()
}

/// Text that matches the pattern, or text with a meaning for some field.
fn text_like(pattern: Option<&str>) -> BoxedStrategy<Value> {
    match pattern {
        Some(pattern) => {
            let bare = pattern.trim_start_matches('^').trim_end_matches('$');
            string_regex(bare).unwrap().prop_map(Value::from).boxed()
        }
        None => prop_oneof![
            Just(String::new()),
            "[a-z]([-a-z0-9]{0,10}[a-z0-9])?",
            "([A-Z][a-z]{1,6}=[a-z0-9,]{0,6} ){0,3}",
            "[0-9]{1,3}(ns|ms|s|m|h|d|%)?",
            "\\PC{0,20}",
            "(.|\\n){0,8}",
        ]
        .prop_map(Value::from)
        .boxed(),
    }
}

fn any_object() -> impl Strategy<Value = Map<String, Value>> {
    // Includes fields of a container and of a pod, so that the comparison with core/v1 gets beyond the first level.
    let name = prop_oneof![
        sample::select(vec![
            "image",
            "args",
            "env",
            "resources",
            "hostname",
            "hostNetwork",
            "tolerations",
            "externalIPs",
            "metadata",
            "spec"
        ])
        .prop_map(str::to_owned),
        "[a-zA-Z]{1,8}",
    ];
    collection::btree_map(name, any_json(), 0..4).prop_map(|fields| fields.into_iter().collect())
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            collection::btree_map("[a-zA-Z]{1,8}", inner, 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Object(fields) => fields.values().map(count).sum(),
        Value::Array(items) => items.iter().map(count).sum(),
        _ => 0,
    }
}

/// Replaces the `place`th value, outer values first.
fn replace(value: &mut Value, place: &mut usize, scrap: &Value) {
    if *place == 0 {
        *value = scrap.clone();
    }
    *place = place.wrapping_sub(1);
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|field| replace(field, place, scrap)),
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, place, scrap)),
        _ => {}
    }
}

/// A null that the schema allows means the same as an absent field.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), without_nulls(value)))
            .collect(),
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}
