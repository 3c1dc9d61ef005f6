//! Merges what a user wrote (a partial core/v1 object) over what the operator builds, like Kubernetes' strategic merge.
//! Pure, and on JSON: typed structs would drop the fields of a newer Kubernetes.
//!
//! * objects are merged field by field;
//! * lists that have a key (containers, volumes, env…) are merged by it, new items appended; other lists are replaced;
//! * a volume, a mount, a variable, a probe's handler and a lifecycle handler are replaced as a whole: a mixture of two would
//!   be invalid;
//! * null and empty values change nothing, since charts write `tolerations: []` and `affinity: {}` for absent values;
//! * `false` and `0` are values. Upstream drops them, so that `privileged: false` has no effect there.

use serde_json::{Map, Value};

/// Fields that hold lists whose items are identified by these fields.
const LIST_KEYS: &[(&str, &[&str])] = &[
    ("containers", &["name"]),
    ("env", &["name"]),
    ("hostAliases", &["ip"]),
    ("imagePullSecrets", &["name"]),
    ("initContainers", &["name"]),
    ("ports", &["containerPort", "protocol"]),
    ("resourceClaims", &["name"]),
    ("schedulingGates", &["name"]),
    ("topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("volumeDevices", &["devicePath"]),
    ("volumeMounts", &["mountPath"]),
    ("volumes", &["name"]),
];

const CONTAINERS: &[&str] = &["containers", "initContainers"];

/// Lists whose items are replaced as a whole: a volume with two sources is invalid.
const REPLACED_ITEMS: &[&str] = &["env", "resourceClaims", "volumeDevices", "volumeMounts", "volumes"];

/// Fields whose object holds exactly one of some handlers.
const HANDLED: &[&str] = &[
    "livenessProbe",
    "postStart",
    "preStop",
    "readinessProbe",
    "startupProbe",
];
const HANDLERS: &[&str] = &["exec", "grpc", "httpGet", "sleep", "tcpSocket"];

/// Merges `theirs` over `ours`.
pub(crate) fn lay_over(ours: &mut Value, theirs: &Map<String, Value>) {
    let Value::Object(ours) = ours else { return };
    for (field, value) in theirs {
        lay_over_field(ours, field, value);
    }
}

/// Merges a user's container over ours. Arguments are appended to ours: without ours the daemon would not find its cluster.
pub(crate) fn lay_over_container(ours: &mut Value, theirs: &Map<String, Value>) {
    let list = |args: Option<&Value>| args.and_then(Value::as_array).cloned().unwrap_or_default();
    let args = [list(ours.get("args")), list(theirs.get("args"))].concat();
    lay_over(ours, theirs);
    if let Value::Object(ours) = ours
        && !args.is_empty()
    {
        ours.insert("args".to_owned(), args.into());
    }
}

/// Merges a user's containers over ours. New ones follow ours; one with the name of ours is merged over it, since names are
/// unique in a pod.
pub(crate) fn lay_over_containers(ours: &mut Vec<Value>, theirs: &[Value]) {
    lay_over_list(ours, theirs, "containers", &["name"]);
}

fn lay_over_field(ours: &mut Map<String, Value>, field: &str, theirs: &Value) {
    if is_empty(theirs) {
        return;
    }
    let keys = LIST_KEYS.iter().find(|(name, _)| *name == field);
    if let (Some((_, keys)), Value::Array(theirs)) = (keys, theirs) {
        let mut items = match ours.remove(field) {
            Some(Value::Array(own)) => own,
            _ => Vec::new(),
        };
        lay_over_list(&mut items, theirs, field, keys);
        ours.insert(field.to_owned(), items.into());
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
        (own, theirs) => own.clone_from(theirs),
    }
}

/// Merges a list by key. Of two items of theirs with the same key the last one wins, as in Kubernetes.
fn lay_over_list(ours: &mut Vec<Value>, theirs: &[Value], field: &str, keys: &[&str]) {
    for item in theirs {
        match (ours.iter_mut().find(|own| is_same(own, item, field, keys)), item) {
            (Some(own), item) if REPLACED_ITEMS.contains(&field) => own.clone_from(item),
            (Some(own), Value::Object(item)) if CONTAINERS.contains(&field) => lay_over_container(own, item),
            (Some(own), Value::Object(item)) => lay_over(own, item),
            _ => ours.push(item.clone()),
        }
    }
}

fn is_same(own: &Value, item: &Value, field: &str, keys: &[&str]) -> bool {
    let of = |item: &Value, key: &str| match item.get(key) {
        None | Some(Value::Null) if key == "protocol" => Some("TCP".into()),
        value => value.cloned(),
    };
    let has_key = keys.first().is_some_and(|key| item.get(key).is_some());
    let by_key = has_key && keys.iter().all(|key| of(own, key) == of(item, key));
    // Port names are unique in a container; probes and Services refer to ports by name.
    let by_name = field == "ports" && item.get("name").is_some_and(|name| own.get("name") == Some(name));
    by_key || by_name
}

pub(crate) fn is_empty(value: &Value) -> bool {
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
    fn an_empty_dir_in_a_new_volume_is_kept() {
        assert_eq!(
            laid_over(
                json!({ "volumes": [{ "name": "a" }] }),
                json!({ "volumes": [{ "name": "b", "emptyDir": {} }] })
            ),
            json!({ "volumes": [{ "name": "a" }, { "name": "b", "emptyDir": {} }] })
        );
    }

    #[test]
    fn exclusive_items_of_theirs_replace_ours_as_a_whole() {
        let secret = json!({ "secretKeyRef": { "name": "s", "key": "k" } });
        for (field, ours, theirs) in [
            (
                "env",
                json!({ "name": "A", "value": "1" }),
                json!({ "name": "A", "valueFrom": secret }),
            ),
            (
                "env",
                json!({ "name": "A", "valueFrom": secret }),
                json!({ "name": "A", "value": "1" }),
            ),
            (
                "volumes",
                json!({ "name": "a", "emptyDir": { "medium": "Memory" } }),
                json!({ "name": "a", "hostPath": { "path": "/log" } }),
            ),
            (
                "volumes",
                json!({ "name": "a", "projected": { "defaultMode": 384, "sources": [{ "secret": { "name": "s" } }] } }),
                json!({ "name": "a", "projected": { "sources": [{ "configMap": { "name": "c" } }] } }),
            ),
            (
                "volumeMounts",
                json!({ "name": "a", "mountPath": "/etc/slurm", "readOnly": true, "subPath": "x" }),
                json!({ "name": "b", "mountPath": "/etc/slurm", "subPathExpr": "$(A)" }),
            ),
        ] {
            let other = json!({ "name": "other", "mountPath": "/other" });
            assert_eq!(
                laid_over(json!({ field: [ours, other] }), json!({ field: [theirs] })),
                json!({ field: [theirs, other] })
            );
        }
    }

    #[test]
    fn a_handler_of_theirs_replaces_ours_and_the_rest_is_merged() {
        let (get, run) = (json!({ "path": "/readyz" }), json!({ "command": ["true"] }));
        for (field, ours, theirs, both) in [
            (
                "readinessProbe",
                json!({ "httpGet": get, "periodSeconds": 10 }),
                json!({ "exec": run, "failureThreshold": 9 }),
                json!({ "exec": run, "periodSeconds": 10, "failureThreshold": 9 }),
            ),
            (
                "startupProbe",
                json!({ "tcpSocket": { "port": 1 }, "periodSeconds": 10 }),
                json!({ "periodSeconds": 2 }),
                json!({ "tcpSocket": { "port": 1 }, "periodSeconds": 2 }),
            ),
            (
                "livenessProbe",
                json!({ "httpGet": get, "periodSeconds": 10 }),
                json!({ "grpc": { "port": 1 }, "httpGet": null }),
                json!({ "grpc": { "port": 1 }, "periodSeconds": 10 }),
            ),
            (
                "lifecycle",
                json!({ "preStop": { "exec": run }, "postStart": { "exec": run } }),
                json!({ "preStop": { "sleep": { "seconds": 5 } } }),
                json!({ "preStop": { "sleep": { "seconds": 5 } }, "postStart": { "exec": run } }),
            ),
        ] {
            assert_eq!(
                laid_over(json!({ field: ours }), json!({ field: theirs })),
                json!({ field: both })
            );
        }
    }

    #[test]
    fn a_port_is_identified_by_number_and_protocol_or_by_name() {
        let ours = || json!({ "ports": [{ "containerPort": 6817, "name": "slurmctld", "protocol": "TCP" }] });
        for (theirs, ports) in [
            (
                json!({ "containerPort": 6817, "hostPort": 6817 }),
                json!([{ "containerPort": 6817, "name": "slurmctld", "protocol": "TCP", "hostPort": 6817 }]),
            ),
            (
                json!({ "containerPort": 6817, "protocol": "UDP" }),
                json!([
                    { "containerPort": 6817, "name": "slurmctld", "protocol": "TCP" },
                    { "containerPort": 6817, "protocol": "UDP" },
                ]),
            ),
            (
                json!({ "containerPort": 7000, "name": "slurmctld" }),
                json!([{ "containerPort": 7000, "name": "slurmctld", "protocol": "TCP" }]),
            ),
        ] {
            assert_eq!(
                laid_over(ours(), json!({ "ports": [theirs] })),
                json!({ "ports": ports })
            );
        }
    }

    #[test]
    fn of_two_items_with_one_name_the_last_wins() {
        let twice = json!({ "env": [{ "name": "A", "value": "1" }, { "name": "A", "value": "2" }] });
        for ours in [json!({}), json!({ "env": [{ "name": "A", "value": "0" }] })] {
            assert_eq!(
                laid_over(ours, twice.clone()),
                json!({ "env": [{ "name": "A", "value": "2" }] })
            );
        }
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
