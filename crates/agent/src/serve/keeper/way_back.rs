//! The way back from files that slurmctld cannot run with.

use std::time::Duration;

use slurm::agent::{Phase, Refused};
use tracing::{error, warn};

use super::super::reason::reason;
use super::super::story::{Event, tell};
use super::super::unsettled::Unsettled;
use super::Keeper;
use crate::config_dir::Files;
use crate::dry_run::not_the_files;

impl Keeper {
    /// slurmctld cannot run with the live files, in its own words.
    pub(super) async fn refused(
        &mut self,
        mut unsettled: Unsettled,
        live: &Files,
        last_words: Vec<String>,
    ) -> Duration {
        let sequence = live.summary.sequence;
        let reason = reason(&last_words);
        tell(&Event::Failed);
        let Some(before) = self.way_back(live) else {
            // It ran with them before, or there are no others: what is around them must change.
            warn!(sequence, %reason, "slurmctld refused the files it has; trying again");
            unsettled.healthy_before = false;
            let pause = unsettled.next_pause();
            self.wait(unsettled, &reason);
            return pause;
        };
        let refused = Refused {
            sequence,
            // These very files may be tried again if they could not help it.
            digest: not_the_files(&last_words).is_none().then_some(live.summary.digest),
            reason,
            last_words,
        };
        self.roll_back(unsettled, live, &before, refused).await
    }

    /// Files that slurmctld is known to have run with; failing that, those of before. `None` if the live ones are such.
    pub(super) fn way_back(&self, live: &Files) -> Option<Files> {
        let good = self.around.store.verified();
        let is_good = |files: &Files| good.is_some_and(|good| good.digest == files.summary.digest);
        if is_good(live) {
            return None;
        }
        let before = self.around.config.before(live);
        match before {
            Some(before) if is_good(&before) => Some(before),
            other => self.last_known_good(live).or(other),
        }
    }

    /// From the state volume.
    pub(super) fn last_known_good(&self, live: &Files) -> Option<Files> {
        let good = self.around.store.verified()?;
        // The same bytes may have got a higher number since.
        let numbers = self.around.store.sequences().ok()?.into_iter().rev();
        let revision = numbers
            .filter(|sequence| *sequence < live.summary.sequence)
            .filter_map(|sequence| self.around.store.load(sequence))
            .find(|revision| revision.digest() == good.digest)?;
        match self.around.config.write(&revision) {
            Ok(files) => Some(files),
            Err(error) => {
                error!(%error, sequence = revision.sequence, "cannot put the last known good revision back");
                None
            }
        }
    }

    /// slurmctld goes on with what it had; with what it had must it be told to go on, too: 25.11 and 26.05 serve to the
    /// nodes what lies on disk after a failure.
    pub(super) async fn roll_back(
        &mut self,
        mut unsettled: Unsettled,
        live: &Files,
        before: &Files,
        refused: Refused,
    ) -> Duration {
        let sequence = live.summary.sequence;
        warn!(sequence, reason = %refused.reason, back_to = before.summary.sequence, "slurmctld refused the revision, rolling back");
        self.shown.send_modify(|shown| {
            shown.phase = Phase::RollingBack;
            shown.rolled_back = Some(refused.clone());
        });
        self.note(&live.summary, Phase::RollingBack, Some(refused.clone()))
            .await;
        // The next pod must not start from it.
        if let Err(error) = self.around.store.remove(sequence) {
            error!(%error, "a refused revision stays on the state volume");
        }
        if let Err(error) = self.around.config.switch(before) {
            error!(%error, "cannot roll back");
            return self.wait(unsettled, &error.to_string());
        }
        self.around.config.forget(&live.name);
        unsettled.roll_back(refused);
        self.unsettled = Some(unsettled);
        Duration::ZERO
    }
}
