//! Machines outside Kubernetes that join a Slurm inside it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use testbed::harness::{cluster, eventually, expect};
use testbed::network;

use super::accounting::wait_recorded;
use super::external_slurm::{EXTRA_CONF, NO_CGROUPS, machine_with_cluster_dns};
use crate::accounting::{MARIADB, set_password};
use crate::common::clusters::{install_as_written, operator_namespace};
use crate::common::slurm::{SOON, slurm, wait_node};

const CONTROL_PLANE: &str = include_str!("../../../../../examples/hybrid/control-plane.yaml");

#[test]
fn external_machines_join_a_slurm_in_kubernetes() {
    let namespace = operator_namespace(cluster(), "joined");
    let values = CONTROL_PLANE
        .replace(
            "bare-1.example.com CPUs=64 RealMemory=250000",
            &format!("{} CPUs=1", network::outside_address(5)),
        )
        .replace("  extraConf: |\n", EXTRA_CONF)
        .replace("bare-1", "bare-5");
    set_password(&namespace, "secret");
    namespace.apply(MARIADB).unwrap();
    install_as_written(&namespace, &format!("{values}{NO_CGROUPS}")).unwrap();
    namespace.wait("create", "secret/slurm-auth-slurm").unwrap();
    let key = namespace.field("secret/slurm-auth-slurm", r".data.slurm\.key").unwrap();
    let server = format!("--conf-server slurm-controller.{}:6817", namespace.name);
    let machines = [
        (5, "bare-5", "slurmd -D"),
        (6, "bare-6", "slurmd -D -Z"),
        (7, "bare-7", "sackd -D"),
    ]
    .map(|(index, name, daemon)| {
        let machine = machine_with_cluster_dns(&namespace, index, name);
        machine
            .write("/etc/slurm/slurm.key", 0o600, STANDARD.decode(&key).unwrap())
            .unwrap();
        namespace.wait_new("condition=Ready", "pod/slurm-controller-0").unwrap();
        machine.start(name, &format!("{daemon} {server}")).unwrap();
        machine
    });
    for node in ["bare-5", "bare-6", "slinky-0"] {
        wait_node(&namespace, node, &["State=IDLE"], &[]).unwrap();
    }
    let hosts = slurm(&namespace, "srun -p all -N3 hostname | sort").unwrap();
    assert_eq!(hosts, "bare-5\nbare-6\nslinky-0\n");
    let host = machines.last().unwrap();
    let job = eventually("an external login host submits a job", SOON, || {
        host.run("sbatch --parsable --wait --chdir=/tmp -o /dev/null -p all -w bare-6 --wrap true")
    })
    .unwrap();
    let cluster_name = slurm(&namespace, "scontrol show config | sed -n 's/^ClusterName *= //p'").unwrap();
    wait_recorded(cluster_name.trim(), job.trim(), |line| host.run(line));

    // The operator does not change external machines when its own workers are removed.
    let gone = r#"{"spec":{"replicas":0,"pruneSlurmNodeRecords":"NodeNotFound"}}"#;
    namespace
        .ask(&["patch", "nodeset/slurm-worker-slinky", "--type=merge", "--patch", gone])
        .unwrap();
    eventually("the worker's record goes", SOON, || {
        let nodes = slurm(&namespace, "scontrol --oneliner show nodes")?;
        expect(!nodes.contains("slinky-0"), nodes)
    })
    .unwrap();
    for node in ["bare-5", "bare-6"] {
        wait_node(&namespace, node, &["State=IDLE"], &["DRAIN"]).unwrap();
    }
}
