//! Each side's view of the other: what Slurm says about a worker stands on its pod, what Kubernetes says about it stands on
//! its Slurm node. Pure; `apply/mirror.rs` carries it out.
//!
//! None of this decides over a worker, and nothing waits for it. What is equal is not written again.

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
    describe::refused_place,
    memory::{Asked, Memory, PodMemory},
};
use super::{observe::Observed, plan::Marks};
use crate::{
    cluster::Seen,
    worker::{ObjectId, Worker},
};

/// What is to be written and told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mirror {
    pub writes: Vec<PodWrite>,
    pub tellings: Vec<Telling>,
    /// What a person has to put right. Nothing else is held up by it.
    pub complaints: Vec<String>,
    /// When there will be something that may not be written yet.
    pub requeue: Option<Duration>,
}

/// One request about one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodWrite {
    pub pod: ObjectId,
    pub change: PodChange,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PodChange {
    /// All conditions with Slurm's prefix, as they are to be.
    Conditions(Vec<PodCondition>),
    Annotations(Marks),
}

/// One command about one Slurm node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telling {
    pub pod: ObjectId,
    /// Slurm's name for it.
    pub node: String,
    pub description: NodeDescription,
}

/// What there is to know about one worker.
#[derive(Clone, Copy, Debug)]
struct Look<'a> {
    observed: &'a Observed,
    worker: Worker<'a>,
    /// Its Kubernetes node.
    host: Option<&'a Node>,
    seen: Option<&'a Seen>,
    /// Its Slurm node.
    node: Option<&'a slurm::Node>,
    memory: Option<&'a PodMemory>,
}

/// What to write and tell.
pub fn mirror(observed: &Observed, memory: &Memory) -> Mirror {
    let mut mirror = Mirror::default();
    let seen = observed.knowledge.known();
    for worker in observed.workers().filter(|worker| !worker.is_finished()) {
        let node = seen.and_then(|seen| seen.nodes.get(worker.slurm_name()?));
        let look = Look {
            observed,
            worker,
            host: worker
                .kubernetes_node()
                .and_then(|name| observed.nodes.get(name).map(AsRef::as_ref)),
            seen,
            node,
            memory: memory.of(worker.uid()),
        };
        pod::plan(look, &mut mirror);
        describe::plan(look, &mut mirror);
    }
    mirror
}

impl Mirror {
    fn look_again_in(&mut self, left: SignedDuration) {
        // Rounded up, or the next look would be a moment too early.
        let left = Duration::try_from(left).unwrap_or_default() + Duration::from_millis(1);
        self.requeue = Some(self.requeue.map_or(left, |requeue| requeue.min(left)));
    }
}
