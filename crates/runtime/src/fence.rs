//! Numbers the commands of this leader above all commands of earlier leaders.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use host::Host;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::lock;

/// The number of the next command, and how long this process may still rely on the lease. A clone shares them.
#[derive(Debug, Clone)]
pub struct Fence {
    host: Host,
    state: Arc<Mutex<(FenceNumber, Lead)>>,
}

/// The number of one command. It is higher than that of every earlier command, also of earlier leaders.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FenceNumber {
    /// The lease's term.
    pub term: u64,
    pub sequence: u64,
}

/// Whether this process leads, and for how long it may rely on it.
#[derive(Debug, Clone, Copy, Default)]
enum Lead {
    #[default]
    No,
    Until(Instant),
    /// This process runs without a lease.
    Always,
}

impl Fence {
    /// The fence of a process that does not lead yet.
    pub fn new(host: Host) -> Self {
        Self {
            host,
            state: Arc::default(),
        }
    }

    /// The number of the next command. Each call returns a higher one.
    pub fn next(&self) -> FenceNumber {
        let (next, _) = &mut *lock(&self.state);
        let number = *next;
        next.sequence += 1;
        number
    }

    /// How long an unnumbered command may take: it must end before another process could lead.
    /// `None` when this process does not lead.
    pub fn remaining(&self) -> Option<Duration> {
        match lock(&self.state).1 {
            Lead::No => None,
            Lead::Always => Some(Duration::MAX),
            Lead::Until(end) => end
                .checked_duration_since(self.host.instant())
                .filter(|left| !left.is_zero()),
        }
    }

    /// Begins a term. The sequence starts at the clock's microseconds, so that it is above that of an earlier process
    /// with the same term (no lease, two starts within a minute).
    pub fn begin(&self, term: u64, now: Timestamp, until: Option<Instant>) {
        let sequence = u64::try_from(now.as_microsecond()).unwrap_or_default();
        let lead = until.map_or(Lead::Always, Lead::Until);
        *lock(&self.state) = (FenceNumber { term, sequence }, lead);
    }

    pub(crate) fn extend(&self, until: Instant) {
        lock(&self.state).1 = Lead::Until(until);
    }

    pub(crate) fn end(&self) {
        lock(&self.state).1 = Lead::No;
    }
}

impl Default for Fence {
    fn default() -> Self {
        Self::new(Host::real())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_above_the_one_before_across_terms_and_processes() {
        let first = Fence::default();
        first.begin(7, "2026-01-01T00:00:00Z".parse().unwrap(), None);
        let (a, b) = (first.next(), first.next());
        let second = Fence::default();
        second.begin(7, "2026-01-01T00:00:01Z".parse().unwrap(), None);
        let c = second.next();
        second.begin(8, "2025-01-01T00:00:01Z".parse().unwrap(), None);
        let d = second.next();
        assert!(a < b && b < c && c < d);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_does_not_lead_has_no_time_left() {
        let fence = Fence::default();
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
