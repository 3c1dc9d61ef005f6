//! One actor per cluster brings the configuration to slurmctld's agent: it takes the newest that is wanted, asks what is
//! live, pushes, tries again, and says how it went. Nothing else changes a slurmctld's files.
//!
//! What is to be done is decided by [`decide`], which is pure; the [`task`] around it only asks, pushes and waits.

mod active;
mod decide;
mod standbys;
mod task;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex},
};

use api::{Controller, configuration::RejectedBy};
use jiff::Timestamp;
use slurm::{
    agent::{self, Action, PartitionInUse, StepTime, Way},
    revision::{ControllerUid, Digest, File, FileName, Summary},
};
use tokio::{sync::watch, time::Instant};

pub(crate) use self::active::Candidate;
use self::{standbys::Settled, task::Task};
use super::{Shared, lock, pods::Target};
use crate::runtime::{Fence, Key, Trigger};

/// Changes come at least a second apart, and the reconciler writes the last ones down within milliseconds.
const REMEMBERED: usize = 4;

/// Far more than it takes to find out which of the inputs slurmctld refuses. Beyond it is forgotten, and found out again.
const MOST_REFUSALS: usize = 1000;

/// All files of a revision.
pub(crate) type Files = BTreeMap<FileName, File>;

/// Revisions that slurmctld rejected, and its messages.
pub(crate) type Refusals = BTreeMap<Digest, String>;

/// The cluster's JWT key, which commands to the agent are signed with.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct JwtKey(pub(crate) Vec<u8>);

impl fmt::Debug for JwtKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JwtKey(…)")
    }
}

/// How far a revision is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// slurmctld runs with it.
    Live,
    /// A dry run has tried it: it goes live by a restart, which is to come only then.
    Checked,
}

/// What slurmctld is to run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) goal: Goal,
    pub(crate) files: Arc<Files>,
    /// See [`slurm::Revision::closed_by_hand`].
    pub(crate) closed_by_hand: Arc<BTreeSet<String>>,
    /// Of the files.
    pub(crate) digest: Digest,
    pub(crate) controller: ControllerUid,
    pub(crate) target: Target,
    /// Agents of slurmctld that wait to take over. They get what the active one has taken.
    pub(crate) standbys: Vec<Target>,
    /// The highest sequence that Kubernetes knows of.
    pub(crate) floor: u64,
    /// What was refused last, by the Controller's status.
    pub(crate) rejected: Option<Live>,
    pub(crate) jwt_key: JwtKey,
}

/// What is wanted, and since when.
#[derive(Clone, Debug)]
struct Wish {
    wanted: Wanted,
    seen: Instant,
}

impl Wish {
    /// Whether both ask the same agent for the same files.
    fn is_about_the_same(&self, wanted: &Wanted) -> bool {
        self.wanted.digest == wanted.digest && self.wanted.target == wanted.target
    }
}

/// A revision in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) sequence: u64,
    pub(crate) digest: Digest,
}

impl From<&Summary> for Live {
    fn from(summary: &Summary) -> Self {
        Self {
            sequence: summary.sequence,
            digest: summary.digest,
        }
    }
}

/// How far a push has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// The agent has not been asked yet, or is being pushed to.
    #[default]
    Busy,
    /// slurmctld runs with what is live.
    Done,
    /// What is live has not been taken by slurmctld.
    Waiting { why: String },
    /// These files were refused; they wait for something else to be wanted.
    Refused(Rejection),
    /// The agent could not carry it out, and is asked again.
    Failed { why: String },
    /// The agent cannot be reached, or does not listen to us.
    Away { why: String },
}

/// A revision that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) sequence: u64,
    pub(crate) digest: Digest,
    pub(crate) by: RejectedBy,
    /// In Slurm's own words.
    pub(crate) why: String,
}

/// A revision that is sent by a ConfigMap, since the agent cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    /// UID of the pod it is for.
    pub(crate) pod: String,
    pub(crate) revision: Live,
    pub(crate) candidate: agent::Candidate,
    /// When its token was made, which does not hold for ever.
    made: Instant,
}

#[cfg(test)]
impl Sent {
    pub(crate) fn now(pod: &str, revision: Live, candidate: agent::Candidate) -> Self {
        Self {
            pod: pod.to_owned(),
            revision,
            candidate,
            made: Instant::now(),
        }
    }
}

/// A push that has come to its end: slurmctld runs with the files, or they were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) sequence: u64,
    pub(crate) digest: Digest,
    pub(crate) files: Arc<Files>,
    pub(crate) at: Timestamp,
    pub(crate) action: Action,
    /// By which slurmctld was told, where it was told of partitions.
    pub(crate) way: Way,
    pub(crate) milliseconds: u64,
    pub(crate) steps: Vec<StepTime>,
    pub(crate) rejection: Option<Rejection>,
    /// It came there by a ConfigMap.
    pub(crate) by_candidate: bool,
}

/// A slurmctld that waits to take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standby {
    /// UID of its pod.
    pub(crate) pod: String,
    pub(crate) live: Option<Live>,
    /// Why it does not have what the active one has.
    pub(crate) why: Option<String>,
}

/// What the actor knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// UID of the pod that `live` and `state` are about.
    pub(crate) pod: String,
    pub(crate) live: Option<Live>,
    pub(crate) state: State,
    /// What a dry run found good, where that is the goal.
    pub(crate) checked: Option<Digest>,
    /// What is known of the standbys.
    pub(crate) standbys: Vec<Standby>,
    /// What goes by a ConfigMap in place of a push.
    pub(crate) sent: Option<Arc<Sent>>,
    /// Name of the pod whose slurmctld serves, where there are several.
    pub(crate) active: Option<String>,
    /// The last pushes that came to their end, the newest last.
    pub(crate) ended: Vec<Arc<Ended>>,
    /// What this slurmctld refused so far.
    pub(crate) refusals: Arc<Refusals>,
    /// Partitions that it did not let go a moment ago.
    pub(crate) in_use: Vec<PartitionInUse>,
}

impl Report {
    /// What is live, if nothing is on its way.
    pub(crate) fn live_at_rest(&self) -> Option<Live> {
        let at_rest = matches!(self.state, State::Done | State::Refused(_));
        self.live.filter(|_| at_rest)
    }

    fn forget_agent(&mut self) {
        *self = Self {
            active: self.active.take(),
            ended: std::mem::take(&mut self.ended),
            ..Self::default()
        };
    }

    fn note_refusal(&mut self, digest: Digest, why: &str) {
        let refusals = Arc::make_mut(&mut self.refusals);
        if refusals.len() >= MOST_REFUSALS && !refusals.contains_key(&digest) {
            refusals.clear();
        }
        refusals.insert(digest, why.to_owned());
    }

    fn forget_refusals<'a>(&mut self, digests: impl Iterator<Item = &'a Digest>) {
        let refusals = Arc::make_mut(&mut self.refusals);
        for digest in digests {
            refusals.remove(digest);
        }
    }

    fn remember(&mut self, ended: Ended) {
        self.ended.push(Arc::new(ended));
        let surplus = self.ended.len().saturating_sub(REMEMBERED);
        self.ended.drain(..surplus);
    }
}

/// The delivery of the configuration to one cluster.
#[derive(Debug)]
pub(crate) struct Delivery {
    wanted: watch::Sender<Option<Arc<Wish>>>,
    candidates: watch::Sender<Vec<Candidate>>,
    report: Arc<Mutex<Report>>,
}

/// The part of a cluster's task that delivers.
pub(super) struct Deliver {
    task: Task,
    wishes: watch::Receiver<Option<Arc<Wish>>>,
    candidates: watch::Receiver<Vec<Candidate>>,
    settled: watch::Receiver<Option<Arc<Settled>>>,
    reporter: Reporter,
    fence: Fence,
}

impl Deliver {
    /// Runs until the cluster is removed.
    pub(super) async fn run(self) {
        let Self {
            task,
            wishes,
            candidates,
            settled,
            reporter,
            fence,
        } = self;
        tokio::join!(
            task.run(wishes),
            active::follow(candidates, reporter.clone()),
            standbys::follow(settled, reporter, fence),
        );
    }
}

impl Delivery {
    pub(super) fn new(key: &Key, shared: &Shared) -> (Self, Deliver) {
        let (wanted, wishes) = watch::channel(None);
        let (candidates, elections) = watch::channel(Vec::new());
        let (settled, settlements) = watch::channel::<Option<Arc<Settled>>>(None);
        let report = Arc::new(Mutex::new(Report::default()));
        let reporter = Reporter {
            key: key.clone(),
            report: Arc::clone(&report),
            trigger: shared.triggers.of::<Controller>(),
        };
        let task = Task::new(
            reporter.clone(),
            shared.fence.clone(),
            shared.clock.clone(),
            shared.metrics.clone(),
            settled,
        );
        let deliver = Deliver {
            task,
            wishes,
            candidates: elections,
            settled: settlements,
            reporter,
            fence: shared.fence.clone(),
        };
        let delivery = Self {
            wanted,
            candidates,
            report,
        };
        (delivery, deliver)
    }

    pub(super) fn report(&self) -> Report {
        lock(&self.report).clone()
    }

    /// Makes slurmctld run with this, in place of what was wanted before.
    pub(super) fn want(&self, wanted: Wanted) {
        self.wanted.send_if_modified(|current| {
            let before = current.as_deref();
            if before.is_some_and(|before| before.wanted == wanted) {
                return false;
            }
            let seen = before
                .filter(|before| before.is_about_the_same(&wanted))
                .map_or_else(Instant::now, |before| before.seen);
            *current = Some(Arc::new(Wish { wanted, seen }));
            true
        });
    }

    pub(super) fn pause(&self) {
        self.wanted.send_if_modified(|wanted| wanted.take().is_some());
    }

    pub(super) fn watch_active(&self, candidates: Vec<Candidate>) {
        self.candidates.send_if_modified(|current| {
            let differs = *current != candidates;
            *current = candidates;
            differs
        });
    }
}

/// Updates the report, and wakes the Controller when it has changed.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    key: Key,
    report: Arc<Mutex<Report>>,
    trigger: Trigger,
}

impl Reporter {
    pub(super) fn read(&self) -> Report {
        lock(&self.report).clone()
    }

    pub(super) fn report(&self, change: impl FnOnce(&mut Report)) {
        let mut report = lock(&self.report);
        let before = report.clone();
        change(&mut report);
        if *report != before {
            self.trigger.wake(self.key.clone());
        }
    }
}
