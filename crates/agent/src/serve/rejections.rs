//! When rejected requests are logged. Whoever can connect decides how many there are, a job for example, and would fill the log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A person who looks for the reason of a rejection waits this long for a line.
const INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Rejections(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    unlogged: u64,
}

impl Rejections {
    /// Counts a rejection. Returns how many there were since the last line, if another line is due.
    pub(super) fn note(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.unlogged = state.unlogged.saturating_add(1);
        if state.last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_make_one_line_in_ten_seconds_with_their_count() {
        let (rejections, start) = (Rejections::default(), Instant::now());
        assert_eq!(rejections.note(start), Some(1), "the first one at once");
        for milliseconds in 0..5000 {
            assert_eq!(rejections.note(start + Duration::from_millis(milliseconds)), None);
        }
        assert_eq!(rejections.note(start + INTERVAL), Some(5001));
        assert_eq!(rejections.note(start + INTERVAL), None);
    }
}
