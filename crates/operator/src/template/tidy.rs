//! Removes values that the API server does not store because they mean the same as absence. If they were sent, they would
//! always look like a difference between the desired and the observed object.

use serde_json::{Map, Value};

/// Fields whose `false` or `0` is not stored: those that are not pointers in Kubernetes' Go types.
const UNSTORED: &[&str] = &[
    "failureThreshold",
    "healthCheckNodePort",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPort",
    "initialDelaySeconds",
    "nodePort",
    "periodSeconds",
    "publishNotReadyAddresses",
    "readOnly",
    "stdin",
    "stdinOnce",
    "successThreshold",
    "timeoutSeconds",
    "tty",
];

/// Fields whose values are quantities: Kubernetes stores them as text, but they may be written as numbers.
const AMOUNTS: &[&str] = &["limits", "overhead", "requests"];

/// Tidies an object recursively.
pub(crate) fn tidy(fields: &mut Map<String, Value>) {
    fields.retain(|field, value| {
        if let Value::Object(inner) = value {
            if AMOUNTS.contains(&field.as_str()) {
                write_out(inner);
            }
            tidy(inner);
            return !inner.is_empty();
        }
        keeps(field, value)
    });
}

/// Tidies an item of a list. There an empty object has a meaning (`emptyDir: {}`), and the API server rejects an empty name.
fn tidy_item(item: &mut Value) {
    let Value::Object(fields) = item else { return };
    fields.retain(|field, value| match value {
        Value::Object(inner) if AMOUNTS.contains(&field.as_str()) => {
            write_out(inner);
            true
        }
        Value::Object(_) => {
            tidy_item(value);
            true
        }
        Value::String(text) => field != "value" || !text.is_empty(),
        _ => keeps(field, value),
    });
}

fn write_out(amounts: &mut Map<String, Value>) {
    for amount in amounts.values_mut().filter(|amount| amount.is_number()) {
        *amount = amount.to_string().into();
    }
}

fn keeps(field: &str, value: &mut Value) -> bool {
    let is_stored = || !UNSTORED.contains(&field);
    match value {
        Value::Null => false,
        Value::Bool(value) => *value || is_stored(),
        Value::Number(number) => number.as_i64() != Some(0) || is_stored(),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => {
            items.iter_mut().for_each(tidy_item);
            !items.is_empty()
        }
        Value::Object(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tidied(value: Value) -> Value {
        let Value::Object(mut fields) = value else {
            panic!("an object is tidied")
        };
        tidy(&mut fields);
        Value::Object(fields)
    }

    #[test]
    fn empty_values_of_the_charts_are_removed() {
        assert_eq!(
            tidied(json!({
                "affinity": {}, "imagePullSecrets": null, "priorityClassName": "", "tolerations": [],
                "resources": { "limits": {} }, "hostNetwork": false, "livenessProbe": { "initialDelaySeconds": 0 },
            })),
            json!({})
        );
    }

    #[test]
    fn a_false_with_a_meaning_is_kept() {
        let said = json!({
            "securityContext": { "runAsNonRoot": false, "runAsUser": 0 },
            "enableServiceLinks": false, "terminationGracePeriodSeconds": 0,
        });
        assert_eq!(tidied(said.clone()), said);
    }

    #[test]
    fn an_empty_object_in_a_list_is_kept() {
        assert_eq!(
            tidied(json!({
                "volumes": [{ "name": "a", "emptyDir": {} }],
                "env": [{ "name": "A", "value": "" }],
                "volumeMounts": [{ "name": "a", "readOnly": false, "subPath": null }],
            })),
            json!({
                "volumes": [{ "name": "a", "emptyDir": {} }],
                "env": [{ "name": "A" }],
                "volumeMounts": [{ "name": "a" }],
            })
        );
    }
}
