//! Pods of tests.

use anyhow::Result;
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::harness::Namespace;

use super::servers;

/// A pod that sleeps, with changes to its spec; those under `container` go to its container.
pub fn shell_pod(name: &str, changes: &serde_json::Value) -> String {
    let mut spec = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "shell", "image": "alpine:latest", "imagePullPolicy": "IfNotPresent", "command": ["sleep", "infinity"]}],
    });
    let changes = changes.as_object().unwrap();
    for (key, value) in changes {
        if key == "container" {
            let container = spec["containers"][0].as_object_mut().unwrap();
            container.extend(value.as_object().unwrap().clone());
        } else {
            spec[key] = value.clone();
        }
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
}

/// A client `one` on node1 and a server `two` on node2.
pub fn pair(cluster: &'static Cluster, name: &str) -> Namespace {
    servers::load(cluster);
    let namespace = Namespace::create(cluster, name).unwrap();
    namespace
        .apply(&shell_pod("one", &json!({"nodeName": "node1"})))
        .unwrap();
    namespace.apply(&servers::pod("two", "node2")).unwrap();
    namespace.wait("condition=Ready", "pod/one").unwrap();
    namespace.wait("condition=Ready", "pod/two").unwrap();
    namespace
}

/// Fetches a page of a server from `one` and returns the connection time in seconds.
pub fn connect(namespace: &Namespace, server: &str) -> Result<f64> {
    let address = namespace.field(&format!("pod/{server}"), ".status.podIP")?;
    let line = format!("curl -s -o /dev/null --max-time 3 -w '%{{time_connect}}' http://{address}:8080/hostname");
    Ok(namespace.exec("one", &line)?.trim().parse()?)
}

/// Label selector of worker pods.
pub const WORKERS: &str = "app.kubernetes.io/name=slurmd";

/// The UIDs of the pods that a label selector finds.
pub fn uids(namespace: &Namespace, selector: &str) -> Result<Vec<String>> {
    let path = "jsonpath={.items[*].metadata.uid}";
    let shown = namespace.ask(&["get", "pods", "-l", selector, "-o", path])?;
    Ok(shown.split_whitespace().map(str::to_owned).collect())
}

/// Name, UID and restart counts of each pod, one per line: they change when a pod is replaced or a container restarts.
pub fn lives(namespace: &Namespace) -> Result<String> {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.status.containerStatuses[*].restartCount}{'\\n'}{end}";
    namespace.ask(&["get", "pods", "-o", path])
}
