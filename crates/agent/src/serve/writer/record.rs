//! What the agent after this one will know.

use slurm::agent::{Phase, Refused};
use slurm::revision::Summary;
use tracing::warn;

use super::Keeper;
use crate::config_dir::Files;
use crate::fail_point;
use crate::journal::Entry;
use crate::store::Verified;

impl Keeper {
    /// A later revision that slurmctld cannot start with gives way to this one.
    pub(super) async fn remember_as_good(&mut self, live: &Files) {
        let Summary { sequence, digest, .. } = live.summary;
        let verified = Verified { sequence, digest };
        self.verified = Some(verified);
        let (config, live) = (self.around.config.clone(), live.clone());
        let saved = self.ensure(move |store| {
            if store.verified() == Some(verified) {
                return Ok(());
            }
            // What came with the pod, and not by a push, is not on the volume yet.
            if store.load(sequence).is_none()
                && let Some(revision) = config.read(&live)
            {
                store.save(&revision)?;
            }
            store.save_verified(&live.summary)
        });
        if let Err(error) = saved.await {
            warn!(%error, "it is not on the state volume that slurmctld runs with this revision");
        }
    }

    /// Nothing has changed. The next pod must not start from what nobody has tried, nor the next agent go on with it: neither what was
    /// saved, nor what a volume that hangs saves after we have given up.
    pub(super) async fn forget_attempt(&self, untried: Option<u64>) {
        let unsettled = self.unsettled.as_ref();
        // What the change before this one has yet to close again.
        let closed = unsettled.map_or_else(Vec::new, |unsettled| unsettled.partitions.by_hand.closed.clone());
        let forgotten = self.ensure(move |store| {
            store.remove_pending();
            let removed = untried.map_or(Ok(()), |sequence| store.remove(sequence));
            if closed.is_empty() {
                store.remove_closed();
            } else {
                store.save_closed(&closed)?;
            }
            removed
        });
        if let Err(error) = forgotten.await {
            warn!(%error, "an untried revision may stay on the state volume");
        }
    }

    pub(super) async fn note_unless_rolling_back(&self, live: &Files, step: Phase) {
        if self.shown.borrow().phase != Phase::RollingBack {
            self.note(&live.summary, step, None).await;
        }
    }

    /// For whoever comes after this agent. A disk that is full or hangs does not keep a change from going on.
    pub(super) async fn note(&self, revision: &Summary, step: Phase, refused: Option<Refused>) {
        let entry = Entry::new(revision, step, refused);
        if let Err(error) = self.on_volume(move |store| store.note(entry)).await {
            warn!(%error, %step, "a step is not in the journal");
        }
        fail_point::reach(step);
    }
}
