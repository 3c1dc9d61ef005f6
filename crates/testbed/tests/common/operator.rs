//! The operator on a test's cluster, installed from its charts as users install it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::Result;
use testbed::cluster::Cluster;
use testbed::command::output;
use testbed::harness::once_for;
use testbed::slurm_release::Release;
use testbed::{images, paths};

/// Installs the operator in namespace `slinky`, once.
pub fn install(cluster: &Cluster) {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    once_for(cluster, "operator", || {
        let archive = ARCHIVE.get_or_init(|| images::operator().unwrap());
        cluster.load(archive).unwrap();
        install_charts(cluster).unwrap();
    });
}

/// Installs the operator's charts, whatever their state is. Of their values only one is not the default: tests use tokens of
/// the user `slurm`.
pub fn install_charts(cluster: &Cluster) -> Result<()> {
    for chart in ["slurm-operator-crds", "slurm-operator"] {
        let arguments = [
            "upgrade",
            "--install",
            "--wait",
            "--reset-values",
            "--namespace",
            "slinky",
            "--create-namespace",
            chart,
        ];
        let tokens = (chart == "slurm-operator").then_some("--set=privilegedTokenUsers={slurm}");
        output(
            helm(cluster)
                .args(arguments)
                .args(tokens)
                .arg(paths::repository().join("charts").join(chart)),
        )?;
    }
    match Release::chosen()?.tag() {
        Some(tag) => use_images(cluster, tag),
        None => Ok(()),
    }
}

/// Lets the operator use images with this tag for objects that name none.
fn use_images(cluster: &Cluster, tag: &str) -> Result<()> {
    let images = ["slurmctld", "slurmd", "slurmdbd", "slurmrestd", "login"];
    let images = images.map(|name| {
        let variable = name.to_uppercase();
        format!("{variable}_IMAGE=ghcr.io/slinkyproject/{name}:{tag}")
    });
    let mut set = cluster.kubectl_in("slinky", &["set", "env", "deployment/slurm-operator"]);
    output(set.args(images))?;
    let rollout = ["rollout", "status", "deployment/slurm-operator", "--timeout=120s"];
    cluster.ask_in("slinky", &rollout).map(drop)
}

/// Installs the operator and its definitions again when this is dropped, also when a test fails halfway: other tests
/// need them.
pub struct PutBack(pub &'static Cluster);

impl Drop for PutBack {
    fn drop(&mut self) {
        let put_back = install_charts(self.0);
        assert!(std::thread::panicking() || put_back.is_ok(), "{put_back:?}");
    }
}

/// Runs `helm uninstall`, which must finish by itself.
pub fn uninstall(cluster: &Cluster, namespace: &str, release: &str) -> Result<()> {
    output(helm(cluster).args(["uninstall", "--timeout=2m", "--namespace", namespace, release])).map(drop)
}

pub fn helm(cluster: &Cluster) -> Command {
    let mut command = Command::new(cluster.binaries.path("helm"));
    command.env("KUBECONFIG", cluster.layout.kubeconfig());
    command
}

/// Recreates the operator's pods of these nodes on schedulable nodes.
pub fn move_operator(cluster: &Cluster, nodes: &str) -> Result<()> {
    let operator = ["--namespace", "slinky"];
    let moved = ["delete", "pods", &format!("--field-selector=spec.nodeName{nodes}")];
    cluster.ask(&[&operator[..], &moved].concat())?;
    let rollout = ["rollout", "status", "deployment/slurm-operator", "--timeout=120s"];
    cluster.ask(&[&operator[..], &rollout].concat()).map(drop)
}
