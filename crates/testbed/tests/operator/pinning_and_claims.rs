//! The pinned Kubernetes node of a worker, its claims, and the adoption of orphaned pods.

use serde_json::json;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{CONTROLLER, manifest_cluster, operator_namespace, workers};
use crate::common::slurm::{SOON, slurm, start_job, wait_done, wait_idle};

const SET: &str = "nodeset/compute";

/// This number of pinned workers, each with a volume that is deleted at a scale-in, and kept or deleted with the set.
fn with_belongings(namespace: &Namespace, count: usize, when_deleted: &str) {
    namespace.apply(&workers(0)).unwrap();
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } },
    });
    let spec = json!({ "spec": {
        "replicas": count,
        "pinToNode": true,
        "volumeClaimTemplates": [claim],
        "persistentVolumeClaimRetentionPolicy": { "whenScaled": "Delete", "whenDeleted": when_deleted },
    } });
    let patch = ["patch", SET, "--type=merge", "--patch", &spec.to_string()];
    namespace.ask(&patch).unwrap();
    wait_idle(namespace, count).unwrap();
}

/// The workers' volumes, with their UIDs.
fn claims(namespace: &Namespace) -> anyhow::Result<Vec<String>> {
    let shown = namespace.ask(&[
        "get",
        "pvc",
        "-o",
        "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{\"\\n\"}{end}",
    ])?;
    let ours = shown.lines().filter(|claim| claim.starts_with("data-"));
    Ok(ours.map(str::to_owned).collect())
}

#[test]
fn a_worker_returns_to_its_node_and_volume_and_only_a_scale_in_deletes_the_volume() {
    let namespace = operator_namespace(cluster(), "belongings");
    namespace.apply(CONTROLLER).unwrap();
    with_belongings(&namespace, 3, "Retain");
    let before = claims(&namespace).unwrap();
    assert_eq!(before.len(), 3, "{before:?}");

    let pod = "pod/compute-2";
    let node = namespace.field(pod, ".spec.nodeName").unwrap();
    let uid = namespace.uid(pod).unwrap();
    assert_eq!(namespace.field(SET, ".status.ordinalToNode.2").unwrap(), node);
    namespace.ask(&["delete", pod, "--grace-period=1"]).unwrap();
    eventually("another pod", SOON, || {
        let now = namespace.uid(pod)?;
        expect(now != uid, now)
    })
    .unwrap();
    wait_idle(&namespace, 3).unwrap();
    assert_eq!(namespace.field(pod, ".spec.nodeName").unwrap(), node);
    let affinity = namespace.field(pod, ".spec.affinity.nodeAffinity").unwrap();
    assert!(affinity.contains(&node), "{affinity}");
    assert_eq!(claims(&namespace).unwrap(), before);

    namespace.ask(&["scale", SET, "--replicas=2"]).unwrap();
    eventually("the volume of the third is gone", SOON, || {
        let now = claims(&namespace)?;
        expect(now == before[..2], now)
    })
    .unwrap();
    namespace.ask(&["delete", SET]).unwrap();
    assert_eq!(claims(&namespace).unwrap(), before[..2]);

    // The next set adopts them and deletes them with itself.
    with_belongings(&namespace, 2, "Delete");
    assert_eq!(claims(&namespace).unwrap(), before[..2]);
    eventually("the set owns them", SOON, || {
        let owners = "jsonpath={.items[*].metadata.ownerReferences[*].kind}";
        let owners = namespace.ask(&["get", "pvc", "data-compute-0", "data-compute-1", "-o", owners])?;
        expect(owners == "NodeSet NodeSet", owners)
    })
    .unwrap();
    namespace.ask(&["delete", SET]).unwrap();
    eventually("no volume is left", SOON, || {
        let left = claims(&namespace)?;
        expect(left.is_empty(), left)
    })
    .unwrap();
}

#[test]
fn orphaned_pods_are_adopted_by_the_next_set_and_no_job_is_lost() {
    let namespace = manifest_cluster(cluster(), "orphans", 1);
    let uid = || namespace.uid("pod/compute-0");
    let before = uid().unwrap();
    let job = start_job(&namespace, "-p all", "sleep 15").unwrap();
    // It ends with the job, because the set's line is removed from slurm.conf then.
    namespace
        .ask(&["delete", SET, "--cascade=orphan", "--timeout=120s"])
        .unwrap();
    wait_done(&namespace, &job).unwrap();
    assert_eq!(uid().unwrap(), before);

    namespace.apply(&workers(1)).unwrap();
    wait_idle(&namespace, 1).unwrap();
    assert_eq!(uid().unwrap(), before);
    let owner = namespace
        .field("pod/compute-0", ".metadata.ownerReferences[0].uid")
        .unwrap();
    assert_eq!(owner, namespace.uid(SET).unwrap());
    assert_eq!(slurm(&namespace, "srun -p compute hostname").unwrap(), "compute-0\n");
}
