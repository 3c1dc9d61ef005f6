use std::process::ExitCode;

use anyhow::anyhow;
use clap::Parser as _;
use slurm_agent::cli::{Args, Command};
use slurm_agent::{check, install, pause, prepare, serve, supervise};

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            // Our errors quote what caused them.
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
    // One thread: a supervisor waits, and a pod should not pay for more.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| anyhow!("cannot start the event loop: {error}"))?;
    runtime.block_on(async {
        match args.command {
            Command::Supervise(options) => Ok(ExitCode::from(supervise::run(&options).await?)),
            Command::Prepare(options) => {
                prepare::run(&options)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Install(options) => {
                let program =
                    std::env::current_exe().map_err(|error| anyhow!("cannot tell where this program is: {error}"))?;
                install::install(&program, &options.to)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Serve(options) => {
                serve::run(options).await?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Check(options) => Ok(check(&options).await),
            Command::Pause => {
                pause::run().await?;
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

/// 1 means that the files are refused, 2 that nothing is known about them.
async fn check(options: &slurm_agent::cli::Check) -> ExitCode {
    match check::run(options).await {
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
