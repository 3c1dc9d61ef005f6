//! Which workers stay and which leave.

use std::collections::BTreeSet;

use crate::worker::{Cause, Worker};

/// The active workers, by whether they stay.
#[derive(Debug, Default)]
pub(super) struct Selection<'a> {
    pub(super) stay: Vec<Worker<'a>>,
    pub(super) leave: Vec<(Worker<'a>, Cause)>,
}

impl<'a> Selection<'a> {
    pub(super) fn all_leave(workers: impl Iterator<Item = Worker<'a>>, cause: Cause) -> Self {
        let active = workers.filter(|worker| worker.is_active());
        Self {
            stay: Vec::new(),
            leave: active.map(|worker| (worker, cause)).collect(),
        }
    }

    pub(super) fn without(mut self, dead: &BTreeSet<&str>) -> Self {
        self.stay.retain(|worker| !dead.contains(worker.uid()));
        self.leave.retain(|(worker, _)| !dead.contains(worker.uid()));
        self
    }

    /// Moves workers from those that stay to those that leave.
    pub(super) fn dismiss(&mut self, chosen: &[Worker<'a>], cause: Cause) {
        let leaving: BTreeSet<&str> = chosen.iter().map(|worker| worker.uid()).collect();
        self.stay.retain(|worker| !leaving.contains(worker.uid()));
        self.leave.extend(chosen.iter().map(|worker| (*worker, cause)));
    }
}
