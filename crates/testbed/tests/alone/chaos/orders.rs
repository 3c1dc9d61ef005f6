//! The ledger of what people said in Slurm. It stands until they say something else.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use testbed::harness::eventually;

use super::history::{History, now};
use super::stage::Stage;

/// Everything that people say something about.
const LOOK: &str =
    "bash -c 'scontrol --oneliner show nodes && scontrol --oneliner show partitions && scontrol --oneliner show jobs'";
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);
/// slurmctld may be about to start, or a worker about to return.
const PATIENCE: Duration = Duration::from_secs(8);
/// What was ordered must be lifted at last.
const LIFTED: Duration = Duration::from_mins(1);
/// A state of a partition is kept by the operator, once it has seen it, which takes a poll of Slurm.
const POLL: f64 = 6.0;

/// What the record of a node, partition or job shows because of a person.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Word {
    Drained { node: String, reason: String },
    Resumed { node: String, reason: String },
    Closed { partition: String },
    Opened { partition: String },
    Held { job: String },
    Released { job: String },
}

#[derive(Clone, Debug, PartialEq)]
struct Order {
    word: Word,
    since: f64,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The last word about each thing.
    orders: Mutex<BTreeMap<String, Order>>,
    broken: Mutex<Vec<String>>,
    looks: Mutex<usize>,
}

impl Word {
    /// The beginning of the record that it is about.
    fn about(&self) -> String {
        match self {
            Self::Drained { node, .. } | Self::Resumed { node, .. } => format!("NodeName={node} "),
            Self::Closed { partition } | Self::Opened { partition } => format!("PartitionName={partition} "),
            Self::Held { job } | Self::Released { job } => format!("JobId={job} "),
        }
    }

    fn command(&self) -> String {
        match self {
            Self::Drained { node, reason } => {
                format!("scontrol update nodename={node} state=drain reason={reason}")
            }
            Self::Resumed { node, .. } => format!("scontrol update nodename={node} state=resume"),
            Self::Closed { partition } => format!("scontrol update partitionname={partition} state=down"),
            Self::Opened { partition } => format!("scontrol update partitionname={partition} state=up"),
            // The job was submitted so.
            Self::Held { job } => format!("scontrol hold {job}"),
            Self::Released { job } => format!("scontrol release {job}"),
        }
    }

    /// Whether a record shows it. Slurm appends to reasons what it finds itself.
    fn stands(&self, record: &str) -> bool {
        match self {
            Self::Drained { reason, .. } => record.contains("DRAIN") && record.contains(&format!(" Reason={reason}")),
            Self::Resumed { reason, .. } => !record.contains(&format!(" Reason={reason}")),
            Self::Closed { .. } => record.contains(" State=DOWN "),
            Self::Opened { .. } => record.contains(" State=UP "),
            Self::Held { .. } => record.contains(" JobState=PENDING Reason=JobHeld"),
            // The agent holds a job that has run and whose end slurmctld forgot.
            Self::Released { .. } => !record.contains(" Reason=JobHeld") || record.contains("has run and ended"),
        }
    }

    fn lifts(&self) -> bool {
        matches!(self, Self::Resumed { .. } | Self::Opened { .. } | Self::Released { .. })
    }

    /// When it is kept, whatever happens to slurmctld, not counting its own saving.
    fn kept_from(&self, since: f64, history: &History) -> f64 {
        match self {
            Self::Closed { .. } | Self::Opened { .. } => history.seen_by(since, POLL),
            _ => since,
        }
    }
}

impl Ledger {
    /// A person says something in Slurm.
    pub(super) fn order(&self, stage: &Stage, word: Word) -> Result<()> {
        let about = word.about();
        // The last word does not count while it is being replaced.
        let last = self.orders.lock().unwrap().remove(&about);
        let patience = if word.lifts() { LIFTED } else { PATIENCE };
        let said = eventually("slurmctld takes the order", patience, || stage.ask(&word.command()));
        let order = Order { word, since: now() };
        let order = if said.is_ok() { Some(order) } else { last };
        if let Some(order) = order {
            self.orders.lock().unwrap().insert(about, order);
        }
        said.map(drop)
    }

    pub(super) fn look_until(&self, over: &AtomicBool, stage: &Stage, history: &History) {
        while !over.load(Ordering::Relaxed) {
            self.look(stage, history);
            sleep(BETWEEN_LOOKS);
        }
    }

    /// Compares what people said with what Slurm shows. What slurmctld forgot when it was killed is said again.
    pub(super) fn look(&self, stage: &Stage, history: &History) {
        let before = self.orders.lock().unwrap().clone();
        let Ok(shown) = stage.ask(LOOK) else { return };
        *self.looks.lock().unwrap() += 1;
        for (about, order) in before {
            // A worker that is being replaced, or a job that Slurm has purged, has no record.
            let Some(record) = shown.lines().find(|line| line.starts_with(&about)) else {
                continue;
            };
            if order.word.stands(record) || self.orders.lock().unwrap().get(&about) != Some(&order) {
                continue;
            }
            if history.forgot(order.since, order.word.kept_from(order.since, history)) {
                history.say(&format!("slurmctld forgot {:?}; it is said again", order.word));
                let _ = self.order(stage, order.word);
            } else {
                let since = history.shown(order.since);
                let broken = format!("{:?} of {since} does not stand: {record}", order.word);
                history.say(&format!("BROKEN: {broken}"));
                self.broken.lock().unwrap().push(broken);
                self.orders.lock().unwrap().remove(&about);
            }
        }
    }

    pub(super) fn broke(&self, what: String) {
        self.broken.lock().unwrap().push(what);
    }

    pub(super) fn broken(&self) -> Vec<String> {
        self.broken.lock().unwrap().clone()
    }

    pub(super) fn looks(&self) -> usize {
        *self.looks.lock().unwrap()
    }
}
