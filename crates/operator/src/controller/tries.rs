//! What was sent to each slurmctld. Between the moment it runs with that and the moment Kubernetes has it written down, this is
//! what was accepted last.
//!
//! What Slurm says is judged by the revision that slurmctld runs with. Judged by the one before, a state that the newer one keeps, or lets
//! go, would look like somebody's hand, and would be taken back.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use slurm::{Revision, revision::Digest};

use super::{
    inputs::Inputs,
    push::{Live, Report},
};
use crate::runtime::Key;

/// More than can be on their way before the first of them is live.
const REMEMBERED: usize = 4;

/// A revision, and what it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    pub(super) revision: Revision,
    pub(super) inputs: Inputs,
}

#[derive(Debug, Default)]
struct Tries {
    /// The newest last.
    all: Vec<(Digest, Arc<Tried>)>,
    served: Option<(Live, Arc<Tried>)>,
}

#[derive(Debug, Default)]
pub(super) struct AllTries(Mutex<HashMap<Key, Tries>>);

impl AllTries {
    pub(super) fn note(&self, key: &Key, tried: Tried) {
        let digest = tried.revision.digest();
        let mut known = self.lock();
        let all = &mut known.entry(key.clone()).or_default().all;
        if all.last().is_some_and(|(last, _)| *last == digest) {
            return;
        }
        all.retain(|(other, _)| *other != digest);
        all.push((digest, Arc::new(tried)));
        let surplus = all.len().saturating_sub(REMEMBERED);
        all.drain(..surplus);
    }

    /// What slurmctld was last known to run with, and under which number, if that was sent from here.
    pub(super) fn served(&self, key: &Key, report: &Report) -> Option<(Live, Arc<Tried>)> {
        let mut known = self.lock();
        let of_cluster = known.get_mut(key)?;
        if let Some(live) = report.live_at_rest() {
            let mut all = of_cluster.all.iter();
            let tried = all.find(|(digest, _)| *digest == live.digest);
            of_cluster.served = tried.map(|(_, tried)| (live, Arc::clone(tried)));
        }
        of_cluster.served.clone()
    }

    /// The cluster is gone.
    pub(super) fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Tries>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use slurm::revision::ControllerUid;

    use super::*;
    use crate::controller::push::State;

    fn tried(extra_conf: &str) -> Tried {
        let file = slurm::revision::File::config(extra_conf);
        let files = [(slurm::revision::FileName::new("slurm.conf").unwrap(), file)];
        Tried {
            revision: Revision {
                sequence: 0,
                controller: ControllerUid::new("uid").unwrap(),
                files: files.into(),
                closed_by_hand: BTreeSet::new(),
            },
            inputs: Inputs {
                extra_conf: extra_conf.to_owned(),
                ..Inputs::default()
            },
        }
    }

    #[test]
    fn what_slurmctld_ran_with_last_is_known_while_the_next_is_on_its_way() {
        let tries = AllTries::default();
        let key = Key::new("hpc", "slurm");
        let report = |files: &str, state: State| Report {
            live: Some(Live {
                sequence: 7,
                digest: tried(files).revision.digest(),
            }),
            state,
            ..Report::default()
        };
        let served = |report: &Report| {
            tries
                .served(&key, report)
                .map(|(_, tried)| tried.inputs.extra_conf.clone())
        };
        assert_eq!(served(&report("a", State::Done)), None);
        tries.note(&key, tried("a"));
        tries.note(&key, tried("b"));
        assert_eq!(served(&report("a", State::Busy)), None);
        assert_eq!(served(&report("a", State::Done)).as_deref(), Some("a"));
        assert_eq!(served(&report("b", State::Busy)).as_deref(), Some("a"));
        assert_eq!(served(&report("b", State::Done)).as_deref(), Some("b"));
        // Somebody else's.
        assert_eq!(served(&report("c", State::Done)), None);
    }
}
