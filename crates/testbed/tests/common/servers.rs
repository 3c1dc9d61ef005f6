//! The test server (examples/apis.rs) as an image, and manifests that run it.

use anyhow::Result;
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, once_for};
use testbed::{image, pki};

pub const IMAGE: &str = "localhost/testbed-apis:1";

/// Loads the server's image once for all tests.
pub fn load(cluster: &Cluster) {
    once_for(cluster, "servers", || {
        let name = format!("testbed-apis-{}-{}.tar", cluster.layout.cluster, std::process::id());
        let archive = std::env::temp_dir().join(name);
        let binary = testbed::sibling("examples/apis").unwrap();
        image::scratch_image(&archive, IMAGE, &[&binary], &["/apis"]).unwrap();
        cluster.load(&archive).unwrap();
        std::fs::remove_file(&archive).unwrap();
    });
}

/// A StatefulSet `web` of two with a headless Service of the same name and a ClusterIP Service `front`.
pub fn web() -> String {
    let service = |name: &str, cluster_ip: Option<&str>| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {
                "clusterIP": cluster_ip, "selector": {"app": "web"},
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
            },
        })
    };
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web"},
        "spec": {
            "serviceName": "web", "replicas": 2, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": {"app": "web"}},
                    }],
                    "containers": [container(&json!([]))],
                },
            },
        },
    });
    list(&[service("web", Some("None")), service("front", None), set])
}

/// One server on this node.
pub fn pod(name: &str, node: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": node, "containers": [container(&json!([]))]},
    })
    .to_string()
}

/// A pod `apis` that serves HTTPS under the name `apis.NAMESPACE.svc`, and its Service.
pub fn secure(cluster: &Cluster, namespace: &Namespace) -> Result<String> {
    let host = format!("apis.{}.svc", namespace.name);
    let authority = pki::open(&cluster.layout.pki())?;
    let (certificate, key) = authority.serving(&[&host])?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"name": "apis"},
        "stringData": {"tls.crt": certificate, "tls.key": key},
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "apis"},
        "spec": {"selector": {"app": "apis"}, "ports": [{"port": 443, "targetPort": 8443}]},
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "apis", "labels": {"app": "apis"}},
        "spec": {
            "containers": [container(&json!([{"name": "tls", "mountPath": "/tls"}]))],
            "volumes": [{"name": "tls", "secret": {"secretName": "apis"}}],
        },
    });
    Ok(list(&[secret, service, pod]))
}

pub fn authority_base64(cluster: &Cluster) -> Result<String> {
    Ok(pki::base64(
        pki::open(&cluster.layout.pki())?.certificate_pem()?.as_bytes(),
    ))
}

pub fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn container(mounts: &Value) -> Value {
    json!({
        "name": "server", "image": IMAGE, "imagePullPolicy": "Never",
        "readinessProbe": {"httpGet": {"path": "/hostname", "port": 8080}, "periodSeconds": 1},
        "volumeMounts": mounts,
    })
}
