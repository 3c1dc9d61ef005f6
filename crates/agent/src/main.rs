#![warn(clippy::disallowed_methods)]

use std::process::ExitCode;

use anyhow::anyhow;
use clap::Parser as _;
use host::Host;
use slurm_agent::cli::{Args, Command};
use slurm_agent::{check, install, pause, prepare, serve, supervise};

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            // The agent's errors quote their sources.
            eprintln!("slurm-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Standard output belongs to the daemon.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let host = Host::real();
    // One thread: the agent mostly waits.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| anyhow!("cannot start the event loop: {error}"))?;
    runtime.block_on(async {
        match args.command {
            Command::Supervise(options) => Ok(ExitCode::from(supervise::run(host, &options).await?)),
            Command::Prepare(options) => {
                prepare::run(&host, &options)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Install(options) => {
                let program = std::env::current_exe().map_err(|error| anyhow!("cannot find this program: {error}"))?;
                install::install(&host, &program, &options.to)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Serve(options) => {
                serve::run(host, options).await?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Check(options) => Ok(check(&host, &options).await),
            Command::Pause => {
                pause::run().await?;
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

/// Exit code 1 means that the files are rejected, 2 that the check failed.
async fn check(host: &Host, options: &slurm_agent::cli::Check) -> ExitCode {
    match check::run(host, options).await {
        Ok(findings) => {
            for line in &findings.lines {
                println!("{line}");
            }
            if findings.refused {
                return ExitCode::FAILURE;
            }
            println!("slurmctld would run with {}", options.directory.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("slurm-agent: {error}");
            ExitCode::from(2)
        }
    }
}
