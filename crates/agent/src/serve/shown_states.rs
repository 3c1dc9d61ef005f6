//! The states of partitions that slurmctld has shown to the operator.
//!
//! The operator writes manual states into the files, which takes a moment. If slurmctld has shown the state of a new file already, it
//! had it, and another state is a later change by a person: the new file does not undo it.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use slurm::agent::Refusal;
use slurm::answer::decode;
use slurm::partition::{PartitionState, PartitionStateName};
use slurm::{Partition, Revision};

use super::Services;
use super::slurm_tools::read;

/// When slurmctld was started, and its process, which a reconfigure replaces.
type Process = (u64, Option<i32>);

#[derive(Debug, Default)]
pub(super) struct ShownStates {
    process: Option<Process>,
    /// All states of each partition, the present one last.
    states: BTreeMap<String, Vec<PartitionStateName>>,
}

impl ShownStates {
    fn note(&mut self, process: Process, shown: &[Partition]) {
        if self.process != Some(process) {
            self.process = Some(process);
            self.states.clear();
        }
        let mut before = std::mem::take(&mut self.states);
        for partition in shown {
            let PartitionState::Known(state) = partition.state else {
                continue;
            };
            let mut states = before.remove(&partition.name).unwrap_or_default();
            states.retain(|earlier| *earlier != state);
            states.push(state);
            self.states.insert(partition.name.clone(), states);
        }
    }

    /// Returns the states that this process has had, if they are manual ones of the revision, and otherwise has had last.
    fn of(&self, process: Process, revision: &Revision) -> BTreeMap<String, Vec<PartitionStateName>> {
        if self.process != Some(process) {
            return BTreeMap::new();
        }
        let had = |(name, states): (&String, &Vec<PartitionStateName>)| {
            let count = if revision.closed_by_hand.contains(name) {
                states.len()
            } else {
                1
            };
            (name.clone(), states.iter().rev().take(count).copied().collect())
        };
        self.states.iter().map(had).collect()
    }
}

impl Services {
    /// Reads the partitions for the operator.
    pub(super) async fn show_partitions(&self) -> Result<Vec<u8>, Refusal> {
        let before = self.process().await;
        let json = self.channels.tools.read(read::PARTITIONS).await?;
        if let Some(process) = before
            && self.process().await == before
            && let Ok(shown) = decode::<Vec<Partition>>(&json)
        {
            self.shown_states().note(process, &shown.value);
        }
        Ok(json)
    }

    /// Returns the states of partitions that slurmctld need not be given with a revision.
    pub(super) async fn states_had(&self, revision: &Revision) -> BTreeMap<String, Vec<PartitionStateName>> {
        let process = self.process().await;
        process.map_or_else(BTreeMap::new, |process| self.shown_states().of(process, revision))
    }

    async fn process(&self) -> Option<Process> {
        let state = self.supervisor.state().await.ok()?;
        Some((state.daemon.since?, state.daemon.pid))
    }

    fn shown_states(&self) -> MutexGuard<'_, ShownStates> {
        self.shown_states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
