//! Workers that may have jobs are protected from every eviction.

use serde_json::json;
use testbed::command::output_with_input;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{both_modes, install_chart};
use crate::common::operator::install;
use crate::common::pods::shell_pod;
use crate::common::servers;
use crate::common::slurm::{SOON, wait_idle};

/// Evicts a pod as `kubectl drain` does. The error contains the response of the API server.
fn evict(namespace: &Namespace, pod: &str) -> Result<(), String> {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", namespace.name);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}});
    let mut command = namespace.kubectl(&["create", "--raw", &path, "-f", "-"]);
    output_with_input(&mut command, &eviction.to_string())
        .map(drop)
        .map_err(|error| format!("{error:#}"))
}

fn budget(namespace: &Namespace, field: &str) -> anyhow::Result<String> {
    namespace.field(
        "poddisruptionbudget/slurm-workers-pdb-slurm",
        &format!(".status.{field}"),
    )
}

#[test]
fn only_unprotected_pods_can_be_evicted() {
    let cluster = cluster();
    install(cluster);
    servers::load(cluster);
    let namespace = Namespace::create(cluster, "evictions").unwrap();
    install_chart(&namespace, &both_modes("node2", "node1")).unwrap();
    wait_idle(&namespace, 2).unwrap();
    for pod in ["bare", "free"] {
        namespace.apply(&shell_pod(pod, &json!({}))).unwrap();
        namespace.wait("condition=Ready", &format!("pod/{pod}")).unwrap();
    }
    let marks = [
        "nodeset.slinky.slurm.net/pod-protect=true",
        "slinky.slurm.net/cluster=slurm",
    ];
    namespace.ask(&["label", "pod/bare", marks[0], marks[1]]).unwrap();

    eventually(
        "the budget counts both workers and the pod without an owner",
        SOON,
        || {
            let seen = budget(
                &namespace,
                "expectedPods}/{.status.currentHealthy}/{.status.disruptionsAllowed",
            )?;
            expect(seen == "3/3/0", seen)
        },
    )
    .unwrap();
    let protected = namespace
        .ask(&[
            "get",
            "pods",
            "--selector",
            marks[0],
            "-o",
            "jsonpath={.items[*].metadata.name}",
        ])
        .unwrap();
    let protected: Vec<&str> = protected.split_whitespace().collect();
    assert_eq!(protected.len(), 3, "{protected:?}");
    for pod in protected {
        let refusal = evict(&namespace, pod).expect_err(pod);
        assert!(refusal.contains("disruption budget"), "{pod}: {refusal}");
    }
    evict(&namespace, "free").unwrap();
    namespace.wait("delete", "pod/free").unwrap();
}
