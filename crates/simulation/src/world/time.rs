//! Virtual time: tokio's paused clock, from the start of the world.

use std::{
    cell::Cell,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::slurm::settings::EPOCH;

thread_local! {
    static START: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The world begins.
pub(super) fn begin() {
    START.set(Some(Instant::now()));
}

/// How long the world exists.
pub fn elapsed() -> Duration {
    START.get().map(|start| start.elapsed()).unwrap_or_default()
}

/// The true time.
pub(super) fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(EPOCH) + elapsed()
}

pub(super) fn timestamp() -> Timestamp {
    Timestamp::try_from(now()).unwrap()
}

/// As Kubernetes writes it.
pub(super) fn rfc3339() -> String {
    timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A time of the world in seconds since 1970.
pub(super) fn unix(time: Duration) -> u64 {
    EPOCH + time.as_secs()
}
