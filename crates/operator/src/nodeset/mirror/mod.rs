//! Shows each side's view on the other side: the state of a Slurm node on its pod, and facts from Kubernetes on the Slurm
//! node. Pure; `apply/mirror.rs` executes it.
//!
//! Nothing here decides about a worker, and nothing waits for it. Equal values are not written again.

mod describe;
mod pod;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, PodCondition};
use slurm::NodeDescription;

pub use self::describe::topology_refused;
use super::{observe::Observed, plan::MetadataPatch};
use crate::{
    cluster::Seen,
    worker::{ObjectId, Worker},
};

/// The writes to pods and to Slurm nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mirror {
    pub writes: Vec<PodWrite>,
    pub node_updates: Vec<NodeUpdate>,
    /// Problems that a user has to fix. They block nothing else.
    pub complaints: Vec<String>,
    /// When a write that is too early now becomes due.
    pub requeue: Option<Duration>,
}

/// A write to one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodWrite {
    pub pod: ObjectId,
    pub change: PodChange,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PodChange {
    /// All conditions with Slurm's prefix; others of that prefix are removed.
    Conditions(Vec<PodCondition>),
    Annotations(MetadataPatch),
}

/// An update of one Slurm node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeUpdate {
    pub pod: ObjectId,
    pub node: String,
    pub description: NodeDescription,
}

/// What was written for each pod, by its UID, so that nothing is repeated too early. It is lost with the process; then a
/// value may be written once more, which changes nothing.
#[derive(Clone, Debug, Default)]
pub struct MirrorMemory(HashMap<String, PodMemory>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodMemory {
    pub written: Option<Timestamp>,
    /// When its Slurm node was last updated; older snapshots do not show the result.
    pub updated: Option<Timestamp>,
    pub topology: Option<TopologyRequest>,
}

/// A topology that Slurm was asked to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyRequest {
    pub place: String,
    pub at: Timestamp,
    /// Slurm's message, if it refused.
    pub refused: Option<String>,
}

impl MirrorMemory {
    pub fn of_mut(&mut self, uid: &str) -> &mut PodMemory {
        self.0.entry(uid.to_owned()).or_default()
    }

    /// Drops all other pods.
    pub fn keep<'a>(&mut self, uids: impl Iterator<Item = &'a str>) {
        let uids: HashSet<&str> = uids.collect();
        self.0.retain(|uid, _| uids.contains(uid.as_str()));
    }
}

/// The facts about one worker.
#[derive(Clone, Copy, Debug)]
struct WorkerView<'a> {
    observed: &'a Observed,
    worker: Worker<'a>,
    /// Its Kubernetes node.
    host: Option<&'a Node>,
    seen: Option<&'a Seen>,
    /// Its Slurm node.
    node: Option<&'a slurm::Node>,
    memory: &'a PodMemory,
}

pub fn mirror(observed: &Observed, memory: &MirrorMemory) -> Mirror {
    let mut mirror = Mirror::default();
    let none = PodMemory::default();
    for worker in observed.workers().filter(|worker| !worker.is_finished()) {
        let view = WorkerView {
            observed,
            worker,
            host: observed.host(worker),
            seen: observed.knowledge.known(),
            node: observed.slurm_node(worker),
            memory: memory.0.get(worker.uid()).unwrap_or(&none),
        };
        pod::plan(view, &mut mirror);
        describe::plan(view, &mut mirror);
    }
    mirror
}

impl Mirror {
    fn requeue_within(&mut self, left: SignedDuration) {
        // Rounded up, or the next reconcile would be a moment too early.
        let left = Duration::try_from(left).unwrap_or_default() + Duration::from_millis(1);
        self.requeue = Some(self.requeue.map_or(left, |requeue| requeue.min(left)));
    }
}
