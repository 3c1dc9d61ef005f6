//! Whoever takes part in a change of the configuration dies in the middle of it.

use std::time::Duration;

use serde_json::json;
use testbed::cluster::Cluster;
use testbed::harness::{Namespace, alone, eventually, expect};

use crate::common::jobs::{start_job, wait_undisturbed};
use crate::common::operator::{
    SOON, change_spec, configuration_applied, install, install_chart, kill_container, kill_operator, move_operator,
    slurm, wait_idle, wait_saved,
};

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
/// Who dies, and how many milliseconds after the edit. A change is live after some 150, so they die in the middle of it.
/// Kubernetes brings what dies often back ever later, so nobody dies more than twice.
const DEATHS: [(Victim, &[u64]); 4] = [
    (Victim::Agent, &[30, 90]),
    (Victim::Slurmctld, &[60, 120]),
    (Victim::Operator, &[60]),
    (Victim::Pod, &[90]),
];

#[derive(Clone, Copy, Debug)]
enum Victim {
    Agent,
    Slurmctld,
    Pod,
    Operator,
}

fn kill(cluster: &Cluster, namespace: &Namespace, victim: Victim) {
    match victim {
        Victim::Agent => kill_container(cluster, namespace, "reconfigure").unwrap(),
        Victim::Slurmctld => kill_container(cluster, namespace, "slurmctld").unwrap(),
        Victim::Pod => {
            let now = ["delete", "pod", POD, "--force", "--grace-period=0"];
            namespace.ask(&now).map(drop).unwrap();
        }
        Victim::Operator => kill_operator(cluster).unwrap(),
    }
}

fn edit(namespace: &Namespace, minutes: u64) {
    let spec = json!({ "partition": { "config": format!("MaxTime={minutes}") } });
    change_spec(namespace, "nodeset/slurm-worker-slinky", &spec).unwrap();
}

/// The new value is what slurmctld says, what its file says, and what the object says; and the two files are the same.
fn expect_everywhere(namespace: &Namespace, minutes: u64) -> anyhow::Result<()> {
    let live = slurm(namespace, "scontrol --oneliner show partition slinky")?;
    expect(live.contains(&format!("MaxTime=00:{minutes:02}:00")), &live)?;
    let file = slurm(namespace, "cat /etc/slurm/slurm.conf")?;
    expect(file.contains(&format!("MaxTime={minutes}")), &file)?;
    let object = namespace.field("configmap/slurm-config", ".data.slurm\\.conf")?;
    expect(object == file, (object, file))?;
    let applied = configuration_applied(namespace, "status")?;
    expect(applied == "True", applied)
}

#[test]
fn a_change_is_live_everywhere_in_the_end_whoever_dies_in_it_and_jobs_go_on() {
    let alone = alone();
    let cluster = alone.cluster;
    install(cluster);
    let namespace = Namespace::create(cluster, "transactions").unwrap();
    install_chart(cluster, &namespace, VALUES).unwrap();
    wait_idle(&namespace, 1).unwrap();
    let job = start_job(&namespace, 120);
    wait_saved(&namespace).unwrap();
    let mut minutes = 0;
    for (victim, delays) in DEATHS {
        for delay in delays {
            namespace.wait_new("condition=Ready", &format!("pod/{POD}")).unwrap();
            minutes += 1;
            edit(&namespace, minutes);
            std::thread::sleep(Duration::from_millis(*delay));
            kill(cluster, &namespace, victim);
            eventually(&format!("{victim:?} killed after {delay} ms"), SOON, || {
                expect_everywhere(&namespace, minutes)
            })
            .unwrap();
        }
    }
    wait_undisturbed(&namespace, &job, 0);
    wait_idle(&namespace, 1).unwrap();
}

/// slurmctld is on a machine of its own, which loses power in the middle of a change and is switched on again.
#[test]
fn a_change_is_live_everywhere_in_the_end_when_the_machine_under_slurmctld_dies_in_it() {
    let alone = alone();
    let cluster = alone.cluster;
    let _uncordoned = Uncordoned(cluster);
    install(cluster);
    cluster.ask(&["cordon", "node1"]).unwrap();
    move_operator(cluster, "=node1").unwrap();
    cluster.ask(&["cordon", "node2", "node3"]).unwrap();
    cluster.ask(&["uncordon", "node1"]).unwrap();
    let namespace = Namespace::create(cluster, "machine").unwrap();
    install_chart(cluster, &namespace, &VALUES.replace("replicas: 1", "replicas: 0")).unwrap();
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

/// Other tests of this cluster find its nodes as they were.
struct Uncordoned(&'static Cluster);

impl Drop for Uncordoned {
    fn drop(&mut self) {
        let up = self.0.wait_node("node1", "True");
        let put_back = up.or_else(|_| self.0.restart_node("node1"));
        let uncordoned = self.0.ask(&["uncordon", "node1", "node2", "node3"]);
        assert!(
            std::thread::panicking() || put_back.and(uncordoned.map(drop)).is_ok(),
            "node1 does not come back"
        );
    }
}
