//! Changes of partitions in the running slurmctld.
//!
//! For a change of partitions alone slurmctld is updated first, by its own protocol or by scontrol, the result is read back, and
//! then the files follow. The revision is on the state volume beforehand, under a name that no pod starts from, so that the next
//! agent finishes an interrupted update.
//!
//! A partition is removed only if slurmctld deletes it, also before a reconfigure: reading files without its line would end its
//! jobs.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use slurm::Revision;
use slurm::agent::{Action, KeptState, Outcome, PartitionInUse, Phase, Refused, UpdateChannel};
use slurm::conf::Configuration;
use slurm::job::Job;
use slurm::partition::PartitionStateName;
use slurm::rpc::{
    Delivery, Failure, LivePartition, NotReleased, PartitionCommands, PartitionUpdate, StillNeeded, deliver_partitions,
    read_back_partitions, release_partitions,
};
use tokio::sync::MutexGuard;
use tokio::time::sleep;
use tracing::{info, warn};

use super::super::command_channels::{Channel, no_channel};
use super::super::legacy_log::{self, Event};
use super::super::partitions::{Created, LiveUpdate, ManualStates, PartitionPlan, Remaining, Updated};
use super::super::rollout::{Rollout, Steps};
use super::super::slurm_tools::read;
use super::{ConfigWriter, Error, NotLive, PUSH_TIMEOUT, VOLUME_TIMEOUT};
use crate::config_dir::Files;
use crate::dry_run::configuration_of;
use crate::fail_point;
use crate::store::Store;

/// slurmctld starts in a tenth of a second.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The result of a live update by one channel.
enum Sent {
    /// slurmctld has all of it.
    Taken,
    NotTaken {
        outcome: Outcome,
        /// All partitions are as before.
        reverted: bool,
    },
    /// slurmctld did not process it; another channel may succeed.
    Unspoken(String),
    /// It may have taken effect.
    Unknown(String),
}

/// Partitions that slurmctld does not delete.
#[derive(Debug, thiserror::Error)]
pub(super) struct InUse(pub(super) Vec<PartitionInUse>);

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("slurm.conf does not have these partitions, whose jobs would end: ")?;
        for (n, PartitionInUse { name, why, .. }) in self.0.iter().enumerate() {
            write!(f, "{}{name} ({why})", if n == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Why slurmctld may not read new files.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotPrepared {
    #[error(transparent)]
    InUse(#[from] InUse),
    /// No partition is removed, but manual states are not known.
    #[error("{0}")]
    NoResponse(Failure),
}

impl ConfigWriter {
    /// Finishes a live update that slurmctld may have got in part.
    pub(super) async fn resume_partitions(&mut self, pending: Revision, live: Files) {
        if pending.sequence > live.summary.sequence {
            // A slurmctld that starts with this pod responds in a moment; without a response there is no live update.
            let start = self.services.host.instant();
            while self.services.host.instant().saturating_duration_since(start) < PUSH_TIMEOUT
                && self.services.channels.slurmctld.loaded_config(&pending).await.is_err()
            {
                sleep(POLL_INTERVAL).await;
            }
            // Before the update slurmctld was known to run with the live files.
            let rollout = self.rollout.take();
            self.resume_push(pending, live).await;
            if self.rollout.is_none() {
                self.rollout = rollout;
            }
        }
        let _ = self.volume.ensure(VOLUME_TIMEOUT, Store::remove_pending).await;
    }

    /// Plans the change of partitions from the live files to a revision.
    pub(super) async fn plan_partitions(&self, revision: &Revision, live: Option<&Files>) -> PartitionPlan {
        let Some(before) = live.and_then(|live| self.services.config.configuration(live)) else {
            return PartitionPlan::default();
        };
        let had = self.services.states_had(revision).await;
        PartitionPlan::for_slurmctld(&before, &configuration_of(&revision.files), &had)
    }

    /// Does a live update and returns its channel. `None` if it needs a reconfigure instead; then nothing has changed, or only to
    /// what the files will say.
    pub(super) async fn update_partitions(
        &mut self,
        revision: &Revision,
        live: &Files,
        plan: &PartitionPlan,
        steps: &mut Steps,
    ) -> Result<Option<(NotLive, UpdateChannel)>, Error> {
        let Some(update) = &plan.live_update else {
            return Ok(None);
        };
        let services = Arc::clone(&self.services);
        let members = services.channels.slurmctld.lock_members().await;
        let sequence = revision.sequence;
        for channel in services.channels.to(&configuration_of(&revision.files)) {
            let way = channel.way();
            let sent = self.send_update(&channel, revision, plan, update).await?;
            services.channels.remember(&channel);
            let not_live = match sent {
                Sent::Unspoken(reason) => {
                    warn!(sequence, %way, reason, "slurmctld does not process commands by this channel");
                    continue;
                }
                Sent::Unknown(reason) => {
                    warn!(sequence, %way, reason, "the result of the partition update is unknown, reconfiguring");
                    return Ok(None);
                }
                Sent::NotTaken { outcome, reverted } => {
                    self.record_not_taken(&outcome, reverted, live, steps).await;
                    Some(outcome)
                }
                Sent::Taken => {
                    self.follow_with_files(revision, live, steps, members).await?;
                    None
                }
            };
            return Ok(Some((not_live, way)));
        }
        Ok(None)
    }

    /// Sends a live update by one channel, and reverts it if slurmctld does not take all of it.
    async fn send_update(
        &self,
        channel: &Channel,
        revision: &Revision,
        plan: &PartitionPlan,
        update: &LiveUpdate,
    ) -> Result<Sent, Error> {
        // Updates alone can be reverted without the state before.
        let only_updates = update.created.is_empty() && plan.removed.is_empty();
        let before = if only_updates {
            Vec::new()
        } else {
            match channel.partitions().await {
                Ok(before) => before,
                Err(failure) if failure.needs_another_channel() => return Ok(Sent::Unspoken(failure.to_string())),
                Err(failure) => return Ok(Sent::Unknown(failure.to_string())),
            }
        };
        let pending = revision.clone();
        let saved = self.on_volume(move |store| {
            let was_begun = store.pending().as_ref() == Some(&pending);
            store.save_pending(&pending)?;
            Ok(was_begun)
        });
        let was_begun = saved.await?;
        fail_point::reach("pending");
        let sequence = revision.sequence;
        info!(
            sequence,
            created = update.created.len(),
            updated = update.updated.len(),
            removed = plan.removed.len(),
            way = %channel.way(),
            "changing partitions"
        );
        let sent = send(channel, update, &before).await;
        fail_point::reach("updated");
        let outcome = match sent {
            Delivery::Done => match self.release(channel, plan, &before, &plan.removed).await {
                Ok(()) => return Ok(Sent::Taken),
                Err(InUse(partitions)) => Outcome::PartitionsInUse { partitions },
            },
            Delivery::Refused(reason) => Outcome::RolledBack(Refused {
                sequence,
                digest: Some(revision.digest()),
                last_words: vec![reason.clone()],
                reason,
            }),
            Delivery::Unknown(reason) => return Ok(Sent::Unknown(reason)),
            Delivery::NotUnderstood(reason) => return Ok(Sent::Unspoken(reason)),
        };
        // A partition that an earlier attempt created is still closed, since no file has it.
        let is_half_created = |partition: &LivePartition| {
            let is_new = update.created.iter().any(|created| created.line.name == partition.name);
            was_begun && is_new && partition.state.name() == Some(PartitionStateName::Inactive)
        };
        let mut original = before;
        original.retain(|partition| !is_half_created(partition));
        let reverted = revert(channel, update, &original).await;
        Ok(Sent::NotTaken { outcome, reverted })
    }

    async fn record_not_taken(&mut self, outcome: &Outcome, reverted: bool, live: &Files, steps: &Steps) {
        if !reverted {
            // The live files have the original partitions.
            let mut rollout = Rollout::new(&self.services.host, steps.clone());
            rollout.partitions.must_reconfigure = true;
            self.rollout = Some(rollout);
        }
        if let Outcome::RolledBack(refused) = outcome {
            warn!(sequence = refused.sequence, reason = %refused.reason, "slurmctld rejected a partition");
            legacy_log::print(&self.services.host, &Event::Reconfiguring);
            legacy_log::print(&self.services.host, &Event::Failed);
            self.progress
                .send_modify(|progress| progress.rolled_back = Some(refused.clone()));
            self.note(&live.summary, Phase::Verified, Some(refused.clone())).await;
        }
    }

    /// Makes the files follow a live update. It cannot be reverted from here on, so a hung volume is waited for; an agent that stops
    /// meanwhile leaves `pending` to the next one.
    async fn follow_with_files(
        &mut self,
        revision: &Revision,
        live: &Files,
        steps: &mut Steps,
        members: MutexGuard<'_, ()>,
    ) -> Result<(), Error> {
        fail_point::reach("released");
        steps.reach(Phase::PartitionsLive);
        self.show(Phase::PartitionsLive, true);
        self.note(&revision.summary(), Phase::PartitionsLive, None).await;
        let sequence = revision.sequence;
        let promoted = self.volume.wait(
            move |store| store.promote_pending(sequence),
            || {
                // Node commands wait for this lock.
                drop(members);
                self.show_unresponsive();
            },
        );
        promoted.await??;
        fail_point::reach("durable");
        self.swap(revision, Some(live.clone()))?;
        Ok(())
    }

    /// Closes these partitions, checks that they have no jobs, and deletes them: all or none.
    async fn release(
        &self,
        channel: &Channel,
        plan: &PartitionPlan,
        before: &[LivePartition],
        names: &[String],
    ) -> Result<(), InUse> {
        let leaving: Vec<&LivePartition> = before
            .iter()
            .filter(|partition| names.contains(&partition.name))
            .collect();
        if leaving.is_empty() {
            return Ok(());
        }
        let tools = &self.services.channels.tools;
        let jobs = || async move {
            let jobs = tools.list::<Vec<Job>>(read::JOBS).await;
            jobs.map_err(|refusal| refusal.to_string())
        };
        let released = release_partitions(channel, &leaving, jobs).await;
        if released.is_ok() {
            info!(partitions = ?names, "slurmctld deleted partitions");
        }
        released.map_err(|NotReleased { needed, left_closed }| {
            for (partition, error) in left_closed {
                warn!(partition, %error, "cannot open a partition again");
            }
            let in_use = |StillNeeded { partition, why }| PartitionInUse {
                name: partition.name.clone(),
                why,
                made_by_hand: plan.is_manual(&partition.name),
                line: partition.to_line(),
            };
            InUse(needed.into_iter().map(in_use).collect())
        })
    }

    /// Deletes the partitions that the files do not have before slurmctld reads them, manually created ones included. Returns the
    /// manual states that the reconfigure will undo. `ran_with_files`: slurmctld is known to have run with the files that the plan
    /// begins with.
    pub(super) async fn prepare_reconfigure(
        &self,
        revision: &Revision,
        plan: &PartitionPlan,
        ran_with_files: bool,
    ) -> Result<ManualStates, NotPrepared> {
        let (channel, before) = match self.services.channels.reach(&configuration_of(&revision.files)).await {
            Ok(reached) => reached,
            // Without any channel only the operator checks for jobs.
            Err(failure) if failure.is_definite() => return Ok(ManualStates::default()),
            Err(failure) => {
                let in_use = |name: &String| PartitionInUse {
                    name: name.clone(),
                    why: format!("slurmctld cannot be asked to delete it: {failure}"),
                    made_by_hand: false,
                    line: String::new(),
                };
                let kept: Vec<PartitionInUse> = plan.removed.iter().map(in_use).collect();
                return match failure {
                    _ if !kept.is_empty() => Err(InUse(kept).into()),
                    Failure::Unknown(_) => Err(NotPrepared::NoResponse(failure)),
                    // No channel will ever show them.
                    _ => Ok(ManualStates::default()),
                };
            }
        };
        let lost = plan.lost_by_reconfigure(&before);
        let lost: Vec<String> = lost.iter().map(|partition| partition.name.clone()).collect();
        self.release(&channel, plan, &before, &lost).await?;
        // A slurmctld that never ran with the files of this plan may not have their manual states.
        let none = BTreeSet::new();
        let manual_in_file = if ran_with_files {
            &revision.closed_by_hand
        } else {
            &none
        };
        Ok(plan.manual_states(&before, manual_in_file))
    }

    /// The same for files that are live already, as an agent finds them when it starts.
    pub(super) async fn release_before_reconfigure(&self, live: &Files) -> Result<(), InUse> {
        let Some(revision) = self.services.config.read(live) else {
            return Ok(());
        };
        let plan = self.plan_partitions(&revision, Some(live)).await;
        match self.prepare_reconfigure(&revision, &plan, false).await {
            Err(NotPrepared::InUse(in_use)) => Err(in_use),
            Ok(_) | Err(NotPrepared::NoResponse(_)) => Ok(()),
        }
    }

    /// Reads the manual states that a reconfigure will undo, if slurmctld did not respond when the files were swapped.
    pub(super) async fn read_manual_states(&self, rollout: &mut Rollout, live: &Files) -> Result<(), String> {
        let config = &self.services.config;
        if let Some((revision, before)) = config.read(live).zip(config.before(live)) {
            let plan = self.plan_partitions(&revision, Some(&before)).await;
            let ran_with_files = self.is_verified(&before);
            let states = self.prepare_reconfigure(&revision, &plan, ran_with_files).await;
            let states = states.map_err(|error| error.to_string())?;
            let saved = self.save_closed(&states.closed).await;
            saved.map_err(|error| error.to_string())?;
            rollout.partitions.manual_states = states;
        }
        rollout.partitions.states_unread = false;
        Ok(())
    }

    /// Sends what remains to a slurmctld that has read other partitions than the live files have.
    pub(super) async fn converge_partitions(&mut self, mut rollout: Rollout, live: Files) -> Duration {
        let Some(revision) = self.services.config.read(&live) else {
            return self.wait(rollout, "the live files cannot be read");
        };
        let configuration = configuration_of(&revision.files);
        let remaining = rollout.partitions.remaining.clone();
        let remaining = match remaining.or_else(|| self.remaining_since_verified(&live, &configuration)) {
            Some(remaining) => remaining,
            None => match self.services.channels.slurmctld.loaded_config(&revision).await {
                Ok(Some(loaded)) => PartitionPlan::between(&loaded, &configuration).all(),
                Ok(None) => return self.reconfigure_instead(rollout),
                Err(error) => return self.wait(rollout, &error.to_string()),
            },
        };
        let mut sent = if remaining == Remaining::default() {
            Delivery::Done
        } else {
            Delivery::NotUnderstood(no_channel().to_string())
        };
        for channel in self.services.channels.to(&configuration) {
            if !matches!(sent, Delivery::NotUnderstood(_)) {
                break;
            }
            sent = match channel.partitions().await {
                Ok(partitions) => {
                    let plan = PartitionPlan::default();
                    if let Err(in_use) = self.release(&channel, &plan, &partitions, &remaining.removed).await {
                        return self.restore_partitions(rollout, &live, &in_use).await;
                    }
                    deliver_partitions(&channel, &remaining.updates, &partitions).await
                }
                Err(failure) if failure.needs_another_channel() => Delivery::NotUnderstood(failure.to_string()),
                Err(failure) => Delivery::Unknown(failure.to_string()),
            };
            self.services.channels.remember(&channel);
            rollout.partitions.way = channel.way();
        }
        match sent {
            Delivery::Done => {
                self.complete(rollout, &live).await;
                Duration::ZERO
            }
            Delivery::Unknown(reason) => {
                rollout.partitions.remaining = Some(remaining);
                self.wait(rollout, &reason)
            }
            Delivery::Refused(reason) | Delivery::NotUnderstood(reason) => {
                warn!(
                    reason,
                    "slurmctld does not take a partition as the file has it, reconfiguring"
                );
                self.reconfigure_instead(rollout)
            }
        }
    }

    /// Rolls back to files with a deleted partition that is back, with jobs.
    async fn restore_partitions(&mut self, rollout: Rollout, live: &Files, in_use: &InUse) -> Duration {
        let reason = in_use.to_string();
        let before = match self.roll_back_target(live).await {
            Ok(Some(before)) => before,
            Ok(None) => return self.wait(rollout, &reason),
            Err(error) => return self.wait(rollout, &error.to_string()),
        };
        let refused = Refused {
            sequence: live.summary.sequence,
            // The same files may be pushed again when the jobs have ended.
            digest: None,
            last_words: vec![reason.clone()],
            reason,
        };
        self.roll_back(rollout, live, &before, refused).await
    }

    fn reconfigure_instead(&mut self, mut rollout: Rollout) -> Duration {
        rollout.action = Some(Action::Reconfigure);
        self.rollout = Some(rollout);
        Duration::ZERO
    }

    /// What remains for a slurmctld that has run with the live or the previous files; `None` if it is not known to. Compared with the
    /// files that it has read last, which may be still earlier ones, a state that a person has changed since would be set again.
    fn remaining_since_verified(&self, live: &Files, configuration: &Configuration) -> Option<Remaining> {
        if self.is_verified(live) {
            // Any difference is a manual change.
            return Some(Remaining::default());
        }
        let config = &self.services.config;
        let before = config.before(live).filter(|before| self.is_verified(before))?;
        let plan = PartitionPlan::between(&config.configuration(&before)?, configuration);
        plan.live_update.is_some().then(|| plan.all())
    }

    fn is_verified(&self, live: &Files) -> bool {
        self.verified
            .is_some_and(|verified| verified.digest == live.summary.digest)
    }

    /// Sets the manual states again that the reconfigure has undone.
    pub(super) async fn set_manual_states(&self, rollout: &mut Rollout, live: &Files) {
        let states = std::mem::take(&mut rollout.partitions.manual_states);
        if states.is_empty() {
            return;
        }
        let Some(configuration) = self.services.config.configuration(live) else {
            return;
        };
        let Ok((channel, _)) = self.services.channels.reach(&configuration).await else {
            return;
        };
        let ManualStates { closed, opened } = states;
        for kept in closed.into_iter().chain(opened) {
            let KeptState { partition, state } = &kept;
            let update = PartitionUpdate {
                state: PartitionStateName::from_name(state),
                ..PartitionUpdate::new(partition)
            };
            match channel.update_partition(&update).await {
                Ok(()) => {
                    info!(partition, state, "kept the manual state of a partition");
                    rollout.partitions.kept_states.push(kept);
                }
                Err(error) => {
                    warn!(partition, state, %error, "cannot keep the manual state of a partition, which has that of slurm.conf now");
                }
            }
        }
        let _ = self.volume.ensure(VOLUME_TIMEOUT, Store::remove_closed).await;
    }
}

/// Creates and updates partitions, and reads them back. New ones are closed until the files have them.
async fn send(commands: &impl PartitionCommands, update: &LiveUpdate, before: &[LivePartition]) -> Delivery {
    let names: BTreeSet<&str> = before.iter().map(|partition| partition.name.as_str()).collect();
    let created = update.created.iter().map(|Created { line, complete }| {
        let exists = names.contains(line.name.as_str());
        // A manually created one may have jobs, and keeps its state until the files have it.
        let update = PartitionUpdate {
            state: (!exists).then_some(PartitionStateName::Inactive),
            ..if exists { complete.clone() } else { line.clone() }
        };
        (update, exists)
    });
    let updated = update.updated.iter().map(|updated| (updated.update.clone(), true));
    let mut expected = Vec::new();
    for (update, exists) in created.chain(updated) {
        let response = if exists {
            commands.update_partition(&update).await
        } else {
            commands.create_partition(&update).await
        };
        match response.into() {
            Delivery::Done => expected.push(update),
            Delivery::Refused(reason) => return Delivery::Refused(format!("PartitionName={}: {reason}", update.name)),
            other @ (Delivery::Unknown(_) | Delivery::NotUnderstood(_)) => return other,
        }
    }
    read_back_partitions(commands, &expected).await
}

/// Returns whether all partitions are as before. Created ones can be deleted: they have been closed since.
async fn revert(commands: &impl PartitionCommands, update: &LiveUpdate, before: &[LivePartition]) -> bool {
    let mut all = true;
    for Created { line, .. } in &update.created {
        let response = match before.iter().find(|partition| partition.name == line.name) {
            Some(original) => commands.update_partition(&original.to_update()).await,
            None => commands.delete_partition(&line.name).await,
        };
        if let Err(error) = response
            && !error.is_no_such_partition()
        {
            warn!(partition = %line.name, %error, "cannot revert a new partition");
            all = false;
        }
    }
    for Updated { update, revert } in &update.updated {
        let Some(revert) = revert else {
            all = false;
            continue;
        };
        if let Err(error) = commands.update_partition(revert).await {
            warn!(partition = %update.name, %error, "cannot revert a partition");
            all = false;
        }
    }
    all
}
