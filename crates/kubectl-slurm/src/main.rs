//! `kubectl slurm`: Slurm clusters as their administrators see them.
//!
//! `cli` defines the command line. Decisions and output are pure: `partition/edit` turns arguments into patches, `partition/expect`
//! decides whether a change is live, `*/view` and `status` turn objects into rows. `access` is the client of the API server.

mod access;
mod cli;
mod cluster;
mod complete;
mod config;
mod failure;
mod node;
mod output;
mod ownership;
mod partition;
mod status;
mod wait;
mod watch;

use std::process::ExitCode;

use clap::Parser as _;

use crate::access::Access;
use crate::cli::{Cli, Command, ConfigCommand};
use crate::failure::{Failure, Outcome};
use crate::output::notify;

fn main() -> ExitCode {
    let asked = complete::answer(std::env::args());
    match asked.unwrap_or_else(|| run(Cli::parse())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_silent() {
                notify(&format!("error: {failure}"));
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Selects the implementation of TLS.
fn install_crypto() {
    // Fails only if one is selected already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

fn run(cli: Cli) -> Outcome {
    let Cli { common, command } = cli;
    // These need no cluster.
    match &command {
        Command::Completion { shell } => return complete::script(*shell),
        Command::Config(ConfigCommand::Check { path }) => return config::check(path),
        _ => {}
    }
    install_crypto();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::refused(format!("cannot start: {error}")))?;
    runtime.block_on(async {
        let access = Access::new(&common).await?;
        match command {
            Command::Partition(command) => Box::pin(partition::run(&access, &common, command)).await,
            Command::Node(command) => node::run(&access, &common, command).await,
            Command::Config(command) => config::run(&access, &common, command).await,
            Command::Status(watch) => status::run(&access, &common, &watch).await,
            Command::Completion { shell } => complete::script(shell),
        }
    })
}
