//! Plays many histories, one per thread at a time, and sums up what they found.

use std::{
    collections::BTreeMap,
    panic::resume_unwind,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    coverage::Table,
    history::{self, Outcome},
};

/// How often progress is printed.
const PROGRESS: Duration = Duration::from_mins(1);

/// Which histories are played.
#[derive(Debug, Clone, Copy)]
pub struct Campaign {
    /// The first seed.
    pub from: u64,
    /// So many histories, or else those that fit in the time.
    pub histories: Option<u64>,
    pub time: Duration,
    pub threads: usize,
    /// No history begins after the first failure.
    pub until_failure: bool,
}

/// What all histories together showed.
#[derive(Debug, Default)]
pub struct Summary {
    pub played: u64,
    pub failed: u64,
    pub jobs: usize,
    /// Virtual time.
    pub lasted: Duration,
    pub table: Table,
    /// The seeds of each kind of failure.
    pub failures: BTreeMap<String, Vec<u64>>,
    /// How long each history took to settle.
    pub settled: Vec<Duration>,
    printed: Duration,
}

impl Campaign {
    /// Plays the histories, and prints each failure and the progress.
    pub fn play(self) -> Summary {
        let begin = Instant::now();
        let next = AtomicU64::new(0);
        let summary = Mutex::new(Summary::default());
        let work = || {
            while self.histories.is_some() || begin.elapsed() < self.time {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let is_over = self.until_failure && summary.lock().unwrap().failed > 0;
                if is_over || self.histories.is_some_and(|all| number >= all) {
                    break;
                }
                let outcome = history::play(self.from + number);
                summary.lock().unwrap().add(&outcome, begin.elapsed());
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads.max(1)).map(|_| scope.spawn(work)).collect();
            for thread in threads {
                thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
        });
        summary.into_inner().unwrap()
    }
}

impl Summary {
    fn add(&mut self, outcome: &Outcome, elapsed: Duration) {
        self.played += 1;
        self.jobs += outcome.jobs;
        self.lasted += outcome.lasted;
        self.settled.extend(outcome.settled);
        self.table.histories += 1;
        self.table.add(&outcome.struck);
        self.failed += u64::from(!outcome.failures.is_empty());
        for failure in &outcome.failures {
            println!("seed {}: {failure}", outcome.seed);
            let seeds = self.failures.entry(kind_of(failure)).or_default();
            seeds.push(outcome.seed);
        }
        if !outcome.failures.is_empty() {
            println!("make replay SEED={} tells its story", outcome.seed);
        }
        if elapsed.saturating_sub(self.printed) >= PROGRESS {
            self.printed = elapsed;
            println!(
                "{} histories, {} failed after {} s",
                self.played,
                self.failed,
                elapsed.as_secs()
            );
        }
    }

    /// Prints everything but the table.
    pub fn print(&mut self, elapsed: Duration) {
        for (kind, seeds) in &self.failures {
            let some: Vec<String> = seeds.iter().take(5).map(u64::to_string).collect();
            println!("{:>6}  {kind} (seeds {})", seeds.len(), some.join(", "));
        }
        self.settled.sort();
        let part = |of: usize| {
            self.settled
                .get((self.settled.len() * of / 1000).min(self.settled.len().saturating_sub(1)))
        };
        let seconds = |of: usize| part(of).map_or(0, Duration::as_secs);
        println!(
            "settled within: half {} s, 90 % {} s, 99 % {} s, 99.9 % {} s, all {} s",
            seconds(500),
            seconds(900),
            seconds(990),
            seconds(999),
            seconds(1000)
        );
        println!(
            "{} histories, {} failed, {} jobs, {} virtual hours in {} s",
            self.played,
            self.failed,
            self.jobs,
            self.lasted.as_secs() / 3600,
            elapsed.as_secs()
        );
    }
}

/// The first line of a failure, without the numbers that differ between histories.
fn kind_of(failure: &str) -> String {
    let line = failure.lines().next().unwrap_or_default();
    let mut kind = String::new();
    for letter in line.chars() {
        let shown = if letter.is_ascii_digit() { 'N' } else { letter };
        if shown != 'N' || !kind.ends_with('N') {
            kind.push(shown);
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::kind_of;

    #[test]
    fn failures_of_one_kind_differ_in_numbers_and_further_lines() {
        assert_eq!(
            kind_of("job 17 on compute-0 was killed\nat 12"),
            "job N on compute-N was killed"
        );
    }
}
