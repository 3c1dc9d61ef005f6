//! Removes values that the API server does not store because they mean the same as absence. If they were sent, they would
//! always look like a difference between the desired and the observed object.

use serde_json::{Map, Value};

/// Fields whose `false` or `0` is not stored: those that are not pointers in Kubernetes' Go types.
pub(crate) const UNSTORED: &[&str] = &[
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
    tidy_fields(fields, false);
}

/// In an item of a list, an empty object has a meaning (`emptyDir: {}`), and the API server rejects an empty name.
fn tidy_fields(fields: &mut Map<String, Value>, in_list: bool) {
    fields.retain(|field, value| {
        let is_stored = !UNSTORED.contains(&field.as_str());
        match value {
            Value::Null => false,
            Value::Bool(value) => *value || is_stored,
            Value::Number(number) => number.as_i64() != Some(0) || is_stored,
            Value::String(text) => !text.is_empty() || (in_list && field != "value"),
            Value::Array(items) => {
                for item in items.iter_mut().filter_map(Value::as_object_mut) {
                    tidy_fields(item, true);
                }
                !items.is_empty()
            }
            Value::Object(inner) => {
                if AMOUNTS.contains(&field.as_str()) {
                    write_out(inner);
                }
                tidy_fields(inner, in_list);
                in_list || !inner.is_empty()
            }
        }
    });
}

/// Writes quantities as text.
pub(crate) fn write_out(amounts: &mut Map<String, Value>) {
    for amount in amounts.values_mut().filter(|amount| amount.is_number()) {
        *amount = amount.to_string().into();
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
