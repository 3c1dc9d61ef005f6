//! The command line.

mod flags;
pub mod release;
mod run;
mod webhook;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use host::{Durability, FileError, Host};
use tracing_subscriber::filter::Targets;

use crate::runtime::Clients;

pub use run::{Arguments, assemble, run};
pub use webhook::{Arguments as WebhookArguments, serve_webhook};

const AGENT: &str = "slurm-agent";
/// Any user of any image may run the agent.
const MODE: u32 = 0o755;

/// Runs Slurm clusters on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "slurm-operator", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controllers.
    Run(Box<Arguments>),
    /// Serve the admission webhook.
    Webhook(Box<WebhookArguments>),
    /// Stop the operator and remove its finalizers from all objects, so that they can be deleted without it. The chart runs
    /// this before it is uninstalled.
    Release(release::Arguments),
    /// Print the CustomResourceDefinitions as YAML.
    Crds,
    /// Copy slurm-agent from the directory of this program into another one. Init containers run this.
    InstallAgent { directory: PathBuf },
}

/// Prints the definitions as input for `kubectl apply -f -`.
pub fn print_crds() -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for crd in api::crds() {
        writeln!(out, "---")?;
        out.write_all(api::crds::render_yaml(&crd)?.as_bytes())?;
    }
    Ok(out.flush()?)
}

/// Copies the agent from the directory of this program into another one.
pub fn install_agent(directory: &Path) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    copy(&Host::real(), &own.with_file_name(AGENT), directory)?;
    Ok(())
}

/// Replaces the file at once by a rename: a container that starts in the meantime runs the old or the new file, and a running
/// file does not make the copy fail.
fn copy(host: &Host, agent: &Path, directory: &Path) -> Result<PathBuf, FileError> {
    let (files, target) = (host.files(), directory.join(AGENT));
    files.create_directories(directory, MODE)?;
    files.replace(&target, &files.read(agent)?, MODE, Durability::Unsynced)?;
    Ok(target)
}

/// Runs a command that uses the API server of this pod or of the kubeconfig, with logs at this level.
fn block_on<F>(log_level: &Targets, work: impl FnOnce(Clients) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    crate::logs::start(log_level);
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a TLS provider is installed already"))?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    let result = runtime.block_on(async {
        let config = kube::Config::infer().await;
        let config = config.context("no API server: neither in a pod nor with a kubeconfig")?;
        work(Clients::new(config).context("cannot make a client for the API server")?).await
    });
    // A task that has not ended by now hangs, and a process without its lease must not wait for it.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn the_agent_is_complete_and_executable_also_the_second_time() {
        let dir = tempfile::tempdir().unwrap();
        let agent = dir.path().join("source");
        let target = dir.path().join("bin");
        for content in ["old", "new"] {
            fs::write(&agent, content).unwrap();
            fs::set_permissions(&agent, fs::Permissions::from_mode(0o400)).unwrap();
            let installed = copy(&Host::real(), &agent, &target).unwrap();
            fs::set_permissions(&agent, fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(fs::read_to_string(&installed).unwrap(), content);
            assert_eq!(fs::metadata(&installed).unwrap().permissions().mode() & 0o777, MODE);
            assert_eq!(fs::read_dir(&target).unwrap().count(), 1, "nothing else is left behind");
        }
    }

    #[test]
    fn a_missing_agent_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = copy(&Host::real(), &dir.path().join("nothing"), dir.path()).unwrap_err();
        assert!(format!("{error:#}").contains("nothing"), "{error:#}");
    }
}
