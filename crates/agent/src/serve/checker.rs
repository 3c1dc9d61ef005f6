//! Runs dry runs, for pushes and for checks, and remembers the rejected revisions for a while, so that a new leader does not have
//! them tried again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use host::Host;
use slurm::Revision;
use slurm::agent::{RETRY_DRY_RUN, Refusal, Refused};
use tokio::time::Instant;
use tracing::warn;

use super::reason::reason;
use super::slurm_tools::SlurmTools;
use crate::dry_run::{self, DryRun, Verdict};

/// More than a binary search for the bad one of many inputs takes.
const REMEMBERED: usize = 20;

#[derive(Debug)]
pub(super) struct Checker {
    host: Host,
    dry_run: DryRun,
    slurm: Arc<SlurmTools>,
    /// Since this agent started, and thus of this image, and when; the newest last.
    refused: Mutex<VecDeque<(Instant, Refused)>>,
}

impl Checker {
    pub(super) fn new(host: &Host, dry_run: DryRun, slurm: Arc<SlurmTools>) -> Self {
        Self {
            host: host.clone(),
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
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.host.instant();
        refused.retain(|(at, _)| now.saturating_duration_since(*at) < RETRY_DRY_RUN);
        refused.iter().map(|(_, refused)| refused.clone()).collect()
    }

    fn remember(&self, refused: Refused) {
        let mut remembered = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.retain(|(_, before)| before.digest != refused.digest);
        remembered.push_back((self.host.instant(), refused));
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

    fn checker() -> Checker {
        let host = Host::real();
        let dry_run = DryRun::new(&host, std::path::Path::new("/nowhere"), None);
        Checker::new(&host, dry_run, Arc::new(SlurmTools::new(&host)))
    }

    fn refused(number: usize, sequence: u64) -> Refused {
        Refused {
            sequence,
            digest: Some(Digest::of(&number.to_le_bytes())),
            reason: "no".to_owned(),
            last_words: vec![],
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rejection_is_remembered_for_a_while() {
        let checker = checker();
        checker.remember(refused(1, 1));
        tokio::time::advance(RETRY_DRY_RUN / 2).await;
        checker.remember(refused(2, 2));
        assert_eq!(checker.refused(), [refused(1, 1), refused(2, 2)]);
        tokio::time::advance(RETRY_DRY_RUN / 2).await;
        assert_eq!(checker.refused(), [refused(2, 2)]);
    }

    #[test]
    fn the_last_rejections_are_remembered_once_each() {
        let checker = checker();
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
