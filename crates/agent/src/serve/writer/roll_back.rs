//! The way back from files that slurmctld cannot run with.

use std::time::Duration;

use slurm::agent::{Phase, Refused};
use tokio::time::sleep;
use tracing::{error, warn};

use super::super::reason::reason;
use super::super::story::{Event, tell};
use super::super::unsettled::Unsettled;
use super::super::volume::NoAnswer;
use super::{Keeper, VOLUME_PATIENCE};
use crate::config_dir::Files;
use crate::dry_run::not_the_files;

/// After a state volume that did not answer.
const AGAIN: Duration = Duration::from_secs(1);

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
        let way_back = match self.way_back(live).await {
            Ok(way_back) => way_back,
            Err(error) => {
                let pause = unsettled.next_pause();
                self.wait(unsettled, &error.to_string());
                return pause;
            }
        };
        let Some(before) = way_back else {
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
    pub(super) async fn way_back(&self, live: &Files) -> Result<Option<Files>, NoAnswer> {
        let good = self.verified.map(|good| good.digest);
        let is_good = |files: &Files| good == Some(files.summary.digest);
        if is_good(live) {
            return Ok(None);
        }
        let before = self.around.config.before(live);
        match before {
            Some(before) if is_good(&before) => Ok(Some(before)),
            other => Ok(self.last_known_good(live).await?.or(other)),
        }
    }

    /// The same for who can go no further without.
    pub(super) async fn wait_for_way_back(&self, live: &Files) -> Option<Files> {
        loop {
            match self.way_back(live).await {
                Ok(way_back) => return way_back,
                Err(NoAnswer) => sleep(AGAIN).await,
            }
        }
    }

    /// From the state volume.
    async fn last_known_good(&self, live: &Files) -> Result<Option<Files>, NoAnswer> {
        let Some(good) = self.verified else { return Ok(None) };
        let below = live.summary.sequence;
        let found = self.around.volume.run(VOLUME_PATIENCE, move |store| {
            // The same bytes may have got a higher number since.
            let numbers = store.sequences().ok()?.into_iter().rev();
            numbers
                .filter(|sequence| *sequence < below)
                .filter_map(|sequence| store.load(sequence))
                .find(|revision| revision.digest() == good.digest)
        });
        let Some(revision) = found.await? else { return Ok(None) };
        let written = self.around.config.write(&revision);
        Ok(written
            .inspect_err(
                |error| error!(%error, sequence = revision.sequence, "cannot put the last known good revision back"),
            )
            .ok())
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
        // The next pod must not start from it. A volume that hangs forgets it later; the way back does not wait for that.
        if let Err(error) = self.ensure(move |store| store.remove(sequence)).await {
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
