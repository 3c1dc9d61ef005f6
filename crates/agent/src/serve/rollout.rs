//! The rollout of the live files: state of a change until slurmctld is known to run with it, and the callers that wait for it.

use std::time::Duration;

use host::Host;
use slurm::agent::{Action, KeptState, Outcome, Phase, Refusal, Refused, StepTime, UpdateChannel};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::legacy_log::{self, Event};
use super::partitions::{ManualStates, Remaining};
use super::slurmctld::Mismatch;

/// How often a failure is logged: as often as upstream's script did, then with growing intervals.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(2);
const MAX_LOG_INTERVAL: Duration = Duration::from_secs(30);

/// The steps that one change has reached.
#[derive(Debug, Clone)]
pub(super) struct Steps {
    host: Host,
    last: Instant,
    reached: Vec<StepTime>,
}

impl Steps {
    pub(super) fn begin(host: &Host) -> Self {
        Self {
            host: host.clone(),
            last: host.instant(),
            reached: Vec::new(),
        }
    }

    pub(super) fn reach(&mut self, step: Phase) {
        let now = self.host.instant();
        let took = now.duration_since(self.last);
        self.last = now;
        self.reached.push(StepTime {
            step,
            milliseconds: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        });
    }

    pub(super) fn reached(&self) -> &[StepTime] {
        &self.reached
    }
}

/// The result of an accepted push.
#[derive(Debug)]
pub(super) struct PushResult {
    pub(super) outcome: Outcome,
    pub(super) steps: Vec<StepTime>,
    pub(super) action: Action,
    pub(super) way: UpdateChannel,
    pub(super) kept_states: Vec<KeptState>,
}

impl PushResult {
    /// A result without an action.
    pub(super) fn without_action(outcome: Outcome, steps: &[StepTime]) -> Self {
        Self {
            outcome,
            steps: steps.to_vec(),
            action: Action::Nothing,
            way: UpdateChannel::default(),
            kept_states: Vec::new(),
        }
    }
}

pub(super) type PushResponse = Result<PushResult, Refusal>;

/// A caller that waits for the outcome of a revision.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) sequence: u64,
    pub(super) reply: oneshot::Sender<PushResponse>,
}

/// What a change means for partitions.
#[derive(Debug, Default)]
pub(super) struct Partitions {
    /// What remains of a live update; `None` if that is unknown.
    pub(super) remaining: Option<Remaining>,
    /// The channel of the live update.
    pub(super) way: UpdateChannel,
    /// Manual states that a reconfigure undoes.
    pub(super) manual_states: ManualStates,
    /// slurmctld did not respond when they were read.
    pub(super) states_unread: bool,
    /// Manual states that were set again.
    pub(super) kept_states: Vec<KeptState>,
    /// slurmctld loses no partition with jobs by reading these files.
    pub(super) safe_to_reconfigure: bool,
    /// slurmctld has partitions that only a reconfigure can revert.
    pub(super) must_reconfigure: bool,
}

/// slurmctld is not known to run with the live files.
#[derive(Debug)]
pub(super) struct Rollout {
    host: Host,
    pub(super) since: Instant,
    /// A start with these files was requested.
    pub(super) started: bool,
    /// When a restart with these files was requested.
    pub(super) restarted: Option<Instant>,
    /// slurmctld ran before it got these files, or starts in this pod for the first time: if it cannot start now, the files are
    /// the cause.
    pub(super) healthy_before: bool,
    /// The revision that was replaced by these older files.
    pub(super) rolled_back: Option<Refused>,
    /// The smallest sufficient action, once it is known.
    pub(super) action: Option<Action>,
    pub(super) steps: Steps,
    pub(super) partitions: Partitions,
    /// The mismatch for which slurmctld was reconfigured a second time.
    pub(super) mismatch: Option<Mismatch>,
    /// The legacy log has its first line about this rollout.
    pub(super) logged: bool,
    pub(super) callers: Vec<Caller>,
    last_log: Instant,
    log_interval: Duration,
}

impl Rollout {
    pub(super) fn new(host: &Host, steps: Steps) -> Self {
        let now = host.instant();
        Self {
            host: host.clone(),
            since: now,
            started: false,
            restarted: None,
            healthy_before: false,
            rolled_back: None,
            action: None,
            steps,
            partitions: Partitions::default(),
            mismatch: None,
            logged: false,
            callers: Vec::new(),
            last_log: now,
            log_interval: MIN_LOG_INTERVAL,
        }
    }

    /// The rollout of an agent that starts. If it starts with its pod, slurmctld has never run with these files.
    pub(super) fn at_start(host: &Host) -> Self {
        Self {
            healthy_before: true,
            ..Self::new(host, Steps::begin(host))
        }
    }

    pub(super) fn age(&self) -> Duration {
        self.host.instant().saturating_duration_since(self.since)
    }

    pub(super) fn log_reconfiguring(&mut self) {
        if !self.logged {
            self.logged = true;
            legacy_log::print(&self.host, &Event::Reconfiguring);
        }
    }

    /// Returns whether a failure should be logged now.
    pub(super) fn should_log(&mut self) -> bool {
        let since = self.host.instant().saturating_duration_since(self.last_log);
        let is_due = since >= self.log_interval;
        if is_due {
            self.next_interval();
        }
        is_due
    }

    /// Begins the next interval and returns its length.
    pub(super) fn next_interval(&mut self) -> Duration {
        let interval = self.log_interval;
        self.log_interval = (interval * 2).min(MAX_LOG_INTERVAL);
        self.last_log = self.host.instant();
        interval
    }

    /// Polls often at first, when a change is likely, and seldom later.
    pub(super) fn poll_interval(&self) -> Duration {
        match self.age().as_secs() {
            0..1 => Duration::from_millis(20),
            1..10 => Duration::from_millis(200),
            _ => Duration::from_secs(1),
        }
    }

    /// Starts over with the previous files.
    pub(super) fn roll_back(&mut self, refused: Refused) {
        self.since = self.host.instant();
        self.started = false;
        self.restarted = None;
        self.mismatch = None;
        // There is no alternative to these files.
        self.partitions.safe_to_reconfigure = true;
        self.healthy_before = false;
        self.rolled_back = Some(refused);
        self.steps.reach(Phase::RollingBack);
    }

    /// Responds to all callers. Those of a revision that was rolled back get that outcome, the others this one.
    pub(super) fn respond(&mut self, outcome: &Outcome) {
        for Caller { sequence, reply } in std::mem::take(&mut self.callers) {
            let outcome = match &self.rolled_back {
                Some(refused) if refused.sequence == sequence => Outcome::RolledBack(refused.clone()),
                _ => outcome.clone(),
            };
            // The caller may have timed out.
            let _ = reply.send(Ok(PushResult {
                outcome,
                steps: self.steps.reached().to_vec(),
                action: self.action.unwrap_or_default(),
                way: self.partitions.way,
                kept_states: self.partitions.kept_states.clone(),
            }));
        }
    }
}
