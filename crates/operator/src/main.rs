//! `slurm-operator`: runs Slurm clusters on Kubernetes.

use std::process::ExitCode;

use clap::Parser;
use operator::cli::{Cli, Command};

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(arguments) => operator::cli::run(*arguments),
        Command::Webhook(arguments) => operator::cli::serve_webhook(*arguments),
        Command::Release(arguments) => operator::cli::release::run(&arguments),
        Command::Crds => operator::cli::print_crds(),
        Command::InstallAgent { directory } => operator::cli::install_agent(&directory),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slurm-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}
