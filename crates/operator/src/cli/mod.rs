//! The command line.

mod address;
mod agent;
mod log_level;
mod process;
pub mod release;
mod run;

use std::{
    io::{self, Write},
    path::PathBuf,
};

use clap::{Parser, Subcommand};

pub use address::Address;
pub use agent::install as install_agent;
pub use log_level::LogLevel;
pub use run::{Arguments, run};

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
