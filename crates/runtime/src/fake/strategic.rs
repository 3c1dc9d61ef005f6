//! The fake server's strategic merge patch: lists whose elements have a key are merged by it.

use serde_json::{Value, json};

use crate::extras::{merge_keys, same_identity};

pub(super) fn merge(object: &mut Value, patch: &Value) {
    merge_field("", object, patch);
}

fn merge_field(field: &str, object: &mut Value, patch: &Value) {
    match patch {
        Value::Object(patch) => {
            if !object.is_object() {
                *object = json!({});
            }
            let fields = object.as_object_mut().expect("was made an object");
            for (key, patch) in patch {
                if patch.is_null() {
                    fields.remove(key);
                } else {
                    merge_field(key, fields.entry(key.clone()).or_insert(Value::Null), patch);
                }
            }
        }
        Value::Array(patch) => match (merge_keys(field, patch), object.as_array_mut()) {
            (Some(keys), Some(elements)) => merge_list(keys, elements, patch),
            (Some(keys), None) => {
                let mut elements = Vec::new();
                merge_list(keys, &mut elements, patch);
                *object = elements.into();
            }
            _ => *object = patch.clone().into(),
        },
        patch => *object = patch.clone(),
    }
}

fn merge_list(keys: &[&str], elements: &mut Vec<Value>, patch: &[Value]) {
    for patch in patch {
        let at = elements.iter().position(|element| same_identity(keys, element, patch));
        match (patch.get("$patch").and_then(Value::as_str), at) {
            (Some("delete"), Some(at)) => drop(elements.remove(at)),
            (Some(_), _) => {}
            (None, Some(at)) => merge(&mut elements[at], patch),
            (None, None) => {
                let mut new = json!({});
                merge(&mut new, patch);
                elements.push(new);
            }
        }
    }
}
