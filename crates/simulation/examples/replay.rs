//! Replays scripts on a real Slurm: `replay FROM COUNT STEPS COMMAND…`, where `COMMAND line` runs a line of bash in an empty lab.
//! `COMMAND` alone makes a new lab.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::process::{Command, exit};
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, count, steps, program] = arguments.as_slice() else {
        panic!("replay FROM COUNT STEPS COMMAND")
    };
    let (from, count, steps): (u64, u64, usize) =
        (from.parse().unwrap(), count.parse().unwrap(), steps.parse().unwrap());
    let mut failed = false;
    for seed in from..from + count {
        assert!(Command::new(program).status().unwrap().success());
        let mut shell = |line: &str| {
            let output = Command::new(program)
                .arg(line)
                .output()
                .map_err(|error| error.to_string())?;
            if output.status.success() {
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            } else {
                Err(String::from_utf8_lossy(&output.stderr).into_owned())
            }
        };
        match simulation::replay::replay(seed, steps, Duration::MAX, &mut shell) {
            Ok(done) => {
                let count = |word: &str| done.iter().filter(|line| line.contains(word)).count();
                let (kills, freezes) = (count("Kill") + count("kill -9") + count("StopC"), count("reeze"));
                println!(
                    "seed {seed}: the same after {} steps, {kills} kills, {freezes} freezes",
                    done.len()
                );
            }
            Err(error) => {
                println!("{error}");
                failed = true;
            }
        }
    }
    exit(i32::from(failed));
}
