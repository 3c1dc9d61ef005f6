//! How long to wait before a daemon is started again.

use std::time::Duration;

/// A Slurm daemon starts in 30 ms, so a single death should cost no more than a reconfigure does.
const FIRST: Duration = Duration::from_millis(50);
/// One that dies of its configuration is tried often enough for a person who is repairing it.
const LONGEST: Duration = Duration::from_secs(5);
/// Past this a death is a new one: a daemon that cannot read its files or its state ends within a second or two.
const SETTLED: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    /// The wait after a daemon that lived this long.
    pub fn after_life_of(&mut self, lived: Duration) -> Duration {
        let wait = match self.last {
            Some(last) if lived < SETTLED => (last * 2).min(LONGEST),
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
    fn a_daemon_that_keeps_dying_is_started_ever_more_slowly_up_to_the_limit() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..10).map(|_| backoff.after_life_of(Duration::ZERO)).collect();
        assert_eq!(waits.first(), Some(&FIRST));
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(waits.last(), Some(&LONGEST));
    }

    #[test]
    fn a_daemon_that_lived_is_started_quickly_again() {
        let mut backoff = Backoff::default();
        for _ in 0..10 {
            backoff.after_life_of(Duration::ZERO);
        }
        assert_eq!(backoff.after_life_of(SETTLED), FIRST);
    }
}
