//! Since when each slurmctld is known to have run with its last revisions. What Slurm said before that may be of how things were
//! before.
//!
//! A decision about what Slurm said must come out the same until the revision that it led to is accepted, or that would be taken back
//! halfway. So it is judged by the revision that is accepted at the time, by Kubernetes' word or because slurmctld runs with it
//! ([`super::tries`]), and not by the newest one.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;
use slurm::revision::Digest;

use super::push::Report;
use crate::runtime::Key;

/// More than can be live before the first of them is accepted.
const REMEMBERED: usize = 4;

/// The last revisions of a slurmctld and since when they were live, the newest last.
pub(super) type Lives = Vec<(Digest, Timestamp)>;

#[derive(Debug, Default)]
pub(super) struct Since(Mutex<HashMap<Key, Lives>>);

impl Since {
    /// Notes what is live, if nothing is on its way.
    pub(super) fn note(&self, key: &Key, report: &Report, now: Timestamp) -> Lives {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = all.entry(key.clone()).or_default();
        if let Some(live) = report.live_at_rest()
            && lives.last().is_none_or(|(digest, _)| *digest != live.digest)
        {
            lives.retain(|(digest, _)| *digest != live.digest);
            lives.push((live.digest, now));
            let surplus = lives.len().saturating_sub(REMEMBERED);
            lives.drain(..surplus);
        }
        lives.clone()
    }

    /// The cluster is gone.
    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::push::{Live, State};

    #[test]
    fn a_revision_is_live_since_it_was_last_found_so_and_those_before_stay_known() {
        let since = Since::default();
        let key = Key::new("hpc", "slurm");
        let at = |second| Timestamp::from_second(second).unwrap();
        let of = |files: &str| Digest::of(files.as_bytes());
        let report = |files: &str, state: State| Report {
            live: Some(Live {
                sequence: 1,
                digest: of(files),
            }),
            state,
            ..Report::default()
        };
        assert_eq!(since.note(&key, &report("a", State::Busy), at(1)), []);
        assert_eq!(since.note(&key, &report("a", State::Done), at(2)), [(of("a"), at(2))]);
        assert_eq!(since.note(&key, &report("a", State::Done), at(3)), [(of("a"), at(2))]);
        let both = [(of("a"), at(2)), (of("b"), at(4))];
        assert_eq!(since.note(&key, &report("b", State::Done), at(4)), both);
        assert_eq!(since.note(&key, &report("a", State::Busy), at(5)), both);
        assert_eq!(
            since.note(&key, &report("a", State::Done), at(6)),
            [(of("b"), at(4)), (of("a"), at(6))]
        );
    }
}
