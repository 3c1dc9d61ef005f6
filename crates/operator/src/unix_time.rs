//! Slurm's times, which are seconds since 1970.

use jiff::Timestamp;

pub(crate) fn timestamp(seconds: u64) -> Option<Timestamp> {
    Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
}
