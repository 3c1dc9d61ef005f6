//! Orders what this leader says to agents after everything an earlier leader said.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::Instant;

/// The lease's term, the number of the next command, and how long this process may still count on the lease.
#[derive(Debug, Clone)]
pub struct Fence(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    term: AtomicU64,
    sequence: AtomicU64,
    until: Mutex<Lead>,
}

/// Whether this process leads, and how long it may count on it.
#[derive(Debug, Clone, Copy)]
enum Lead {
    No,
    Until(Instant),
    /// Without a lease there is no end.
    Always,
}

impl Fence {
    /// Of a process that does not lead yet.
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            term: AtomicU64::new(0),
            sequence: AtomicU64::new(0),
            until: Mutex::new(Lead::No),
        }))
    }

    /// For the next command to an agent. Each call gives a higher one.
    pub fn next(&self) -> slurm::agent::Fence {
        slurm::agent::Fence {
            term: self.0.term.load(Ordering::Acquire),
            sequence: self.0.sequence.fetch_add(1, Ordering::AcqRel),
        }
    }

    /// How long a direct call to Slurm may last: it must have ended before another process could lead.
    /// `None` when this process does not lead (any more).
    pub fn remaining(&self) -> Option<Duration> {
        match *self.until() {
            Lead::No => None,
            Lead::Always => Some(Duration::MAX),
            Lead::Until(end) => end
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero()),
        }
    }

    /// Begins a term. The sequence starts at the clock's microseconds, so that it is above an earlier process's even
    /// where the term is the same (no lease, two starts within a minute).
    pub(crate) fn begin(&self, term: u64, now: Timestamp, until: Option<Instant>) {
        self.0.sequence.store(
            u64::try_from(now.as_microsecond()).unwrap_or_default(),
            Ordering::Release,
        );
        self.0.term.store(term, Ordering::Release);
        *self.until() = until.map_or(Lead::Always, Lead::Until);
    }

    pub(crate) fn extend(&self, until: Instant) {
        *self.until() = Lead::Until(until);
    }

    pub(crate) fn end(&self) {
        *self.until() = Lead::No;
    }

    fn until(&self) -> std::sync::MutexGuard<'_, Lead> {
        self.0.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Fence {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_above_the_one_before_across_terms_and_processes() {
        let first = Fence::new();
        first.begin(7, "2026-01-01T00:00:00Z".parse().unwrap(), None);
        let (a, b) = (first.next(), first.next());
        let second = Fence::new();
        second.begin(7, "2026-01-01T00:00:01Z".parse().unwrap(), None);
        let c = second.next();
        second.begin(8, "2025-01-01T00:00:01Z".parse().unwrap(), None);
        let d = second.next();
        assert!(a < b && b < c && c < d);
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_lead_has_no_time_left() {
        let fence = Fence::new();
        assert_eq!(fence.remaining(), None);
        fence.begin(1, Timestamp::UNIX_EPOCH, Some(Instant::now() + Duration::from_secs(10)));
        assert_eq!(fence.remaining(), Some(Duration::from_secs(10)));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(fence.remaining(), None);
        fence.extend(Instant::now() + Duration::from_secs(1));
        assert!(fence.remaining().is_some());
        fence.end();
        assert_eq!(fence.remaining(), None);
    }
}
