//! Prints steps and their durations. Durations are recorded, so that `make test` can list its slowest steps.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Names the file for durations. If it is unset, none are recorded.
const TIMINGS: &str = "TESTBED_TIMINGS";

/// Runs `work` as a step and prints its duration. Steps may run in parallel, so each prints one line at its end.
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let result = work();
    let seconds = start.elapsed().as_secs_f64();
    match &result {
        Ok(_) => eprintln!("  {seconds:6.1} s  {name}"),
        Err(_) => eprintln!("  {seconds:6.1} s  {name}: FAILED"),
    }
    keep(name, seconds);
    result
}

/// A step that may take minutes. It is announced at its start and prints progress once a minute.
pub fn long_step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("            {name} …");
    thread::scope(|scope| {
        let (ended, end) = channel::<()>();
        scope.spawn(move || {
            for minutes in 1.. {
                match end.recv_timeout(Duration::from_mins(1)) {
                    Err(RecvTimeoutError::Timeout) => eprintln!("            {name}: {minutes} min so far …"),
                    _ => return,
                }
            }
        });
        let result = step(name, work);
        drop(ended);
        result
    })
}

/// Records a duration without printing it.
pub fn keep(name: &str, seconds: f64) {
    let Some(file) = std::env::var_os(TIMINGS) else { return };
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(file) {
        // A lost duration does not fail the step.
        let _ = writeln!(file, "{seconds:.1}\t{name}");
    }
}

/// The `count` slowest of the timings collected in `text`.
pub fn slowest(text: &str, count: usize) -> Vec<(f64, &str)> {
    let mut timings: Vec<(f64, &str)> = text
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter_map(|(seconds, name)| Some((seconds.parse().ok()?, name)))
        .collect();
    timings.sort_by(|a, b| b.0.total_cmp(&a.0));
    timings.truncate(count);
    timings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_come_first_and_broken_lines_are_skipped() {
        let text = "1.5\ta\nnonsense\n12.0\tb\n0.1\tc\n";
        assert_eq!(slowest(text, 2), vec![(12.0, "b"), (1.5, "a")]);
    }
}
