//! How the partitions stand, told by the reconcile of their Controller, which alone writes slurm.conf, to those of the
//! Partitions, which have nothing to do but to say it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use api::partition::PartitionWay;
use jiff::Timestamp;

use super::line::Line;
use crate::{controller::Kept, fault::Fault, runtime::Key};

/// What all Controllers say. A clone shares it.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<HashMap<Key, Arc<Standings>>>>);

/// By the names of the Partitions.
pub(crate) type Standings = BTreeMap<String, Standing>;

/// How one Partition stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// As it is in the last configuration that was accepted.
    pub(crate) line: Option<Line>,
    /// slurmctld has started with it, or been given it.
    pub(crate) runs: bool,
    /// Since when it is known that slurmctld runs with it. What Slurm said before that may be of how things were before.
    pub(crate) live_since: Option<Timestamp>,
    /// Why the newest version is not in it.
    pub(crate) trouble: Option<Fault>,
    /// The state that somebody set in Slurm and that stays.
    pub(crate) kept: Option<Kept>,
    /// What the cluster's configuration waits for, if it does.
    pub(crate) waits: Option<String>,
    /// The change of the configuration that brought the line.
    pub(crate) change: Option<Change>,
    /// Why slurmctld forgets it, where its files are not ours.
    pub(crate) not_persistent: Option<String>,
}

/// A change of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Of the revision. None where slurmctld was told without one.
    pub(crate) sequence: Option<u64>,
    pub(crate) at: Timestamp,
    pub(crate) way: Option<PartitionWay>,
    pub(crate) milliseconds: u64,
}

impl Board {
    /// Says how the partitions of a Controller stand. The result is those that stand otherwise than before.
    pub(crate) fn publish(&self, controller: &Key, mut standings: Standings) -> Vec<Key> {
        let mut boards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = boards.get(controller).cloned().unwrap_or_default();
        for (name, standing) in &mut standings {
            // Later changes were of something else.
            let same = before
                .get(name)
                .filter(|before| before.line == standing.line && before.change.is_some());
            if let Some(before) = same {
                standing.change.clone_from(&before.change);
            }
            let ran = before
                .get(name)
                .filter(|before| before.line == standing.line && before.runs);
            if let Some(since) = ran.and_then(|before| before.live_since).filter(|_| standing.runs) {
                standing.live_since = Some(since);
            }
        }
        boards.insert(controller.clone(), Arc::new(standings.clone()));
        let names = standings
            .keys()
            .chain(before.keys().filter(|name| !standings.contains_key(*name)));
        names
            .filter(|name| before.get(*name) != standings.get(*name))
            .map(|name| Key::new(&controller.namespace, name))
            .collect()
    }

    /// How a Partition stands. None until its Controller was looked at with it.
    pub(crate) fn find(&self, controller: &Key, partition: &str) -> Option<Standing> {
        let boards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        boards.get(controller)?.get(partition).cloned()
    }

    /// The Controller is gone.
    pub(crate) fn forget(&self, controller: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(controller);
    }
}
