//! Delivers the configuration of one cluster to slurmctld's agent: takes the newest wanted revision, reads the agent's
//! status, pushes, retries and reports. Nothing else changes a slurmctld's files.
//!
//! [`decide`], which is pure, decides the next step; the [`task`] around it only polls, pushes and waits.

mod active;
mod decide;
mod standbys;
mod task;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use api::configuration::RejectedBy;
use host::watch;
use jiff::Timestamp;
use runtime::Key;
use slurm::{
    Revision,
    agent::{self, Action, EmptyKey, PartitionInUse, Phase, RETRY_DRY_RUN, StepTime, UpdateChannel},
    revision::{ControllerUid, Digest, File, FileName, Implausible},
};
use thiserror::Error;
use tokio::time::Instant;

pub(crate) use slurm::revision::LiveRevision;

use super::{Cluster, Clusters, Follower, lock, pods::Target};

/// Changes come at least a second apart, and the reconciler records the last ones within milliseconds.
const REMEMBERED: usize = 4;

/// Far more than it takes to find the inputs that slurmctld rejects. Beyond it all are forgotten, and found again.
const MOST_REFUSALS: usize = 1000;

/// Why slurmctld does not run with a revision yet.
#[derive(Debug, Error)]
enum NotApplied {
    #[error(transparent)]
    Key(#[from] EmptyKey),
    #[error(transparent)]
    Agent(#[from] agent::Error),
    #[error(transparent)]
    Sequence(#[from] Implausible),
    #[error("it is not pushed yet")]
    NotPushed,
    #[error("slurmctld does not run with it yet: {0}")]
    NotVerified(Phase),
    #[error("{0}")]
    Pending(String),
    #[error("{0}")]
    Rejected(String),
    #[error("its agent did not apply it")]
    Ignored,
}

/// All files of a revision.
pub(crate) type Files = BTreeMap<FileName, File>;

/// Rejected revisions and slurmctld's messages.
pub(crate) type Refusals = BTreeMap<Digest, String>;

/// The cluster's JWT key, which signs commands to the agent.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct JwtKey(pub(crate) Vec<u8>);

impl fmt::Debug for JwtKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JwtKey(…)")
    }
}

/// The state a revision must reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// slurmctld runs with it.
    Live,
    /// A dry run has checked it: it goes live by a restart, which must come after the check.
    Checked,
    /// The agent responds. That no job is in the way was read from slurmrestd, whose responses are not signed, so the list of the
    /// agent decides whether it may go live.
    Confirmed,
}

/// The revision slurmctld must run with, and its agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) goal: Goal,
    pub(crate) files: Arc<Files>,
    /// See [`slurm::Revision::closed_by_hand`].
    pub(crate) closed_by_hand: Arc<BTreeSet<String>>,
    /// The digest of the files.
    pub(crate) digest: Digest,
    pub(crate) controller: ControllerUid,
    pub(crate) target: Target,
    /// Agents of standby slurmctlds. They receive the revision that the active one has applied.
    pub(crate) standbys: Vec<Target>,
    /// The highest sequence that Kubernetes knows.
    pub(crate) floor: u64,
    /// The highest sequence of a live revision whose manual states these files keep.
    pub(crate) known: u64,
    /// The last rejected revision, from the Controller's status.
    pub(crate) rejected: Option<LiveRevision>,
    pub(crate) jwt_key: JwtKey,
}

impl Wanted {
    fn tried(&self, sequence: u64) -> LiveRevision {
        let digest = self.digest;
        LiveRevision { sequence, digest }
    }

    /// The revision under this sequence.
    fn revision(&self, sequence: u64) -> Revision {
        Revision {
            sequence,
            controller: self.controller.clone(),
            files: (*self.files).clone(),
            closed_by_hand: (*self.closed_by_hand).clone(),
        }
    }
}

/// The progress of a push.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// The agent has not been polled yet, or a push is in progress.
    #[default]
    Busy,
    /// slurmctld runs with what is live.
    Done,
    /// slurmctld has not applied the live revision.
    Waiting { why: String },
    /// These files were rejected; they are not pushed until another revision is wanted, or these are due to be tried again.
    Refused(Rejection),
    /// The agent could not carry out the push; it is retried.
    Failed { why: String },
    /// The agent cannot be reached, or rejects the operator's requests.
    Away { why: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) sequence: u64,
    pub(crate) digest: Digest,
    pub(crate) by: RejectedBy,
    /// Slurm's own message.
    pub(crate) why: String,
}

/// As [`RETRY_DRY_RUN`], for a revision that the running slurmctld rejected: each attempt is a reconfigure or restart that fails.
const RETRY_LIVE: Duration = Duration::from_hours(1);

impl Rejection {
    /// When the revision is tried again: the cause may have been another than its content. Longer after each retry.
    fn retry_after(&self, retries: u32) -> Duration {
        match self.by {
            RejectedBy::Slurmctld => RETRY_LIVE,
            _ => RETRY_DRY_RUN
                .saturating_mul(2_u32.saturating_pow(retries))
                .min(RETRY_LIVE),
        }
    }

    fn of(tried: LiveRevision, by: RejectedBy, why: String) -> Self {
        let LiveRevision { sequence, digest } = tried;
        Self {
            sequence,
            digest,
            by,
            why,
        }
    }
}

/// A revision that is sent by a ConfigMap, because the agent cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    /// UID of the pod it is for.
    pub(crate) pod: String,
    pub(crate) revision: LiveRevision,
    pub(crate) candidate: agent::Candidate,
    /// When its token was created, which expires.
    made: Instant,
}

#[cfg(test)]
impl Sent {
    pub(crate) fn now(pod: &str, revision: LiveRevision, candidate: agent::Candidate) -> Self {
        Self {
            pod: pod.to_owned(),
            revision,
            candidate,
            made: Instant::now(),
        }
    }
}

/// A finished push: slurmctld runs with the files, or they were rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FinishedPush {
    pub(crate) sequence: u64,
    pub(crate) digest: Digest,
    pub(crate) files: Arc<Files>,
    pub(crate) at: Timestamp,
    pub(crate) action: Action,
    /// How slurmctld received a change of partitions.
    pub(crate) way: UpdateChannel,
    pub(crate) milliseconds: u64,
    pub(crate) steps: Vec<StepTime>,
    pub(crate) rejection: Option<Rejection>,
    /// The revision was sent by a ConfigMap.
    pub(crate) by_candidate: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standby {
    /// UID of its pod.
    pub(crate) pod: String,
    pub(crate) live: Option<LiveRevision>,
    /// Why it does not have the revision of the active one.
    pub(crate) why: Option<String>,
    /// The revision of the active one, if it rejected that, and when.
    pub(crate) rejected: Option<(Digest, Instant)>,
}

/// The state of the delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// UID of the pod that `live` and `state` are about.
    pub(crate) pod: String,
    pub(crate) live: Option<LiveRevision>,
    pub(crate) state: State,
    /// The pod, release and protocol of an agent that is older than this operator.
    pub(crate) old_agent: Option<String>,
    /// The revision that passed a dry run, if that is the goal.
    pub(crate) checked: Option<Digest>,
    /// The state of the standbys.
    pub(crate) standbys: Vec<Standby>,
    /// The revision that is sent by a ConfigMap instead of a push.
    pub(crate) sent: Option<Arc<Sent>>,
    /// Name of the pod with the active slurmctld, if there are several.
    pub(crate) active: Option<String>,
    /// The last finished pushes, newest last.
    pub(crate) finished: Vec<Arc<FinishedPush>>,
    /// The revisions this slurmctld has rejected so far.
    pub(crate) refusals: Arc<Refusals>,
    /// Partitions that slurmctld recently refused to delete because they are in use.
    pub(crate) in_use: Vec<PartitionInUse>,
}

impl Report {
    /// The live revision, if no push is in progress.
    pub(crate) fn live_at_rest(&self) -> Option<LiveRevision> {
        let at_rest = matches!(self.state, State::Done | State::Refused(_));
        self.live.filter(|_| at_rest)
    }

    /// The live revision of this agent's pod.
    fn live_in(&self, target: &Target) -> Option<LiveRevision> {
        self.live.filter(|_| self.pod == target.uid)
    }

    fn forget_agent(&mut self) {
        *self = Self {
            active: self.active.take(),
            finished: std::mem::take(&mut self.finished),
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

    fn remember(&mut self, ended: FinishedPush) {
        self.finished.push(Arc::new(ended));
        let surplus = self.finished.len().saturating_sub(REMEMBERED);
        self.finished.drain(..surplus);
    }
}

/// The delivery of the configuration to one cluster.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// The wanted revision, and since when it is wanted.
    wanted: watch::Sender<Option<(Wanted, Instant)>>,
    /// What the active slurmctld runs with, and its sequence, for the standbys.
    active_revision: watch::Sender<Option<(Wanted, u64)>>,
    report: Mutex<Report>,
}

/// Delivers in a loop. The senders of all inboxes live as long as the cluster, so `changed` never fails.
pub(super) async fn run(cluster: &Cluster) {
    tokio::join!(task::run(cluster), active::follow(cluster), standbys::follow(cluster));
}

impl Clusters {
    /// Makes slurmctld run with this configuration; it replaces the one wanted before. `None` stops the delivery: no pod can
    /// take the configuration.
    pub(crate) fn deliver(&self, controller: &Key, wanted: Option<Wanted>) {
        let cluster = self.cluster(controller);
        cluster.delivery.wanted.send_if_modified(|current| {
            let before = current.take();
            let is_same = before.as_ref().map(|(before, _)| before) == wanted.as_ref();
            *current = wanted.map(|wanted| {
                let same =
                    before.filter(|(before, _)| before.digest == wanted.digest && before.target == wanted.target);
                let since = same.map_or_else(|| cluster.host().instant(), |(_, since)| since);
                (wanted, since)
            });
            !is_same
        });
    }
}

impl Cluster {
    pub(super) fn report(&self) -> Report {
        lock(&self.delivery.report).clone()
    }

    /// Changes the report, and wakes the Controller if it differs.
    fn update_report(&self, change: impl FnOnce(&mut Report)) {
        let mut report = lock(&self.delivery.report);
        let before = report.clone();
        change(&mut report);
        if *report != before {
            self.wake(Follower::Controller);
        }
    }
}
