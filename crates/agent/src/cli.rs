//! The command line.

use std::ffi::OsString;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "slurm-agent",
    version,
    about = "Runs beside and around Slurm's daemons in their pods"
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a Slurm daemon that was told `--systemd`, follow its main process and restart it when it dies
    Supervise(Supervise),
    /// Hold a pod's namespaces open
    #[command(hide = true)]
    Pause,
}

#[derive(Debug, clap::Args)]
pub struct Supervise {
    /// Run the daemon as this user of /etc/passwd; needs root
    #[arg(long, value_name = "NAME")]
    pub as_user: Option<String>,

    /// The daemon and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
