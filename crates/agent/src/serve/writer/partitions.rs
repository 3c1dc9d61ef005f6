//! Partitions one by one, in the running slurmctld.
//!
//! A change of partitions alone goes the short way: slurmctld is told, by its own protocol or by scontrol, is asked whether it did,
//! and then the files follow.
//! The revision lies on the state volume beforehand, under a name that no pod starts from, so that an agent that comes after
//! this one finishes what was begun.
//!
//! On either way a partition goes only when slurmctld lets it go. A reconfigure without its line would end its jobs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slurm::Revision;
use slurm::agent::{Action, KeptState, PartitionInUse, Phase, Refused, Way};
use slurm::answer::decode;
use slurm::job::Job;
use slurm::partition::PartitionStateName;
use slurm::rpc::{
    LivePartition, NotReleased, PartitionCommands, PartitionUpdate, StillNeeded, Told, read_back_partitions,
    release_partitions, settle_partitions,
};
use tokio::sync::MutexGuard;
use tokio::time::sleep;
use tracing::{info, warn};

use super::super::partitions::{ByHand, ByRpc, Created, PartitionPlan, Rest, Updated};
use super::super::served::Base;
use super::super::slurm_tools::Read;
use super::super::steps::Steps;
use super::super::story::{Event, tell as tell_people};
use super::super::unsettled::Unsettled;
use super::super::ways::Commander;
use super::{Applied, Error, Keeper, PUSH_PATIENCE, VOLUME_PATIENCE};
use crate::config_dir::Files;
use crate::dry_run::configuration_of;
use crate::fail_point;
use crate::store::Store;

/// slurmctld starts in a tenth of a second.
const ANSWERS_SOON: Duration = Duration::from_millis(20);

/// What came of one way.
enum Short {
    /// slurmctld has all of it.
    Taken,
    NotTaken {
        applied: Applied,
        /// Everything is as it was.
        as_before: bool,
    },
    /// Somebody else may be understood.
    Unspoken(String),
    /// It may or may not have happened.
    Unknown(String),
}

impl Keeper {
    /// A change of partitions that slurmctld had heard of in part, perhaps.
    pub(super) async fn go_on_with_partitions(&mut self, pending: Revision, live: Files) {
        if pending.sequence > live.summary.sequence {
            // One that starts with this pod answers in a moment; one that does not cannot be told.
            let begun = Instant::now();
            while begun.elapsed() < PUSH_PATIENCE
                && let Base::NoAnswer(_) = self.around.slurmctld.base(&pending).await
            {
                sleep(ANSWERS_SOON).await;
            }
            // It was about to be told, so slurmctld was known to run with the live files.
            let unsettled = self.unsettled.take();
            self.go_on_with(pending, live).await;
            if self.unsettled.is_none() {
                self.unsettled = unsettled;
            }
        }
        let _ = self.around.volume.ensure(VOLUME_PATIENCE, Store::remove_pending).await;
    }

    /// How partitions change from the live files to the pushed ones.
    pub(super) fn plan_partitions(&self, revision: &Revision, live: Option<&Files>) -> PartitionPlan {
        let before = live.and_then(|live| self.around.config.read(live));
        before.map_or_else(PartitionPlan::default, |before| {
            PartitionPlan::between(&configuration_of(&before.files), &configuration_of(&revision.files))
        })
    }

    /// The short way, and by which one slurmctld was told. `None` if none leads there and the long one has to be taken; nothing
    /// has changed then, or what has is what the files will say.
    pub(super) async fn apply_partitions(
        &mut self,
        revision: &Revision,
        live: &Files,
        plan: &PartitionPlan,
        steps: &mut Steps,
    ) -> Result<Option<(Applied, Way)>, Error> {
        let Some(by_rpc) = &plan.by_rpc else { return Ok(None) };
        let slurmctld = Arc::clone(&self.around.slurmctld);
        let members = slurmctld.lock_members().await;
        let sequence = revision.sequence;
        for commander in self.around.ways.to(&configuration_of(&revision.files)) {
            let way = commander.way();
            let told = self.tell_partitions(&commander, revision, plan, by_rpc).await?;
            self.around.ways.remember(&commander);
            let applied = match told {
                Short::Unspoken(why) => {
                    warn!(sequence, %way, why, "slurmctld cannot be told this way");
                    continue;
                }
                Short::Unknown(why) => {
                    warn!(sequence, %way, why, "not known whether slurmctld took it, taking the long way");
                    return Ok(None);
                }
                Short::NotTaken { applied, as_before } => {
                    self.not_taken(&applied, as_before, live, steps).await;
                    applied
                }
                Short::Taken => {
                    self.follow_with_files(revision, live, steps, members).await?;
                    Applied::Live
                }
            };
            return Ok(Some((applied, way)));
        }
        Ok(None)
    }

    /// Has slurmctld make partitions as the revision says, by one way.
    async fn tell_partitions(
        &self,
        commander: &Commander,
        revision: &Revision,
        plan: &PartitionPlan,
        by_rpc: &ByRpc,
    ) -> Result<Short, Error> {
        // What only changes has the way back in itself.
        let only_updates = by_rpc.created.is_empty() && plan.removed.is_empty();
        let before = if only_updates {
            Vec::new()
        } else {
            match commander.partitions().await {
                Ok(before) => before,
                Err(failure) if failure.asks_for_another_way() => return Ok(Short::Unspoken(failure.to_string())),
                Err(failure) => return Ok(Short::Unknown(failure.to_string())),
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
            created = by_rpc.created.len(),
            updated = by_rpc.updated.len(),
            removed = plan.removed.len(),
            way = %commander.way(),
            "changing partitions"
        );
        let told = tell(commander, by_rpc, &before).await;
        fail_point::reach("told");
        let applied = match told {
            Told::Done => match self.let_go(commander, plan, &before, &plan.removed).await {
                Ok(()) => return Ok(Short::Taken),
                Err(in_use) => Applied::InUse(in_use),
            },
            Told::Refused(reason) => Applied::RolledBack(Refused {
                sequence,
                digest: Some(revision.digest()),
                last_words: vec![reason.clone()],
                reason,
            }),
            Told::Unknown(why) => return Ok(Short::Unknown(why)),
            Told::Unspoken(why) => return Ok(Short::Unspoken(why)),
        };
        // What was made before this attempt, by another way or an agent before this one, is closed still, since no file has it.
        let is_half_made = |partition: &LivePartition| {
            let is_new = by_rpc.created.iter().any(|created| created.line.name == partition.name);
            was_begun && is_new && partition.state.name() == Some(PartitionStateName::Inactive)
        };
        let as_it_was: Vec<LivePartition> = before
            .iter()
            .filter(|partition| !is_half_made(partition))
            .cloned()
            .collect();
        let as_before = take_back(commander, by_rpc, &as_it_was).await;
        Ok(Short::NotTaken { applied, as_before })
    }

    async fn not_taken(&mut self, applied: &Applied, as_before: bool, live: &Files, steps: &Steps) {
        if !as_before {
            // The live files know how it was.
            let mut unsettled = Unsettled::new(steps.clone());
            unsettled.partitions.must_reconfigure = true;
            self.unsettled = Some(unsettled);
        }
        if let Applied::RolledBack(refused) = applied {
            warn!(sequence = refused.sequence, reason = %refused.reason, "slurmctld refused a partition");
            tell_people(&Event::Reconfiguring);
            tell_people(&Event::Failed);
            self.shown
                .send_modify(|shown| shown.rolled_back = Some(refused.clone()));
            self.note(&live.summary, Phase::Verified, Some(refused.clone())).await;
        }
    }

    /// slurmctld has it; the next one starts with it, too. There is no way back from here, so a volume that hangs is waited for; an agent
    /// that ends meanwhile leaves `pending` to the next one.
    async fn follow_with_files(
        &mut self,
        revision: &Revision,
        live: &Files,
        steps: &mut Steps,
        members: MutexGuard<'_, ()>,
    ) -> Result<(), Error> {
        fail_point::reach("let go");
        steps.reach(Phase::PartitionsLive);
        self.show(Phase::PartitionsLive, true);
        self.note(&revision.summary(), Phase::PartitionsLive, None).await;
        let sequence = revision.sequence;
        let promoted = self.around.volume.wait(
            move |store| store.promote_pending(sequence),
            || {
                // Commands to nodes wait for it.
                drop(members);
                self.show_no_answer();
            },
        );
        promoted.await??;
        fail_point::reach("durable");
        self.swap(revision, Some(live.clone()))?;
        Ok(())
    }

    /// Closes these partitions, sees that no job is in them, and has slurmctld delete them. All or none.
    async fn let_go(
        &self,
        commander: &Commander,
        plan: &PartitionPlan,
        before: &[LivePartition],
        names: &[String],
    ) -> Result<(), Vec<PartitionInUse>> {
        let leaving: Vec<&LivePartition> = before
            .iter()
            .filter(|partition| names.contains(&partition.name))
            .collect();
        if leaving.is_empty() {
            return Ok(());
        }
        let slurm = &self.around.slurm;
        let jobs = || async move {
            match slurm.read(Read::Jobs).await {
                Ok(json) => decode::<Vec<Job>>(&json)
                    .map(|answer| answer.value)
                    .map_err(|error| error.to_string()),
                Err(refusal) => Err(refusal.to_string()),
            }
        };
        let released = release_partitions(commander, &leaving, jobs).await;
        if released.is_ok() {
            info!(partitions = ?names, "slurmctld has let partitions go");
        }
        released.map_err(|NotReleased { needed, left_closed }| {
            for (partition, error) in left_closed {
                warn!(partition, %error, "cannot open a partition again");
            }
            let because = |StillNeeded { partition, why }| PartitionInUse {
                name: partition.name.clone(),
                why,
                made_by_hand: plan.is_made_by_hand(&partition.name),
                line: partition.to_line(),
            };
            needed.into_iter().map(because).collect()
        })
    }

    /// Before slurmctld reads these files: what they do not have goes properly, or they are not read. Partitions that
    /// somebody made by hand included.
    pub(super) async fn make_way(
        &self,
        revision: &Revision,
        plan: &PartitionPlan,
    ) -> Result<ByHand, Vec<PartitionInUse>> {
        let (commander, before) = match self.around.ways.reach(&configuration_of(&revision.files)).await {
            Ok(reached) => reached,
            // Where nobody can ask slurmctld it is the operator alone who looks at jobs.
            Err(failure) if failure.is_definite() => return Ok(ByHand::default()),
            Err(failure) => {
                let because = |name: &String| PartitionInUse {
                    name: name.clone(),
                    why: format!("slurmctld cannot be asked to let it go: {failure}"),
                    made_by_hand: false,
                    line: String::new(),
                };
                let kept: Vec<PartitionInUse> = plan.removed.iter().map(because).collect();
                return if kept.is_empty() {
                    Ok(ByHand::default())
                } else {
                    Err(kept)
                };
            }
        };
        let vanishing: Vec<String> = plan
            .would_vanish(&before)
            .iter()
            .map(|partition| partition.name.clone())
            .collect();
        self.let_go(&commander, plan, &before, &vanishing).await?;
        // One that does not run with the live files yet may never have heard of a closing that they have.
        let nobody = BTreeSet::new();
        let lifted = if self.unsettled.is_none() {
            &revision.closed_by_hand
        } else {
            &nobody
        };
        Ok(plan.set_by_hand(&before, lifted))
    }

    /// The same before files are read that are live already, as an agent finds them that has just started.
    pub(super) async fn look_ahead(&self, live: &Files) -> Result<(), String> {
        let Some(revision) = self.around.config.read(live) else {
            return Ok(());
        };
        let plan = self.plan_partitions(&revision, Some(live));
        let made = self.make_way(&revision, &plan).await;
        made.map(drop).map_err(|in_use| in_words(&in_use))
    }

    /// What has yet to be said to a slurmctld that has read other partitions than the live files have.
    pub(super) async fn settle_partitions(&mut self, mut unsettled: Unsettled, live: Files) -> Duration {
        let Some(revision) = self.around.config.read(&live) else {
            return self.wait(unsettled, "the live files cannot be read");
        };
        let configuration = configuration_of(&revision.files);
        let rest = match unsettled.partitions.told.clone() {
            Some(rest) => rest,
            // Once verified, what differs was changed by somebody else since then.
            None if self.is_verified(&live) => Rest::default(),
            None => match self.around.slurmctld.base(&revision).await {
                Base::Known(base) => PartitionPlan::between(&base, &configuration).all(),
                Base::NoAnswer(why) => return self.wait(unsettled, &why),
                Base::Unknown => return self.take_the_long_way(unsettled),
            },
        };
        if rest == Rest::default() {
            self.settled(unsettled, &live).await;
            return Duration::ZERO;
        }
        let mut told = Told::Unspoken("there is no way to tell slurmctld".to_owned());
        for commander in self.around.ways.to(&configuration) {
            told = match commander.partitions().await {
                Ok(partitions) => {
                    let plan = PartitionPlan::default();
                    if let Err(in_use) = self.let_go(&commander, &plan, &partitions, &rest.gone).await {
                        return self.keep_after_all(unsettled, &live, &in_use).await;
                    }
                    settle_partitions(&commander, &rest.wanted, &partitions).await
                }
                Err(failure) if failure.asks_for_another_way() => Told::Unspoken(failure.to_string()),
                Err(failure) => Told::Unknown(failure.to_string()),
            };
            self.around.ways.remember(&commander);
            unsettled.partitions.way = commander.way();
            if !matches!(told, Told::Unspoken(_)) {
                break;
            }
        }
        match told {
            Told::Done => {
                self.settled(unsettled, &live).await;
                Duration::ZERO
            }
            Told::Unknown(why) => {
                unsettled.partitions.told = Some(rest);
                self.wait(unsettled, &why)
            }
            Told::Refused(why) | Told::Unspoken(why) => {
                warn!(
                    why,
                    "slurmctld does not take a partition as the file has it, reconfiguring"
                );
                self.take_the_long_way(unsettled)
            }
        }
    }

    /// A partition that had been let go is there again, with jobs: so must be its line.
    async fn keep_after_all(&mut self, unsettled: Unsettled, live: &Files, in_use: &[PartitionInUse]) -> Duration {
        let reason = in_words(in_use);
        let before = match self.way_back(live).await {
            Ok(Some(before)) => before,
            Ok(None) => return self.wait(unsettled, &reason),
            Err(error) => return self.wait(unsettled, &error.to_string()),
        };
        let refused = Refused {
            sequence: live.summary.sequence,
            // The same files may come again when the jobs are gone.
            digest: None,
            last_words: vec![reason.clone()],
            reason,
        };
        self.roll_back(unsettled, live, &before, refused).await
    }

    fn take_the_long_way(&mut self, mut unsettled: Unsettled) -> Duration {
        unsettled.action = Some(Action::Reconfigure);
        self.unsettled = Some(unsettled);
        Duration::ZERO
    }

    fn is_verified(&self, live: &Files) -> bool {
        self.verified
            .is_some_and(|verified| verified.digest == live.summary.digest)
    }

    /// For the agent after this one, or the next pod.
    pub(super) async fn remember_closed(&self, closed: &[KeptState]) -> Result<(), Error> {
        if !closed.is_empty() {
            let closed = closed.to_vec();
            self.on_volume(move |store| store.save_closed(&closed)).await?;
        }
        Ok(())
    }

    /// Somebody's closing of a partition outlives the reconfigure that would have opened it, and so does the lifting of it.
    pub(super) async fn set_again(&self, unsettled: &mut Unsettled, live: &Files) {
        let by_hand = std::mem::take(&mut unsettled.partitions.by_hand);
        if by_hand.is_empty() {
            return;
        }
        let Some(revision) = self.around.config.read(live) else {
            return;
        };
        let Ok((commander, _)) = self.around.ways.reach(&configuration_of(&revision.files)).await else {
            return;
        };
        let ByHand { closed, opened } = by_hand;
        for kept in closed.into_iter().chain(opened) {
            let KeptState { partition, state } = &kept;
            let update = PartitionUpdate {
                state: PartitionStateName::from_name(state),
                ..PartitionUpdate::new(partition)
            };
            match commander.update_partition(&update).await {
                Ok(()) => {
                    info!(
                        partition,
                        state, "somebody has set the state of this partition by hand: it stays so"
                    );
                    unsettled.partitions.kept_states.push(kept);
                }
                Err(error) => {
                    warn!(partition, state, %error, "a partition has the state of slurm.conf again, and not that set by hand");
                }
            }
        }
        let _ = self.around.volume.ensure(VOLUME_PATIENCE, Store::remove_closed).await;
    }
}

/// Creates, changes, and reads back. New ones are closed until the files have them.
async fn tell(commands: &impl PartitionCommands, by_rpc: &ByRpc, before: &[LivePartition]) -> Told {
    let names: BTreeSet<&str> = before.iter().map(|partition| partition.name.as_str()).collect();
    let mut expected = Vec::new();
    for Created { line, whole } in &by_rpc.created {
        let exists = names.contains(line.name.as_str());
        // One that somebody made by hand may have jobs, and keeps its state until the files have it.
        let update = PartitionUpdate {
            state: (!exists).then_some(PartitionStateName::Inactive),
            ..if exists { whole.clone() } else { line.clone() }
        };
        let answer = if exists {
            commands.update_partition(&update).await
        } else {
            commands.create_partition(&update).await
        };
        match answer.into() {
            Told::Done => expected.push(update),
            Told::Refused(why) => return Told::Refused(format!("PartitionName={}: {why}", line.name)),
            other @ (Told::Unknown(_) | Told::Unspoken(_)) => return other,
        }
    }
    for Updated { there, .. } in &by_rpc.updated {
        match commands.update_partition(there).await.into() {
            Told::Done => expected.push(there.clone()),
            Told::Refused(why) => return Told::Refused(format!("PartitionName={}: {why}", there.name)),
            other @ (Told::Unknown(_) | Told::Unspoken(_)) => return other,
        }
    }
    read_back_partitions(commands, &expected).await
}

/// Whether everything is as before. Nothing is in the way of deleting what was made: nobody could use it yet.
async fn take_back(commands: &impl PartitionCommands, by_rpc: &ByRpc, before: &[LivePartition]) -> bool {
    let mut all = true;
    for Created { line, .. } in &by_rpc.created {
        let answer = match before.iter().find(|partition| partition.name == line.name) {
            Some(as_it_was) => commands.update_partition(&as_it_was.to_update()).await,
            None => commands.delete_partition(&line.name).await,
        };
        all &= match answer {
            Err(error) if !error.is_no_such_partition() => {
                warn!(partition = %line.name, %error, "cannot be taken back");
                false
            }
            _ => true,
        };
    }
    for Updated { there, back } in &by_rpc.updated {
        all &= match back {
            None => false,
            Some(back) => match commands.update_partition(back).await {
                Ok(()) => true,
                Err(error) => {
                    warn!(partition = %there.name, %error, "cannot be taken back");
                    false
                }
            },
        };
    }
    all
}

fn in_words(in_use: &[PartitionInUse]) -> String {
    let in_use = in_use
        .iter()
        .map(|PartitionInUse { name, why, .. }| format!("{name} ({why})"));
    let in_use = in_use.collect::<Vec<_>>().join(", ");
    format!("slurm.conf does not have these partitions, whose jobs would end: {in_use}")
}
