//! Volumes.

use serde_json::json;
use testbed::harness::{Namespace, cluster};

use crate::common::pods::shell_pod;

fn claim(name: &str, class: Option<&str>, mode: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {
            "storageClassName": class, "accessModes": [mode], "resources": {"requests": {"storage": "16Mi"}},
        },
    })
    .to_string()
}

/// A pod with the claim `data` at /data, on a node of choice.
fn pod_with_claim(name: &str, node: &str) -> String {
    shell_pod(
        name,
        &json!({
            "nodeName": node,
            "securityContext": {"runAsUser": 401, "runAsGroup": 401, "fsGroup": 401},
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "container": {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        }),
    )
}

#[test]
fn a_claim_gets_a_volume_that_nodes_share_and_that_is_deleted_with_it() {
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "storage").unwrap();
    namespace.apply(&claim("data", None, "ReadWriteMany")).unwrap();
    namespace.apply(&pod_with_claim("writer", "node1")).unwrap();
    namespace.apply(&pod_with_claim("reader", "node3")).unwrap();
    namespace.wait("condition=Ready", "pod/writer").unwrap();
    namespace.wait("condition=Ready", "pod/reader").unwrap();

    namespace.exec("writer", "echo kept > /data/file").unwrap();
    assert_eq!(
        namespace.exec("reader", "cat /data/file; stat -c %g /data").unwrap(),
        "kept\n401\n"
    );

    let volume = namespace.field("pvc/data", ".spec.volumeName").unwrap();
    let folder = cluster.layout.volumes().join(&volume);
    assert!(folder.join("file").exists());
    namespace
        .ask(&["delete", "pod/writer", "pod/reader", "pvc/data", "--grace-period=1"])
        .unwrap();
    namespace.wait("delete", &format!("pv/{volume}")).unwrap();
    assert!(!folder.exists());
}

#[test]
fn a_freezable_volume_hangs_and_continues() {
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "frozen").unwrap();
    namespace
        .apply(&claim("data", Some("freezable"), "ReadWriteMany"))
        .unwrap();
    namespace.apply(&pod_with_claim("shell", "node2")).unwrap();
    namespace.wait("condition=Ready", "pod/shell").unwrap();
    let write = |text: &str| {
        let line = format!("timeout 2 sh -c 'echo {text} >> /data/file'; cat /data/file; stat -c %g /data");
        namespace.exec("shell", &line)
    };
    assert_eq!(write("before").unwrap(), "before\n401\n");
    let frozen = cluster.freeze_volume(&namespace.name, "data").unwrap();
    let hung = namespace.exec("shell", "timeout 2 ls /data || echo hung").unwrap();
    assert_eq!(hung, "hung\n");
    frozen.heal().unwrap();
    assert_eq!(write("after").unwrap(), "before\nafter\n401\n");

    let volume = namespace.field("pvc/data", ".spec.volumeName").unwrap();
    namespace
        .ask(&["delete", "pod/shell", "pvc/data", "--grace-period=1"])
        .unwrap();
    namespace.wait("delete", &format!("pv/{volume}")).unwrap();
}

#[test]
fn a_limited_volume_can_be_filled_and_emptied() {
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "full").unwrap();
    namespace
        .apply(&claim("data", Some("limited"), "ReadWriteOnce"))
        .unwrap();
    namespace.apply(&pod_with_claim("shell", "node2")).unwrap();
    namespace.wait("condition=Ready", "pod/shell").unwrap();
    namespace.exec("shell", "echo before > /data/before").unwrap();

    let full = cluster.fill_volume(&namespace.name, "data").unwrap();
    let refused = namespace
        .exec("shell", "dd if=/dev/zero of=/data/more bs=64k count=1")
        .unwrap_err()
        .to_string();
    assert!(refused.contains("No space left on device"), "{refused}");
    full.heal().unwrap();
    assert_eq!(
        namespace
            .exec("shell", "echo after > /data/after; cat /data/before /data/after")
            .unwrap(),
        "before\nafter\n"
    );
}
