//! What happened and when, in seconds since 1970: the judge compares it with what became of the jobs.

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// slurmctld saves its state at most every five seconds; the rest is for a busy machine.
pub(super) const UNSAVED: f64 = 7.0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// By SIGKILL: it forgets what it has not saved.
    SlurmctldKilled,
    /// slurmctld does not receive reports of workers.
    SlurmctldAway,
    /// The operator does not see what Slurm shows: it or the agent, through which it reads partitions, is away.
    UnseenByOperator,
    /// slurmdbd does not receive reports of slurmctld, or cannot store them.
    AccountingAway,
    /// The processes of a worker are killed.
    WorkerDied(String),
    /// A person set a node DOWN, for which Slurm requeues its jobs.
    DownByHand(String),
}

#[derive(Clone, Debug)]
pub(super) struct Happened {
    pub effect: Effect,
    pub from: f64,
    pub to: f64,
}

#[derive(Debug)]
pub(super) struct History {
    begin: Instant,
    happened: Mutex<Vec<Happened>>,
}

pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            begin: Instant::now(),
            happened: Mutex::default(),
        }
    }

    /// Prints a line of the log.
    pub(super) fn say(&self, words: &str) {
        eprintln!("[{:7.1} s] {words}", self.begin.elapsed().as_secs_f64());
    }

    /// Seconds of the log, for a time since 1970.
    pub(super) fn shown(&self, time: f64) -> String {
        format!("{:.1} s", self.begin.elapsed().as_secs_f64() - (now() - time))
    }

    /// Something begins, and lasts until [`Self::ended`] with the number that this returns.
    pub(super) fn begun(&self, effect: Effect) -> usize {
        let mut happened = self.lock();
        happened.push(Happened {
            effect,
            from: now(),
            to: f64::INFINITY,
        });
        happened.len() - 1
    }

    /// It is over in so many seconds.
    pub(super) fn ended(&self, number: usize, after: f64) {
        self.lock()[number].to = now() + after;
    }

    pub(super) fn all(&self) -> Vec<Happened> {
        self.lock().clone()
    }

    /// When the operator has seen what slurmctld showed from a time on: it polls Slurm for some seconds without a disturbance.
    pub(super) fn seen_by(&self, from: f64, poll: f64) -> f64 {
        let mut disturbed = self.all();
        disturbed.retain(|it| matches!(it.effect, Effect::SlurmctldAway | Effect::UnseenByOperator));
        disturbed.sort_by(|one, other| one.from.total_cmp(&other.from));
        let postponed = |seen: f64, it: &Happened| {
            if it.from <= seen && it.to >= from {
                seen.max(it.to + poll)
            } else {
                seen
            }
        };
        disturbed.iter().fold(from + poll, postponed)
    }

    /// Whether slurmctld may have forgotten what it acknowledged in this time.
    pub(super) fn forgot(&self, from: f64, to: f64) -> bool {
        let killed = |happened: &Happened| {
            happened.effect == Effect::SlurmctldKilled && happened.to >= from - 1.0 && happened.from <= to + UNSAVED
        };
        self.lock().iter().any(killed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Happened>> {
        self.happened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
