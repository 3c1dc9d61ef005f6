//! Makes a revision live: checks it, saves it on the state volume, and swaps the files.

use host::FileError;
use slurm::Revision;
use slurm::agent::{Action, Outcome, Phase};
use tracing::info;

use super::super::legacy_log::{self, Event};
use super::super::partitions::{ManualStates, PartitionPlan};
use super::super::rollout::{Rollout, Steps};
use super::super::slurmctld::Role;
use super::partitions::{InUse, NotPrepared};
use super::{ConfigWriter, Error, NotLive, VOLUME_TIMEOUT};
use crate::config_dir::Files;
use crate::dry_run::configuration_of;
use crate::store::{self, Store};

impl ConfigWriter {
    pub(super) async fn renumber(&mut self, revision: Revision, live: Files) -> Result<NotLive, Error> {
        info!(sequence = revision.sequence, "the same bytes are live already");
        let summary = revision.summary();
        if let Err(error) = self.save(revision).await {
            self.discard_attempt(Some(summary.sequence)).await;
            return Err(error);
        }
        self.services.config.renumber(&live, &summary)?;
        Ok(None)
    }

    pub(super) async fn apply(
        &mut self,
        revision: Revision,
        live: Option<Files>,
        steps: &mut Steps,
    ) -> Result<NotLive, Error> {
        let sequence = revision.sequence;
        info!(sequence, digest = %revision.digest(), "applying a revision");
        let phase = self.progress.borrow().phase;
        let untried = live.as_ref().is_none_or(|live| live.summary.sequence < sequence);
        self.show(Phase::Staged, true);
        let summary = revision.summary();
        self.note(&summary, Phase::Staged, None).await;
        let mut rollout = Rollout::new(&self.services.host, steps.clone());
        let applied = self.make_live(revision, live, steps, &mut rollout).await;
        if !matches!(applied, Ok(None)) {
            self.discard_attempt(untried.then_some(sequence)).await;
            self.show(phase, false);
            return applied;
        }
        let _ = self.volume.ensure(VOLUME_TIMEOUT, Store::remove_pending).await;
        self.show(Phase::Swapped, true);
        self.note(&summary, Phase::Swapped, None).await;
        steps.reach(Phase::Swapped);
        rollout.steps = steps.clone();
        // Also without a reconfigure: people look for this line after every change.
        rollout.log_reconfiguring();
        if let Some(mut before) = self.rollout.replace(rollout) {
            before.respond(&Outcome::Pending {
                reason: format!("revision {sequence} has replaced it"),
            });
        }
        applied
    }

    /// Updates partitions in the running slurmctld where that is enough, and otherwise swaps the files for a reconfigure. The rest
    /// of the work is put into `rollout`.
    async fn make_live(
        &mut self,
        revision: Revision,
        live: Option<Files>,
        steps: &mut Steps,
        rollout: &mut Rollout,
    ) -> Result<NotLive, Error> {
        let plan = self.plan_partitions(&revision, live.as_ref()).await;
        let role = self
            .services
            .channels
            .slurmctld
            .role(&configuration_of(&revision.files))
            .await;
        // A live update starts from a slurmctld that is known to run with the live files.
        let known = live
            .as_ref()
            .filter(|live| role != Role::Standby && self.rollout.is_none() && self.is_unmodified(live));
        if let Some(live) = known
            && let Some((applied, way)) = self.update_partitions(&revision, live, &plan, steps).await?
        {
            rollout.action = Some(Action::PartitionRpc);
            rollout.partitions.remaining = Some(plan.remaining());
            rollout.partitions.way = way;
            return Ok(applied);
        }
        self.check_and_swap(revision, live, &plan, steps, rollout).await
    }

    /// Only a revision that passed its dry run is saved on the state volume, where the next pod may start from it.
    async fn check_and_swap(
        &self,
        revision: Revision,
        live: Option<Files>,
        plan: &PartitionPlan,
        steps: &mut Steps,
        rollout: &mut Rollout,
    ) -> Result<NotLive, Error> {
        let rejected = self.services.checker.check(&revision).await?;
        steps.reach(Phase::Checked);
        if let Some(refused) = rejected {
            legacy_log::print(&self.services.host, &Event::Reconfiguring);
            legacy_log::print(&self.services.host, &Event::Failed);
            self.note(&revision.summary(), Phase::Staged, Some(refused.clone()))
                .await;
            return Ok(Some(Outcome::Rejected(refused)));
        }
        self.show(Phase::Checked, true);
        if live.is_some() {
            let ran_with_files = self.rollout.is_none();
            let states = match self.prepare_reconfigure(&revision, plan, ran_with_files).await {
                Ok(states) => states,
                Err(NotPrepared::InUse(InUse(partitions))) => return Ok(Some(Outcome::PartitionsInUse { partitions })),
                Err(NotPrepared::NoResponse(_)) => {
                    rollout.partitions.states_unread = true;
                    ManualStates::default()
                }
            };
            let states = match &self.rollout {
                Some(earlier) => plan.carry_over(&earlier.partitions.manual_states, states),
                None => states,
            };
            self.save_closed(&states.closed).await?;
            rollout.partitions.manual_states = states;
        }
        self.save(revision.clone()).await?;
        self.note(&revision.summary(), Phase::Checked, None).await;
        self.swap(&revision, live)?;
        Ok(None)
    }

    pub(super) fn swap(&self, revision: &Revision, live: Option<Files>) -> Result<(), FileError> {
        let config = &self.services.config;
        let files = config.write(revision)?;
        if let Err(error) = config.switch(&files) {
            config.remove(&files.name);
            return Err(error);
        }
        // Files that slurmctld never ran with are no roll back target if there is a better one.
        if let Some(live) = live.filter(|live| self.rollout.is_some() && config.before(live).is_some()) {
            config.remove(&live.name);
        }
        Ok(())
    }

    async fn save(&self, revision: Revision) -> Result<(), Error> {
        self.on_volume(move |store| store.save(&revision)).await
    }

    /// See [`Volume::run`](super::super::volume::Volume::run).
    pub(super) async fn on_volume<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, store::Error> + Send + 'static,
    ) -> Result<T, Error> {
        Ok(self.volume.run(VOLUME_TIMEOUT, work).await??)
    }

    /// See [`Volume::ensure`](super::super::volume::Volume::ensure).
    pub(super) async fn ensure<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, store::Error> + Send + 'static,
    ) -> Result<T, Error> {
        Ok(self.volume.ensure(VOLUME_TIMEOUT, work).await??)
    }
}
