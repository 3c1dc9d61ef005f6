//! Runs histories: `simulate --minutes N` new ones, `replay --seed S` one with its story.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{
    fs,
    path::PathBuf,
    process::ExitCode,
    thread::available_parallelism,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use clap::Parser;
use simulation::{
    campaign::Campaign,
    coverage::Table,
    crash_points::{self, Scenario},
    history, script, world,
};

#[derive(Debug, Parser)]
enum Command {
    /// Play new histories for so many minutes
    Simulate(Simulate),
    /// Play the history without chance
    Script,
    /// Let processes die after every effect of every scenario
    CrashPoints {
        /// Only every n-th effect
        #[arg(long, default_value_t = 1)]
        every: u64,
        /// Scenarios whose name contains this
        #[arg(long, default_value = "")]
        scenario: String,
        /// Tell the story of one death
        #[arg(long)]
        point: Option<u64>,
    },
    /// Play one history and tell its story
    Replay {
        #[arg(long)]
        seed: u64,
        /// With what operators and agents log
        #[arg(long)]
        log: bool,
        /// With the details of their logs
        #[arg(long)]
        debug: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Simulate {
    #[arg(long, default_value_t = 1)]
    minutes: u64,
    /// The first seed; the time of day by default
    #[arg(long)]
    from: Option<u64>,
    /// Play so many histories, whatever time it takes
    #[arg(long)]
    histories: Option<u64>,
    /// Histories at a time; as many as there are cores by default
    #[arg(long)]
    jobs: Option<usize>,
    /// Stop at the first failure
    #[arg(long)]
    until_failure: bool,
    /// Add how often which faults struck during which effects to the table in this file
    #[arg(long)]
    table: Option<PathBuf>,
}

fn main() -> ExitCode {
    match Command::parse() {
        Command::Simulate(options) => simulate(&options),
        Command::CrashPoints { every, scenario, point } => crash_points(every, &scenario, point),
        Command::Script => {
            world::run(async || script::play(&world::World::new(1, 5)).await);
            ExitCode::SUCCESS
        }
        Command::Replay { seed, log, debug } => {
            if log || debug {
                simulation::log::install(debug);
            }
            let outcome = history::play(seed);
            for line in &outcome.story {
                println!("{line}");
            }
            for failure in &outcome.failures {
                println!("seed {seed}: {failure}");
            }
            exit_code(outcome.failures.is_empty())
        }
    }
}

fn exit_code(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn crash_points(every: u64, name: &str, point: Option<u64>) -> ExitCode {
    let mut good = true;
    let scenarios = Scenario::ALL.into_iter();
    for scenario in scenarios.filter(|scenario| scenario.name().contains(name)) {
        if let Some(point) = point {
            simulation::log::install(false);
            for line in crash_points::tell(scenario, point) {
                println!("{line}");
            }
            continue;
        }
        let report = crash_points::check(scenario, every, threads());
        for failure in &report.failures {
            println!("{failure}");
        }
        good &= report.failures.is_empty();
        println!(
            "{}: {} deaths, {} failed; effects: {:?}",
            scenario.name(),
            report.played,
            report.failures.len(),
            report.counts
        );
    }
    exit_code(good)
}

fn threads() -> usize {
    available_parallelism().map_or(1, usize::from)
}

fn simulate(options: &Simulate) -> ExitCode {
    let begin = Instant::now();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let campaign = Campaign {
        from: options.from.unwrap_or(now * 1000),
        histories: options.histories,
        time: Duration::from_secs(60 * options.minutes),
        threads: options.jobs.unwrap_or_else(threads),
        until_failure: options.until_failure,
    };
    let mut summary = campaign.play();
    if let Some(file) = &options.table {
        let mut table = Table::parse(&fs::read_to_string(file).unwrap_or_default());
        table.add(&summary.table);
        fs::write(file, table.render()).unwrap();
        println!("{}", table.summary());
    }
    summary.print(begin.elapsed());
    exit_code(summary.failed == 0)
}
