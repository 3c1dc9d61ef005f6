//! The operator, slurmrestd and slurmctld are killed together during updates, deletions and losses of workers with
//! jobs.

use testbed::harness::{Namespace, alone, eventually, expect};

use crate::common::clusters::{install_chart, operator_namespace};
use crate::common::jobs::{restarts, start_job, wait_older, wait_undisturbed};
use crate::common::kills::kill_everyone;
use crate::common::pods::{WORKERS, uids};
use crate::common::slurm::{self, SOON, hold_state, release_state, slurm, wait_idle, wait_job, wait_saved};
use crate::nodes_lost::Stage;

const SET: &str = "nodeset/slurm-worker-slinky";

/// Two workers with this grace period, which is part of their template.
fn change(namespace: &Namespace, grace: u32) {
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
    install_chart(namespace, &values).unwrap();
}

fn wait_draining(namespace: &Namespace) {
    eventually("the operator drains a node", SOON, || {
        let nodes = slurm(namespace, "scontrol --oneliner show nodes")?;
        expect(
            nodes.contains("DRAIN") && nodes.contains("Reason=slurm-operator: "),
            nodes,
        )
    })
    .unwrap();
}

#[test]
fn an_update_and_a_deletion_finish_and_no_job_is_lost() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = operator_namespace(cluster, "deaths");
    change(&namespace, 120);
    wait_idle(&namespace, 2).unwrap();
    let before = uids(&namespace, WORKERS).unwrap();

    let jobs = [start_job(&namespace, 30), start_job(&namespace, 30)];
    wait_saved(&namespace).unwrap();
    change(&namespace, 121);
    wait_draining(&namespace);
    kill_everyone(&namespace).unwrap();
    for job in &jobs {
        wait_undisturbed(&namespace, job, 0);
    }
    eventually("all workers are replaced", SOON, || {
        let now = uids(&namespace, WORKERS)?;
        expect(now.len() == 2 && !now.iter().any(|uid| before.contains(uid)), now)
    })
    .unwrap();
    wait_idle(&namespace, 2).unwrap();

    let job = start_job(&namespace, 30);
    wait_saved(&namespace).unwrap();
    namespace.ask(&["delete", SET, "--wait=false"]).unwrap();
    wait_draining(&namespace);
    // The idle worker may be gone already; slurmctld then has its record again.
    kill_everyone(&namespace).unwrap();
    wait_undisturbed(&namespace, &job, 0);
    namespace.wait("delete", SET).unwrap();
    eventually("nothing of the set is left", SOON, || {
        let nodes = slurm(&namespace, "scontrol --oneliner show nodes")?;
        let pods = uids(&namespace, WORKERS)?;
        expect(!nodes.contains("slinky") && pods.is_empty(), (nodes, pods))
    })
    .unwrap();
}

#[test]
fn a_lost_worker_is_replaced_and_only_its_jobs_are_requeued() {
    let stage = Stage::with_workers("deaths-lost", 2);
    let (cluster, namespace) = (stage.cluster, &stage.namespace);
    // The replacement of the lost worker needs a node.
    cluster.ask(&["uncordon", "node1"]).unwrap();
    let before = uids(namespace, WORKERS).unwrap();
    let start = |options: &str, seconds: u32| {
        // Without a memory limit a job gets the whole memory of its node, and a second job waits.
        let options = format!("--partition=all --mem=100 {options}");
        slurm::start_job(namespace, &options, &format!("sleep {seconds}; exit 7")).unwrap()
    };
    let other = start("--nodelist=slinky-1", 240);
    let lost = start("--nodelist=slinky-0", 90);
    let once_only = start("--nodelist=slinky-0 --no-requeue", 90);
    stage.wait_on_node(2);
    // Longer than clocks may differ.
    wait_older(namespace, &once_only, 20);

    // The node is deleted when operator and slurmctld have just restarted.
    cluster.kill_node(&stage.node).unwrap();
    kill_everyone(namespace).unwrap();
    eventually("slurmctld is back", SOON, || {
        slurm(namespace, "scontrol ping | grep UP")
    })
    .unwrap();
    // Slurm acknowledges that the node is down, but has not saved it when it is killed.
    hold_state(namespace, &["node", "job"]).unwrap();
    cluster.ask(&["delete", "node", &stage.node]).unwrap();
    let queued_again = |what: &str| {
        eventually(what, SOON, || {
            expect(restarts(namespace, &lost)? == 1, stage.slurm_node()?)
        })
        .unwrap();
    };
    queued_again("the job of the dead is queued again");
    eventually("the worker is replaced under its name", SOON, || {
        let now = uids(namespace, WORKERS)?;
        expect(now.len() == 2 && !now.contains(&before[0]), now)
    })
    .unwrap();
    kill_everyone(namespace).unwrap();
    release_state(namespace).unwrap();
    // Slurm shows the jobs of the lost worker on its replacement until the operator sends the order again.
    queued_again("the job of the dead is queued again by a slurmctld that had forgotten it");

    cluster.restart_node(&stage.node).unwrap();
    wait_undisturbed(namespace, &other, 0);
    wait_undisturbed(namespace, &lost, 1);
    wait_job(namespace, &once_only, "NODE_FAIL").unwrap();
    wait_idle(namespace, 2).unwrap();
    let now = uids(namespace, WORKERS).unwrap();
    let same = now.iter().filter(|uid| before.contains(uid)).count();
    assert_eq!((now.len(), same), (2, 1), "{before:?} {now:?}");
}
