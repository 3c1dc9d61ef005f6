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
    has_lease: bool,
    /// The term this process needs, if agents have seen a higher one than its own.
    wanted_term: Option<u64>,
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

    /// Notes the highest fence that an agent has seen. If that is above this leader's, it needs a higher term: the other one is
    /// from a clock that was ahead, from a time before this leader's clock was set back, or from a lease that was restored from
    /// a backup. It gets the term by writing it into its lease, which only the leader can: a former leader, which agents reject
    /// too, does not get one.
    ///
    /// Without a lease, a fence that is not from the future is that of a process which started later.
    pub fn note_highest(&self, term: u64, sequence: u64) {
        let minutes = self.host.unix_time().as_secs() / 60;
        let mut state = lock(&self.state);
        let floor = if state.has_lease {
            state.term
        } else {
            state.term.max(minutes)
        };
        if term > floor || term == state.term && sequence >= state.sequence {
            let above = term.saturating_add(1);
            if state.has_lease {
                state.wanted_term = Some(above);
            } else {
                state.term = above;
            }
        }
    }

    /// The term to write into the lease.
    pub(crate) fn wanted_term(&self) -> Option<i32> {
        lock(&self.state).wanted_term.and_then(|term| i32::try_from(term).ok())
    }

    /// Continues with a higher term, once it is in the lease.
    pub(crate) fn raise(&self, term: u64) {
        let mut state = lock(&self.state);
        state.term = state.term.max(term);
        state.wanted_term = state.wanted_term.filter(|wanted| *wanted > term);
    }

    /// Begins a term. The sequence starts at the clock's microseconds, so that it is above that of an earlier process
    /// with the same term (no lease, two starts within a minute).
    pub fn begin(&self, term: u64, now: Timestamp, until: Option<Instant>) {
        *lock(&self.state) = State {
            term,
            sequence: u64::try_from(now.as_microsecond()).unwrap_or_default(),
            leads_until: Some(until.unwrap_or_else(|| self.host.instant() + FOR_EVER)),
            has_lease: until.is_some(),
            wanted_term: None,
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

    #[test]
    fn without_a_lease_a_fence_from_the_future_is_passed_at_once() {
        let fence = Fence::default();
        fence.begin(7, Timestamp::from_second(1000).unwrap(), None);
        let (_, own) = fence.next();
        fence.note_highest(7, own);
        assert_eq!(fence.next().0, 7, "an own command that was overtaken");
        fence.note_highest(8, 0);
        assert_eq!(fence.next().0, 7, "another leader, which is not from the future");
        fence.note_highest(7, u64::MAX);
        assert_eq!(fence.next().0, 8);
        fence.note_highest(u64::from(u32::MAX), 1);
        assert_eq!(fence.next().0, 1 << 32);
    }

    #[test]
    fn with_a_lease_a_term_above_every_fence_that_agents_have_seen_is_wanted() {
        let fence = Fence::default();
        fence.begin(7, Timestamp::from_second(1000).unwrap(), Some(Instant::now()));
        let (_, own) = fence.next();
        fence.note_highest(7, own);
        assert_eq!(fence.wanted_term(), None, "an own command that was overtaken");
        // Its clock was behind when it acquired a lease that was restored from a backup.
        fence.note_highest(9, 0);
        assert_eq!(fence.wanted_term(), Some(10));
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
