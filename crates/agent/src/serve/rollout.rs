//! A change that has not ended, and who waits for its end.

use std::time::{Duration, Instant};

use slurm::agent::{Action, KeptState, Outcome, Phase, Refusal, Refused, StepTime, Way};
use tokio::sync::oneshot;

use super::partitions::{ByHand, Rest};
use super::served::Word;
use super::steps::Steps;
use super::story::{Event, tell};

/// How often "try again" is said: as often as the script of old did, then ever more seldom.
const FIRST_WORD: Duration = Duration::from_secs(2);
const LAST_WORD: Duration = Duration::from_secs(30);

/// What became of a push that was taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) outcome: Outcome,
    pub(super) steps: Vec<StepTime>,
    pub(super) action: Action,
    pub(super) way: Way,
    pub(super) kept_states: Vec<KeptState>,
}

impl Taken {
    /// Nothing was made to happen.
    pub(super) fn at_rest(outcome: Outcome, steps: &Steps) -> Self {
        Self {
            outcome,
            steps: steps.reached().to_vec(),
            action: Action::Nothing,
            way: Way::default(),
            kept_states: Vec::new(),
        }
    }
}

pub(super) type Answer = Result<Taken, Refusal>;

/// Who wants to know what becomes of a revision.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) sequence: u64,
    pub(super) reply: oneshot::Sender<Answer>,
}

/// What a change means for partitions.
#[derive(Debug, Default)]
pub(super) struct Partitions {
    /// What the partitions of this change have to be, where they are told one by one; `None` if nobody remembers.
    pub(super) told: Option<Rest>,
    /// By which way they are told.
    pub(super) way: Way,
    /// What people have set, and a reconfigure undoes.
    pub(super) by_hand: ByHand,
    /// Those that were set again.
    pub(super) kept_states: Vec<KeptState>,
    /// No partition with jobs is lost when slurmctld reads these files.
    pub(super) way_is_clear: bool,
    /// slurmctld has something of which only the files know how it was.
    pub(super) must_reconfigure: bool,
}

/// slurmctld is not known to run with the live files.
#[derive(Debug)]
pub(super) struct Unsettled {
    pub(super) since: Instant,
    /// A start with these files was asked for.
    pub(super) started: bool,
    /// slurmctld was told to end and to start with these files.
    pub(super) restarted: Option<Instant>,
    /// slurmctld was seen to run before it came to these files, or starts in this pod for the first time: if it cannot
    /// start now, it is the files.
    pub(super) healthy_before: bool,
    /// Which revision had to go for these files to come back.
    pub(super) rolled_back: Option<Refused>,
    /// The smallest action that will do, once somebody has looked.
    pub(super) action: Option<Action>,
    pub(super) steps: Steps,
    pub(super) partitions: Partitions,
    /// slurmctld said that it runs with something else, and was reconfigured for it.
    pub(super) doubted: Option<Word>,
    /// People have been told that there is something to reconfigure.
    pub(super) told: bool,
    pub(super) waiting: Vec<Waiting>,
    last_word: Instant,
    pause: Duration,
}

impl Unsettled {
    pub(super) fn new(steps: Steps) -> Self {
        let now = Instant::now();
        Self {
            since: now,
            started: false,
            restarted: None,
            healthy_before: false,
            rolled_back: None,
            action: None,
            steps,
            partitions: Partitions::default(),
            doubted: None,
            told: false,
            waiting: Vec::new(),
            last_word: now,
            pause: FIRST_WORD,
        }
    }

    /// Of an agent that has yet to find out. Where it starts with its pod, slurmctld has never run with these files.
    pub(super) fn at_start() -> Self {
        Self {
            healthy_before: true,
            ..Self::new(Steps::begin())
        }
    }

    pub(super) fn tell_reconfiguring(&mut self) {
        if !self.told {
            self.told = true;
            tell(&Event::Reconfiguring);
        }
    }

    /// Whether it is time for another word about it; they become ever more seldom.
    pub(super) fn is_time_for_a_word(&mut self) -> bool {
        let is_time = self.last_word.elapsed() >= self.pause;
        if is_time {
            self.next_pause();
        }
        is_time
    }

    /// The pause that begins now.
    pub(super) fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(LAST_WORD);
        self.last_word = Instant::now();
        pause
    }

    /// Asked often while an answer is near, seldom when it is not.
    pub(super) fn poll_after(&self) -> Duration {
        match self.since.elapsed().as_secs() {
            0..1 => Duration::from_millis(20),
            1..10 => Duration::from_millis(200),
            _ => Duration::from_secs(1),
        }
    }

    /// The files are those of before again.
    pub(super) fn roll_back(&mut self, refused: Refused) {
        self.since = Instant::now();
        self.started = false;
        self.restarted = None;
        self.doubted = None;
        // There is no other way but this one.
        self.partitions.way_is_clear = true;
        self.healthy_before = false;
        self.rolled_back = Some(refused);
        self.steps.reach(Phase::RollingBack);
    }

    /// Those who wait for a revision that was rolled back hear of that, the others hear this.
    pub(super) fn answer(&mut self, outcome: &Outcome) {
        for Waiting { sequence, reply } in std::mem::take(&mut self.waiting) {
            let outcome = match &self.rolled_back {
                Some(refused) if refused.sequence == sequence => Outcome::RolledBack(refused.clone()),
                _ => outcome.clone(),
            };
            // Whoever asked may be gone.
            let _ = reply.send(Ok(Taken {
                outcome,
                steps: self.steps.reached().to_vec(),
                action: self.action.unwrap_or_default(),
                way: self.partitions.way,
                kept_states: self.partitions.kept_states.clone(),
            }));
        }
    }
}
