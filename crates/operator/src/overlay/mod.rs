//! Lays what a user wrote (a partial core/v1 object) over what the operator builds, in the manner of Kubernetes'
//! strategic merge. Pure, and on JSON: the typed structs would drop the fields of a newer Kubernetes.
//!
//! * objects are merged field by field;
//! * lists that have a key (containers, volumes, env…) are merged by it, new items appended; other lists are replaced;
//! * a volume, a variable, a probe's handler and a lifecycle handler are replaced whole: half of one and half of another
//!   is neither;
//! * null and empty values change nothing, since charts write `tolerations: []` and `affinity: {}` for "nothing to say";
//! * `false` and `0` are values. Upstream drops them, so that `privileged: false` cannot be said there.

use serde_json::{Map, Value};

/// Fields that hold lists whose items are told apart by one of their own fields.
const LIST_KEYS: &[(&str, &str)] = &[
    ("containers", "name"),
    ("env", "name"),
    ("hostAliases", "ip"),
    ("imagePullSecrets", "name"),
    ("initContainers", "name"),
    ("ports", "containerPort"),
    ("resourceClaims", "name"),
    ("schedulingGates", "name"),
    ("topologySpreadConstraints", "topologyKey"),
    ("volumeDevices", "devicePath"),
    ("volumeMounts", "mountPath"),
    ("volumes", "name"),
];

/// Lists whose items are alternatives through and through: two sources in one volume are none.
const REPLACED_ITEMS: &[&str] = &["env", "volumes"];

/// Fields whose object holds exactly one of some handlers.
const HANDLED: &[&str] = &[
    "livenessProbe",
    "postStart",
    "preStop",
    "readinessProbe",
    "startupProbe",
];
const HANDLERS: &[&str] = &["exec", "grpc", "httpGet", "sleep", "tcpSocket"];

/// Lays `theirs` over `ours`.
pub(crate) fn lay_over(ours: &mut Value, theirs: &Map<String, Value>) {
    let Value::Object(ours) = ours else { return };
    for (field, value) in theirs {
        lay_over_field(ours, field, value);
    }
}

/// Lays a user's container over ours. Arguments are added to ours and not put in their place: without ours the daemon
/// would not find its cluster.
pub(crate) fn lay_over_container(ours: &mut Value, theirs: &Map<String, Value>) {
    let own_args = ours.get("args").and_then(Value::as_array).cloned().unwrap_or_default();
    let more_args = theirs
        .get("args")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    lay_over(ours, theirs);
    let args: Vec<Value> = own_args.into_iter().chain(more_args).collect();
    if let Value::Object(ours) = ours
        && !args.is_empty()
    {
        ours.insert("args".to_owned(), Value::Array(args));
    }
}

fn lay_over_field(ours: &mut Map<String, Value>, field: &str, theirs: &Value) {
    if is_empty(theirs) {
        return;
    }
    let Some(own) = ours.get_mut(field).filter(|own| !own.is_null()) else {
        ours.insert(field.to_owned(), theirs.clone());
        return;
    };
    match (own, theirs) {
        (Value::Object(own), Value::Object(theirs)) => {
            let handles = |handler: &&str| theirs.get(*handler).is_some_and(|given| !given.is_null());
            if HANDLED.contains(&field) && HANDLERS.iter().any(handles) {
                own.retain(|name, _| !HANDLERS.contains(&name.as_str()));
            }
            for (field, value) in theirs {
                lay_over_field(own, field, value);
            }
        }
        (Value::Array(own), Value::Array(theirs)) => match LIST_KEYS.iter().find(|(name, _)| *name == field) {
            Some((_, key)) => lay_over_list(own, theirs, field, key),
            None => own.clone_from(theirs),
        },
        (own, theirs) => own.clone_from(theirs),
    }
}

fn lay_over_list(ours: &mut Vec<Value>, theirs: &[Value], field: &str, key: &str) {
    for item in theirs {
        let same = |own: &&mut Value| item.get(key).is_some_and(|value| own.get(key) == Some(value));
        match (ours.iter_mut().find(same), item) {
            (Some(own), item) if REPLACED_ITEMS.contains(&field) => own.clone_from(item),
            (Some(own), Value::Object(item)) => lay_over(own, item),
            _ => ours.push(item.clone()),
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn laid_over(mut ours: Value, theirs: Value) -> Value {
        let Value::Object(theirs) = theirs else {
            panic!("an overlay is an object")
        };
        lay_over(&mut ours, &theirs);
        ours
    }

    #[test]
    fn lists_with_a_key_are_merged_by_it() {
        assert_eq!(
            laid_over(
                json!({ "ports": [{ "containerPort": 1, "name": "a" }, { "containerPort": 2, "name": "b" }] }),
                json!({ "ports": [{ "containerPort": 2, "hostPort": 2 }, { "containerPort": 3 }] }),
            ),
            json!({ "ports": [
                { "containerPort": 1, "name": "a" }, { "containerPort": 2, "name": "b", "hostPort": 2 }, { "containerPort": 3 },
            ] })
        );
    }

    #[test]
    fn lists_without_a_key_are_replaced() {
        assert_eq!(
            laid_over(
                json!({ "tolerations": [{ "key": "a" }] }),
                json!({ "tolerations": [{ "key": "b" }] })
            ),
            json!({ "tolerations": [{ "key": "b" }] })
        );
    }

    #[test]
    fn empty_values_say_nothing_and_false_does() {
        assert_eq!(
            laid_over(
                json!({ "tolerations": [{ "key": "a" }], "affinity": { "x": 1 }, "securityContext": { "privileged": true } }),
                json!({ "tolerations": [], "affinity": {}, "priorityClassName": "", "imagePullSecrets": null,
                        "securityContext": { "privileged": false } }),
            ),
            json!({ "tolerations": [{ "key": "a" }], "affinity": { "x": 1 }, "securityContext": { "privileged": false } })
        );
    }

    #[test]
    fn an_empty_dir_in_a_new_volume_stays() {
        assert_eq!(
            laid_over(
                json!({ "volumes": [{ "name": "a" }] }),
                json!({ "volumes": [{ "name": "b", "emptyDir": {} }] })
            ),
            json!({ "volumes": [{ "name": "a" }, { "name": "b", "emptyDir": {} }] })
        );
    }

    #[test]
    fn a_volume_and_a_variable_are_replaced_whole() {
        assert_eq!(
            laid_over(
                json!({ "volumes": [{ "name": "a", "emptyDir": { "medium": "Memory" } }], "env": [{ "name": "A", "value": "1" }] }),
                json!({ "volumes": [{ "name": "a", "hostPath": { "path": "/log" } }], "env": [{ "name": "A", "valueFrom": 1 }] }),
            ),
            json!({ "volumes": [{ "name": "a", "hostPath": { "path": "/log" } }], "env": [{ "name": "A", "valueFrom": 1 }] })
        );
    }

    #[test]
    fn a_probes_handler_is_replaced_and_the_rest_of_it_merged() {
        assert_eq!(
            laid_over(
                json!({ "readinessProbe": { "httpGet": { "path": "/readyz" }, "periodSeconds": 10 } }),
                json!({ "readinessProbe": { "exec": { "command": ["true"] }, "failureThreshold": 9 } }),
            ),
            json!({ "readinessProbe": { "exec": { "command": ["true"] }, "periodSeconds": 10, "failureThreshold": 9 } })
        );
    }

    #[test]
    fn arguments_are_added_to_ours() {
        let mut ours = json!({ "name": "slurmd", "args": ["-Z"] });
        let Value::Object(theirs) = json!({ "args": ["-v"], "image": "x" }) else {
            panic!("an overlay is an object")
        };
        lay_over_container(&mut ours, &theirs);
        assert_eq!(ours, json!({ "name": "slurmd", "args": ["-Z", "-v"], "image": "x" }));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            let field = prop_oneof![
                Just("env"),
                Just("name"),
                Just("volumes"),
                Just("preStop"),
                Just("exec"),
                Just("x")
            ];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(field.prop_map(str::to_owned), inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_overlay_panics_and_an_empty_one_changes_nothing(ours in any_json(), theirs in any_json()) {
            let mut merged = ours.clone();
            lay_over(&mut merged, &Map::new());
            prop_assert_eq!(&merged, &ours);
            if let Value::Object(theirs) = theirs {
                lay_over(&mut merged, &theirs);
            }
        }
    }
}
