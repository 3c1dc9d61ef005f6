//! One actor per cluster brings the configuration to slurmctld's agent: it takes the newest that is wanted, asks what is
//! live, pushes, tries again, and says how it went. Nothing else changes a slurmctld's files.
//!
//! What is to be done is decided by [`judge`], which is pure; the [`task`] around it only asks, pushes and waits.

mod judge;
mod task;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use slurm::revision::{ControllerUid, Digest, Summary};
use tokio::{sync::watch, task::JoinHandle};

use self::task::Task;
use super::{active, build::config::Files, pods::Target};
use crate::runtime::{Fence, Key, Trigger};

/// The cluster's JWT key, which commands to the agent are signed with.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct JwtKey(pub(super) Vec<u8>);

impl fmt::Debug for JwtKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JwtKey(…)")
    }
}

/// What slurmctld is to run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) files: Arc<Files>,
    /// Of the files.
    pub(super) digest: Digest,
    pub(super) controller: ControllerUid,
    pub(super) target: Target,
    /// The highest sequence that Kubernetes knows of.
    pub(super) floor: u64,
    pub(super) jwt_key: JwtKey,
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
    /// slurmctld refused these files.
    Refused { digest: Digest, why: String },
    /// The agent cannot be reached, or does not listen to us.
    Away { why: String },
}

/// What the actor knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// UID of the pod that `live` and `state` are about.
    pub(super) pod: String,
    pub(super) live: Option<Live>,
    pub(super) state: State,
    /// Name of the pod whose slurmctld serves, where there are several.
    pub(super) active: Option<String>,
}

impl Report {
    fn forget_agent(&mut self) {
        *self = Self {
            active: self.active.take(),
            ..Self::default()
        };
    }
}

/// The actors of all clusters.
#[derive(Debug)]
pub(super) struct Pushers {
    actors: Mutex<HashMap<Key, Actor>>,
    fence: Fence,
    trigger: Trigger,
}

#[derive(Debug)]
struct Actor {
    wanted: watch::Sender<Option<Arc<Wanted>>>,
    candidates: watch::Sender<Vec<active::Candidate>>,
    report: Arc<Mutex<Report>>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Actor {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Pushers {
    pub(super) fn new(fence: Fence, trigger: Trigger) -> Self {
        Self {
            actors: Mutex::default(),
            fence,
            trigger,
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
                let differs = current.as_deref() != Some(&wanted);
                if differs {
                    *current = Some(Arc::new(wanted));
                }
                differs
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
    }

    fn with(&self, key: &Key, act: impl FnOnce(&Actor)) {
        let mut actors = self.actors.lock().unwrap_or_else(PoisonError::into_inner);
        act(actors.entry(key.clone()).or_insert_with(|| self.start(key)));
    }

    fn start(&self, key: &Key) -> Actor {
        let (wanted, wishes) = watch::channel(None);
        let (candidates, elections) = watch::channel(Vec::new());
        let report = Arc::new(Mutex::new(Report::default()));
        let teller = Teller {
            key: key.clone(),
            report: Arc::clone(&report),
            trigger: self.trigger.clone(),
        };
        let task = Task::new(teller.clone(), self.fence.clone());
        Actor {
            wanted,
            candidates,
            report,
            tasks: [
                tokio::spawn(task.run(wishes)),
                tokio::spawn(active::follow(elections, teller)),
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
    pub(super) fn tell(&self, change: impl FnOnce(&mut Report)) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let before = report.clone();
        change(&mut report);
        if *report != before {
            self.trigger.add(self.key.clone());
        }
    }
}
