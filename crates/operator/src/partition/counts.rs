//! Counts change all the time and nobody waits for them: they are written at most every few seconds.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use api::PartitionStatus;
use jiff::Timestamp;

use crate::runtime::Key;

const EVERY: Duration = Duration::from_secs(15);

/// When the counts of each Partition were last written.
#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<HashMap<Key, Timestamp>>);

impl Counts {
    /// Leaves the counts as they are if they were written a moment ago; then says when to look again.
    pub(super) fn calm(
        &self,
        key: &Key,
        before: Option<&PartitionStatus>,
        status: &mut PartitionStatus,
        now: Timestamp,
    ) -> Option<Duration> {
        let before = before?;
        let same = before.nodes == status.nodes && before.cpus == status.cpus && before.jobs == status.jobs;
        if same {
            return None;
        }
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = written
            .get(key)
            .map(|written| Duration::try_from(now.duration_since(*written)).unwrap_or_default());
        match age.and_then(|age| EVERY.checked_sub(age)) {
            // That Slurm answers is news.
            Some(left) if !left.is_zero() && before.nodes.is_some() => {
                status.nodes.clone_from(&before.nodes);
                status.cpus.clone_from(&before.cpus);
                status.jobs.clone_from(&before.jobs);
                Some(left)
            }
            _ => {
                written.insert(key.clone(), now);
                None
            }
        }
    }

    /// It is gone.
    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use api::partition::PartitionJobs;

    use super::*;

    #[test]
    fn counts_are_written_every_fifteen_seconds_at_most() {
        let counts = Counts::default();
        let key = Key::new("hpc", "x");
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let with = |running: i32| PartitionStatus {
            nodes: Some(api::partition::PartitionNodes::default()),
            jobs: Some(PartitionJobs { running, pending: 0 }),
            ..PartitionStatus::default()
        };
        let mut status = with(1);
        assert_eq!(counts.calm(&key, Some(&with(0)), &mut status, at(0)), None);
        assert_eq!(status, with(1));
        let mut status = with(2);
        assert_eq!(
            counts.calm(&key, Some(&with(1)), &mut status, at(5)),
            Some(Duration::from_secs(10))
        );
        assert_eq!(status, with(1), "they wait");
        let mut status = with(3);
        assert_eq!(counts.calm(&key, Some(&with(1)), &mut status, at(15)), None);
        assert_eq!(status, with(3));
        assert_eq!(counts.calm(&key, Some(&with(3)), &mut with(3), at(16)), None);
    }
}
