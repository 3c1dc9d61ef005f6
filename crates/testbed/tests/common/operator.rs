//! The operator on the tests' cluster, installed from its charts as anyone would, and clusters made with it.

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Result;
use testbed::cluster::Cluster;
use testbed::command::{output, output_with_input};
use testbed::harness::{Namespace, eventually, expect};
use testbed::{images, paths};

pub const SOON: Duration = Duration::from_mins(2);

/// The one overlay a values file needs here: the machine has cgroup v1, the default cgroup.conf asks for v2.
pub const CGROUP_VALUES: &str = "configFiles:\n  cgroup.conf: CgroupPlugin=cgroup/v1\n";

/// One worker, and a partition to use it by.
pub const ONE_WORKER: &str = "nodesets:\n  slinky:\n    replicas: 1\npartitions:\n  all:\n    enabled: true\n";

/// Installs the operator in namespace `slinky`, once.
pub fn install(cluster: &Cluster) {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        cluster.load(&images::operator().unwrap()).unwrap();
        install_charts(cluster).unwrap();
    });
}

/// Brings the operator's charts to how all tests want them, whatever became of them.
pub fn install_charts(cluster: &Cluster) -> Result<()> {
    for chart in ["slurm-operator-crds", "slurm-operator"] {
        let arguments = [
            "upgrade",
            "--install",
            "--wait",
            "--namespace",
            "slinky",
            "--create-namespace",
            chart,
        ];
        output(
            helm(cluster)
                .args(arguments)
                .arg(paths::repository().join("charts").join(chart)),
        )?;
    }
    Ok(())
}

/// `helm uninstall`, which is to come to its end by itself.
pub fn uninstall(cluster: &Cluster, namespace: &str, release: &str) -> Result<()> {
    output(helm(cluster).args(["uninstall", "--timeout=2m", "--namespace", namespace, release])).map(drop)
}

pub fn helm(cluster: &Cluster) -> Command {
    let mut command = Command::new(cluster.binaries.path("helm"));
    command.env("KUBECONFIG", cluster.layout.kubeconfig());
    command
}

/// `helm upgrade --install` of release `slurm` in the namespace, with values given as text.
pub fn install_chart(cluster: &Cluster, namespace: &Namespace, values: &str) -> Result<()> {
    let mut command = helm(cluster);
    command.args(["upgrade", "--install", "--namespace", &namespace.name, "slurm"]);
    command
        .arg(paths::repository().join("charts/slurm"))
        .args(["--values", "-"]);
    output_with_input(&mut command, &format!("{values}\n{CGROUP_VALUES}")).map(drop)
}

/// Runs a shell line in slurmctld's container of Controller `slurm`.
pub fn slurm(namespace: &Namespace, line: &str) -> Result<String> {
    namespace.exec("slurm-controller-0 -c slurmctld", line)
}

/// Waits until exactly these many nodes are idle.
pub fn wait_idle(namespace: &Namespace, count: usize) -> Result<()> {
    eventually(&format!("{count} idle nodes"), SOON, || {
        // Not sinfo: it does not show nodes that are in no partition.
        let nodes = slurm(namespace, "scontrol show nodes --oneliner")?;
        let idle = nodes
            .lines()
            .filter(|node| node.contains(" State=IDLE+DYNAMIC_NORM "))
            .count();
        expect(idle == count && nodes.lines().count() == count, nodes)
    })
}

/// Waits until a job is in a state; the whole record is shown when it is not.
pub fn wait_job(namespace: &Namespace, job: &str, state: &str) -> Result<()> {
    eventually(&format!("job {job} {state}"), SOON, || {
        let shown = slurm(namespace, &format!("scontrol show job {job}"))?;
        expect(shown.contains(&format!("JobState={state}")), shown)
    })
}
