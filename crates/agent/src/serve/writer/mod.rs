//! The single writer of /etc/slurm: takes one revision at a time, makes it live, and makes slurmctld run with the live files.
//!
//! It works from the state it finds, not from memory: whenever slurmctld does not run with the live files it acts, be it after a
//! push, after a restart of either container, or after a manual change. A directory of files older than the live ones means that
//! the change is not complete, and is what a roll back returns to.
//!
//! The steps are `staged → checked → swapped → reconfiguring → verified` ([`apply`], [`converge`]), each noted in the journal
//! ([`record`]); for a change of partitions alone they are `staged → partitions live → swapped → verified` ([`partitions`]). A
//! revision is verified when slurmctld itself reports that it runs with it.

mod apply;
mod converge;
mod partitions;
mod record;
mod roll_back;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use host::FileError;
use host::watch;
use slurm::Revision;
use slurm::agent::{Fence, Outcome, Phase, Refusal, Refused};
use slurm::revision::{ControllerUid, LiveRevision};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::Services;
use super::checker::refusal;
use super::fences::Subject;
use super::plan::{PushPlan, plan_push};
use super::rollout::{Caller, PushResponse, PushResult, Rollout, Steps};
use super::volume::{Unresponsive, Volume};
use crate::config_dir::Files;
use crate::dry_run;
use crate::store::{self, Store};

/// How long a push waits for slurmctld. A crashed slurmctld is back after a tenth of a second.
const PUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// For each piece of work on the state volume. It is below the 10 s after which the operator would get a pending push without
/// the reason.
const VOLUME_TIMEOUT: Duration = Duration::from_secs(8);

#[derive(Debug, Error)]
enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    DryRun(#[from] dry_run::Error),
    #[error("the revision could not be saved: {0}")]
    Unresponsive(#[from] Unresponsive),
}

impl Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::DryRun(error) => refusal(error),
            _ => Refusal::failed(self),
        }
    }
}

/// What requests see of the writer.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    /// No push is accepted now.
    pub(super) busy: bool,
    /// Why slurmctld does not run with the live files.
    pub(super) waiting: String,
    pub(super) rolled_back: Option<Refused>,
}

/// The result of making a revision live: `None` if it is, and otherwise the outcome of its push.
type NotLive = Option<Outcome>;

#[derive(Debug)]
pub(super) struct Push {
    pub(super) revision: Revision,
    pub(super) fence: Fence,
    pub(super) reply: oneshot::Sender<PushResponse>,
}

/// The writer's handle for requests.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) pushes: mpsc::Sender<Push>,
    pub(super) progress: watch::Receiver<Progress>,
}

pub(super) struct ConfigWriter {
    services: Arc<Services>,
    volume: Volume,
    controller: ControllerUid,
    pushes: mpsc::Receiver<Push>,
    progress: watch::Sender<Progress>,
    /// `None` once slurmctld is known to run with the live files.
    rollout: Option<Rollout>,
    /// What slurmctld was last seen to run with. The state volume may be behind.
    verified: Option<LiveRevision>,
    /// slurmctld's process and its restarts at the last poll. A reconfigure changes the former.
    process: Option<(Option<i32>, u64)>,
}

impl ConfigWriter {
    pub(super) fn new(services: Arc<Services>, volume: Volume, controller: ControllerUid) -> (Self, Handle) {
        let (sender, pushes) = mpsc::channel(1);
        let (progress, receiver) = watch::channel(Progress {
            phase: Phase::Swapped,
            busy: true,
            waiting: "the agent is starting".to_owned(),
            rolled_back: None,
        });
        let writer = Self {
            rollout: Some(Rollout::at_start(&services.host)),
            services,
            volume,
            controller,
            pushes,
            progress,
            verified: None,
            process: None,
        };
        let handle = Handle {
            pushes: sender,
            progress: receiver,
        };
        (writer, handle)
    }

    pub(super) async fn run(mut self) -> Infallible {
        self.resume().await;
        loop {
            let wait = match self.rollout.take() {
                None => None,
                Some(rollout) => Some(self.converge(rollout).await),
            };
            if wait == Some(Duration::ZERO) {
                continue;
            }
            self.progress.send_modify(|progress| progress.busy = false);
            tokio::select! {
                biased;
                Some(push) = self.pushes.recv() => self.take(push).await,
                () = sleep(wait.unwrap_or_default()), if wait.is_some() => {}
            }
        }
    }

    /// Resumes what the previous agent left unfinished. Waits for the state volume, which decides over the live files.
    async fn resume(&mut self) {
        let read = |store: &Store| {
            let last = store.journal().pop();
            (store.verified(), store.closed(), last, store.newest(), store.pending())
        };
        let found = self.volume.wait(read, || self.show_unresponsive());
        let Ok((verified, closed, last, newest, pending)) = found.await else {
            error!("cannot look for an interrupted push");
            return;
        };
        self.verified = verified;
        let Some(live) = self.services.config.live() else {
            return;
        };
        if let Some(rollout) = &mut self.rollout {
            rollout.partitions.manual_states.closed = closed;
        }
        if let Some(entry) = last {
            info!(sequence = entry.sequence, step = %entry.step, "the last step of the previous agent");
            // A revision that a dry run rejected was never live.
            if let Some(refused) = entry.refused.filter(|_| entry.step != Phase::Staged) {
                let rolling_back = entry.step == Phase::RollingBack && entry.sequence == live.summary.sequence;
                let before = if rolling_back {
                    self.wait_for_roll_back_target(&live).await
                } else {
                    None
                };
                match (before, self.rollout.take()) {
                    (Some(before), Some(rollout)) => {
                        self.roll_back(rollout, &live, &before, refused).await;
                        return;
                    }
                    (None, Some(mut rollout)) => {
                        rollout.rolled_back = Some(refused);
                        self.rollout = Some(rollout);
                    }
                    (_, None) => {}
                }
            }
        }
        // The previous agent saved a push and did no more. A pod that starts now would start from it.
        match (newest, pending) {
            (Ok(Some(stored)), _) if stored.sequence > live.summary.sequence => self.resume_push(stored, live).await,
            (Ok(_), Some(pending)) => self.resume_partitions(pending, live).await,
            (Ok(_), None) => {}
            (Err(error), _) => warn!(%error, "cannot look for an interrupted push"),
        }
    }

    async fn resume_push(&mut self, revision: Revision, live: Files) {
        let sequence = revision.sequence;
        info!(sequence, "resuming an interrupted push");
        match self
            .apply(revision, Some(live), &mut Steps::begin(&self.services.host))
            .await
        {
            Ok(None) => {}
            Ok(Some(outcome)) => warn!(sequence, ?outcome, "abandoning the interrupted push"),
            Err(error) => error!(sequence, %error, "cannot resume the interrupted push"),
        }
    }

    async fn take(&mut self, push: Push) {
        let Push { revision, fence, reply } = push;
        let sequence = revision.sequence;
        let mut steps = Steps::begin(&self.services.host);
        let applied = match self.apply_push(revision, fence, &mut steps).await {
            Ok(applied) => applied,
            Err(refusal) => {
                let _ = reply.send(Err(refusal));
                return;
            }
        };
        let outcome = match (applied, &mut self.rollout) {
            (None, Some(rollout)) => {
                rollout.callers.push(Caller { sequence, reply });
                return;
            }
            (None, None) => Outcome::Unchanged,
            (Some(outcome), _) => outcome,
        };
        if let Outcome::PartitionsInUse { partitions } = &outcome {
            info!(sequence, ?partitions, "partitions are in use, nothing is changed");
        }
        let _ = reply.send(Ok(PushResult::without_action(outcome, steps.reached())));
    }

    async fn apply_push(&mut self, revision: Revision, fence: Fence, steps: &mut Steps) -> Result<NotLive, Refusal> {
        self.services.admission.check(fence, &Subject::Configuration)?;
        self.progress.send_modify(|progress| progress.busy = true);
        // Begins nothing that would have to be cleaned up after a hung volume responds again.
        let responsive = self.volume.run(VOLUME_TIMEOUT, |_| ()).await;
        responsive.map_err(|error| Error::from(error).refusal())?;
        let live = self.services.config.live();
        let sequence = revision.sequence;
        let summary = live.as_ref().map(|live| &live.summary);
        let applied = match (plan_push(summary, &self.controller, &revision), live) {
            (PushPlan::Reject(refusal), _) => {
                info!(sequence, %refusal, "push rejected");
                return Err(refusal);
            }
            (PushPlan::Repeat, Some(live)) if self.is_unmodified(&live) => Ok(None),
            (PushPlan::Renumber, Some(live)) if self.is_unmodified(&live) => self.renumber(revision, live).await,
            (PushPlan::Repeat | PushPlan::Renumber | PushPlan::Apply, live) => self.apply(revision, live, steps).await,
        };
        applied.map_err(|error| {
            error!(sequence, %error, "push failed");
            error.refusal()
        })
    }

    fn is_unmodified(&self, live: &Files) -> bool {
        self.services.config.check(live).is_ok()
    }

    fn is_rolling_back(&self) -> bool {
        self.progress.borrow().phase == Phase::RollingBack
    }

    fn show_unresponsive(&self) {
        self.show_waiting(&Unresponsive.to_string());
    }

    fn show_waiting(&self, reason: &str) {
        self.progress
            .send_modify(|progress| reason.clone_into(&mut progress.waiting));
    }

    fn show(&self, phase: Phase, busy: bool) {
        self.progress.send_modify(|progress| {
            progress.phase = phase;
            progress.busy = busy;
        });
    }
}
