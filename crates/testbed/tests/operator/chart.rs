//! A cluster from the chart.

use std::time::Instant;

use testbed::command::output;
use testbed::harness::{cluster, eventually, expect};

use crate::common::clusters::{install_chart, operator_namespace};
use crate::common::operator::helm;
use crate::common::slurm::{SOON, slurm, wait_idle};

const THREE_WORKERS: &str = include_str!("../../../../examples/minimal/values.yaml");

#[test]
fn helm_install_then_srun() {
    let cluster = cluster();
    let namespace = operator_namespace(cluster, "chart");
    let start = Instant::now();
    install_chart(&namespace, THREE_WORKERS).unwrap();
    wait_idle(&namespace, 3).unwrap();
    let hosts = slurm(&namespace, "srun -N2 hostname").unwrap();
    testbed::steps::keep("helm install to `srun -N2 hostname`", start.elapsed().as_secs_f64());
    assert_eq!(
        hosts.lines().filter(|host| host.starts_with("slinky-")).count(),
        2,
        "{hosts}"
    );
    eventually("the NodeSet counts its nodes", SOON, || {
        let status = namespace.field(
            "nodeset/slurm-worker-slinky",
            ".status.replicas},{.status.readyReplicas},{.status.slurmIdle",
        )?;
        expect(status == "3,3,3", status)
    })
    .unwrap();

    // Another number of replicas, the first one again, and the uninstallation.
    install_chart(&namespace, &THREE_WORKERS.replace("replicas: 3", "replicas: 2")).unwrap();
    wait_idle(&namespace, 2).unwrap();
    output(helm(cluster).args(["rollback", "--namespace", &namespace.name, "slurm", "1"])).unwrap();
    wait_idle(&namespace, 3).unwrap();
    output(helm(cluster).args(["uninstall", "--namespace", &namespace.name, "slurm"])).unwrap();
    for gone in [
        "pods",
        "statefulsets",
        "deployments",
        "services",
        "nodesets",
        "controllers",
        "restapis",
    ] {
        eventually(&format!("no {gone} left"), SOON, || {
            let left = namespace.ask(&["get", gone, "-o", "name"])?;
            expect(left.is_empty(), left)
        })
        .unwrap();
    }
}

#[test]
fn a_partition_edited_in_the_object_is_live_without_a_restart() {
    let namespace = operator_namespace(cluster(), "partition");
    install_chart(&namespace, &THREE_WORKERS.replace("replicas: 3", "replicas: 1")).unwrap();
    wait_idle(&namespace, 1).unwrap();
    let uid = namespace.uid("pod/slurm-controller-0").unwrap();

    let partition = r#"{"spec":{"partition":{"enabled":true,"config":"MaxTime=33 State=UP"}}}"#;
    let start = Instant::now();
    namespace
        .ask(&["patch", "nodeset/slurm-worker-slinky", "--type=merge", "-p", partition])
        .unwrap();
    eventually("the partition has its new limit", SOON, || {
        let shown = slurm(&namespace, "scontrol show partition slinky")?;
        expect(shown.contains("MaxTime=00:33:00"), shown)
    })
    .unwrap();
    testbed::steps::keep("a partition edited to live", start.elapsed().as_secs_f64());
    assert_eq!(namespace.uid("pod/slurm-controller-0").unwrap(), uid);
    eventually("the log has its lines", SOON, || {
        let log = namespace.ask(&["logs", "slurm-controller-0", "-c", "reconfigure"])?;
        let lines = ["Start '/etc/slurm' polling", "Reconfiguring Slurm...", "SUCCESS"];
        expect(lines.iter().all(|line| log.contains(line)), log)
    })
    .unwrap();
}
