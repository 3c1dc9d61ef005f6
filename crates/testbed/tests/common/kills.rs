//! Kills of the operator, of the agent and of Slurm's daemons, like crashes.

use anyhow::Result;
use testbed::cluster::Cluster;
use testbed::faults::Pod;
use testbed::harness::{Namespace, eventually};

use super::slurm::{SOON, slurm};

/// Label selector of the operator's pods.
pub const OPERATOR: &str = "app.kubernetes.io/name=slurm-operator";

/// A process or pod to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The container `reconfigure`.
    Agent,
    /// The container `slurmctld`.
    SlurmctldContainer,
    /// slurmctld alone, which its supervisor starts again.
    SlurmctldProcess,
    /// slurmctld's pod, with all its containers.
    Pod,
    /// The operator's pod.
    Operator,
    /// The operator's process at once, and then its pod, so that the next one does not wait for the kubelet's back-off.
    OperatorProcess,
}

impl Victim {
    pub fn kill(self, namespace: &Namespace) {
        match self {
            Self::Agent => kill_container(namespace, "reconfigure").unwrap(),
            Self::SlurmctldContainer => kill_container(namespace, "slurmctld").unwrap(),
            Self::SlurmctldProcess => {
                // Right after another kill slurmctld may not run yet.
                eventually("slurmctld is killed", SOON, || {
                    slurm(namespace, "kill -9 $(pidof slurmctld)")
                })
                .unwrap();
            }
            Self::Pod => {
                let now = ["delete", "pod", "slurm-controller-0", "--force", "--grace-period=0"];
                namespace.ask(&now).unwrap();
            }
            Self::Operator => kill_operator(namespace.cluster).unwrap(),
            Self::OperatorProcess => {
                kill_operator_process(namespace.cluster);
                kill_operator(namespace.cluster).unwrap();
            }
        }
    }
}

fn kill_operator_process(cluster: &Cluster) {
    let pods = operator_pods(cluster).unwrap();
    // One before it may still be terminating.
    let killed = pods.iter().filter(|name| {
        let pod = Pod {
            namespace: "slinky",
            name,
        };
        cluster.kill_container(pod, "slurm-operator").is_ok()
    });
    assert_eq!(killed.count(), 1, "{pods:?}");
}

/// The names of the operator's pods.
pub fn operator_pods(cluster: &Cluster) -> Result<Vec<String>> {
    let path = "jsonpath={.items[*].metadata.name}";
    let pods = cluster.ask(&["get", "pods", "--namespace=slinky", "--selector", OPERATOR, "-o", path])?;
    Ok(pods.split_whitespace().map(str::to_owned).collect())
}

/// Kills the operator and waits for its replacement.
pub fn kill_operator(cluster: &Cluster) -> Result<()> {
    kill_pods(cluster, "slinky", OPERATOR)?;
    let rollout = ["rollout", "status", "deployment/slurm-operator", "--timeout=120s"];
    cluster
        .ask(&[&["--namespace", "slinky"][..], &rollout].concat())
        .map(drop)
}

/// Kills the operator, slurmrestd and slurmctld together. Kubernetes restarts them.
pub fn kill_everyone(namespace: &Namespace) -> Result<()> {
    kill_pods(namespace.cluster, "slinky", OPERATOR)?;
    kill_pods(namespace.cluster, &namespace.name, "app.kubernetes.io/name=slurmrestd")?;
    kill_container(namespace, "slurmctld")
}

/// Kills a container of Controller `slurm`'s pod. Right after another kill it may not run yet, so this retries.
pub fn kill_container(namespace: &Namespace, container: &str) -> Result<()> {
    eventually(&format!("{container} is killed"), SOON, || {
        namespace
            .cluster
            .kill_container(namespace.pod("slurm-controller-0"), container)
    })
}

fn kill_pods(cluster: &Cluster, namespace: &str, selector: &str) -> Result<()> {
    let at_once = ["delete", "pods", "--force", "--grace-period=0"];
    let which = ["--namespace", namespace, "--selector", selector];
    cluster.ask(&[&at_once[..], &which].concat()).map(drop)
}
