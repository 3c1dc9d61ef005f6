//! Asks a dry run, for a push and for who only wants to know; and remembers what was refused, so that the next leader does not
//! have to ask again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use slurm::Revision;
use slurm::agent::{Refusal, Refused};
use tracing::warn;

use super::reason::reason;
use super::slurm_tools::SlurmTools;
use crate::dry_run::{self, DryRun, Verdict};

/// More than it takes to find out which of many inputs is the bad one, by halves.
const REMEMBERED: usize = 20;

#[derive(Debug)]
pub(super) struct Checker {
    dry_run: DryRun,
    slurm: Arc<SlurmTools>,
    /// As long as this agent lives, and thus in this very image; the newest last.
    refused: Mutex<VecDeque<Refused>>,
}

impl Checker {
    pub(super) fn new(dry_run: DryRun, slurm: Arc<SlurmTools>) -> Self {
        Self {
            dry_run,
            slurm,
            refused: Mutex::default(),
        }
    }

    /// Why slurmctld would not run with it, if so.
    pub(super) async fn check(&self, revision: &Revision) -> Result<Option<Refused>, dry_run::Error> {
        let verdict = self.dry_run.run(&revision.files, || self.slurm.node_names()).await?;
        let Verdict::Refused { last_words } = verdict else {
            return Ok(None);
        };
        let (sequence, reason) = (revision.sequence, reason(&last_words));
        warn!(sequence, %reason, "the dry run refused the revision");
        let refused = Refused {
            sequence,
            digest: Some(revision.digest()),
            reason,
            last_words,
        };
        self.remember(refused.clone());
        Ok(Some(refused))
    }

    /// The last ones that were refused, oldest first.
    pub(super) fn refused(&self) -> Vec<Refused> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.iter().cloned().collect()
    }

    fn remember(&self, refused: Refused) {
        let mut remembered = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.retain(|before| before.digest != refused.digest);
        remembered.push_back(refused);
        while remembered.len() > REMEMBERED {
            remembered.pop_front();
        }
    }
}

/// What is said to who asked for a dry run that came to no end.
pub(super) fn refusal(error: &dry_run::Error) -> Refusal {
    let detail = error.to_string();
    match error {
        dry_run::Error::Stuck { .. } => Refusal::Stuck { detail },
        _ => Refusal::Failed { detail },
    }
}

#[cfg(test)]
mod tests {
    use slurm::revision::Digest;

    use super::*;

    #[test]
    fn the_last_refusals_are_remembered_each_once() {
        let checker = Checker::new(DryRun::new(std::path::Path::new("/nowhere"), None), Arc::default());
        let refused = |number: usize, sequence| Refused {
            sequence,
            digest: Some(Digest::of(&number.to_le_bytes())),
            reason: "no".to_owned(),
            last_words: vec![],
        };
        for number in 0..2 * REMEMBERED {
            checker.remember(refused(number, 1));
        }
        checker.remember(refused(2 * REMEMBERED - 2, 2));
        let remembered = checker.refused();
        assert_eq!(remembered.len(), REMEMBERED);
        assert_eq!(remembered.last(), Some(&refused(2 * REMEMBERED - 2, 2)));
        assert_eq!(remembered[REMEMBERED - 2], refused(2 * REMEMBERED - 1, 1));
    }
}
