//! Whether an object already has all desired fields. Pure.
//!
//! The API server adds defaults, normalizes quantities and omits empty fields; none of that is a difference. Fields that
//! are not desired are not compared here: see `extras.rs`.

use serde_json::{Map, Value};

use crate::quantity::Quantity;

/// The path of the first desired field that is missing or differs, as in `spec.template.spec.containers[slurmctld].image`.
pub(crate) fn first_gap(desired: &Value, observed: &Value) -> Option<String> {
    gap("", desired, observed).map(|path| path.trim_start_matches('.').to_owned())
}

fn gap(field: &str, desired: &Value, observed: &Value) -> Option<String> {
    match (desired, observed) {
        (Value::Object(desired), Value::Object(observed)) => object_gap(field, desired, observed),
        (Value::Array(desired), Value::Array(observed)) => list_gap(field, desired, observed),
        (desired, observed) if same(desired, observed) => None,
        _ => Some(String::new()),
    }
}

fn object_gap(field: &str, desired: &Map<String, Value>, observed: &Map<String, Value>) -> Option<String> {
    desired.iter().find_map(|(key, desired)| {
        let inner = match (desired, observed.get(key)) {
            (desired, None | Some(Value::Null)) => (!means_nothing(key, desired)).then(String::new),
            (Value::String(desired), Some(Value::String(observed))) if holds_quantity(field, key) => {
                (!Quantity::same(desired, observed)).then(String::new)
            }
            (Value::Null, Some(_)) => None,
            (desired, Some(observed)) => gap(key, desired, observed),
        };
        inner.map(|inner| format!(".{key}{inner}"))
    })
}

fn list_gap(field: &str, desired: &[Value], observed: &[Value]) -> Option<String> {
    let kind = ListKind::of(field, desired);
    if kind == ListKind::Atomic && desired.len() != observed.len() {
        return Some(String::new());
    }
    desired.iter().enumerate().find_map(|(index, wanted)| {
        let (label, found) = match kind {
            ListKind::Map(keys) => {
                let found = observed.iter().find(|element| same_identity(keys, wanted, element));
                (identity(keys, wanted), found)
            }
            ListKind::Set => (wanted.to_string(), observed.iter().find(|element| *element == wanted)),
            ListKind::Atomic => (index.to_string(), observed.get(index)),
        };
        let inner = found.map_or(Some(String::new()), |found| gap("", wanted, found));
        inner.map(|inner| format!("[{label}]{inner}"))
    })
}

/// How the API server merges a list, by its schema (`x-kubernetes-list-type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListKind {
    /// Elements are identified by these fields.
    Map(&'static [&'static str]),
    Set,
    /// The list is one value.
    Atomic,
}

impl ListKind {
    /// The kind of the list in this field. `ports` is a list of a Service or of a container.
    pub(crate) fn of(field: &str, elements: &[Value]) -> Self {
        match field {
            "containers"
            | "initContainers"
            | "ephemeralContainers"
            | "volumes"
            | "env"
            | "imagePullSecrets"
            | "resourceClaims"
            | "schedulingGates"
            | "claims" => Self::Map(&["name"]),
            "volumeMounts" => Self::Map(&["mountPath"]),
            "volumeDevices" => Self::Map(&["devicePath"]),
            "ports" if elements.iter().any(|port| port.get("containerPort").is_some()) => {
                Self::Map(&["containerPort", "protocol"])
            }
            "ports" => Self::Map(&["port", "protocol"]),
            "ownerReferences" => Self::Map(&["uid"]),
            "conditions" => Self::Map(&["type"]),
            "hostAliases" => Self::Map(&["ip"]),
            "topologySpreadConstraints" => Self::Map(&["topologyKey", "whenUnsatisfiable"]),
            "finalizers" => Self::Set,
            _ => Self::Atomic,
        }
    }
}

/// Whether two elements of a keyed list have the same keys.
pub(crate) fn same_identity(keys: &[&str], one: &Value, other: &Value) -> bool {
    keys.iter().all(|key| {
        let of = |element: &Value| match element.get(key) {
            None | Some(Value::Null) if *key == "protocol" => Value::from("TCP"),
            None => Value::Null,
            Some(value) => value.clone(),
        };
        of(one) == of(other)
    })
}

fn identity(keys: &[&str], element: &Value) -> String {
    let parts = keys.iter().filter_map(|key| element.get(key));
    let words = parts.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    words.collect::<Vec<_>>().join("/")
}

fn same(desired: &Value, observed: &Value) -> bool {
    match (desired, observed) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        _ => desired == observed,
    }
}

/// Whether the value means the same as an absent field. `emptyDir: {}` is a volume; other empty values mean nothing.
fn means_nothing(key: &str, value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        Value::Object(fields) => key != "emptyDir" && fields.iter().all(|(key, value)| means_nothing(key, value)),
    }
}

fn holds_quantity(parent: &str, key: &str) -> bool {
    matches!(parent, "limits" | "requests" | "capacity") || matches!(key, "sizeLimit" | "divisor")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_of_the_server_are_no_difference() {
        let desired = json!({"spec": {"containers": [{"name": "a", "image": "i", "ports": [{"containerPort": 1}]}]}});
        let observed = json!({"spec": {
            "dnsPolicy": "ClusterFirst",
            "containers": [{"name": "a", "image": "i", "imagePullPolicy": "Always", "resources": {},
                "ports": [{"containerPort": 1, "protocol": "TCP"}]}],
        }});
        assert_eq!(first_gap(&desired, &observed), None);
    }

    #[test]
    fn an_empty_value_equals_an_absent_one() {
        let desired = json!({"metadata": {"annotations": {}, "labels": null}, "spec": {"paused": false, "x": 0, "y": "", "z": []}});
        assert_eq!(first_gap(&desired, &json!({"metadata": {}, "spec": {}})), None);
    }

    #[test]
    fn an_empty_dir_is_not_nothing() {
        let desired = json!({"volumes": [{"name": "a", "emptyDir": {}}]});
        assert_eq!(first_gap(&desired, &desired), None);
        let observed = json!({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]});
        assert_eq!(first_gap(&desired, &observed).as_deref(), Some("volumes[a].emptyDir"));
    }

    #[test]
    fn quantities_are_amounts_where_they_are_amounts() {
        let of = |cpu: &str| json!({"resources": {"limits": {"cpu": cpu}}, "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]});
        assert_eq!(first_gap(&of("1"), &of("1000m")), None);
        assert_eq!(first_gap(&of("1"), &of("2")).as_deref(), Some("resources.limits.cpu"));
        assert!(first_gap(&json!({"data": {"cpu": "1"}}), &json!({"data": {"cpu": "1000m"}})).is_some());
    }

    #[test]
    fn the_first_difference_is_named() {
        let desired =
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a"}, {"name": "b", "args": ["x", "y"]}]}}}});
        let observed =
            json!({"spec": {"template": {"spec": {"containers": [{"name": "b", "args": ["x", "z"]}, {"name": "a"}]}}}});
        assert_eq!(
            first_gap(&desired, &observed).as_deref(),
            Some("spec.template.spec.containers[b].args[1]")
        );
    }

    #[test]
    fn an_argument_more_or_less_is_a_difference() {
        let args = |args: &[&str]| json!({ "args": args });
        assert_eq!(first_gap(&args(&["a"]), &args(&["a", "b"])).as_deref(), Some("args"));
        assert_eq!(first_gap(&args(&["a", "b"]), &args(&["a"])).as_deref(), Some("args"));
        assert_eq!(first_gap(&args(&[]), &args(&["a"])).as_deref(), Some("args"));
    }

    #[test]
    fn a_second_owner_and_another_finalizer_are_no_difference() {
        let desired = json!({"metadata": {"finalizers": ["a"], "ownerReferences": [{"uid": "1", "controller": true}]}});
        let observed = json!({"metadata": {"finalizers": ["b", "a"], "ownerReferences": [{"uid": "2"}, {"uid": "1", "controller": true}]}});
        assert_eq!(first_gap(&desired, &observed), None);
    }

    #[test]
    fn service_ports_are_known_by_number_and_protocol() {
        let desired = json!({"spec": {"ports": [{"name": "a", "port": 1}]}});
        let observed = json!({"spec": {"ports": [{"name": "a", "port": 1, "protocol": "UDP"}]}});
        assert_eq!(first_gap(&desired, &observed).as_deref(), Some("spec.ports[1]"));
    }
}
