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
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The lease's term.
    term: u64,
    /// The sequence of the next command.
    sequence: u64,
    /// Until when this process may rely on leading. `None` if it does not lead.
    leads_until: Option<Instant>,
}

/// Without a lease a process leads this long: longer than it runs.
const FOR_EVER: Duration = Duration::from_hours(24 * 365 * 30);

impl Fence {
    /// The fence of a process that does not lead yet.
    pub fn new(host: Host) -> Self {
        Self {
            host,
            state: Arc::default(),
        }
    }

    /// Term and sequence of the next command. They are higher than those of every earlier command, also of earlier leaders.
    pub fn next(&self) -> (u64, u64) {
        let mut state = lock(&self.state);
        state.sequence += 1;
        (state.term, state.sequence - 1)
    }

    /// How long an unnumbered command may take: it must end before another process could lead.
    /// `None` when this process does not lead.
    pub fn remaining(&self) -> Option<Duration> {
        let left = lock(&self.state)
            .leads_until?
            .checked_duration_since(self.host.instant());
        left.filter(|left| !left.is_zero())
    }

    /// Begins a term. The sequence starts at the clock's microseconds, so that it is above that of an earlier process
    /// with the same term (no lease, two starts within a minute).
    pub fn begin(&self, term: u64, now: Timestamp, until: Option<Instant>) {
        *lock(&self.state) = State {
            term,
            sequence: u64::try_from(now.as_microsecond()).unwrap_or_default(),
            leads_until: Some(until.unwrap_or_else(|| self.host.instant() + FOR_EVER)),
        };
    }

    pub(crate) fn extend(&self, until: Instant) {
        lock(&self.state).leads_until = Some(until);
    }

    pub(crate) fn end(&self) {
        lock(&self.state).leads_until = None;
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
