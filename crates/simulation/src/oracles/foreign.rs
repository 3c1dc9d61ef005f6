//! Objects of others: nothing of ours changes them.

use serde_json::{Value, json};

use crate::world::{NAMESPACE, World};

/// A namespace that is not ours.
const OTHER: &str = "other";

/// Kinds and names of all foreign objects, with their namespaces.
const OBJECTS: [(&str, &str, &str, &str); 9] = [
    ("v1", "Secret", "password", NAMESPACE),
    ("v1", "ConfigMap", "settings", NAMESPACE),
    ("v1", "Service", "web", NAMESPACE),
    ("v1", "Pod", "web", NAMESPACE),
    ("v1", "PersistentVolumeClaim", "data", NAMESPACE),
    ("apps/v1", "StatefulSet", "database", NAMESPACE),
    ("v1", "Secret", "slurm-auth-slurm", OTHER),
    ("v1", "ConfigMap", "slurm-config", OTHER),
    ("v1", "Service", "slurm-controller", OTHER),
];

fn path_of(api_version: &str, kind: &str, name: &str, namespace: &str) -> String {
    let root = if api_version == "v1" { "/api" } else { "/apis" };
    format!(
        "{root}/{api_version}/namespaces/{namespace}/{}s/{name}",
        kind.to_lowercase()
    )
}

/// Puts objects of others into the world, some with names like ours in another namespace.
pub fn create_foreign_objects(world: &World) {
    for (api_version, kind, name, namespace) in OBJECTS {
        world.create_at(
            &path_of(api_version, kind, "", namespace),
            object(api_version, kind, name, namespace),
        );
    }
    for node in world.names("nodes") {
        let theirs =
            json!({ "labels": { "example.com/rack": "r1" }, "annotations": { "example.com/owner": "hardware" } });
        world.patch("nodes", &node, &json!({ "metadata": theirs }));
    }
}

fn object(api_version: &str, kind: &str, name: &str, namespace: &str) -> Value {
    let labels = json!({ "app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "slurm" });
    let meta = json!({
        "name": name, "namespace": namespace, "labels": labels, "annotations": { "example.com/owner": "somebody" },
    });
    let template =
        json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "main", "image": "web" }] } });
    let mut object = json!({ "apiVersion": api_version, "kind": kind, "metadata": meta });
    match kind {
        "Secret" => object["data"] = json!({ "password": "c2VjcmV0" }),
        "ConfigMap" => object["data"] = json!({ "slurm.conf": "ClusterName=other\n" }),
        "Pod" => object["spec"] = template["spec"].clone(),
        "StatefulSet" => object["spec"] = json!({ "replicas": 1, "template": template }),
        _ => object["spec"] = json!({}),
    }
    object
}

/// Whether a path of a request is one of an object of others.
pub(super) fn is_foreign(path: &str) -> bool {
    let paths = OBJECTS
        .iter()
        .map(|(api_version, kind, name, namespace)| path_of(api_version, kind, name, namespace));
    let mut paths = paths.map(|object| path.strip_prefix(object.as_str()).map(str::to_owned));
    path.contains("/nodes/")
        || path.contains(&format!("/namespaces/{OTHER}/"))
        || path.ends_with("/pods/database-0")
        || paths.any(|rest| rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// What is not as others made it.
pub(super) fn judge(world: &World) -> Vec<String> {
    let mut failures = Vec::new();
    for (api_version, kind, name, namespace) in OBJECTS {
        let path = path_of(api_version, kind, name, namespace);
        let made = object(api_version, kind, name, namespace);
        let Ok(found) = world.get_at(&path) else {
            failures.push(format!("the foreign {kind} {name} is gone"));
            continue;
        };
        let differs = |pointer: &str| found.pointer(pointer) != made.pointer(pointer);
        // The scheduler names the node of a pod.
        let spec = if kind == "Pod" { "/spec/containers" } else { "/spec" };
        let fields = [
            "/metadata/labels",
            "/metadata/annotations",
            "/metadata/ownerReferences",
            "/metadata/finalizers",
        ];
        if let Some(field) = fields.into_iter().chain(["/data", spec]).find(|field| differs(field)) {
            failures.push(format!("{field} of the foreign {kind} {name} changed"));
        }
    }
    if world.get("pods", "database-0").is_err() {
        failures.push("the pod of the foreign StatefulSet is gone".to_owned());
    }
    failures
}
