//! Accepts or rejects commands, by [`Fences`] and by the term on the state volume.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slurm::agent::{Fence, Refusal};
use tracing::warn;

use super::fences::{Fences, Stale, Subject};
use super::volume::Volume;
use crate::store::Store;

/// Below the operator's timeout of 5 s for a request, so that it gets the reason.
const VOLUME_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Admission {
    volume: Volume,
    /// `None` until the term that an earlier agent saved has been read.
    fences: Mutex<Option<Fences>>,
}

impl Admission {
    pub(super) fn new(volume: Volume) -> Self {
        Self {
            volume,
            fences: Mutex::new(None),
        }
    }

    /// Reads the saved term, so that the status has it before the first command.
    pub(super) async fn load_term(&self) {
        if let Ok(term) = self.volume.wait(Store::term, || {}).await {
            self.raise(term);
        }
    }

    /// Accepts a command and makes every older one stale. Commands of the current term need no volume. Those of a new term are
    /// rejected while the volume hangs: the next agent could not tell them from an older leader's.
    pub(super) async fn admit(&self, fence: Fence, subject: &Subject) -> Result<(), Refusal> {
        let term = fence.term;
        let is_new = self.lock().as_ref().is_none_or(|fences| fences.is_new(fence));
        if is_new {
            let saved = self.volume.run(VOLUME_TIMEOUT, move |store| {
                let highest = store.term();
                // A full disk must not prevent a drain: the term is in force for this agent.
                if highest < term
                    && let Err(error) = store.save_term(term)
                {
                    warn!(%error, term, "cannot save the term of the new leader on the state volume");
                }
                highest.max(term)
            });
            let highest = saved
                .await
                .map_err(|error| Refusal::failed(format!("the term of the new leader cannot be saved: {error}")))?;
            self.raise(highest);
        }
        let mut fences = self.lock();
        let fences = fences.get_or_insert_with(|| Fences::since(0));
        let admitted = fences.admit(fence, subject);
        admitted.map_err(|Stale(highest)| Refusal::StaleFence { highest })
    }

    /// Returns whether an accepted command has not become stale since.
    pub(super) fn check(&self, fence: Fence, subject: &Subject) -> Result<(), Refusal> {
        match self.lock().as_ref().map(|fences| fences.check(fence, subject)) {
            Some(Err(Stale(highest))) => Err(Refusal::StaleFence { highest }),
            Some(Ok(())) | None => Ok(()),
        }
    }

    pub(super) fn highest(&self) -> Fence {
        let nothing = Fence { term: 0, sequence: 0 };
        self.lock().as_ref().map_or(nothing, Fences::highest)
    }

    fn raise(&self, term: u64) {
        self.lock().get_or_insert_with(|| Fences::since(term)).raise(term);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Fences>> {
        self.fences.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use slurm::revision::ControllerUid;
    use tempfile::TempDir;

    use super::*;

    fn admission() -> (TempDir, Store, Admission) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(&host::Host::real(), directory.path(), &ControllerUid::new("a").unwrap());
        let admission = Admission::new(Volume::open(store.clone()).unwrap());
        (directory, store, admission)
    }

    fn fence(term: u64) -> Fence {
        Fence { term, sequence: 1 }
    }

    #[tokio::test]
    async fn a_term_is_saved_before_it_is_in_force_and_never_decreases() {
        let (_directory, store, admission) = admission();
        admission.admit(fence(4), &Subject::Leadership).await.unwrap();
        assert_eq!(store.term(), 4);
        // The term of a later leader, written after its caller had timed out.
        store.save_term(6).unwrap();
        admission.admit(fence(4), &Subject::Job).await.unwrap();
        let stale = admission.admit(fence(5), &Subject::Leadership).await.unwrap_err();
        let highest = Fence { term: 6, sequence: 0 };
        assert_eq!(stale, Refusal::StaleFence { highest });
        assert_eq!((store.term(), admission.highest()), (6, highest));
    }

    #[tokio::test]
    async fn the_first_command_is_compared_with_the_term_on_the_volume() {
        let (_directory, store, admission) = admission();
        store.save_term(6).unwrap();
        assert!(admission.admit(fence(5), &Subject::Job).await.is_err());
        admission.admit(fence(6), &Subject::Job).await.unwrap();
    }

    #[tokio::test]
    async fn a_volume_that_cannot_be_written_does_not_block_commands() {
        let (directory, _, admission) = admission();
        // No directory can be created here.
        std::fs::write(directory.path().join(".slurm-operator"), "").unwrap();
        admission.admit(fence(4), &Subject::Job).await.unwrap();
        assert_eq!(admission.highest().term, 4);
    }
}
