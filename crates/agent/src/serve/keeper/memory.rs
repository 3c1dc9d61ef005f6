//! What the agent after this one will know.

use slurm::agent::{Phase, Refused};
use slurm::revision::Summary;
use tracing::{error, warn};

use super::Keeper;
use crate::config_dir::Files;
use crate::fail_point;
use crate::journal::Entry;
use crate::store::Verified;

impl Keeper {
    /// A later revision that slurmctld cannot start with gives way to this one.
    pub(super) async fn remember_as_good(&self, live: &Files) {
        let Summary { sequence, digest, .. } = live.summary;
        if self.around.store.verified() == Some(Verified { sequence, digest }) {
            return;
        }
        let (store, config, live) = (self.around.store.clone(), self.around.config.clone(), live.clone());
        let saved = tokio::task::spawn_blocking(move || {
            // What came with the pod, and not by a push, is not on the volume yet.
            if store.load(live.summary.sequence).is_none()
                && let Some(revision) = config.read(&live)
            {
                store.save(&revision)?;
            }
            store.save_verified(&live.summary)
        });
        match saved.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "it is not on the state volume that slurmctld runs with this revision"),
            Err(error) => error!(%error, "it is not on the state volume that slurmctld runs with this revision"),
        }
    }

    pub(super) async fn note_unless_rolling_back(&self, live: &Files, step: Phase) {
        if self.shown.borrow().phase != Phase::RollingBack {
            self.note(&live.summary, step, None).await;
        }
    }

    /// For whoever comes after this agent. A disk that is full does not keep a change from going on.
    pub(super) async fn note(&self, revision: &Summary, step: Phase, refused: Option<Refused>) {
        let entry = Entry::new(revision, step, refused);
        let store = self.around.store.clone();
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || store.note(entry)).await {
            warn!(%error, %step, "a step is not in the journal");
        }
        fail_point::reach(step);
    }
}
