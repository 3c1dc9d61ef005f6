//! Daemons are killed during a change of the configuration.

use std::time::Duration;

use serde_json::json;
use testbed::harness::{Namespace, alone, eventually, expect};

use crate::common::clusters::{change_spec, chart_cluster, configuration_applied, install_chart};
use crate::common::jobs::{start_job, wait_undisturbed};
use crate::common::kills::Victim;
use crate::common::nodes::RestoreNodes;
use crate::common::operator::{install, move_operator};
use crate::common::slurm::{SOON, slurm, slurm_conf, wait_idle, wait_saved};

const VALUES: &str = "nodesets:
  slinky:
    replicas: 1
    partition:
      enabled: true
partitions:
  all:
    enabled: true
";
const POD: &str = "slurm-controller-0";
/// What is killed, and how many milliseconds after the edit. A change is live after some 150 ms, so the kills happen
/// during the change. Kubernetes restarts a container with a growing back-off, so that each is killed at most twice.
const DEATHS: [(Victim, &[u64]); 4] = [
    (Victim::Agent, &[30, 90]),
    (Victim::SlurmctldContainer, &[60, 120]),
    (Victim::Operator, &[60]),
    (Victim::Pod, &[90]),
];

fn edit(namespace: &Namespace, minutes: u64) {
    let spec = json!({ "partition": { "config": format!("MaxTime={minutes}") } });
    change_spec(namespace, "nodeset/slurm-worker-slinky", &spec).unwrap();
}

/// Expects the new value in slurmctld, in its file and in the status, and the same file in the ConfigMap.
fn expect_everywhere(namespace: &Namespace, minutes: u64) -> anyhow::Result<()> {
    let live = slurm(namespace, "scontrol --oneliner show partition slinky")?;
    expect(live.contains(&format!("MaxTime=00:{minutes:02}:00")), &live)?;
    let file = slurm_conf(namespace)?;
    expect(file.contains(&format!("MaxTime={minutes}")), &file)?;
    let applied = configuration_applied(namespace, "status")?;
    expect(applied == "True", applied)
}

#[test]
fn a_change_is_live_everywhere_and_jobs_continue_whatever_is_killed_during_it() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = chart_cluster(cluster, "transactions", VALUES, 1);
    let job = start_job(&namespace, 120);
    wait_saved(&namespace).unwrap();
    let mut minutes = 0;
    for (victim, delays) in DEATHS {
        for delay in delays {
            namespace.wait_new("condition=Ready", &format!("pod/{POD}")).unwrap();
            minutes += 1;
            edit(&namespace, minutes);
            std::thread::sleep(Duration::from_millis(*delay));
            victim.kill(&namespace);
            eventually(&format!("{victim:?} killed after {delay} ms"), SOON, || {
                expect_everywhere(&namespace, minutes)
            })
            .unwrap();
        }
    }
    wait_undisturbed(&namespace, &job, 0);
    wait_idle(&namespace, 1).unwrap();
}

/// slurmctld runs on its own node, which is powered off during a change and powered on again.
#[test]
fn a_change_is_live_everywhere_if_the_node_of_slurmctld_dies_during_it() {
    let alone = alone();
    let cluster = alone.cluster;
    let _restored = RestoreNodes(cluster);
    install(cluster);
    cluster.ask(&["cordon", "node1"]).unwrap();
    move_operator(cluster, "=node1").unwrap();
    cluster.ask(&["cordon", "node2", "node3"]).unwrap();
    cluster.ask(&["uncordon", "node1"]).unwrap();
    let namespace = Namespace::create(cluster, "machine").unwrap();
    install_chart(&namespace, &VALUES.replace("replicas: 1", "replicas: 0")).unwrap();
    namespace.wait_new("condition=Ready", &format!("pod/{POD}")).unwrap();
    cluster.ask(&["uncordon", "node2", "node3"]).unwrap();
    cluster.ask(&["cordon", "node1"]).unwrap();
    namespace
        .ask(&["scale", "nodeset/slurm-worker-slinky", "--replicas=1"])
        .unwrap();
    wait_idle(&namespace, 1).unwrap();
    let job = start_job(&namespace, 120);
    wait_saved(&namespace).unwrap();
    for (minutes, delay) in [(1, 60), (2, 120)] {
        edit(&namespace, minutes);
        std::thread::sleep(Duration::from_millis(delay));
        cluster.kill_node("node1").unwrap();
        cluster.restart_node("node1").unwrap();
        eventually(&format!("node1 killed after {delay} ms"), SOON, || {
            expect_everywhere(&namespace, minutes)
        })
        .unwrap();
    }
    wait_undisturbed(&namespace, &job, 0);
    wait_idle(&namespace, 1).unwrap();
}
