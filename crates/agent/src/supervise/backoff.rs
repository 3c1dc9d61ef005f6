//! The back-off between two starts of a daemon.

use std::time::Duration;

/// A Slurm daemon starts in 30 ms: one crash should cost no more than a reconfigure.
const FIRST: Duration = Duration::from_millis(50);
/// A person who repairs the configuration should not have to wait longer.
const LONGEST: Duration = Duration::from_secs(5);
/// A crash after this time is a new one: a daemon that cannot read its files or its state exits within two seconds.
const SETTLED: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    /// Returns the wait after a run of this length.
    pub fn after_run_of(&mut self, ran: Duration) -> Duration {
        let wait = match self.last {
            Some(last) if ran < SETTLED => (last * 2).min(LONGEST),
            _ => FIRST,
        };
        self.last = Some(wait);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_keeps_crashing_is_started_with_growing_waits_up_to_the_limit() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..10).map(|_| backoff.after_run_of(Duration::ZERO)).collect();
        assert_eq!(waits.first(), Some(&FIRST));
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(waits.last(), Some(&LONGEST));
    }

    #[test]
    fn a_daemon_that_ran_for_a_while_is_restarted_quickly() {
        let mut backoff = Backoff::default();
        for _ in 0..10 {
            backoff.after_run_of(Duration::ZERO);
        }
        assert_eq!(backoff.after_run_of(SETTLED), FIRST);
    }
}
