//! Lets commands pass, by [`Fences`] and by the term on the state volume.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slurm::agent::{Fence, Refusal};
use tracing::warn;

use super::fences::{Fences, Stale, Subject};
use super::volume::Volume;
use crate::store::Store;

/// Below the 5 s that the operator gives a question, so that it hears what is the matter.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Admission {
    volume: Volume,
    /// `None` until the volume has said which term an agent before this one heard of.
    fences: Mutex<Option<Fences>>,
}

impl Admission {
    pub(super) fn new(volume: Volume) -> Self {
        Self {
            volume,
            fences: Mutex::new(None),
        }
    }

    /// Reads the term of before, so that the status has it before the first command comes.
    pub(super) async fn learn(&self) {
        if let Ok(term) = self.volume.wait(Store::term, || {}).await {
            self.raise(term);
        }
    }

    /// Lets a command pass, and makes every older one stale. Commands of the term that is in force need no volume. Those of a new
    /// one are refused while the volume hangs: an agent after this one could not tell them from an older leader's.
    pub(super) async fn admit(&self, fence: Fence, subject: Subject<'_>) -> Result<(), Refusal> {
        let term = fence.term;
        let is_new = self.lock().as_ref().is_none_or(|fences| fences.is_new(fence));
        if is_new {
            let saved = self.volume.run(PATIENCE, move |store| {
                let highest = store.term();
                // A full disk must not keep a node from being drained: the term counts here and now.
                if highest < term
                    && let Err(error) = store.save_term(term)
                {
                    warn!(%error, term, "the term of the new leader is not on the state volume");
                }
                highest.max(term)
            });
            let highest = saved.await.map_err(|error| Refusal::Failed {
                detail: format!("the term of the new leader cannot be saved: {error}"),
            })?;
            self.raise(highest);
        }
        let mut fences = self.lock();
        let fences = fences.get_or_insert_with(|| Fences::since(0));
        let admitted = fences.admit(fence, subject);
        admitted.map_err(|Stale(highest)| Refusal::StaleFence { highest })
    }

    /// Whether a command that was admitted has not been overtaken since.
    pub(super) fn check(&self, fence: Fence, subject: Subject<'_>) -> Result<(), Refusal> {
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
