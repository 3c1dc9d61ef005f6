//! The states of partitions that slurmctld has shown to the operator.
//!
//! The operator writes manual states into the files, which takes a moment. If slurmctld has shown such a state already, it had it, and
//! another state is a later change by a person: the new file does not undo it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};

use slurm::agent::Refusal;
use slurm::answer::decode;
use slurm::partition::{PartitionState, PartitionStateName};
use slurm::{Partition, Revision};

use super::Services;
use super::slurm_tools::read;

/// When slurmctld was started, and its process, which a reconfigure replaces.
pub(super) type Process = (u64, Option<i32>);

/// States by the names of partitions.
pub(super) type States = BTreeMap<String, BTreeSet<PartitionStateName>>;

#[derive(Debug, Default)]
pub(super) struct ShownStates {
    process: Option<Process>,
    states: States,
}

impl ShownStates {
    fn note(&mut self, process: Process, shown: &[Partition]) {
        let mut before = std::mem::take(&mut self.states);
        if self.process != Some(process) {
            self.process = Some(process);
            before.clear();
        }
        for partition in shown {
            let PartitionState::Known(state) = partition.state else {
                continue;
            };
            let mut states = before.remove(&partition.name).unwrap_or_default();
            states.insert(state);
            self.states.insert(partition.name.clone(), states);
        }
    }

    /// The agent reconfigured slurmctld and sets manual states again, so the new process has had the states of the old one.
    fn carry_over(&mut self, before: Process, after: Process) {
        let is_same_run = before.0 == after.0;
        if is_same_run && self.process == Some(before) {
            self.process = Some(after);
        }
    }

    fn of(&self, process: Process, revision: &Revision) -> States {
        let states = self.states.iter().filter(|_| self.process == Some(process));
        let manual = states.filter(|(name, _)| revision.closed_by_hand.contains(*name));
        manual.map(|(name, states)| (name.clone(), states.clone())).collect()
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

    /// Returns the states that slurmctld has had of partitions whose state in a revision is a manual one.
    pub(super) async fn states_had(&self, revision: &Revision) -> States {
        let process = self.process().await;
        process.map_or_else(States::new, |process| self.shown_states().of(process, revision))
    }

    /// Notes that the agent has reconfigured slurmctld, whose process was this one before.
    pub(super) async fn carry_over_states(&self, before: Option<Process>) {
        if let (Some(before), Some(after)) = (before, self.process().await) {
            self.shown_states().carry_over(before, after);
        }
    }

    pub(super) async fn process(&self) -> Option<Process> {
        let state = self.supervisor.state().await.ok()?;
        Some((state.daemon.since?, state.daemon.pid))
    }

    fn shown_states(&self) -> MutexGuard<'_, ShownStates> {
        self.shown_states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
