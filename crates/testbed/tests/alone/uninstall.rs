//! Uninstallation in any order: nothing hangs, only volumes are left, and jobs continue while the operator is
//! uninstalled.

use anyhow::Result;
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, alone, eventually, expect};

use crate::common::clusters::{ONE_WORKER, install_chart};
use crate::common::operator::{PutBack, install, install_charts, uninstall};
use crate::common::pods::lives;
use crate::common::slurm::{SOON, slurm, wait_idle, wait_job};

const NODESET: &str = "nodeset/slurm-worker-slinky";
const FINALIZER: &str = "nodeset.slinky.slurm.net/reservation";
const PARTITION: &str = "
apiVersion: slinky.slurm.net/v1alpha1
kind: Partition
metadata: {name: long}
spec:
  controllerRef: {name: slurm}
  nodeSetSelector: {}
";

/// A cluster with one idle worker, whose NodeSet has the operator's finalizer.
fn one_worker(cluster: &'static Cluster, name: &str) -> Namespace {
    let namespace = Namespace::create(cluster, name).unwrap();
    install_chart(&namespace, ONE_WORKER).unwrap();
    wait_idle(&namespace, 1).unwrap();
    assert!(finalizers(&namespace, NODESET).contains(FINALIZER));
    namespace
}

fn finalizers(namespace: &Namespace, object: &str) -> String {
    namespace.field(object, ".metadata.finalizers").unwrap()
}

/// Waits until NodeSet and Partition have the operator's finalizers.
fn wait_finalizers(namespace: &Namespace) {
    eventually("NodeSet and Partition have their finalizers", SOON, || {
        let now = [NODESET, "partition/long"].map(|object| finalizers(namespace, object));
        expect(
            now.iter().all(|finalizers| finalizers.contains("slinky.slurm.net/")),
            now,
        )
    })
    .unwrap();
}

/// All objects in a namespace except events and those that Kubernetes creates in every namespace.
fn left(cluster: &Cluster, namespace: &str) -> Result<Vec<String>> {
    let kinds = cluster.ask(&["api-resources", "--namespaced", "--verbs=list", "-o", "name"])?;
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let names = cluster.ask(&["get", &kinds.join(","), "--namespace", namespace, "-o", "name"])?;
    let own = ["configmap/kube-root-ca.crt", "serviceaccount/default"];
    Ok(names
        .lines()
        .filter(|name| !own.contains(name))
        .map(str::to_owned)
        .collect())
}

/// Only the volume of slurmctld's state is kept, as in the StatefulSet's retention policy.
fn only_volumes_are_left(cluster: &Cluster, namespace: &Namespace) {
    eventually("only the volume is left", SOON, || {
        let left = left(cluster, &namespace.name)?;
        expect(left == ["persistentvolumeclaim/statesave-slurm-controller-0"], left)
    })
    .unwrap();
}

fn delete_namespace(cluster: &Cluster, namespace: &Namespace) {
    cluster
        .ask(&["delete", "namespace", &namespace.name, "--timeout=120s"])
        .unwrap();
}

#[test]
fn the_operator_is_uninstalled_and_reinstalled_without_an_effect_on_jobs() {
    let alone = alone();
    let cluster = alone.cluster;
    install(cluster);
    let _put_back = PutBack(cluster);
    let namespace = one_worker(cluster, "comeback");
    namespace.apply(PARTITION).unwrap();
    wait_finalizers(&namespace);
    let batch =
        "sbatch --parsable -p all --chdir=/tmp -o /dev/null --wrap 'until test -e /tmp/enough; do sleep 1; done'";
    let job = slurm(&namespace, batch).unwrap();
    let job = job.trim();
    wait_job(&namespace, job, "RUNNING").unwrap();
    let before = lives(&namespace).unwrap();

    uninstall(cluster, "slinky", "slurm-operator").unwrap();
    for object in [NODESET, "partition/long"] {
        assert_eq!(finalizers(&namespace, object), "", "{object}");
    }
    eventually(
        "nothing of the operator is left but the chart with its kinds",
        SOON,
        || {
            let left = left(cluster, "slinky")?;
            let other: Vec<_> = left
                .iter()
                .filter(|name| !name.contains("sh.helm.release.v1.slurm-operator-crds."))
                .collect();
            expect(other.is_empty(), other)
        },
    )
    .unwrap();
    assert_eq!(lives(&namespace).unwrap(), before);
    wait_job(&namespace, job, "RUNNING").unwrap();

    install_charts(cluster).unwrap();
    wait_finalizers(&namespace);
    namespace.ask(&["scale", NODESET, "--replicas=2"]).unwrap();
    eventually("the operator acts again", SOON, || {
        let ready = namespace.field(NODESET, ".status.readyReplicas")?;
        expect(ready == "2", ready)
    })
    .unwrap();
    let now = lives(&namespace).unwrap();
    assert!(before.lines().all(|pod| now.contains(pod)), "{before}\n{now}");
    namespace
        .exec("slurm-worker-slinky-0 -c slurmd", "touch /tmp/enough")
        .unwrap();
    wait_job(&namespace, job, "COMPLETED").unwrap();
    let shown = slurm(&namespace, &format!("scontrol show job {job}")).unwrap();
    assert!(shown.contains("Restarts=0"), "{shown}");
    // An error for missing permissions names the ServiceAccount.
    let log = cluster
        .ask(&["logs", "--namespace", "slinky", "deployment/slurm-operator"])
        .unwrap();
    let refused: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("system:serviceaccount:"))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn the_operator_first_then_the_cluster_then_the_namespace() {
    let alone = alone();
    let cluster = alone.cluster;
    install(cluster);
    let _put_back = PutBack(cluster);
    let namespace = one_worker(cluster, "operator-first");
    uninstall(cluster, "slinky", "slurm-operator").unwrap();
    assert_eq!(slurm(&namespace, "srun -p all hostname").unwrap(), "slinky-0\n");
    uninstall(cluster, &namespace.name, "slurm").unwrap();
    only_volumes_are_left(cluster, &namespace);
    delete_namespace(cluster, &namespace);
}

#[test]
fn the_cluster_first_and_the_operator_right_after_it() {
    let alone = alone();
    let cluster = alone.cluster;
    install(cluster);
    let _put_back = PutBack(cluster);
    let namespace = one_worker(cluster, "cluster-first");
    uninstall(cluster, &namespace.name, "slurm").unwrap();
    uninstall(cluster, "slinky", "slurm-operator").unwrap();
    only_volumes_are_left(cluster, &namespace);
    delete_namespace(cluster, &namespace);
}

#[test]
fn a_namespace_is_deleted_with_its_cluster() {
    let alone = alone();
    let cluster = alone.cluster;
    install(cluster);
    let namespace = one_worker(cluster, "doomed");
    let job = slurm(
        &namespace,
        "sbatch --parsable -p all --chdir=/tmp -o /dev/null --wrap 'sleep 1000'",
    )
    .unwrap();
    wait_job(&namespace, job.trim(), "RUNNING").unwrap();
    delete_namespace(cluster, &namespace);
}
