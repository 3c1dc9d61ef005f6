//! One actor per cluster brings the configuration to slurmctld's agent: it takes the newest that is wanted, asks what is
//! live, pushes, tries again, and says how it went. Nothing else changes a slurmctld's files.
//!
//! What is to be done is decided by [`judge`], which is pure; the [`task`] around it only asks, pushes and waits.

mod judge;
mod standbys;
mod task;

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use api::{Controller, configuration::RejectedBy};
use jiff::Timestamp;
use slurm::{
    agent::{Action, Candidate, PartitionInUse, StepTime, Way},
    revision::{ControllerUid, Digest, Summary},
};
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use self::{standbys::Settled, task::Task};
use super::{active, build::config::Files, pods::Target, revise::Refusals};
use crate::{
    configuration_metrics::ConfigurationMetrics,
    runtime::{Clock, Context, Fence, Key, Trigger},
};

/// Changes come at least a second apart, and the reconciler writes the last ones down within milliseconds.
const REMEMBERED: usize = 4;

/// Far more than it takes to find out which of the inputs slurmctld refuses. Beyond it is forgotten, and found out again.
const MOST_REFUSALS: usize = 1000;

/// The cluster's JWT key, which commands to the agent are signed with.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct JwtKey(pub(super) Vec<u8>);

impl fmt::Debug for JwtKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JwtKey(…)")
    }
}

/// How far a revision is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// slurmctld runs with it.
    Live,
    /// A dry run has tried it: it goes live by a restart, which is to come only then.
    Checked,
}

/// What slurmctld is to run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) goal: Goal,
    pub(super) files: Arc<Files>,
    /// See [`slurm::Revision::closed_by_hand`].
    pub(super) closed_by_hand: Arc<BTreeSet<String>>,
    /// Of the files.
    pub(super) digest: Digest,
    pub(super) controller: ControllerUid,
    pub(super) target: Target,
    /// Agents of slurmctld that wait to take over. They get what the active one has taken.
    pub(super) standbys: Vec<Target>,
    /// The highest sequence that Kubernetes knows of.
    pub(super) floor: u64,
    /// What was refused last, by the Controller's status.
    pub(super) rejected: Option<Live>,
    pub(super) jwt_key: JwtKey,
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
pub(super) struct Live {
    pub(super) sequence: u64,
    pub(super) digest: Digest,
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
pub(super) enum State {
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
pub(super) struct Rejection {
    pub(super) sequence: u64,
    pub(super) digest: Digest,
    pub(super) by: RejectedBy,
    /// In Slurm's own words.
    pub(super) why: String,
}

/// A revision that is sent by a ConfigMap, since the agent cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// UID of the pod it is for.
    pub(super) pod: String,
    pub(super) revision: Live,
    pub(super) candidate: Candidate,
    /// When its token was made, which does not hold for ever.
    made: Instant,
}

#[cfg(test)]
impl Sent {
    pub(super) fn now(pod: &str, revision: Live, candidate: Candidate) -> Self {
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
pub(super) struct Ended {
    pub(super) sequence: u64,
    pub(super) digest: Digest,
    pub(super) files: Arc<Files>,
    pub(super) at: Timestamp,
    pub(super) action: Action,
    /// By which slurmctld was told, where it was told of partitions.
    pub(super) way: Way,
    pub(super) milliseconds: u64,
    pub(super) steps: Vec<StepTime>,
    pub(super) rejection: Option<Rejection>,
    /// It came there by a ConfigMap.
    pub(super) by_candidate: bool,
}

/// A slurmctld that waits to take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Standby {
    /// UID of its pod.
    pub(super) pod: String,
    pub(super) live: Option<Live>,
    /// Why it does not have what the active one has.
    pub(super) why: Option<String>,
}

/// What the actor knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// UID of the pod that `live` and `state` are about.
    pub(super) pod: String,
    pub(super) live: Option<Live>,
    pub(super) state: State,
    /// What a dry run found good, where that is the goal.
    pub(super) checked: Option<Digest>,
    /// What is known of the standbys.
    pub(super) standbys: Vec<Standby>,
    /// What goes by a ConfigMap in place of a push.
    pub(super) sent: Option<Arc<Sent>>,
    /// Name of the pod whose slurmctld serves, where there are several.
    pub(super) active: Option<String>,
    /// The last pushes that came to their end, the newest last.
    pub(super) ended: Vec<Arc<Ended>>,
    /// What this slurmctld refused so far.
    pub(super) refusals: Arc<Refusals>,
    /// Partitions that it did not let go a moment ago.
    pub(super) in_use: Vec<PartitionInUse>,
}

impl Report {
    /// What is live, if nothing is on its way.
    pub(super) fn live_at_rest(&self) -> Option<Live> {
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

/// The actors of all clusters.
#[derive(Debug)]
pub(super) struct Pushers {
    actors: Mutex<HashMap<Key, Actor>>,
    fence: Fence,
    clock: Clock,
    metrics: ConfigurationMetrics,
    trigger: Trigger,
}

#[derive(Debug)]
struct Actor {
    wanted: watch::Sender<Option<Arc<Wish>>>,
    candidates: watch::Sender<Vec<active::Candidate>>,
    report: Arc<Mutex<Report>>,
    tasks: [JoinHandle<()>; 3],
}

impl Drop for Actor {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Pushers {
    pub(super) fn new(context: &Context) -> Self {
        Self {
            actors: Mutex::default(),
            fence: context.fence.clone(),
            clock: context.clock.clone(),
            metrics: context.configuration_metrics.clone(),
            trigger: context.triggers.of::<Controller>(),
        }
    }

    /// What is known of this cluster's agent.
    pub(super) fn report(&self, key: &Key) -> Report {
        let actors = self.actors.lock().unwrap_or_else(PoisonError::into_inner);
        actors.get(key).map(|actor| read(&actor.report)).unwrap_or_default()
    }

    /// Has slurmctld run with this; what was wanted before is forgotten.
    pub(super) fn want(&self, key: &Key, wanted: Wanted) {
        self.with(key, |actor| {
            actor.wanted.send_if_modified(|current| {
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
        });
    }

    /// There is nobody to push to for now.
    pub(super) fn pause(&self, key: &Key) {
        let actors = self.actors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(actor) = actors.get(key) {
            actor.wanted.send_if_modified(|wanted| wanted.take().is_some());
        }
    }

    /// Looks which of these serves.
    pub(super) fn watch_active(&self, key: &Key, candidates: Vec<active::Candidate>) {
        self.with(key, |actor| {
            actor.candidates.send_if_modified(|current| {
                let differs = *current != candidates;
                *current = candidates;
                differs
            });
        });
    }

    /// The cluster is gone.
    pub(super) fn forget(&self, key: &Key) {
        self.actors.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.metrics.forget(key);
    }

    fn with(&self, key: &Key, act: impl FnOnce(&Actor)) {
        let mut actors = self.actors.lock().unwrap_or_else(PoisonError::into_inner);
        act(actors.entry(key.clone()).or_insert_with(|| self.start(key)));
    }

    fn start(&self, key: &Key) -> Actor {
        let (wanted, wishes) = watch::channel(None);
        let (candidates, elections) = watch::channel(Vec::new());
        let (settled, settlements) = watch::channel::<Option<Arc<Settled>>>(None);
        let report = Arc::new(Mutex::new(Report::default()));
        let teller = Teller {
            key: key.clone(),
            report: Arc::clone(&report),
            trigger: self.trigger.clone(),
        };
        let task = Task::new(
            teller.clone(),
            self.fence.clone(),
            self.clock.clone(),
            self.metrics.clone(),
            settled,
        );
        Actor {
            wanted,
            candidates,
            report,
            tasks: [
                tokio::spawn(task.run(wishes)),
                tokio::spawn(active::follow(elections, teller.clone())),
                tokio::spawn(standbys::follow(settlements, teller, self.fence.clone())),
            ],
        }
    }
}

fn read(report: &Mutex<Report>) -> Report {
    report.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Tells the reconciler when there is something new.
#[derive(Clone, Debug)]
pub(super) struct Teller {
    key: Key,
    report: Arc<Mutex<Report>>,
    trigger: Trigger,
}

impl Teller {
    pub(super) fn read(&self) -> Report {
        read(&self.report)
    }

    pub(super) fn tell(&self, change: impl FnOnce(&mut Report)) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let before = report.clone();
        change(&mut report);
        if *report != before {
            self.trigger.wake(self.key.clone());
        }
    }
}
