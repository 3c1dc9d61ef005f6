//! Compares an overlay with its core/v1 type.
//!
//! The schema of these fields is open, so that the API server does not reject a typo; it would drop the field silently
//! when the child is created. It would reject a child with a field of the wrong type.

use std::{
    any::{Any, TypeId},
    collections::{BTreeMap, HashMap},
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value;

use super::{Problems, Reason};
use crate::overlay::{DNS_POLICY, Overlay};

/// Adds a warning for every field that `T` does not have, and an error for every value of the wrong type.
pub(super) fn check<T: JsonSchema + Any>(problems: &mut Problems, field: &str, overlay: &Overlay<T>) {
    let Shape::Object(fields) = &*shape_of::<T>() else {
        return;
    };
    for (name, value) in overlay.fields() {
        compare_field(problems, field, fields, name, value);
    }
}

/// The structure of a core/v1 type, without descriptions.
#[derive(Debug)]
enum Shape {
    Any,
    Text,
    Truth,
    Number,
    TextOrNumber,
    List(Box<Shape>),
    Map(Box<Shape>),
    Object(BTreeMap<String, Shape>),
}

fn compare(problems: &mut Problems, field: &str, shape: &Shape, value: &Value) {
    let fits = match (shape, value) {
        (Shape::Any, _)
        | (_, Value::Null)
        | (Shape::Text, Value::String(_))
        | (Shape::Truth, Value::Bool(_))
        | (Shape::Number, Value::Number(_))
        | (Shape::TextOrNumber, Value::String(_) | Value::Number(_)) => true,
        (Shape::List(item), Value::Array(values)) => {
            for (index, value) in values.iter().enumerate() {
                let field = format!("{field}[{index}]");
                // A null removes a field, but cannot remove an item of a list.
                if value.is_null() {
                    refuse(problems, &field, item, value);
                } else {
                    compare(problems, &field, item, value);
                }
            }
            true
        }
        (Shape::Map(item), Value::Object(values)) => {
            for (key, value) in values {
                compare(problems, &format!("{field}[{key:?}]"), item, value);
            }
            true
        }
        (Shape::Object(fields), Value::Object(values)) => {
            for (name, value) in values {
                compare_field(problems, field, fields, name, value);
            }
            true
        }
        _ => false,
    };
    if !fits {
        refuse(problems, field, shape, value);
    }
}

fn refuse(problems: &mut Problems, field: &str, shape: &Shape, value: &Value) {
    problems.error(
        Reason::BadValue,
        field,
        format!("is {}, but must be {}", describe_value(value), describe_shape(shape)),
        "see the Kubernetes API reference",
    );
}

fn compare_field(problems: &mut Problems, parent: &str, fields: &BTreeMap<String, Shape>, name: &str, value: &Value) {
    let field = format!("{parent}.{name}");
    if let Some(shape) = fields.get(name) {
        return compare(problems, &field, shape, value);
    }
    let (misspelled, meant) = DNS_POLICY;
    if let Some(shape) = fields.get(meant).filter(|_| name == misspelled) {
        problems.warn(
            Reason::UnknownField,
            field.clone(),
            format!("is read as {meant}"),
            format!("write {meant}"),
        );
        return compare(problems, &field, shape, value);
    }
    let remedy = match fields.keys().find(|known| known.eq_ignore_ascii_case(name)) {
        Some(known) => format!("write {known}"),
        None => "check its spelling and its place; ignore this if it is a field of a newer Kubernetes".to_owned(),
    };
    problems.warn(
        Reason::UnknownField,
        field,
        "is not a field of core/v1 that this operator knows",
        remedy,
    );
}

fn describe_value(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn describe_shape(shape: &Shape) -> &'static str {
    match shape {
        Shape::Any => "anything",
        Shape::Text => "a string",
        Shape::Truth => "true or false",
        Shape::Number => "a number",
        Shape::TextOrNumber => "a string or a number",
        Shape::List(_) => "a list",
        Shape::Map(_) | Shape::Object(_) => "an object",
    }
}

/// The shape of `T`, computed once: the schema of a pod spec has half a megabyte, mostly descriptions.
fn shape_of<T: JsonSchema + Any>() -> Arc<Shape> {
    static SHAPES: LazyLock<Mutex<HashMap<TypeId, Arc<Shape>>>> = LazyLock::new(Mutex::default);
    let mut shapes = SHAPES.lock().unwrap_or_else(PoisonError::into_inner);
    shapes
        .entry(TypeId::of::<T>())
        .or_insert_with(|| Arc::new(read_shape(&schema_of::<T>())))
        .clone()
}

fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

fn read_shape(schema: &Value) -> Shape {
    if schema.get("x-kubernetes-int-or-string").is_some() {
        return Shape::TextOrNumber;
    }
    let inner = |keyword: &str| schema.get(keyword).map_or(Shape::Any, read_shape);
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => Shape::Text,
        Some("boolean") => Shape::Truth,
        Some("integer" | "number") => Shape::Number,
        Some("array") => Shape::List(Box::new(inner("items"))),
        Some("object") => match schema.get("properties").and_then(Value::as_object) {
            Some(fields) => Shape::Object(
                fields
                    .iter()
                    .map(|(name, schema)| (name.clone(), read_shape(schema)))
                    .collect(),
            ),
            None => Shape::Map(Box::new(inner("additionalProperties"))),
        },
        _ => Shape::Any,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::overlay::{ClaimTemplate, ContainerOverlay, PodSpecOverlay};

    fn said_of<T: JsonSchema + Any>(value: Value) -> Vec<String> {
        let overlay: Overlay<T> = serde_json::from_value(value).unwrap();
        let mut problems = Problems::default();
        check(&mut problems, "spec", &overlay);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn valid_fields_of_kubernetes_are_accepted() {
        let container: Vec<String> = said_of::<k8s_openapi::api::core::v1::Container>(json!({
            "image": "slurmd", "args": [], "resources": { "limits": { "cpu": 2, "memory": "4Gi" }, "requests": { "cpu": 0.5 } },
            "env": [{ "name": "A", "value": null }], "livenessProbe": { "httpGet": { "port": "slurmd", "path": "/livez" } },
        }));
        assert_eq!(container, Vec::<String>::new());
    }

    #[test]
    fn a_typo_is_named_with_its_path() {
        let [pod] = said_of::<k8s_openapi::api::core::v1::PodSpec>(json!({ "dNSPolicy": "Default" }))
            .try_into()
            .unwrap();
        assert_eq!(pod, "spec.dNSPolicy is read as dnsPolicy; write dnsPolicy");
        let [nested] = said_of::<k8s_openapi::api::core::v1::PodSpec>(json!({
            "tolerations": [{ "key": "a" }, { "kye": "b" }],
        }))
        .try_into()
        .unwrap();
        assert!(nested.starts_with("spec.tolerations[1].kye is not a field"), "{nested}");
    }

    #[test]
    fn a_value_of_the_wrong_type_is_an_error() {
        let overlay: ContainerOverlay = serde_json::from_value(json!({ "args": "-v" })).unwrap();
        let mut problems = Problems::default();
        check(&mut problems, "spec.slurmd", &overlay);
        let [error] = problems.errors().collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(error.field, "spec.slurmd.args");
        assert_eq!(error.fault, "is a string, but must be a list");
        let [item] = said_of::<k8s_openapi::api::core::v1::PodSpec>(json!({ "tolerations": [null] }))
            .try_into()
            .unwrap();
        assert!(
            item.starts_with("spec.tolerations[0] is null, but must be an object"),
            "{item}"
        );
    }

    #[test]
    fn every_overlaid_type_has_a_shape() {
        fn has_fields<T: JsonSchema + Any>(_: &Overlay<T>) {
            assert!(matches!(&*shape_of::<T>(), Shape::Object(fields) if !fields.is_empty()));
        }
        has_fields(&ContainerOverlay::default());
        has_fields(&PodSpecOverlay::default());
        has_fields(&crate::overlay::ServiceSpecOverlay::default());
        has_fields(&ClaimTemplate::default());
    }
}
