//! How long a failing object waits for its retry. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// The longest wait after the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait after many failures.
const LONGEST: Duration = Duration::from_mins(5);
/// Full jitter may be zero; an API server that has just rejected a request gets at least this long.
const SHORTEST: Duration = Duration::from_millis(100);

/// The consecutive failures of one object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    failures: u32,
    until: Instant,
}

impl Backoff {
    /// Of an object that has not failed yet.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            failures: 0,
            until: now,
        }
    }

    /// Records a failure and returns the time of the retry. A failure before the wait is over (a change in Kubernetes woke
    /// the object) does not count: else frequent changes would make the wait ever longer. `jitter` is between 0 and 1.
    pub(crate) fn fail(&mut self, now: Instant, jitter: f64) -> Instant {
        if now >= self.until {
            self.failures = self.failures.saturating_add(1);
            self.until = now + delay(self.failures, jitter);
        }
        self.until
    }
}

/// The wait: full jitter below a ceiling that doubles with every failure.
fn delay(failures: u32, jitter: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let ceiling = FIRST.saturating_mul(1 << doublings).min(LONGEST);
    ceiling.mul_f64(jitter.clamp(0.0, 1.0)).max(SHORTEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wait_doubles_from_a_second_to_five_minutes() {
        let mut now = Instant::now();
        let mut backoff = Backoff::new(now);
        let mut waits = Vec::new();
        for _ in 0..11 {
            let until = backoff.fail(now, 1.0);
            waits.push((until - now).as_secs());
            now = until;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_before_the_wait_is_over_does_not_count() {
        let now = Instant::now();
        let mut backoff = Backoff::new(now);
        let until = backoff.fail(now, 1.0);
        assert_eq!(backoff.fail(now + Duration::from_millis(500), 1.0), until);
    }

    #[test]
    fn jitter_shortens_the_wait_but_never_to_nothing() {
        assert_eq!(delay(4, 0.5), Duration::from_secs(4));
        assert_eq!(delay(4, 0.0), SHORTEST);
        assert_eq!(delay(u32::MAX, 1.0), LONGEST);
    }
}
