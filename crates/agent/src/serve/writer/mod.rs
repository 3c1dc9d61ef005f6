//! The one writer of /etc/slurm: takes a revision at a time, puts it there, and sees to it that slurmctld runs with what is
//! there.
//!
//! It works from what it finds, not from what it remembers: whenever slurmctld does not run with the live files it acts,
//! whether that is because of a push, of a restart of either container, or of somebody's hand. A directory of files older
//! than the live ones means that the change has not ended, and is the way back.
//!
//! The steps are `staged → checked → swapped → reconfiguring → verified`, each noted in the journal; for a change of
//! partitions alone they are `staged → partitions live → swapped → verified` ([`partitions`]). Verified is what slurmctld
//! itself says that it runs with.

mod memory;
mod partitions;
mod way_back;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slurm::Revision;
use slurm::agent::{Action, DaemonState, Fence, Outcome, PartitionInUse, Phase, Refusal, Refused};
use slurm::revision::ControllerUid;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::admission::Admission;
use super::checker::{Checker, refusal};
use super::fences::Subject;
use super::partitions::PartitionPlan;
use super::plan::{Next, RESTARTING, Verdict, plan_action, plan_next, plan_push};
use super::served::{Base, Slurmctld, Standing, Word};
use super::slurm_tools::SlurmTools;
use super::steps::Steps;
use super::story::{Event, tell};
use super::unsettled::{Answer, Taken, Unsettled, Waiting};
use super::volume::{NoAnswer, Volume};
use super::ways::Ways;
use crate::config_dir::{self, ConfigDir, Files};
use crate::control::{Reconfigured, Supervisor};
use crate::dry_run::{self, configuration_of};
use crate::store::{self, Store, Verified};

/// A missing `Include` holds slurmctld up for a minute; it goes on when we no longer wait.
const RECONFIGURE_PATIENCE: Duration = Duration::from_secs(90);

/// A slurmctld that dies is back in a tenth of a second. One that is not after this is not coming soon.
const PUSH_PATIENCE: Duration = Duration::from_secs(3);

/// For each piece of work on the state volume. A slow one is no reason to fail; after 10 s the operator would hear that the push
/// goes on, and not why it does not.
const VOLUME_PATIENCE: Duration = Duration::from_secs(8);

#[derive(Debug, Error)]
enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    ConfigDir(#[from] config_dir::Error),
    #[error(transparent)]
    DryRun(#[from] dry_run::Error),
    #[error("the revision could not be saved: {0}")]
    NoAnswer(#[from] NoAnswer),
}

impl Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::DryRun(error) => refusal(error),
            _ => Refusal::Failed {
                detail: self.to_string(),
            },
        }
    }
}

/// What others may know.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) phase: Phase,
    /// No push is taken now.
    pub(super) busy: bool,
    /// Why slurmctld does not run with the live files.
    pub(super) waiting: String,
    pub(super) rolled_back: Option<Refused>,
}

/// What came of a revision that was to go live.
enum Applied {
    Live,
    Rejected(Refused),
    /// slurmctld refused a partition and has what it had.
    RolledBack(Refused),
    InUse(Vec<PartitionInUse>),
}

#[derive(Debug)]
pub(super) struct Push {
    pub(super) revision: Revision,
    pub(super) fence: Fence,
    pub(super) reply: oneshot::Sender<Answer>,
}

/// How others reach it.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) pushes: mpsc::Sender<Push>,
    pub(super) shown: watch::Receiver<Shown>,
}

pub(super) struct Keeper {
    around: Surroundings,
    pushes: mpsc::Receiver<Push>,
    shown: watch::Sender<Shown>,
    unsettled: Option<Unsettled>,
    /// What slurmctld was last seen to run with. The state volume may lag behind.
    verified: Option<Verified>,
    /// slurmctld's process when it was last looked at, and how often it had died. A reconfigure changes the former.
    process: Option<(Option<i32>, u64)>,
}

/// What it works with.
pub(super) struct Surroundings {
    pub(super) config: ConfigDir,
    pub(super) volume: Volume,
    pub(super) supervisor: Supervisor,
    pub(super) checker: Arc<Checker>,
    pub(super) slurm: Arc<SlurmTools>,
    pub(super) slurmctld: Arc<Slurmctld>,
    pub(super) ways: Arc<Ways>,
    pub(super) controller: ControllerUid,
    pub(super) admission: Arc<Admission>,
}

impl Keeper {
    pub(super) fn new(around: Surroundings) -> (Self, Handle) {
        let (sender, pushes) = mpsc::channel(1);
        let (shown, receiver) = watch::channel(Shown {
            phase: Phase::Swapped,
            busy: true,
            waiting: "the agent is starting".to_owned(),
            rolled_back: None,
        });
        let keeper = Self {
            around,
            pushes,
            shown,
            unsettled: Some(Unsettled::at_start()),
            verified: None,
            process: None,
        };
        let handle = Handle {
            pushes: sender,
            shown: receiver,
        };
        (keeper, handle)
    }

    pub(super) async fn run(mut self) -> Infallible {
        self.go_on().await;
        loop {
            let pause = match self.unsettled.take() {
                None => None,
                Some(unsettled) => Some(self.settle(unsettled).await),
            };
            if pause == Some(Duration::ZERO) {
                continue;
            }
            self.shown.send_modify(|shown| shown.busy = false);
            tokio::select! {
                Some(push) = self.pushes.recv() => self.take(push).await,
                () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            }
        }
    }

    /// What was under way when the agent before this one ended, and how the last change ended. Waits for the state volume: what it
    /// holds decides over what is live.
    async fn go_on(&mut self) {
        let read = |store: &Store| {
            let last = store.journal().entries().pop();
            (store.verified(), store.closed(), last, store.newest(), store.pending())
        };
        let found = self.around.volume.wait(read, || self.show_no_answer());
        let Ok((verified, closed, last, newest, pending)) = found.await else {
            error!("cannot look for a push that was interrupted");
            return;
        };
        self.verified = verified;
        let Some(live) = self.around.config.live() else { return };
        if let Some(unsettled) = &mut self.unsettled {
            unsettled.partitions.by_hand.closed = closed;
        }
        if let Some(entry) = last {
            info!(sequence = entry.sequence, step = %entry.step, "the last step of the agent before this one");
            // One that a dry run refused was never live.
            if let Some(refused) = entry.refused.filter(|_| entry.step != Phase::Staged) {
                let going_back = entry.step == Phase::RollingBack && entry.sequence == live.summary.sequence;
                let way_back = if going_back {
                    self.wait_for_way_back(&live).await
                } else {
                    None
                };
                match (way_back, self.unsettled.take()) {
                    (Some(before), Some(unsettled)) => {
                        self.roll_back(unsettled, &live, &before, refused).await;
                        return;
                    }
                    (None, Some(mut unsettled)) => {
                        unsettled.rolled_back = Some(refused);
                        self.unsettled = Some(unsettled);
                    }
                    (_, None) => {}
                }
            }
        }
        // A push that had been made durable, and no more. A pod that starts now would start from it.
        match (newest, pending) {
            (Ok(Some(stored)), _) if stored.sequence > live.summary.sequence => self.go_on_with(stored, live).await,
            (Ok(_), Some(pending)) => self.go_on_with_partitions(pending, live).await,
            (Ok(_), None) => {}
            (Err(error), _) => warn!(%error, "cannot look for a push that was interrupted"),
        }
    }

    async fn go_on_with(&mut self, revision: Revision, live: Files) {
        info!(
            sequence = revision.sequence,
            "going on with a push that was interrupted"
        );
        match self.apply(revision, Some(live), &mut Steps::begin()).await {
            Ok(Applied::Live) => {}
            Ok(Applied::Rejected(refused) | Applied::RolledBack(refused)) => {
                warn!(reason = %refused.reason, "it is given up");
            }
            Ok(Applied::InUse(partitions)) => warn!(?partitions, "it is given up"),
            Err(error) => error!(%error, "cannot go on with it"),
        }
    }

    async fn take(&mut self, push: Push) {
        let Push { revision, fence, reply } = push;
        if let Err(overtaken) = self.around.admission.check(fence, Subject::Configuration) {
            let _ = reply.send(Err(overtaken));
            return;
        }
        self.shown.send_modify(|shown| shown.busy = true);
        // Nothing is begun that would have to be cleaned up when a volume that hangs already answers again.
        if let Err(error) = self.around.volume.run(VOLUME_PATIENCE, |_| ()).await {
            let _ = reply.send(Err(Error::from(error).refusal()));
            return;
        }
        let live = self.around.config.live();
        let sequence = revision.sequence;
        let verdict = plan_push(
            live.as_ref().map(|live| &live.summary),
            &self.around.controller,
            &revision,
        );
        let mut steps = Steps::begin();
        let done = match (verdict, live) {
            (Verdict::Refuse(refusal), _) => {
                info!(sequence, %refusal, "push refused");
                let _ = reply.send(Err(refusal));
                return;
            }
            (Verdict::Repeat, Some(live)) if self.is_untouched(&live) => Ok(Applied::Live),
            (Verdict::Renumber, Some(live)) if self.is_untouched(&live) => self.renumber(revision, live).await,
            (Verdict::Repeat | Verdict::Renumber | Verdict::Apply, live) => {
                self.apply(revision, live, &mut steps).await
            }
        };
        let answer = match (done, &mut self.unsettled) {
            (Err(error), _) => {
                error!(sequence, %error, "push failed");
                Err(error.refusal())
            }
            (Ok(Applied::Rejected(refused)), _) => Ok(Taken::at_rest(Outcome::Rejected(refused), &steps)),
            (Ok(Applied::RolledBack(refused)), _) => Ok(Taken::at_rest(Outcome::RolledBack(refused), &steps)),
            (Ok(Applied::InUse(partitions)), _) => {
                info!(sequence, ?partitions, "partitions cannot go now, nothing is changed");
                Ok(Taken::at_rest(Outcome::PartitionsInUse { partitions }, &steps))
            }
            (Ok(Applied::Live), Some(unsettled)) => {
                unsettled.waiting.push(Waiting { sequence, reply });
                return;
            }
            (Ok(Applied::Live), None) => Ok(Taken::at_rest(Outcome::Unchanged, &steps)),
        };
        let _ = reply.send(answer);
    }

    fn is_untouched(&self, live: &Files) -> bool {
        self.around.config.check(live).is_ok()
    }

    async fn renumber(&mut self, revision: Revision, live: Files) -> Result<Applied, Error> {
        info!(sequence = revision.sequence, "the same bytes are live already");
        let summary = revision.summary();
        if let Err(error) = self.save(revision).await {
            self.forget_attempt(Some(summary.sequence)).await;
            return Err(error);
        }
        self.around.config.renumber(&live, &summary)?;
        Ok(Applied::Live)
    }

    async fn apply(&mut self, revision: Revision, live: Option<Files>, steps: &mut Steps) -> Result<Applied, Error> {
        let sequence = revision.sequence;
        info!(sequence, digest = %revision.digest(), "taking a revision");
        let phase = self.shown.borrow().phase;
        let untried = live.as_ref().is_none_or(|live| live.summary.sequence < sequence);
        self.show(Phase::Staged, true);
        let summary = revision.summary();
        self.note(&summary, Phase::Staged, None).await;
        let mut next = Unsettled::new(steps.clone());
        let applied = self.make_live(revision, live, steps, &mut next).await;
        if !matches!(applied, Ok(Applied::Live)) {
            self.forget_attempt(untried.then_some(sequence)).await;
            self.show(phase, false);
            return applied;
        }
        let _ = self.around.volume.ensure(VOLUME_PATIENCE, Store::remove_pending).await;
        self.show(Phase::Swapped, true);
        self.note(&summary, Phase::Swapped, None).await;
        steps.reach(Phase::Swapped);
        next.steps = steps.clone();
        let mut unsettled = next;
        // Also where nothing is read again: people look for these words after every change.
        unsettled.tell_reconfiguring();
        if let Some(mut before) = self.unsettled.replace(unsettled) {
            before.answer(&Outcome::Pending {
                reason: format!("revision {sequence} has taken its place"),
            });
        }
        applied
    }

    /// By the short way where it leads there, else by the long one. What has yet to be done then is in `next`.
    async fn make_live(
        &mut self,
        revision: Revision,
        live: Option<Files>,
        steps: &mut Steps,
        next: &mut Unsettled,
    ) -> Result<Applied, Error> {
        let plan = self.plan_partitions(&revision, live.as_ref());
        let standing = self.around.slurmctld.standing(&configuration_of(&revision.files)).await;
        // Only a slurmctld that is known to run with the live files can be told what is different.
        let known = live
            .as_ref()
            .filter(|live| standing != Standing::Standby && self.unsettled.is_none() && self.is_untouched(live));
        if let Some(live) = known
            && let Some((applied, way)) = self.apply_partitions(&revision, live, &plan, steps).await?
        {
            next.action = Some(Action::PartitionRpc);
            next.partitions.told = Some(plan.rest());
            next.partitions.way = way;
            return Ok(applied);
        }
        self.check_and_swap(revision, live, &plan, steps, next).await
    }

    /// Only what a slurmctld would run with comes onto the state volume, where the next pod may start from it.
    async fn check_and_swap(
        &self,
        revision: Revision,
        live: Option<Files>,
        plan: &PartitionPlan,
        steps: &mut Steps,
        next: &mut Unsettled,
    ) -> Result<Applied, Error> {
        if let Some(refused) = self.around.checker.check(&revision).await? {
            steps.reach(Phase::Checked);
            tell(&Event::Reconfiguring);
            tell(&Event::Failed);
            self.note(&revision.summary(), Phase::Staged, Some(refused.clone()))
                .await;
            return Ok(Applied::Rejected(refused));
        }
        steps.reach(Phase::Checked);
        self.show(Phase::Checked, true);
        if live.is_some() {
            match self.make_way(&revision, plan).await {
                Ok(by_hand) => {
                    let by_hand = match &self.unsettled {
                        Some(unsettled) => plan.still_by_hand(&unsettled.partitions.by_hand, by_hand),
                        None => by_hand,
                    };
                    self.remember_closed(&by_hand.closed).await?;
                    next.partitions.by_hand = by_hand;
                }
                Err(in_use) => return Ok(Applied::InUse(in_use)),
            }
        }
        self.save(revision.clone()).await?;
        self.note(&revision.summary(), Phase::Checked, None).await;
        self.swap(&revision, live)?;
        Ok(Applied::Live)
    }

    async fn save(&self, revision: Revision) -> Result<(), Error> {
        self.on_volume(move |store| store.save(&revision)).await
    }

    /// See [`Volume::run`].
    async fn on_volume<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, store::Error> + Send + 'static,
    ) -> Result<T, Error> {
        Ok(self.around.volume.run(VOLUME_PATIENCE, work).await??)
    }

    /// See [`Volume::ensure`].
    async fn ensure<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, store::Error> + Send + 'static,
    ) -> Result<T, Error> {
        Ok(self.around.volume.ensure(VOLUME_PATIENCE, work).await??)
    }

    fn swap(&self, revision: &Revision, live: Option<Files>) -> Result<(), config_dir::Error> {
        let files = self.around.config.write(revision)?;
        if let Err(error) = self.around.config.switch(&files) {
            self.around.config.forget(&files.name);
            return Err(error);
        }
        // Files that slurmctld never ran with are no way back if there is a better one.
        if let Some(live) = live.filter(|live| self.unsettled.is_some() && self.around.config.before(live).is_some()) {
            self.around.config.forget(&live.name);
        }
        Ok(())
    }

    /// One step towards a slurmctld that runs with the live files; how long to wait before the next.
    async fn settle(&mut self, mut unsettled: Unsettled) -> Duration {
        let Some(live) = self.around.config.live() else {
            return self.wait(unsettled, "there is no revision in the configuration directory");
        };
        let state = match self.around.supervisor.state().await {
            Ok(state) => state,
            Err(error) => return self.wait(unsettled, &error.to_string()),
        };
        let process = (state.daemon.pid, state.daemon.restarts);
        if self.process.replace(process) != Some(process) {
            // It may have read the files of before when it had been told.
            unsettled.partitions.told = None;
        }
        let action = match unsettled.action {
            Some(action) => action,
            None => match self.plan_action(&live).await {
                Ok(action) => action,
                Err(why) if state.daemon.state == DaemonState::Ready => return self.wait(unsettled, &why),
                Err(_) => Action::Reconfigure,
            },
        };
        unsettled.action = Some(action);
        let next = match plan_next(&state, &live.name, &unsettled, action) {
            Next::Settled | Next::Partitions if unsettled.partitions.must_reconfigure => Next::Reconfigure,
            next => next,
        };
        let next = match next {
            Next::Reconfigure | Next::Partitions => match self.standing(&live).await {
                Standing::InCharge => next,
                // It does not do what it is told, and nothing is interrupted by its restart.
                Standing::Standby => {
                    unsettled.action = Some(Action::Restart);
                    Next::Restart
                }
                // A reconfigure begins with all state being written. Two that write it at once lose nodes, and their jobs
                // with them (measured).
                Standing::NoAnswer(why) => return self.wait(unsettled, &why),
            },
            next => next,
        };
        if matches!(next, Next::Reconfigure | Next::Restart)
            && !std::mem::replace(&mut unsettled.partitions.way_is_clear, true)
            && let Err(why) = self.look_ahead(&live).await
        {
            unsettled.partitions.way_is_clear = false;
            return self.wait(unsettled, &why);
        }
        match next {
            Next::Partitions => self.settle_partitions(unsettled, live).await,
            Next::Settled => self.verify(unsettled, live).await,
            Next::RollBack => self.refused(unsettled, &live, state.daemon.last_words).await,
            Next::Wait(why) => self.wait(unsettled, why),
            Next::Start => {
                info!(
                    sequence = live.summary.sequence,
                    "starting slurmctld with the new files"
                );
                unsettled.started = true;
                match self.around.supervisor.restart().await {
                    Ok(_) => self.wait(unsettled, "slurmctld is starting"),
                    Err(error) => self.wait(unsettled, &error.to_string()),
                }
            }
            Next::Restart => {
                info!(
                    sequence = live.summary.sequence,
                    "restarting slurmctld, which the change needs"
                );
                unsettled.tell_reconfiguring();
                self.show_unless_rolling_back(Phase::Reconfiguring);
                self.note_unless_rolling_back(&live, Phase::Reconfiguring).await;
                unsettled.restarted = Some(Instant::now());
                unsettled.healthy_before = true;
                match self.around.supervisor.restart().await {
                    Ok(_) => self.wait(unsettled, RESTARTING),
                    Err(error) => self.wait(unsettled, &error.to_string()),
                }
            }
            Next::Reconfigure => self.reconfigure(unsettled, live).await,
        }
    }

    async fn standing(&self, live: &Files) -> Standing {
        match self.around.config.read(live) {
            Some(revision) => {
                let configuration = configuration_of(&revision.files);
                self.around.slurmctld.standing(&configuration).await
            }
            None => Standing::InCharge,
        }
    }

    /// What slurmctld has read last is known from itself, or else from what was live before. Fails while it may yet tell.
    async fn plan_action(&self, live: &Files) -> Result<Action, String> {
        let Some(revision) = self.around.config.read(live) else {
            return Ok(Action::Reconfigure);
        };
        let configuration = configuration_of(&revision.files);
        let before = self.around.config.before(live);
        let before = before.and_then(|before| self.around.config.read(&before));
        let before = before.map(|before| configuration_of(&before.files));
        Ok(match (self.around.slurmctld.base(&revision).await, before) {
            (Base::Known(base), _) => plan_action(Some((&base, &configuration))),
            (Base::NoAnswer(why), None) => return Err(why),
            (Base::NoAnswer(_) | Base::Unknown, Some(before)) => plan_action(Some((&before, &configuration))),
            (Base::Unknown, None) => Action::Reconfigure,
        })
    }

    /// The supervisor has seen it read files since these are live; slurmctld has the last word. A reconfigure by hand in
    /// the very moment of ours can look like ours.
    async fn verify(&mut self, mut unsettled: Unsettled, live: Files) -> Duration {
        let Some(revision) = self.around.config.read(&live) else {
            return self.wait(unsettled, "the live files cannot be read");
        };
        let sequence = live.summary.sequence;
        match self.around.slurmctld.ask(&revision).await {
            Word::Same => {}
            Word::WillNotTell(why) => info!(sequence, why, "slurmctld does not tell what it runs with"),
            Word::NoAnswer(why) => return self.wait(unsettled, &why),
            word @ (Word::OtherFile(_) | Word::OtherHash) if unsettled.doubted.is_none() => {
                warn!(
                    sequence,
                    ?word,
                    "slurmctld does not run with the live files, reconfiguring again"
                );
                unsettled.doubted = Some(word);
                return self.reconfigure(unsettled, live).await;
            }
            Word::OtherFile(name) => {
                let why = format!("slurmctld serves another {name} than the live one, also after a second reconfigure");
                return self.wait(unsettled, &why);
            }
            // A process that has just begun, with these very files: it must be us who count differently.
            Word::OtherHash => warn!(sequence, "slurmctld's hash of slurm.conf is not ours, its files are"),
        }
        self.settled(unsettled, &live).await;
        Duration::ZERO
    }

    async fn reconfigure(&mut self, mut unsettled: Unsettled, live: Files) -> Duration {
        let rolling_back = self.shown.borrow().phase == Phase::RollingBack;
        self.show_unless_rolling_back(Phase::Reconfiguring);
        self.shown
            .send_modify(|shown| "slurmctld is busy with the reconfigure".clone_into(&mut shown.waiting));
        self.note_unless_rolling_back(&live, Phase::Reconfiguring).await;
        unsettled.tell_reconfiguring();
        unsettled.partitions.must_reconfigure = false;
        unsettled.healthy_before = true;
        info!(
            sequence = live.summary.sequence,
            rolling_back, "reconfiguring slurmctld"
        );
        match self.around.supervisor.reconfigure(RECONFIGURE_PATIENCE).await {
            Ok(Reconfigured::Done) => {
                self.unsettled = Some(unsettled);
                Duration::ZERO
            }
            Ok(Reconfigured::Failed { last_words }) => self.refused(unsettled, &live, last_words).await,
            Ok(Reconfigured::Died) => self.wait(unsettled, "slurmctld died and is started again"),
            Ok(Reconfigured::Away) => self.wait(unsettled, "slurmctld is not ready for a reconfigure"),
            // A late answer is no answer: it may still take them.
            Err(error) => self.wait(unsettled, &error.to_string()),
        }
    }

    async fn settled(&mut self, mut unsettled: Unsettled, live: &Files) {
        self.set_again(&mut unsettled, live).await;
        if let Err(file) = self.around.config.check(live) {
            warn!(%file, "a file was changed by somebody else");
        }
        self.remember_as_good(live).await;
        self.note(&live.summary, Phase::Verified, unsettled.rolled_back.clone())
            .await;
        self.around.config.forget_all_but(live);
        self.shown.send_modify(|shown| {
            shown.phase = Phase::Verified;
            shown.waiting.clear();
            shown.rolled_back.clone_from(&unsettled.rolled_back);
        });
        let took = unsettled.since.elapsed();
        info!(
            sequence = live.summary.sequence,
            ?took,
            "slurmctld runs with this revision"
        );
        if unsettled.told {
            tell(&Event::Success);
        }
        unsettled.steps.reach(Phase::Verified);
        unsettled.answer(&Outcome::Applied);
    }

    fn wait(&mut self, mut unsettled: Unsettled, why: &str) -> Duration {
        // A slurmctld that does not come back with the old files, either, is nothing that a push has to wait for.
        let patient = unsettled.since.elapsed() < PUSH_PATIENCE;
        self.shown.send_modify(|shown| {
            if shown.phase != Phase::RollingBack || !patient {
                shown.phase = Phase::Swapped;
            }
            why.clone_into(&mut shown.waiting);
        });
        if unsettled.is_time_for_a_word() {
            warn!(why, "slurmctld does not run with the live files yet");
            if unsettled.told {
                tell(&Event::Failed);
            }
        }
        if !patient {
            unsettled.answer(&Outcome::Pending { reason: why.to_owned() });
        }
        let after = unsettled.poll_after();
        self.unsettled = Some(unsettled);
        after
    }

    fn show_no_answer(&self) {
        self.shown.send_modify(|shown| shown.waiting = NoAnswer.to_string());
    }

    fn show_unless_rolling_back(&self, phase: Phase) {
        if self.shown.borrow().phase != Phase::RollingBack {
            self.show(phase, true);
        }
    }

    fn show(&self, phase: Phase, busy: bool) {
        self.shown.send_modify(|shown| {
            shown.phase = phase;
            shown.busy = busy;
        });
    }
}
