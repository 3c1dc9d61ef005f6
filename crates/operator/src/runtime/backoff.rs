//! How long a failing object waits (pure).

use std::time::Duration;

use tokio::time::Instant;

/// After the first failure at most.
const FIRST: Duration = Duration::from_secs(1);
/// After many failures at most.
const LONGEST: Duration = Duration::from_mins(5);
/// Full jitter may draw zero; an API server that just refused us gets at least this.
const SHORTEST: Duration = Duration::from_millis(100);

/// The failures of one object in a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backoff {
    failures: u32,
    until: Instant,
}

impl Backoff {
    /// After the first failure. `luck` is between 0 and 1.
    pub(super) fn begin(now: Instant, luck: f64) -> Self {
        Self {
            failures: 1,
            until: now + delay(1, luck),
        }
    }

    /// After one more failure. One that was not ours to wait for (a change in Kubernetes woke the object before its time)
    /// says nothing new: counting it would let busy neighbours make the wait longer and longer.
    pub(super) fn failed_again(&mut self, now: Instant, luck: f64) {
        if now >= self.until {
            self.failures = self.failures.saturating_add(1);
            self.until = now + delay(self.failures, luck);
        }
    }

    pub(super) fn until(&self) -> Instant {
        self.until
    }
}

/// Between nothing and twice as much as the time before.
fn delay(failures: u32, luck: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let ceiling = FIRST.saturating_mul(1 << doublings).min(LONGEST);
    ceiling.mul_f64(luck.clamp(0.0, 1.0)).max(SHORTEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wait_doubles_from_a_second_to_five_minutes() {
        let mut now = Instant::now();
        let mut backoff = Backoff::begin(now, 1.0);
        let mut waits = Vec::new();
        for _ in 0..11 {
            waits.push((backoff.until() - now).as_secs());
            now = backoff.until();
            backoff.failed_again(now, 1.0);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_before_its_time_does_not_count() {
        let now = Instant::now();
        let mut backoff = Backoff::begin(now, 1.0);
        let until = backoff.until();
        backoff.failed_again(now + Duration::from_millis(500), 1.0);
        assert_eq!(backoff.until(), until);
    }

    #[test]
    fn luck_makes_the_wait_shorter_and_never_nothing() {
        assert_eq!(delay(4, 0.5), Duration::from_secs(4));
        assert_eq!(delay(4, 0.0), SHORTEST);
        assert_eq!(delay(u32::MAX, 1.0), LONGEST);
    }
}
