//! Runs dry runs, for pushes and for checks, and remembers the rejected revisions, so that a new leader does not have them tried
//! again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use slurm::Revision;
use slurm::agent::{Refusal, Refused};
use tracing::warn;

use super::reason::reason;
use super::slurm_tools::SlurmTools;
use crate::dry_run::{self, DryRun, Verdict};

/// More than a binary search for the bad one of many inputs takes.
const REMEMBERED: usize = 20;

#[derive(Debug)]
pub(super) struct Checker {
    dry_run: DryRun,
    slurm: Arc<SlurmTools>,
    /// Since this agent started, and thus of this image; the newest last.
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

    /// Returns why slurmctld would not run with the revision, if so.
    pub(super) async fn check(&self, revision: &Revision) -> Result<Option<Refused>, dry_run::Error> {
        let verdict = self.dry_run.run(&revision.files, || self.slurm.node_names()).await?;
        let Verdict::Refused { last_words } = verdict else {
            return Ok(None);
        };
        let (sequence, reason) = (revision.sequence, reason(&last_words));
        warn!(sequence, %reason, "the dry run rejected the revision");
        let refused = Refused {
            sequence,
            digest: Some(revision.digest()),
            reason,
            last_words,
        };
        self.remember(refused.clone());
        Ok(Some(refused))
    }

    /// The last rejected revisions, oldest first.
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

/// The response for a dry run without a verdict.
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
    fn the_last_rejections_are_remembered_once_each() {
        let checker = Checker::new(
            DryRun::new(&host::Host::real(), std::path::Path::new("/nowhere"), None),
            Arc::default(),
        );
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
