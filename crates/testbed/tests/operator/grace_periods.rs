//! Workers and whole sets are deleted while jobs run, by Kubernetes or by a user.

use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{chart_cluster, install_chart, operator_namespace};
use crate::common::jobs::{restarts, start_job, wait_undisturbed};
use crate::common::operator::install;
use crate::common::slurm::{SOON, slurm, wait_idle, wait_node};

/// One worker with a grace period of two minutes.
const PATIENT: &str = "nodesets:
  slinky:
    replicas: 1
    podSpec:
      terminationGracePeriodSeconds: 120
partitions:
  all:
    enabled: true
";

#[test]
fn a_deleted_busy_worker_has_its_grace_period() {
    let namespace = chart_cluster(cluster(), "grace", PATIENT, 1);
    let pod = "pod/slurm-worker-slinky-0";
    let uid = namespace.uid(pod).unwrap();
    let job = start_job(&namespace, 15);
    namespace.ask(&["delete", pod, "--wait=false"]).unwrap();
    eventually("it gets no new job", SOON, || {
        let node = slurm(&namespace, "scontrol show node slinky-0")?;
        expect(
            node.contains("DRAIN") && node.contains("Reason=slurm-operator: Pod is terminating"),
            node,
        )
    })
    .unwrap();
    wait_undisturbed(&namespace, &job, 0);
    eventually("another pod", SOON, || {
        let now = namespace.uid(pod)?;
        expect(now != uid, now)
    })
    .unwrap();
    wait_idle(&namespace, 1).unwrap();
}

#[test]
fn a_worker_that_the_kubelet_ends_is_down_after_its_grace_period_and_replaced() {
    let namespace = chart_cluster(cluster(), "ended", &PATIENT.replace("120", "15"), 1);
    let pod = "pod/slurm-worker-slinky-0";
    let uid = namespace.uid(pod).unwrap();
    let job = start_job(&namespace, 600);
    // The pod is not deleted: it fails, and is kept until it is cleaned up.
    let deadline = r#"{"spec":{"activeDeadlineSeconds":1}}"#;
    namespace.ask(&["patch", pod, "-p", deadline]).unwrap();
    wait_node(&namespace, "slinky-0", &["DRAIN", "Pod is terminating"], &[]).unwrap();
    assert_eq!(restarts(&namespace, &job).unwrap(), 0, "it has its grace period");
    eventually("the job is requeued", SOON, || {
        let count = restarts(&namespace, &job)?;
        expect(count == 1, count)
    })
    .unwrap();
    wait_idle(&namespace, 1).unwrap();
    assert_ne!(namespace.uid(pod).unwrap(), uid);
}

#[test]
fn the_deletion_of_a_nodeset_waits_for_its_job_and_slurmctld_keeps_running() {
    let namespace = operator_namespace(cluster(), "deleted");
    let values = PATIENT.replace("replicas: 1", "replicas: 2\n    partition:\n      enabled: true");
    install_chart(&namespace, &values).unwrap();
    wait_idle(&namespace, 2).unwrap();
    let set = "nodeset/slurm-worker-slinky";
    let job = start_job(&namespace, 30);
    namespace.ask(&["delete", set, "--wait=false"]).unwrap();
    eventually("it reports what it waits for", SOON, || {
        let why = namespace.field(set, ".status.conditions[?(@.type==\"Progressing\")].message")?;
        let matches = why.contains(&format!("job {job}")) && why.contains("force-deletion");
        expect(matches, why)
    })
    .unwrap();
    wait_undisturbed(&namespace, &job, 0);
    namespace.wait("delete", set).unwrap();
    eventually("nothing of the set is left", SOON, || {
        let nodes = slurm(&namespace, "scontrol --oneliner show nodes")?;
        let config = slurm(
            &namespace,
            "cat /etc/slurm/slurm.conf; scontrol --oneliner show partitions",
        )?;
        let pods = namespace.ask(&["get", "pods", "-l", "app.kubernetes.io/name=slurmd", "-o", "name"])?;
        let left = nodes.contains("slinky") || config.contains("PartitionName=slinky") || !pods.is_empty();
        expect(!left, (nodes, config, pods))
    })
    .unwrap();
    let restarts = namespace
        .field("pod/slurm-controller-0", ".status.containerStatuses[*].restartCount")
        .unwrap();
    assert!(restarts.split(' ').all(|count| count == "0"), "{restarts}");
}

#[test]
fn pods_that_kubernetes_deletes_with_their_set_have_their_grace_period() {
    let namespace = chart_cluster(cluster(), "foreground", PATIENT, 1);
    let job = start_job(&namespace, 20);
    let set = "nodeset/slurm-worker-slinky";
    namespace
        .ask(&["delete", set, "--cascade=foreground", "--wait=false"])
        .unwrap();
    wait_undisturbed(&namespace, &job, 0);
    namespace.wait("delete", set).unwrap();
    eventually("its Slurm node is deleted", SOON, || {
        let nodes = slurm(&namespace, "scontrol --oneliner show nodes")?;
        expect(!nodes.contains("slinky"), nodes)
    })
    .unwrap();
}

#[test]
fn the_deletion_of_a_cluster_with_a_job_does_not_hang() {
    let cluster = cluster();
    install(cluster);
    for deleted in ["together", "namespace", "forced"] {
        let namespace = Namespace::create(cluster, deleted).unwrap();
        install_chart(&namespace, &PATIENT.replace("120", "10")).unwrap();
        wait_idle(&namespace, 1).unwrap();
        start_job(&namespace, 600);
        match deleted {
            "namespace" => {
                let all = ["delete", "namespace", &namespace.name, "--timeout=120s"];
                cluster.ask(&all).unwrap();
                continue;
            }
            "forced" => {
                let set = "nodeset/slurm-worker-slinky";
                let force = "nodeset.slinky.slurm.net/force-deletion=true";
                namespace.ask(&["delete", set, "--wait=false"]).unwrap();
                namespace.ask(&["annotate", set, force]).unwrap();
                namespace.wait("delete", set).unwrap();
            }
            _ => {
                let all = ["delete", "controllers,nodesets,restapis", "--all", "--timeout=120s"];
                namespace.ask(&all).unwrap();
            }
        }
        namespace.wait("delete", "pod/slurm-worker-slinky-0").unwrap();
    }
}
