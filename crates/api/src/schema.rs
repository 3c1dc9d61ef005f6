//! From a Rust type to the structural schema of a CustomResourceDefinition.
//!
//! kube's own rewriter makes every `Option` nullable. Ours are not: the API server drops a null that the schema does
//! not allow and sets the default, as with upstream. Fields that keep a null are marked `nullable`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

/// The schema of a kind with this spec and status. The description of the spec type becomes that of the kind.
#[expect(
    clippy::expect_used,
    reason = "it depends on our own types alone, and a test calls it for each of them"
)]
pub(crate) fn of_kind<Spec: JsonSchema, Status: JsonSchema>() -> JSONSchemaProps {
    let mut spec = structural::<Spec>();
    let description = spec.remove("description").unwrap_or_default();
    spec.insert("description".into(), json!("Desired state."));

    let mut status = Value::Object(structural::<Status>());
    // Only the operator writes a status. A default would look like an observed value.
    for_each_schema(&mut status, &mut |schema| {
        schema.remove("default");
    });

    // Upstream accepts an object without a spec, to which no rule of the spec applies. A kind without required fields
    // gets an empty spec instead; a rule refuses a new object of another kind.
    if !spec.contains_key("required") {
        spec.insert("default".into(), json!({}));
    }
    serde_json::from_value(json!({
        "description": description,
        "type": "object",
        "properties": {
            "apiVersion": { "type": "string", "description": "Group and version of the kind." },
            "kind": { "type": "string", "description": "Name of the kind." },
            "metadata": { "type": "object" },
            "spec": spec,
            "status": status,
        },
    }))
    .expect("schemars makes a JSON schema")
}

fn structural<T: JsonSchema>() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    for_each_schema(&mut schema, &mut |schema| {
        schema.remove("title");
        unwrap_lines(schema);
        drop_null(schema);
    });
    match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

/// Calls `change` for `schema` and then for every schema inside it.
fn for_each_schema(schema: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    let Value::Object(schema) = schema else { return };
    change(schema);
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties
            .values_mut()
            .for_each(|property| for_each_schema(property, change));
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(inner) {
            for_each_schema(inner, change);
        }
    }
}

/// Joins the lines of a paragraph, which are wrapped in the source.
fn unwrap_lines(schema: &mut Map<String, Value>) {
    if let Some(Value::String(description)) = schema.get_mut("description") {
        *description = description
            .split("\n\n")
            .map(|text| text.replace('\n', " "))
            .collect::<Vec<_>>()
            .join("\n\n");
    }
}

/// Undoes what schemars does to the schema of `T` to make that of `Option<T>`.
fn drop_null(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Array(mut either)) = schema.remove("anyOf") {
        either.retain(|one| one != &json!({ "type": "null" }));
        match either.pop() {
            Some(Value::Object(only)) if either.is_empty() => {
                for (keyword, value) in only {
                    // The field's own keywords take precedence over those of its type.
                    schema.entry(keyword).or_insert(value);
                }
            }
            other => {
                either.extend(other);
                schema.insert("anyOf".into(), Value::Array(either));
            }
        }
    }
}
