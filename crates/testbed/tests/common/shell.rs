//! A user's shell.

use std::process::Command;

use anyhow::Result;
use testbed::cluster::Cluster;
use testbed::command::output;
use testbed::harness::Namespace;
use testbed::paths;

/// A shell with kubectl, helm and our own programs on the PATH, and the namespace as the current one.
pub struct Shell {
    home: tempfile::TempDir,
    path: String,
}

impl Shell {
    pub fn open(cluster: &Cluster, namespace: &Namespace) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::copy(cluster.layout.kubeconfig(), home.path().join("config")).unwrap();
        let shell = Self {
            home,
            path: search_path(cluster),
        };
        let set = format!("kubectl config set-context --current --namespace={}", namespace.name);
        shell.run(&set).unwrap();
        shell
    }

    /// Runs a command line in the repository.
    pub fn run(&self, line: &str) -> Result<String> {
        output(
            Command::new("bash")
                .args(["-o", "pipefail", "-c", line])
                .current_dir(paths::repository())
                .env("HOME", self.home.path())
                .env("KUBECONFIG", self.home.path().join("config"))
                .env("PATH", &self.path),
        )
    }
}

/// A PATH with kubectl, helm and our own programs.
pub fn search_path(cluster: &Cluster) -> String {
    let own = testbed::sibling("kubectl-slurm").unwrap();
    format!(
        "{}:{}:{}",
        cluster.binaries.folder().display(),
        own.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    )
}
