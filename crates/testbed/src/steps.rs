//! Shows what is being done and how long it took. Timings are kept, so that `make test` can name its slowest steps.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Names the file that collects timings; unset, none are kept.
const TIMINGS: &str = "TESTBED_TIMINGS";

/// Runs `work` as a step that is shown and timed. Steps may run side by side, so each prints one line, at its end.
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

/// A step that may take minutes, so it is announced before it begins and shows once a minute that it is still at work.
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

/// Adds a timing without showing it.
pub fn keep(name: &str, seconds: f64) {
    let Some(file) = std::env::var_os(TIMINGS) else { return };
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(file) {
        // Losing a timing is no reason to fail what was timed.
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
