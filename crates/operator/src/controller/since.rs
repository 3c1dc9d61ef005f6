//! Since when each slurmctld is known to run with what it has. What Slurm said before that may be of how things were before.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;
use slurm::revision::Digest;

use super::push::{Report, State};
use crate::runtime::Key;

#[derive(Debug, Default)]
pub(super) struct Since(Mutex<HashMap<Key, (Digest, Timestamp)>>);

impl Since {
    /// None while it is not known, or a change is on its way.
    pub(super) fn note(&self, key: &Key, report: &Report, now: Timestamp) -> Option<Timestamp> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let live = report
            .live
            .filter(|_| matches!(report.state, State::Done | State::Refused(_)));
        let Some(live) = live else {
            all.remove(key);
            return None;
        };
        match all.get(key) {
            Some((digest, since)) if *digest == live.digest => Some(*since),
            _ => {
                all.insert(key.clone(), (live.digest, now));
                Some(now)
            }
        }
    }

    /// The cluster is gone.
    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}
