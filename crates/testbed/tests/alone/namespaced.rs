//! The operator for some namespaces only: it has no rights on Secrets, or on anything else of users, in others.

use testbed::cluster::Cluster;
use testbed::command::output;
use testbed::harness::{Namespace, alone, eventually, expect};
use testbed::paths;

use crate::common::clusters::{CONTROLLER, install_chart, operator_namespace, workers};
use crate::common::operator::{PutBack, helm};
use crate::common::slurm::{SOON, slurm, wait_idle};

fn install_for(cluster: &Cluster, namespaces: &[&str]) {
    let list = format!("operator.namespaces={}", namespaces.join("\\,"));
    let mut upgrade = helm(cluster);
    upgrade.args([
        "upgrade",
        "--install",
        "--wait",
        "--namespace=slinky",
        "slurm-operator",
        "--set",
        &list,
    ]);
    output(upgrade.arg(paths::repository().join("charts/slurm-operator"))).unwrap();
}

/// Whether the operator's account may do this, as the API server answers.
fn may(cluster: &Cluster, verb: &str, resource: &str, namespace: &str) -> bool {
    let account = "--as=system:serviceaccount:slinky:slurm-operator";
    let ask = ["auth", "can-i", verb, resource, "--namespace", namespace, account];
    cluster.ask(&ask).is_ok_and(|said| said.trim() == "yes")
}

#[test]
fn an_operator_of_one_namespace_runs_a_cluster_there_and_reads_nothing_elsewhere() {
    let alone = alone();
    let cluster = alone.cluster;
    let own = operator_namespace(cluster, "own");
    let other = Namespace::create(cluster, "other").unwrap();
    let _put_back = PutBack(cluster);
    // Helm takes the rights away before it replaces the pod, and requests that are denied count (testbed's rights.rs).
    let deployment = [
        "delete",
        "deployment/slurm-operator",
        "--namespace=slinky",
        "--cascade=foreground",
    ];
    cluster.ask(&deployment).unwrap();
    install_for(cluster, &[&own.name]);

    for verb in ["get", "list", "watch", "create", "patch", "delete"] {
        assert!(may(cluster, verb, "secrets", &own.name), "{verb} in its namespace");
        for place in [other.name.as_str(), "kube-system", "slinky"] {
            assert!(!may(cluster, verb, "secrets", place), "{verb} secrets in {place}");
        }
    }
    for (verb, resource) in [
        ("list", "pods"),
        ("create", "pods"),
        ("list", "configmaps"),
        ("list", "controllers.slinky.slurm.net"),
    ] {
        assert!(!may(cluster, verb, resource, &other.name), "{verb} {resource}");
    }

    // A whole cluster: Controller, workers and slurmrestd, a job, another number of workers, and its end.
    install_chart(&own, "nodesets: {slinky: {replicas: 1, partition: {enabled: true}}}\n").unwrap();
    wait_idle(&own, 1).unwrap();
    assert_eq!(slurm(&own, "srun -p slinky hostname").unwrap(), "slinky-0\n");
    own.ask(&["scale", "nodeset/slurm-worker-slinky", "--replicas=2"])
        .unwrap();
    wait_idle(&own, 2).unwrap();
    own.ask(&["delete", "nodeset/slurm-worker-slinky", "--timeout=120s"])
        .unwrap();

    // Objects elsewhere are nobody's.
    other.apply(CONTROLLER).unwrap();
    other.apply(&workers(1)).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert_eq!(other.ask(&["get", "pods,secrets", "-o", "name"]).unwrap(), "");

    // A second namespace is a matter of values.
    install_for(cluster, &[&own.name, &other.name]);
    wait_idle(&other, 1).unwrap();
    eventually("the pods of the operator are healthy", SOON, || {
        let log = ["logs", "deployment/slurm-operator", "--namespace=slinky"];
        let said = cluster.ask(&log)?;
        expect(!said.contains("is forbidden"), said)
    })
    .unwrap();
}
