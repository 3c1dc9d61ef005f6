//! Foreign entries in lists and maps of a child that are ours alone. Pure.
//!
//! A server-side apply does not remove fields of other managers. In the lists and maps named here an undesired entry
//! would change what a daemon does, so it is removed. Labels and annotations may be set by others (`kubectl rollout
//! restart` sets one), and so may every field not named here.

use serde_json::Value;

/// JSON pointers to the foreign entries, in an order in which they can be removed one after the other.
pub(crate) fn extras(kind: &str, desired: &Value, observed: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for path in owned(kind) {
        collect(path, desired.pointer(path), observed.pointer(path), &mut found);
    }
    found
}

/// The lists and maps of a kind that are ours alone. Desired Secrets have `data`, not `stringData`.
fn owned(kind: &str) -> &'static [&'static str] {
    match kind {
        "ConfigMap" => &["/data", "/binaryData"],
        "Secret" => &["/data"],
        "Service" => &["/spec/ports", "/spec/selector"],
        "StatefulSet" | "Deployment" => &[
            "/spec/template/spec/containers",
            "/spec/template/spec/initContainers",
            "/spec/template/spec/volumes",
        ],
        _ => &[],
    }
}

/// The same within a container that is desired.
const OWNED_IN_CONTAINER: [&str; 4] = ["env", "envFrom", "volumeMounts", "ports"];

fn collect(path: &str, desired: Option<&Value>, observed: Option<&Value>, found: &mut Vec<String>) {
    match observed {
        Some(Value::Object(observed)) => {
            let wanted = |key: &str| desired.is_some_and(|desired| desired.get(key).is_some());
            let extra = observed.keys().filter(|key| !wanted(key));
            found.extend(extra.map(|key| format!("{path}/{}", escape(key))));
        }
        Some(Value::Array(observed)) => {
            let desired = desired.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let all = if desired.is_empty() { observed } else { desired };
            let field = path.rsplit('/').next().unwrap_or_default();
            let wanted = |element: &Value| match merge_keys(field, all) {
                Some(keys) => desired.iter().find(|desired| same_identity(keys, desired, element)),
                // The list is one value: an apply sets it if it is desired; else all of it is foreign.
                None => desired.first(),
            };
            // Inside containers first: removing a container shifts those behind it.
            if matches!(field, "containers" | "initContainers") {
                for (index, observed) in observed.iter().enumerate() {
                    let Some(desired) = wanted(observed) else { continue };
                    for field in OWNED_IN_CONTAINER {
                        let path = format!("{path}/{index}/{field}");
                        collect(&path, desired.get(field), observed.get(field), found);
                    }
                }
            }
            // From the back, so that earlier removals do not shift the index.
            let extra = observed
                .iter()
                .enumerate()
                .rev()
                .filter(|(_, element)| wanted(element).is_none());
            found.extend(extra.map(|(index, _)| format!("{path}/{index}")));
        }
        _ => {}
    }
}

/// The fields by which the API server identifies the elements of the list in this field (`x-kubernetes-list-map-keys`).
/// `None` if the list is one value. `ports` is a list of a Service or of a container.
pub(crate) fn merge_keys(field: &str, elements: &[Value]) -> Option<&'static [&'static str]> {
    Some(match field {
        "containers" | "initContainers" | "volumes" | "env" | "imagePullSecrets" => &["name"],
        "volumeMounts" => &["mountPath"],
        "ports" if elements.iter().any(|port| port.get("containerPort").is_some()) => &["containerPort", "protocol"],
        "ports" => &["port", "protocol"],
        "ownerReferences" => &["uid"],
        "conditions" => &["type"],
        "topologySpreadConstraints" => &["topologyKey", "whenUnsatisfiable"],
        _ => return None,
    })
}

/// Whether two elements of a list have the same keys.
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

/// RFC 6901.
fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Removes what was found, as the API server would.
    fn without_extras(kind: &str, desired: &Value, observed: &Value) -> Value {
        let operations: Vec<_> = extras(kind, desired, observed)
            .into_iter()
            .map(|path| json!({"op": "remove", "path": path}))
            .collect();
        let patch: json_patch::Patch = serde_json::from_value(Value::Array(operations)).unwrap();
        let mut object = observed.clone();
        json_patch::patch(&mut object, &patch).unwrap();
        object
    }

    fn stateful_set(spec: &Value) -> Value {
        json!({"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}, "spec": spec}}})
    }

    #[test]
    fn a_foreign_file_is_removed() {
        let desired = json!({"data": {"slurm.conf": "x"}});
        let observed = json!({"data": {"slurm.conf": "x", "a/b~c": "y"}, "binaryData": {"z": "AA=="}});
        assert_eq!(
            without_extras("ConfigMap", &desired, &observed),
            json!({"data": {"slurm.conf": "x"}, "binaryData": {}})
        );
    }

    #[test]
    fn foreign_ports_and_selectors_are_removed() {
        let desired = json!({"spec": {"ports": [{"port": 6817}], "selector": {"a": "b"}}});
        let observed = json!({"spec": {
            "ports": [{"port": 1, "protocol": "TCP"}, {"port": 6817, "protocol": "TCP"}, {"port": 6817, "protocol": "UDP"}],
            "selector": {"a": "b", "c": "d"}, "clusterIP": "10.0.0.1",
        }});
        assert_eq!(
            without_extras("Service", &desired, &observed),
            json!({"spec": {"ports": [{"port": 6817, "protocol": "TCP"}], "selector": {"a": "b"}, "clusterIP": "10.0.0.1"}})
        );
    }

    #[test]
    fn foreign_containers_volumes_and_variables_are_removed() {
        let desired = stateful_set(&json!({
            "containers": [{"name": "slurmctld", "env": [{"name": "A"}], "volumeMounts": [{"mountPath": "/a", "name": "v"}]}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }));
        let observed = stateful_set(&json!({
            "initContainers": [{"name": "early"}],
            "containers": [
                {"name": "spy"},
                {"name": "slurmctld", "image": "i", "env": [{"name": "B"}, {"name": "A"}, {"name": "C"}],
                    "envFrom": [{"secretRef": {"name": "s"}}, {"secretRef": {"name": "t"}}],
                    "volumeMounts": [{"mountPath": "/a", "name": "v"}, {"mountPath": "/b", "name": "w"}]},
                {"name": "mole"},
            ],
            "volumes": [{"name": "w"}, {"name": "v", "emptyDir": {}}],
        }));
        let expected = stateful_set(&json!({
            "initContainers": [],
            "containers": [
                {"name": "slurmctld", "image": "i", "env": [{"name": "A"}], "envFrom": [],
                    "volumeMounts": [{"mountPath": "/a", "name": "v"}]},
            ],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }));
        assert_eq!(without_extras("StatefulSet", &desired, &observed), expected);
    }

    #[test]
    fn labels_and_other_kinds_may_have_foreign_entries() {
        let observed = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"a": 1}, "data": {"a": "b"}});
        assert!(extras("PersistentVolumeClaim", &json!({}), &observed).is_empty());
        assert!(extras("Service", &json!({}), &observed).is_empty());
    }
}
