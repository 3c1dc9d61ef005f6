//! Shows each side's view on the other side: the state of a Slurm node on its pod, and facts from Kubernetes on the Slurm
//! node. Pure; `apply/mirror.rs` executes it.
//!
//! Nothing here decides about a worker, and nothing waits for it. Equal values are not written again.

mod conditions;
mod describe;
mod memory;
mod pod;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, PodCondition};
use slurm::NodeDescription;

pub use self::{
    describe::topology_refused,
    memory::{MirrorMemory, PodMemory, TopologyRequest},
};
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
    memory: Option<&'a PodMemory>,
}

pub fn mirror(observed: &Observed, memory: &MirrorMemory) -> Mirror {
    let mut mirror = Mirror::default();
    let seen = observed.knowledge.known();
    for worker in observed.workers().filter(|worker| !worker.is_finished()) {
        let view = WorkerView {
            observed,
            worker,
            host: observed.host(worker),
            seen,
            node: observed.slurm_node(worker),
            memory: memory.of(worker.uid()),
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
