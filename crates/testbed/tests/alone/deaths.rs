//! The operator, slurmrestd and slurmctld die together in the middle of what is being done to workers with jobs.

use testbed::cluster::Cluster;
use testbed::harness::{Namespace, alone, eventually, expect};

use crate::common::jobs::{start_job, wait_undisturbed};
use crate::common::operator::{SOON, install, install_chart, slurm, wait_idle, wait_saved};

const SET: &str = "nodeset/slurm-worker-slinky";
const WORKERS: &str = "app.kubernetes.io/name=slurmd";

/// Two workers with this much grace, which is part of their template.
fn change(cluster: &Cluster, namespace: &Namespace, grace: u32) {
    let values = format!(
        "nodesets:
  slinky:
    replicas: 2
    podSpec: {{terminationGracePeriodSeconds: {grace}}}
partitions:
  all:
    enabled: true
"
    );
    install_chart(cluster, namespace, &values).unwrap();
}

fn kill_everyone(cluster: &Cluster, namespace: &Namespace) {
    let killed = ["delete", "pods", "--force", "--grace-period=0", "--selector"];
    let operator = ["app.kubernetes.io/name=slurm-operator", "--namespace=slinky"];
    cluster.ask(&[&killed[..], &operator].concat()).unwrap();
    namespace
        .ask(&[&killed[..], &["app.kubernetes.io/name=slurmrestd"]].concat())
        .unwrap();
    cluster
        .kill_container(namespace.pod("slurm-controller-0"), "slurmctld")
        .unwrap();
}

fn wait_draining(namespace: &Namespace) {
    eventually("a node is drained by us", SOON, || {
        let nodes = slurm(namespace, "scontrol --oneliner show nodes")?;
        expect(
            nodes.contains("DRAIN") && nodes.contains("Reason=slurm-operator: "),
            nodes,
        )
    })
    .unwrap();
}

fn uids(namespace: &Namespace) -> anyhow::Result<Vec<String>> {
    let shown = namespace.ask(&["get", "pods", "-l", WORKERS, "-o", "jsonpath={.items[*].metadata.uid}"])?;
    Ok(shown.split_whitespace().map(str::to_owned).collect())
}

#[test]
fn an_update_and_a_deletion_come_to_their_end_and_no_job_is_lost() {
    let alone = alone();
    let cluster = alone.cluster;
    install(cluster);
    let namespace = Namespace::create(cluster, "deaths").unwrap();
    change(cluster, &namespace, 120);
    wait_idle(&namespace, 2).unwrap();
    let before = uids(&namespace).unwrap();

    let jobs = [start_job(&namespace, 30), start_job(&namespace, 30)];
    wait_saved(&namespace).unwrap();
    change(cluster, &namespace, 121);
    wait_draining(&namespace);
    kill_everyone(cluster, &namespace);
    for job in &jobs {
        wait_undisturbed(&namespace, job, 0);
    }
    eventually("all workers are replaced", SOON, || {
        let now = uids(&namespace)?;
        expect(now.len() == 2 && !now.iter().any(|uid| before.contains(uid)), now)
    })
    .unwrap();
    wait_idle(&namespace, 2).unwrap();

    let job = start_job(&namespace, 30);
    wait_saved(&namespace).unwrap();
    namespace.ask(&["delete", SET, "--wait=false"]).unwrap();
    wait_draining(&namespace);
    kill_everyone(cluster, &namespace);
    wait_undisturbed(&namespace, &job, 0);
    namespace.wait("delete", SET).unwrap();
    eventually("nothing of it is left", SOON, || {
        let nodes = slurm(&namespace, "scontrol --oneliner show nodes")?;
        let pods = uids(&namespace)?;
        expect(!nodes.contains("slinky") && pods.is_empty(), (nodes, pods))
    })
    .unwrap();
}
