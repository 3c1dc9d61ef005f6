//! The scaling modes and the change between them, and autoscaling by a metric.

use anyhow::Result;
use serde_json::json;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{CONTROLLER, operator_namespace, workers};
use crate::common::operator::install;
use crate::common::servers;
use crate::common::slurm::{SOON, slurm, start_job, wait_done, wait_idle, wait_node};

#[test]
fn workers_follow_kubernetes_nodes_and_mode_changes_without_losing_a_job() {
    let cluster = cluster();
    let namespace = operator_namespace(cluster, "modes");
    let nodes = cluster.nodes();
    let pool = format!("pool.testbed.invalid/{}", namespace.name);
    let label = |node: &str, value: &str| {
        cluster
            .ask(&["label", "node", node, &format!("{pool}{value}")])
            .unwrap()
    };
    for node in &nodes[..2] {
        label(node, "=yes");
    }
    let template = json!({ "spec": { "nodeSelector": { (pool.as_str()): "yes" } } });
    let mode = |mode: &str| {
        // Ordinals have three digits.
        let spec = json!({ "spec": { "scalingMode": mode, "ordinalPadding": 3, "template": template } });
        let patch = ["patch", "nodeset/compute", "--type=merge", "--patch"];
        namespace.ask(&[&patch[..], &[&spec.to_string()]].concat())
    };
    namespace.apply(CONTROLLER).unwrap();
    namespace.apply(&workers(0)).unwrap();
    mode("DaemonSet").unwrap();
    wait_idle(&namespace, 2).unwrap();
    for node in &nodes[..2] {
        wait_node(&namespace, node, &["State=IDLE"], &[]).unwrap();
    }

    // A third node is added and the second is removed, after the end of its job.
    let job = start_job(&namespace, &format!("-w {}", nodes[1]), "sleep 15").unwrap();
    label(&nodes[2], "=yes");
    label(&nodes[1], "-");
    wait_node(&namespace, &nodes[2], &["State=IDLE"], &[]).unwrap();
    wait_node(&namespace, &nodes[1], &["DRAIN", "slurm-operator: "], &[]).unwrap();
    wait_done(&namespace, &job).unwrap();
    wait_idle(&namespace, 2).unwrap();
    wait_node(&namespace, &nodes[0], &["State=IDLE"], &[]).unwrap();

    // Workers with ordinals replace them; a job on an old one ends first.
    let job = start_job(&namespace, &format!("-w {}", nodes[0]), "sleep 15").unwrap();
    namespace.ask(&["scale", "nodeset/compute", "--replicas=1"]).unwrap();
    mode("StatefulSet").unwrap();
    wait_node(&namespace, "compute-000", &["State=IDLE"], &[]).unwrap();
    wait_done(&namespace, &job).unwrap();
    wait_idle(&namespace, 1).unwrap();
    assert_eq!(slurm(&namespace, "srun -p all hostname").unwrap(), "compute-000\n");
    let hostname = namespace.field("pod/compute-000", ".spec.hostname").unwrap();
    assert_eq!(hostname, "compute-000");

    // And back again.
    let job = start_job(&namespace, "-w compute-000", "sleep 15").unwrap();
    mode("DaemonSet").unwrap();
    for node in [&nodes[0], &nodes[2]] {
        wait_node(&namespace, node, &["State=IDLE"], &[]).unwrap();
    }
    wait_done(&namespace, &job).unwrap();
    wait_idle(&namespace, 2).unwrap();
    for node in [&nodes[0], &nodes[2]] {
        label(node, "-");
    }
}

#[test]
fn an_autoscaler_drives_workers_and_login_pods() {
    let cluster = cluster();
    install(cluster);
    servers::load(cluster);
    let namespace = Namespace::create(cluster, "hpa").unwrap();
    namespace.apply(&servers::secure(cluster, &namespace).unwrap()).unwrap();
    namespace.apply(CONTROLLER).unwrap();
    namespace.apply(&workers(1)).unwrap();
    namespace.wait("condition=Ready", "pod/apis").unwrap();
    let name = "v1beta1.external.metrics.k8s.io";
    let metrics = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": { "name": name },
        "spec": {
            "group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": { "name": "apis", "namespace": namespace.name },
            "caBundle": servers::authority_base64(cluster).unwrap(),
        },
    });
    namespace.apply(&metrics.to_string()).unwrap();
    let conf = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "sssd" },
        "stringData": { "sssd.conf": "[sssd]\nservices = nss, pam\n" },
    });
    let doors = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "LoginSet", "metadata": { "name": "login" },
        "spec": { "controllerRef": { "name": "slurm" }, "sssdConfRef": { "name": "sssd", "key": "sssd.conf" } },
    });
    for object in [conf, doors] {
        namespace.apply(&object.to_string()).unwrap();
    }
    let followed = namespace
        .wait("condition=Available", &format!("apiservice/{name}"))
        .and_then(|()| {
            scale_by_load(&namespace, "LoginSet", "login", 2)?;
            scale_by_load(&namespace, "NodeSet", "compute", 1)?;
            wait_idle(&namespace, 5)?;
            wait_pods(&namespace, "login", 3)?;
            scale_by_load(&namespace, "LoginSet", "login", 5)?;
            scale_by_load(&namespace, "NodeSet", "compute", 5)?;
            wait_idle(&namespace, 1)?;
            wait_pods(&namespace, "slurmd", 1)?;
            wait_pods(&namespace, "login", 1)
        });
    cluster.ask(&["delete", "apiservice", name]).unwrap();
    followed.unwrap();
}

/// Scales a set by a metric of five, with this target per pod.
fn scale_by_load(namespace: &Namespace, kind: &str, name: &str, load_of_one: u32) -> Result<()> {
    let scaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": { "name": name },
        "spec": {
            "scaleTargetRef": { "apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "name": name },
            "minReplicas": 1, "maxReplicas": 9, "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0 } },
            "metrics": [{ "type": "External", "external": {
                "metric": { "name": "load" }, "target": { "type": "AverageValue", "averageValue": load_of_one.to_string() },
            } }],
        },
    });
    namespace.apply(&scaler.to_string())
}

fn wait_pods(namespace: &Namespace, name: &str, count: usize) -> Result<()> {
    let selector = format!("app.kubernetes.io/name={name}");
    eventually(&format!("{count} pods of {name}"), SOON, || {
        let pods = namespace.ask(&["get", "pods", "-l", &selector, "-o", "name"])?;
        expect(pods.lines().count() == count, pods)
    })
}
