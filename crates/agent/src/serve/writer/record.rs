//! What the writer records on the state volume for the next agent.

use slurm::agent::{KeptState, Phase, Refused};
use slurm::revision::{LiveRevision, Summary};
use tracing::warn;

use super::{ConfigWriter, Error};
use crate::config_dir::Files;
use crate::fail_point;
use crate::journal::Entry;

impl ConfigWriter {
    /// Records that slurmctld runs with this revision. A later one that slurmctld cannot start with is rolled back to it.
    pub(super) async fn record_verified(&mut self, live: &Files) {
        let verified = LiveRevision::from(&live.summary);
        self.verified = Some(verified);
        let (config, live) = (self.services.config.clone(), live.clone());
        let saved = self.ensure(move |store| {
            if store.verified() == Some(verified) {
                return Ok(());
            }
            // A revision of the bundle is not on the volume yet.
            if store.load(verified.sequence).is_none()
                && let Some(revision) = config.read(&live)
            {
                store.save(&revision)?;
            }
            store.save_verified(&live.summary)
        });
        if let Err(error) = saved.await {
            warn!(%error, "cannot record on the state volume that slurmctld runs with this revision");
        }
    }

    /// Removes an attempt that changed nothing: the next pod must not start from an untried revision, nor the next agent resume it.
    /// That includes one that a hung volume saves after the timeout.
    pub(super) async fn discard_attempt(&self, untried: Option<u64>) {
        let rollout = self.rollout.as_ref();
        // The states that the previous change has not set again yet.
        let closed = rollout.map_or_else(Vec::new, |rollout| rollout.partitions.manual_states.closed.clone());
        let discarded = self.ensure(move |store| {
            store.remove_pending();
            let removed = untried.map_or(Ok(()), |sequence| store.remove(sequence));
            if closed.is_empty() {
                store.remove_closed();
            } else {
                store.save_closed(&closed)?;
            }
            removed
        });
        if let Err(error) = discarded.await {
            warn!(%error, "an untried revision may stay on the state volume");
        }
    }

    /// Records the manually closed partitions.
    pub(super) async fn save_closed(&self, closed: &[KeptState]) -> Result<(), Error> {
        if !closed.is_empty() {
            let closed = closed.to_vec();
            self.on_volume(move |store| store.save_closed(&closed)).await?;
        }
        Ok(())
    }

    /// Adds a step to the journal. A disk that is full or hangs does not stop the change.
    pub(super) async fn note(&self, revision: &Summary, step: Phase, refused: Option<Refused>) {
        let entry = Entry::new(&self.services.host, revision, step, refused);
        if let Err(error) = self.on_volume(move |store| store.note(entry)).await {
            warn!(%error, %step, "cannot add a step to the journal");
        }
        fail_point::reach(step);
    }
}
