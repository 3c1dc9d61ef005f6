use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use slurm_agent::cli::{Args, Command};
use slurm_agent::{pause, supervise};

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("slurm-agent: {error:#}");
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
    // One thread: a supervisor waits, and a pod should not pay for more.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    runtime.block_on(async {
        match args.command {
            Command::Supervise(options) => Ok(ExitCode::from(supervise::run(&options).await?)),
            Command::Pause => {
                pause::run().await?;
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}
