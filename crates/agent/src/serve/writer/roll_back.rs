//! Rolls back files that slurmctld cannot run with.

use std::time::Duration;

use slurm::agent::{Phase, Refused};
use tokio::time::sleep;
use tracing::{error, warn};

use super::super::legacy_log::{self, Event};
use super::super::reason::reason;
use super::super::rollout::Rollout;
use super::super::volume::Unresponsive;
use super::{ConfigWriter, VOLUME_TIMEOUT};
use crate::config_dir::Files;
use crate::dry_run::environment_failure;

/// After a state volume that did not respond.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl ConfigWriter {
    /// slurmctld cannot run with the live files, for the reason in its last log lines.
    pub(super) async fn handle_refusal(
        &mut self,
        mut rollout: Rollout,
        live: &Files,
        last_words: Vec<String>,
    ) -> Duration {
        let sequence = live.summary.sequence;
        let reason = reason(&last_words);
        legacy_log::print(&self.services.host, &Event::Failed);
        let retry = match self.roll_back_target(live).await {
            Ok(Some(before)) => {
                let refused = Refused {
                    sequence,
                    // The same files may be pushed again if they were not the cause.
                    digest: environment_failure(&last_words)
                        .is_none()
                        .then_some(live.summary.digest),
                    reason,
                    last_words,
                };
                return self.roll_back(rollout, live, &before, refused).await;
            }
            Ok(None) => {
                // slurmctld ran with these files before, or there are no others: the cause is elsewhere.
                warn!(sequence, %reason, "slurmctld rejected files without a predecessor, retrying");
                rollout.healthy_before = false;
                reason
            }
            Err(error) => error.to_string(),
        };
        let interval = rollout.next_interval();
        self.wait(rollout, &retry);
        interval
    }

    /// Returns the files that slurmctld is known to have run with, or else the previous ones. `None` if the live ones are such.
    pub(super) async fn roll_back_target(&self, live: &Files) -> Result<Option<Files>, Unresponsive> {
        let good = self.verified.map(|good| good.digest);
        let is_good = |files: &Files| good == Some(files.summary.digest);
        if is_good(live) {
            return Ok(None);
        }
        match self.services.config.before(live) {
            Some(before) if is_good(&before) => Ok(Some(before)),
            before => Ok(self.restore_verified(live).await?.or(before)),
        }
    }

    /// Waits for the state volume.
    pub(super) async fn wait_for_roll_back_target(&self, live: &Files) -> Option<Files> {
        loop {
            match self.roll_back_target(live).await {
                Ok(target) => return target,
                Err(Unresponsive) => sleep(RETRY_INTERVAL).await,
            }
        }
    }

    /// Writes the last verified revision from the state volume to the configuration directory.
    async fn restore_verified(&self, live: &Files) -> Result<Option<Files>, Unresponsive> {
        let Some(good) = self.verified else { return Ok(None) };
        let below = live.summary.sequence;
        let found = self.volume.run(VOLUME_TIMEOUT, move |store| {
            // The same bytes may have got a higher number since.
            let numbers = store.sequences().ok()?.into_iter().rev();
            numbers
                .filter(|sequence| *sequence < below)
                .filter_map(|sequence| store.load(sequence))
                .find(|revision| revision.digest() == good.digest)
        });
        let Some(revision) = found.await? else { return Ok(None) };
        let written = self.services.config.write(&revision);
        let sequence = revision.sequence;
        Ok(written
            .inspect_err(|error| error!(%error, sequence, "cannot restore the last verified revision"))
            .ok())
    }

    /// Makes the previous files live. slurmctld still runs with them, and is reconfigured all the same: after a failed reconfigure
    /// 25.11 and 26.05 serve the files on disk to the nodes.
    pub(super) async fn roll_back(
        &mut self,
        mut rollout: Rollout,
        live: &Files,
        before: &Files,
        refused: Refused,
    ) -> Duration {
        let sequence = live.summary.sequence;
        warn!(sequence, reason = %refused.reason, back_to = before.summary.sequence, "slurmctld rejected the revision, rolling back");
        self.progress.send_modify(|progress| {
            progress.phase = Phase::RollingBack;
            progress.rolled_back = Some(refused.clone());
        });
        self.note(&live.summary, Phase::RollingBack, Some(refused.clone()))
            .await;
        // The next pod must not start from it. A hung volume removes it later; the roll back does not wait for that.
        if let Err(error) = self.ensure(move |store| store.remove(sequence)).await {
            error!(%error, "cannot remove a rejected revision from the state volume");
        }
        if let Err(error) = self.services.config.switch(before) {
            error!(%error, "cannot roll back");
            return self.wait(rollout, &error.to_string());
        }
        self.services.config.remove(&live.name);
        rollout.roll_back(refused);
        self.rollout = Some(rollout);
        Duration::ZERO
    }
}
