//! The fake server's server-side apply: who owns which leaf.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::extras::{merge_keys, same_identity};

/// The object after an apply: what the manager owned and applies no longer is gone, what it applies is there.
pub(super) fn applied_to(before: &Value, applied: &Value, manager: &str) -> Value {
    let theirs = owned_by_others(before, manager);
    let gone: BTreeSet<String> = owned(before, manager)
        .difference(&leaves(applied))
        .filter(|leaf| !theirs.contains(*leaf))
        .cloned()
        .collect();
    let mut object = without("", "", before, &gone).unwrap_or_default();
    merge("", &mut object, applied);
    object
}

/// The value without these leaves, and without what has nothing left. `None` if that is all of it.
fn without(path: &str, field: &str, value: &Value, gone: &BTreeSet<String>) -> Option<Value> {
    if gone.contains(path) {
        return None;
    }
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let kept = fields
                .iter()
                .filter_map(|(key, value)| Some((key.clone(), without(&join(path, key), key, value, gone)?)));
            let kept: Map<String, Value> = kept.collect();
            (!kept.is_empty()).then_some(kept.into())
        }
        Value::Array(elements) => match merge_keys(field, elements) {
            Some(keys) if !elements.is_empty() => {
                let kept = elements
                    .iter()
                    .filter_map(|element| without(&format!("{path}[{}]", identity(keys, element)), "", element, gone));
                let kept: Vec<Value> = kept.collect();
                (!kept.is_empty()).then_some(kept.into())
            }
            _ => Some(value.clone()),
        },
        value => Some(value.clone()),
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}/{}", key.replace('/', "~1"))
    }
}

/// Writes down that the manager owns what it applied.
pub(super) fn own(object: &mut Value, applied: &Value, manager: &str) {
    let mut entries = entries(object);
    // By force: nobody else owns what now has another value. Equal values stay shared; the difference is not modelled.
    entries.retain(|entry| entry["manager"] != manager || entry["operation"] != "Apply");
    entries.push(entry(object, manager, "Apply", &leaves(applied)));
    entries.sort_by_key(|entry| entry["manager"].to_string());
    object["metadata"]["managedFields"] = Value::from(entries);
}

/// Writes down that others lost what this update changed.
pub(super) fn updated_by(object: &mut Value, before: &Value, manager: &str) {
    let changed: BTreeSet<String> = leaves(before)
        .union(&leaves(object))
        .filter(|leaf| value_of(before, leaf) != value_of(object, leaf))
        .cloned()
        .collect();
    let mut entries: Vec<Value> = entries(object)
        .iter()
        .map(|old| {
            let kept = fields(old).difference(&changed).cloned().collect();
            entry(
                object,
                old["manager"].as_str().unwrap_or_default(),
                old["operation"].as_str().unwrap_or_default(),
                &kept,
            )
        })
        .collect();
    if !manager.is_empty() {
        entries.retain(|entry| entry["manager"] != manager || entry["operation"] != "Update");
        entries.push(entry(object, manager, "Update", &changed));
    }
    entries.sort_by_key(|entry| entry["manager"].to_string());
    object["metadata"]["managedFields"] = Value::from(entries);
}

fn entry(object: &Value, manager: &str, operation: &str, leaves: &BTreeSet<String>) -> Value {
    let fields: Map<String, Value> = leaves.iter().map(|leaf| (format!("f:{leaf}"), json!({}))).collect();
    json!({
        "manager": manager, "operation": operation, "apiVersion": object["apiVersion"],
        "fieldsType": "FieldsV1", "fieldsV1": fields,
    })
}

fn entries(object: &Value) -> Vec<Value> {
    object
        .pointer("/metadata/managedFields")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default()
}

fn fields(entry: &Value) -> BTreeSet<String> {
    let fields = entry.get("fieldsV1").and_then(Value::as_object);
    fields
        .into_iter()
        .flatten()
        .map(|(leaf, _)| leaf.trim_start_matches("f:").to_owned())
        .collect()
}

fn owned(object: &Value, manager: &str) -> BTreeSet<String> {
    let entries = entries(object);
    let own = entries
        .iter()
        .filter(|entry| entry["manager"] == manager && entry["operation"] == "Apply");
    own.flat_map(fields).collect()
}

fn owned_by_others(object: &Value, manager: &str) -> BTreeSet<String> {
    let entries = entries(object);
    let others = entries
        .iter()
        .filter(|entry| entry["manager"] != manager || entry["operation"] != "Apply");
    others.flat_map(fields).collect()
}

/// `spec/containers[name=a]/image`, without what only the server says.
fn leaves(object: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    collect("", "", object, &mut found);
    let ours = ["metadata/labels", "metadata/annotations", "metadata/ownerReferences"];
    found.retain(|leaf| match leaf.as_str() {
        "apiVersion" | "kind" => false,
        leaf if leaf.starts_with("metadata/") => ours.iter().any(|kept| leaf.starts_with(kept)),
        _ => true,
    });
    found
}

fn collect(path: &str, field: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                collect(&join(path, key), key, value, found);
            }
        }
        Value::Array(elements) => match merge_keys(field, elements) {
            Some(keys) => {
                for element in elements {
                    collect(&format!("{path}[{}]", identity(keys, element)), "", element, found);
                }
            }
            None => {
                found.insert(path.to_owned());
            }
        },
        _ => {
            found.insert(path.to_owned());
        }
    }
}

fn merge(field: &str, object: &mut Value, applied: &Value) {
    match (object, applied) {
        (Value::Object(object), Value::Object(applied)) => {
            for (key, applied) in applied {
                merge(key, object.entry(key.clone()).or_insert(Value::Null), applied);
            }
        }
        (Value::Array(object), Value::Array(applied)) => match merge_keys(field, applied) {
            Some(keys) => {
                for applied in applied {
                    match object.iter_mut().find(|element| same_identity(keys, element, applied)) {
                        Some(element) => merge("", element, applied),
                        None => object.push(applied.clone()),
                    }
                }
            }
            None => object.clone_from(applied),
        },
        (object, applied) => *object = applied.clone(),
    }
}

/// The place of a leaf, step by step.
fn step<'a>(value: &'a Value, path: &str, step: &str) -> Option<&'a Value> {
    let (field, identity) = step
        .split_once('[')
        .map_or((step, None), |(field, rest)| (field, Some(rest.trim_end_matches(']'))));
    let value = value.get(field.replace("~1", "/"))?;
    let Some(identity) = identity else { return Some(value) };
    let elements = value.as_array()?;
    let _ = path;
    elements
        .iter()
        .find(|element| identity_of(field, elements, element) == identity)
}

fn identity_of(field: &str, elements: &[Value], element: &Value) -> String {
    match merge_keys(field, elements) {
        Some(keys) => identity(keys, element),
        None => String::new(),
    }
}

fn identity(keys: &[&str], element: &Value) -> String {
    let word = |key: &&str| element.get(*key).map(ToString::to_string).unwrap_or_default();
    let words: Vec<String> = keys.iter().map(|key| word(key).replace('/', "~1")).collect();
    words.join(",")
}

fn value_of<'a>(object: &'a Value, leaf: &str) -> Option<&'a Value> {
    leaf.split('/').try_fold(object, |value, part| step(value, leaf, part))
}
