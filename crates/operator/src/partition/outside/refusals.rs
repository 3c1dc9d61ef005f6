//! What a slurmctld outside refused, so that it is not told the same again at once.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;

use crate::{fault::Fault, partition::rules::line::Line, runtime::Key};

/// How soon it is tried again: its nodes may have come meanwhile.
pub(super) const TRY_AGAIN: Duration = Duration::from_mins(1);

/// What was refused last of each Partition, and when.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashMap<Key, Refusal>>);

#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) line: Line,
    pub(super) at: Timestamp,
    pub(super) fault: Fault,
}

impl Refusals {
    pub(crate) fn forget(&self, key: &Key) {
        self.all().remove(key);
    }

    /// Of this very line, lately.
    pub(super) fn find(&self, key: &Key, line: &Line, now: Timestamp) -> Option<Fault> {
        let all = self.all();
        let refusal = all.get(key).filter(|refusal| refusal.line == *line)?;
        let age = Duration::try_from(now.duration_since(refusal.at)).unwrap_or_default();
        (age < TRY_AGAIN).then(|| refusal.fault.clone())
    }

    pub(super) fn note(&self, key: &Key, refusal: Refusal) {
        self.all().insert(key.clone(), refusal);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Key, Refusal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
