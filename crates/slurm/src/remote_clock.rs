//! The clock of another machine, which decides there when a token expires.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use host::Host;

/// How many seconds it is ahead of this machine's clock. `None` while that is not known.
#[derive(Debug, Default)]
pub(crate) struct RemoteClock(Mutex<Option<i64>>);

impl RemoteClock {
    pub(crate) fn offset(&self) -> Option<i64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_offset(&self, seconds: i64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(seconds);
    }

    /// Notes that it shows these seconds since 1970 now.
    pub(crate) fn note(&self, host: &Host, seconds: i64) {
        self.set_offset(seconds.saturating_sub(host.timestamp().as_second()));
    }

    /// Its time, or this machine's while it is not known.
    pub(crate) fn now(&self, host: &Host) -> SystemTime {
        let (now, offset) = (host.now(), self.offset().unwrap_or(0));
        let distance = Duration::from_secs(offset.unsigned_abs());
        let shifted = if offset < 0 {
            now.checked_sub(distance)
        } else {
            now.checked_add(distance)
        };
        shifted.unwrap_or(now)
    }
}
