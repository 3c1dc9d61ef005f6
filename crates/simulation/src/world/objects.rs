//! Access to objects as JSON.

use runtime::fake::Path;
use serde_json::Value;

/// Everything lives in one namespace.
pub const NAMESPACE: &str = "slurm";

pub(super) fn at(plural: &str, name: &str) -> Path {
    let group = match plural {
        "nodesets" | "controllers" | "partitions" | "restapis" => "/apis/slinky.slurm.net/v1beta1",
        "statefulsets" | "deployments" | "controllerrevisions" => "/apis/apps/v1",
        "poddisruptionbudgets" => "/apis/policy/v1",
        "leases" => "/apis/coordination.k8s.io/v1",
        "customresourcedefinitions" => return Path::parse(&format!("/apis/apiextensions.k8s.io/v1/{plural}/{name}")),
        "nodes" | "namespaces" => {
            return Path {
                api_version: "v1".to_owned(),
                plural: plural.to_owned(),
                namespace: String::new(),
                name: name.to_owned(),
                status: false,
            };
        }
        _ => "/api/v1",
    };
    Path::parse(&format!("{group}/namespaces/{NAMESPACE}/{plural}/{name}"))
}

pub(super) fn text(object: &Value, pointer: &str) -> String {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

pub(super) fn name_of(object: &Value) -> String {
    text(object, "/metadata/name")
}

pub(super) fn uid_of(object: &Value) -> String {
    text(object, "/metadata/uid")
}
