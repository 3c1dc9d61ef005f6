//! State that is kept for each Partition between two reconciles.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use api::PartitionStatus;
use jiff::Timestamp;

use super::{drift::Baseline, rules::line::PartitionLine};
use crate::{finding::Finding, runtime::Key};

/// Counts change often and nothing depends on them: they are written at most this often.
const COUNTS_INTERVAL: Duration = Duration::from_secs(15);

/// When a rejected line is sent again: its nodes may have been added in the meantime.
pub(super) const RETRY: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub(super) struct Memories(Mutex<HashMap<Key, Memory>>);

#[derive(Debug, Default)]
pub(super) struct Memory {
    /// When its counts were last written.
    counted_at: Option<Timestamp>,
    /// The values that drift is measured against.
    pub(super) baseline: Option<Baseline>,
    /// The last line that an external slurmctld rejected.
    pub(super) refusal: Option<Refusal>,
}

#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) line: PartitionLine,
    pub(super) at: Timestamp,
    pub(super) fault: Finding,
}

impl Memories {
    pub(super) fn with<T>(&self, key: &Key, act: impl FnOnce(&mut Memory) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(all.entry(key.clone()).or_default())
    }

    /// Forgets a deleted Partition.
    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

impl Memory {
    /// Keeps the written counts if they are recent, and returns when to write the new ones.
    pub(super) fn throttle_counts(
        &mut self,
        before: Option<&PartitionStatus>,
        status: &mut PartitionStatus,
        now: Timestamp,
    ) -> Option<Duration> {
        let before = before?;
        let counts = |status: &PartitionStatus| (status.nodes.clone(), status.cpus.clone(), status.jobs.clone());
        if counts(before) == counts(status) {
            return None;
        }
        let left = self.counted_at.and_then(|at| COUNTS_INTERVAL.checked_sub(age(at, now)));
        // The first response of Slurm is written at once.
        let left = left.filter(|left| !left.is_zero() && before.nodes.is_some());
        match left {
            Some(_) => (status.nodes, status.cpus, status.jobs) = counts(before),
            None => self.counted_at = Some(now),
        }
        left
    }

    /// Returns why this line was rejected, if it was rejected recently.
    pub(super) fn refusal_of(&self, line: &PartitionLine, now: Timestamp) -> Option<Finding> {
        let refusal = self.refusal.as_ref().filter(|refusal| refusal.line == *line)?;
        (age(refusal.at, now) < RETRY).then(|| refusal.fault.clone())
    }
}

fn age(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use api::partition::PartitionJobs;

    use super::*;

    #[test]
    fn counts_are_written_every_fifteen_seconds_at_most() {
        let mut memory = Memory::default();
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let with = |running: i32| PartitionStatus {
            nodes: Some(api::partition::PartitionNodes::default()),
            jobs: Some(PartitionJobs { running, pending: 0 }),
            ..PartitionStatus::default()
        };
        let mut status = with(1);
        assert_eq!(memory.throttle_counts(Some(&with(0)), &mut status, at(0)), None);
        assert_eq!(status, with(1));
        let mut status = with(2);
        assert_eq!(
            memory.throttle_counts(Some(&with(1)), &mut status, at(5)),
            Some(Duration::from_secs(10))
        );
        assert_eq!(status, with(1), "throttled");
        let mut status = with(3);
        assert_eq!(memory.throttle_counts(Some(&with(1)), &mut status, at(15)), None);
        assert_eq!(status, with(3));
        assert_eq!(memory.throttle_counts(Some(&with(3)), &mut with(3), at(16)), None);
    }
}
