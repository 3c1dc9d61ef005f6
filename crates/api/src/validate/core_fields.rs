//! Compares an overlay with its core/v1 type.
//!
//! The schema of these fields is open, so that the API server does not reject a typo; it would drop the field silently
//! when the child is created. It would reject a child with a field of the wrong type.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use schemars::{JsonSchema, Schema, generate::SchemaSettings, transform::RecursiveTransform};
use serde_json::{Map, Value};

use super::{Problems, Reason};
use crate::overlay::{DNS_POLICY, Overlay};

/// Adds a warning for every field that `T` does not have, and an error for every value of the wrong type.
pub(super) fn check<T: JsonSchema + Any>(problems: &mut Problems, field: &str, overlay: &Overlay<T>) {
    let schema = schema_of::<T>();
    for (name, value) in overlay.fields() {
        compare_field(problems, field, fields_of(&schema), name, value);
    }
}

fn fields_of(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// The form that a schema prescribes; `None` if it allows any.
fn form_of(schema: &Value) -> Option<&'static str> {
    if schema.get("x-kubernetes-int-or-string").is_some() {
        return Some("a string or a number");
    }
    match schema.get("type")?.as_str()? {
        "string" => Some("a string"),
        "boolean" => Some("true or false"),
        "integer" | "number" => Some("a number"),
        "array" => Some("a list"),
        "object" => Some("an object"),
        _ => None,
    }
}

fn compare(problems: &mut Problems, field: &str, schema: &Value, value: &Value) {
    let inner = |keyword: &str| schema.get(keyword).unwrap_or(&Value::Null);
    let form = form_of(schema);
    match (form, value) {
        (Some("a list"), Value::Array(values)) => {
            for (index, value) in values.iter().enumerate() {
                let field = format!("{field}[{index}]");
                // A null removes a field, but cannot remove an item of a list.
                match form_of(inner("items")) {
                    form if value.is_null() => refuse(problems, &field, form.unwrap_or("anything"), value),
                    _ => compare(problems, &field, inner("items"), value),
                }
            }
        }
        (Some("an object"), Value::Object(values)) => {
            for (name, value) in values {
                match fields_of(schema) {
                    fields @ Some(_) => compare_field(problems, field, fields, name, value),
                    None => compare(
                        problems,
                        &format!("{field}[{name:?}]"),
                        inner("additionalProperties"),
                        value,
                    ),
                }
            }
        }
        (Some("a string or a number"), Value::String(_) | Value::Number(_)) | (None, _) | (_, Value::Null) => {}
        (Some(form), value) if form == describe(value) => {}
        (Some(form), value) => refuse(problems, field, form, value),
    }
}

fn refuse(problems: &mut Problems, field: &str, form: &str, value: &Value) {
    let fault = format!("is {}, but must be {form}", describe(value));
    problems.bad_value(field, fault, "see the Kubernetes API reference");
}

fn compare_field(
    problems: &mut Problems,
    parent: &str,
    fields: Option<&Map<String, Value>>,
    name: &str,
    value: &Value,
) {
    let field = format!("{parent}.{name}");
    let Some(fields) = fields else { return };
    if let Some(schema) = fields.get(name) {
        return compare(problems, &field, schema, value);
    }
    let (misspelled, meant) = DNS_POLICY;
    if let Some(schema) = fields.get(meant).filter(|_| name == misspelled) {
        problems.warn(
            Reason::UnknownField,
            field.clone(),
            format!("is read as {meant}"),
            format!("write {meant}"),
        );
        return compare(problems, &field, schema, value);
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

fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The schema of `T` without descriptions, computed once: that of a pod spec has half a megabyte, mostly descriptions.
fn schema_of<T: JsonSchema + Any>() -> Arc<Value> {
    static SCHEMAS: LazyLock<Mutex<HashMap<TypeId, Arc<Value>>>> = LazyLock::new(Mutex::default);
    let mut schemas = SCHEMAS.lock().unwrap_or_else(PoisonError::into_inner);
    let schema = || {
        let undescribe = RecursiveTransform(|schema: &mut Schema| drop(schema.remove("description")));
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let generator = settings.with_transform(undescribe).into_generator();
        Arc::new(generator.into_root_schema_for::<T>().to_value())
    };
    schemas.entry(TypeId::of::<T>()).or_insert_with(schema).clone()
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
    fn every_overlaid_type_has_fields() {
        fn has_fields<T: JsonSchema + Any>(_: &Overlay<T>) {
            assert!(!fields_of(&schema_of::<T>()).unwrap().is_empty());
        }
        has_fields(&ContainerOverlay::default());
        has_fields(&PodSpecOverlay::default());
        has_fields(&crate::overlay::ServiceSpecOverlay::default());
        has_fields(&ClaimTemplate::default());
    }
}
