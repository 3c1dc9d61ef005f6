//! The one writer of /etc/slurm: takes a revision at a time, puts it there, and sees to it that slurmctld runs with what is
//! there.
//!
//! It works from what it finds, not from what it remembers: whenever slurmctld does not run with the live files it acts,
//! whether that is because of a push, of a restart of either container, or of somebody's hand. A directory of files older
//! than the live ones means that the change has not ended, and is the way back.
//!
//! The steps are `staged → swapped → reconfiguring → verified`. The dry run (`checked`), the journal, and slurmctld's own
//! word on what it serves are marked where they will stand.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slurm::Revision;
use slurm::agent::{Fence, Outcome, Phase, Refusal, Refused};
use slurm::revision::ControllerUid;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::fences::{Fences, Stale, Subject};
use super::plan::{Next, Verdict, plan_next, plan_push};
use super::reason::reason;
use super::story::{Event, tell};
use crate::config_dir::{self, ConfigDir, Files};
use crate::control::{Reconfigured, Supervisor};
use crate::store::{self, Store};

/// A missing `Include` holds slurmctld up for a minute; it goes on when we no longer wait.
const RECONFIGURE_PATIENCE: Duration = Duration::from_secs(90);

/// A slurmctld that dies is back in a tenth of a second. One that is not after this is not coming soon.
const PUSH_PATIENCE: Duration = Duration::from_secs(3);

/// How often "try again" is said: as often as the script of old did, then ever more seldom.
const FIRST_WORD: Duration = Duration::from_secs(2);
const LAST_WORD: Duration = Duration::from_secs(30);

#[derive(Debug, Error)]
enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    ConfigDir(#[from] config_dir::Error),
    #[error("the revision could not be written: {0}")]
    Task(#[from] tokio::task::JoinError),
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

type Answer = Result<Outcome, Refusal>;

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
    config: ConfigDir,
    store: Store,
    supervisor: Supervisor,
    controller: ControllerUid,
    fences: Arc<Mutex<Fences>>,
    pushes: mpsc::Receiver<Push>,
    shown: watch::Sender<Shown>,
    unsettled: Option<Unsettled>,
}

/// slurmctld is not known to run with the live files.
#[derive(Debug)]
struct Unsettled {
    since: Instant,
    /// A start with these files was asked for.
    started: bool,
    /// People have been told that there is something to reconfigure.
    told: bool,
    last_word: Instant,
    pause: Duration,
    waiting: Vec<Waiting>,
}

/// Who wants to know what becomes of a revision.
#[derive(Debug)]
struct Waiting {
    sequence: u64,
    reply: oneshot::Sender<Answer>,
}

impl Unsettled {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            since: now,
            started: false,
            told: false,
            last_word: now,
            pause: FIRST_WORD,
            waiting: Vec::new(),
        }
    }

    fn tell_reconfiguring(&mut self) {
        if !self.told {
            self.told = true;
            tell(&Event::Reconfiguring);
        }
    }

    /// Asked often while an answer is near, seldom when it is not.
    fn poll_after(&self) -> Duration {
        match self.since.elapsed().as_secs() {
            0..1 => Duration::from_millis(20),
            1..10 => Duration::from_millis(200),
            _ => Duration::from_secs(1),
        }
    }
}

impl Keeper {
    pub(super) fn new(
        config: ConfigDir,
        store: Store,
        supervisor: Supervisor,
        controller: ControllerUid,
        fences: Arc<Mutex<Fences>>,
    ) -> (Self, Handle) {
        let (sender, pushes) = mpsc::channel(1);
        let (shown, receiver) = watch::channel(Shown {
            phase: Phase::Swapped,
            busy: true,
            waiting: "the agent is starting".to_owned(),
            rolled_back: None,
        });
        let keeper = Self {
            config,
            store,
            supervisor,
            controller,
            fences,
            pushes,
            shown,
            unsettled: Some(Unsettled::new()),
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

    /// A push that had been made durable, and no more, when the agent ended. A pod that starts now would start from it.
    async fn go_on(&mut self) {
        let Some(live) = self.config.live() else { return };
        match self.store.newest() {
            Ok(Some(stored)) if stored.sequence > live.summary.sequence => {
                info!(sequence = stored.sequence, "going on with a push that was interrupted");
                if let Err(error) = self.apply(stored, Some(live)).await {
                    error!(%error, "cannot go on with it");
                }
            }
            Ok(_) => {}
            Err(error) => warn!(%error, "cannot look for a push that was interrupted"),
        }
    }

    async fn take(&mut self, push: Push) {
        let Push { revision, fence, reply } = push;
        let overtaken = {
            let fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
            fences.check(fence, Subject::Configuration)
        };
        if let Err(Stale(highest)) = overtaken {
            let _ = reply.send(Err(Refusal::StaleFence { highest }));
            return;
        }
        let live = self.config.live();
        let sequence = revision.sequence;
        let verdict = plan_push(live.as_ref().map(|live| &live.summary), &self.controller, &revision);
        let done = match (verdict, live) {
            (Verdict::Refuse(refusal), _) => {
                info!(sequence, %refusal, "push refused");
                let _ = reply.send(Err(refusal));
                return;
            }
            (Verdict::Repeat, Some(live)) if self.is_untouched(&live) => Ok(()),
            (Verdict::Renumber, Some(live)) if self.is_untouched(&live) => self.renumber(revision, live).await,
            (Verdict::Repeat | Verdict::Renumber | Verdict::Apply, live) => self.apply(revision, live).await,
        };
        match done {
            Err(error) => {
                error!(sequence, %error, "push failed");
                let _ = reply.send(Err(Refusal::Failed {
                    detail: error.to_string(),
                }));
            }
            Ok(()) => match &mut self.unsettled {
                Some(unsettled) => unsettled.waiting.push(Waiting { sequence, reply }),
                None => {
                    let _ = reply.send(Ok(Outcome::Unchanged));
                }
            },
        }
    }

    fn is_untouched(&self, live: &Files) -> bool {
        self.config.check(live).is_ok()
    }

    async fn renumber(&mut self, revision: Revision, live: Files) -> Result<(), Error> {
        info!(sequence = revision.sequence, "the same bytes are live already");
        let summary = revision.summary();
        self.save(revision).await?;
        self.config.renumber(&live, &summary)?;
        Ok(())
    }

    async fn apply(&mut self, revision: Revision, live: Option<Files>) -> Result<(), Error> {
        let sequence = revision.sequence;
        info!(sequence, digest = %revision.digest(), "taking a revision");
        let phase = self.shown.borrow().phase;
        let untried = live.as_ref().is_none_or(|live| live.summary.sequence < sequence);
        self.show(Phase::Staged, true);
        if let Err(error) = self.stage_and_swap(revision, live).await {
            // Nothing has changed, and the next pod must not start from what nobody has tried.
            if untried && let Err(error) = self.store.remove(sequence) {
                warn!(%error, "an untried revision stays on the state volume");
            }
            self.show(phase, false);
            return Err(error);
        }
        self.show(Phase::Swapped, true);
        let mut unsettled = Unsettled::new();
        unsettled.tell_reconfiguring();
        if let Some(before) = self.unsettled.replace(unsettled) {
            answer(before.waiting, |_| Outcome::Pending {
                reason: format!("revision {sequence} has taken its place"),
            });
        }
        Ok(())
    }

    async fn stage_and_swap(&self, revision: Revision, live: Option<Files>) -> Result<(), Error> {
        self.save(revision.clone()).await?;
        // The dry run comes here, and `Phase::Checked` after it.
        Ok(self.swap(&revision, live)?)
    }

    async fn save(&self, revision: Revision) -> Result<(), Error> {
        let store = self.store.clone();
        // A disk takes its time, and others are served meanwhile.
        Ok(tokio::task::spawn_blocking(move || store.save(&revision)).await??)
    }

    fn swap(&self, revision: &Revision, live: Option<Files>) -> Result<(), config_dir::Error> {
        let files = self.config.write(revision)?;
        if let Err(error) = self.config.switch(&files) {
            self.config.forget(&files.name);
            return Err(error);
        }
        // Files that slurmctld never ran with are no way back if there is a better one.
        if let Some(live) = live.filter(|live| self.unsettled.is_some() && self.config.before(live).is_some()) {
            self.config.forget(&live.name);
        }
        Ok(())
    }

    /// One step towards a slurmctld that runs with the live files; how long to wait before the next.
    async fn settle(&mut self, mut unsettled: Unsettled) -> Duration {
        let Some(live) = self.config.live() else {
            return self.wait(unsettled, "there is no revision in the configuration directory");
        };
        let state = match self.supervisor.state().await {
            Ok(state) => state,
            Err(error) => return self.wait(unsettled, &error.to_string()),
        };
        match plan_next(&state, &live.name, unsettled.started) {
            Next::Settled => {
                self.settled(unsettled, &live);
                Duration::ZERO
            }
            Next::Wait(why) => self.wait(unsettled, why),
            Next::Start => {
                info!(
                    sequence = live.summary.sequence,
                    "starting slurmctld with the new files"
                );
                unsettled.started = true;
                match self.supervisor.restart().await {
                    Ok(_) => self.wait(unsettled, "slurmctld is starting"),
                    Err(error) => self.wait(unsettled, &error.to_string()),
                }
            }
            Next::Reconfigure => self.reconfigure(unsettled, live).await,
        }
    }

    async fn reconfigure(&mut self, mut unsettled: Unsettled, live: Files) -> Duration {
        let rolling_back = self.shown.borrow().phase == Phase::RollingBack;
        if !rolling_back {
            self.show(Phase::Reconfiguring, true);
        }
        self.shown
            .send_modify(|shown| "slurmctld is busy with the reconfigure".clone_into(&mut shown.waiting));
        unsettled.tell_reconfiguring();
        info!(
            sequence = live.summary.sequence,
            rolling_back, "reconfiguring slurmctld"
        );
        match self.supervisor.reconfigure(RECONFIGURE_PATIENCE).await {
            Ok(Reconfigured::Done) => {
                self.unsettled = Some(unsettled);
                Duration::ZERO
            }
            Ok(Reconfigured::Failed { last_words }) => self.refused(unsettled, &live, last_words),
            Ok(Reconfigured::Died) => self.wait(unsettled, "slurmctld died and is started again"),
            Ok(Reconfigured::Away) => self.wait(unsettled, "slurmctld is not ready for a reconfigure"),
            // A late answer is no answer: it may still take them.
            Err(error) => self.wait(unsettled, &error.to_string()),
        }
    }

    /// slurmctld said no and goes on with what it had; with what it had must it be told to go on, too: 25.11 and 26.05
    /// serve to the nodes what lies on disk after a failure.
    fn refused(&mut self, mut unsettled: Unsettled, live: &Files, last_words: Vec<String>) -> Duration {
        let sequence = live.summary.sequence;
        let reason = reason(&last_words);
        tell(&Event::Failed);
        let Some(before) = self.config.before(live) else {
            // The files it started with: only what is around them can have changed.
            warn!(sequence, %reason, "slurmctld refused the files it has; trying again");
            let pause = unsettled.pause;
            unsettled.pause = (pause * 2).min(LAST_WORD);
            unsettled.last_word = Instant::now();
            self.wait(unsettled, &reason);
            return pause;
        };
        warn!(sequence, %reason, back_to = before.summary.sequence, "slurmctld refused the revision, rolling back");
        self.shown.send_modify(|shown| {
            shown.phase = Phase::RollingBack;
            shown.rolled_back = Some(Refused {
                sequence,
                reason,
                last_words,
            });
        });
        if let Err(error) = self.config.switch(&before) {
            error!(%error, "cannot roll back");
            return self.wait(unsettled, &error.to_string());
        }
        self.config.forget(&live.name);
        // The next pod must not start from it.
        if let Err(error) = self.store.remove(sequence) {
            error!(%error, "a refused revision stays on the state volume");
        }
        unsettled.since = Instant::now();
        self.unsettled = Some(unsettled);
        Duration::ZERO
    }

    fn settled(&mut self, unsettled: Unsettled, live: &Files) {
        // slurmctld's own word comes here: the files it serves (REQUEST_CONFIG) and the hash it runs with. Until then a
        // reconfigure by hand in the very moment of ours can be taken for it.
        if let Err(file) = self.config.check(live) {
            warn!(%file, "a file was changed by somebody else");
        }
        self.config.forget_all_but(live);
        let rolled_back = match self.shown.borrow().phase {
            Phase::RollingBack => self.shown.borrow().rolled_back.clone(),
            _ => None,
        };
        self.shown.send_modify(|shown| {
            shown.phase = Phase::Verified;
            shown.waiting.clear();
            shown.rolled_back.clone_from(&rolled_back);
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
        answer(unsettled.waiting, |sequence| match &rolled_back {
            Some(rolled_back) if rolled_back.sequence == sequence => Outcome::RolledBack(rolled_back.clone()),
            _ => Outcome::Applied,
        });
    }

    fn wait(&mut self, mut unsettled: Unsettled, why: &str) -> Duration {
        self.shown.send_modify(|shown| {
            if shown.phase != Phase::RollingBack {
                shown.phase = Phase::Swapped;
            }
            why.clone_into(&mut shown.waiting);
        });
        if unsettled.last_word.elapsed() >= unsettled.pause {
            unsettled.last_word = Instant::now();
            unsettled.pause = (unsettled.pause * 2).min(LAST_WORD);
            warn!(why, "slurmctld does not run with the live files yet");
            if unsettled.told {
                tell(&Event::Failed);
            }
        }
        if unsettled.since.elapsed() >= PUSH_PATIENCE {
            answer(std::mem::take(&mut unsettled.waiting), |_| Outcome::Pending {
                reason: why.to_owned(),
            });
        }
        let after = unsettled.poll_after();
        self.unsettled = Some(unsettled);
        after
    }

    fn show(&self, phase: Phase, busy: bool) {
        self.shown.send_modify(|shown| {
            shown.phase = phase;
            shown.busy = busy;
        });
    }
}

fn answer(waiting: Vec<Waiting>, outcome: impl Fn(u64) -> Outcome) {
    for Waiting { sequence, reply } in waiting {
        // Whoever asked may be gone.
        let _ = reply.send(Ok(outcome(sequence)));
    }
}
