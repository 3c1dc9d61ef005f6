//! Shows each side's view on the other side: the state of a Slurm node on its pod, and facts from Kubernetes on the Slurm
//! node. Pure; `apply/mirror.rs` executes it.
//!
//! Nothing here decides about a worker, and nothing waits for it. Equal values are not written again.

mod describe;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, time::Duration};

use api::{
    conditions::{ConditionStatus, SLURM_REACHABLE},
    keys::{POD_CONDITION_PREFIX, annotations::POD_DEADLINE},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, PodCondition};
use slurm::{
    NodeDescription,
    node::{BaseState, NodeFlag},
};

pub use self::describe::topology_refused;
use super::{observe::Observed, plan::MetadataPatch};
use crate::{cluster::Seen, worker::Worker};

/// The least time between two writes to a pod. Short jobs change the state of a node several times a second.
const WRITE_INTERVAL: SignedDuration = SignedDuration::from_secs(5);

/// How long conditions stay while Slurm is unreachable. A restart of slurmrestd takes seconds, and writing all pods twice
/// for that would cost more than stale conditions; after this time they mislead more than they help.
const STALE_AFTER: SignedDuration = SignedDuration::from_mins(2);

/// Upstream has conditions for these flags only.
const FLAGS: &[(NodeFlag, &str)] = &[
    (NodeFlag::Completing, "Completing"),
    (NodeFlag::Drain, "Drain"),
    (NodeFlag::Fail, "Fail"),
    (NodeFlag::Invalid, "Invalid"),
    (NodeFlag::InvalidReg, "InvalidReg"),
    (NodeFlag::Maintenance, "Maintenance"),
    (NodeFlag::NotResponding, "NotResponding"),
    (NodeFlag::Undrain, "Undrain"),
];

/// The writes to pods and to Slurm nodes.
#[derive(Debug, Default)]
pub struct Mirror<'a> {
    pub pod_writes: Vec<(Worker<'a>, PodChange)>,
    pub node_updates: Vec<(Worker<'a>, NodeDescription)>,
    /// Problems that a user has to fix. They block nothing else.
    pub complaints: Vec<String>,
    /// When a write that is too early now becomes due.
    pub requeue: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PodChange {
    /// All conditions with Slurm's prefix; others of that prefix are removed.
    Conditions(Vec<PodCondition>),
    Annotations(MetadataPatch),
}

/// What was written for each pod, by its UID, so that nothing is repeated too early. It is lost with the process; then a
/// value may be written once more, which changes nothing.
pub type MirrorMemory = HashMap<String, PodMemory>;

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

/// The facts about one worker.
#[derive(Clone, Debug)]
struct WorkerView<'a> {
    observed: &'a Observed,
    worker: Worker<'a>,
    /// Its Kubernetes node.
    host: Option<&'a Node>,
    seen: Option<&'a Seen>,
    /// Its Slurm node.
    node: Option<&'a slurm::Node>,
    memory: PodMemory,
}

pub fn mirror<'a>(observed: &'a Observed, memory: &MirrorMemory) -> Mirror<'a> {
    let mut mirror = Mirror::default();
    for worker in observed.workers().filter(|worker| !worker.is_finished()) {
        let view = WorkerView {
            observed,
            worker,
            host: observed.host(worker),
            seen: observed.knowledge.known(),
            node: observed.slurm_node(worker),
            memory: memory.get(worker.uid()).cloned().unwrap_or_default(),
        };
        plan_pod_write(&view, &mut mirror);
        describe::plan(&view, &mut mirror);
    }
    mirror
}

impl Mirror<'_> {
    fn requeue_within(&mut self, left: SignedDuration) {
        // Rounded up, or the next reconcile would be a moment too early.
        let left = Duration::try_from(left).unwrap_or_default() + Duration::from_millis(1);
        self.requeue = Some(self.requeue.map_or(left, |requeue| requeue.min(left)));
    }
}

/// Plans the conditions first, and the annotations when the pod may be written again.
fn plan_pod_write<'a>(view: &WorkerView<'a>, mirror: &mut Mirror<'a>) {
    let status = view.worker.0.status.as_ref();
    let observed = status.and_then(|status| status.conditions.as_deref());
    let conditions = wanted_conditions(view, mirror);
    let conditions = conditions.filter(|wanted| !are_equal(observed.unwrap_or_default(), wanted));
    let annotations = wanted_annotations(view);
    let change = match conditions {
        Some(wanted) => PodChange::Conditions(wanted),
        None if annotations.is_empty() => return,
        None => PodChange::Annotations(annotations.clone()),
    };
    let written = view.memory.written;
    let left = written.map(|at| WRITE_INTERVAL - view.observed.now.duration_since(at));
    if let Some(left) = left.filter(SignedDuration::is_positive) {
        mirror.requeue_within(left);
        return;
    }
    if matches!(change, PodChange::Conditions(_)) && !annotations.is_empty() {
        mirror.requeue_within(WRITE_INTERVAL);
    }
    mirror.pod_writes.push((view.worker, change));
}

/// Returns the wanted conditions. `None` if they stay as they are.
fn wanted_conditions(view: &WorkerView<'_>, mirror: &mut Mirror<'_>) -> Option<Vec<PodCondition>> {
    if view.seen.is_some() {
        return Some(view.node.map(conditions_of).unwrap_or_default());
    }
    let status = view.observed.nodeset.status.as_ref()?;
    let unreachable = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == SLURM_REACHABLE && condition.status == ConditionStatus::False)?;
    let since = unreachable.last_transition_time.instant()?;
    let left = STALE_AFTER - view.observed.now.duration_since(since);
    if left.is_positive() {
        mirror.requeue_within(left);
        return None;
    }
    Some(Vec::new())
}

/// Returns the annotations to change.
fn wanted_annotations(view: &WorkerView<'_>) -> MetadataPatch {
    let mut wanted = MetadataPatch::new();
    if view.worker.is_terminating() {
        return wanted;
    }
    mark_deadline(view, &mut wanted);
    describe::mark_topology(view, &mut wanted);
    wanted.retain(|key, value| view.worker.annotation(key) != value.as_deref());
    wanted
}

/// Adds the end of the time limit of the last job, if it is known.
fn mark_deadline(view: &WorkerView<'_>, wanted: &mut MetadataPatch) {
    let Some(seen) = view.seen else { return };
    let deadline = match (view.node.filter(|node| node.state.is_busy()), &seen.job_summary) {
        (None, _) => None,
        (Some(node), Some(jobs)) => jobs.deadlines.get(&node.name),
        (Some(_), None) => return,
    };
    wanted.insert(POD_DEADLINE.to_owned(), deadline.map(|at| format!("{at:.0}")));
}

/// Returns conditions for the base state of the node and for each flag, as upstream names them, with Slurm's reason.
fn conditions_of(node: &slurm::Node) -> Vec<PodCondition> {
    let base = node.state.base.map(|base| match base {
        BaseState::Unknown => "Unknown",
        BaseState::Down => "Down",
        BaseState::Idle => "Idle",
        BaseState::Allocated => "Allocated",
        BaseState::Error => "Error",
        BaseState::Mixed => "Mixed",
        BaseState::Future => "Future",
    });
    let flags = FLAGS.iter().filter(|(flag, _)| node.state.has(*flag));
    let names = base.into_iter().chain(flags.map(|(_, name)| *name));
    names
        .map(|name| PodCondition {
            type_: format!("{POD_CONDITION_PREFIX}{name}"),
            status: "True".to_owned(),
            message: Some(node.reason.clone()),
            ..PodCondition::default()
        })
        .collect()
}

/// Whether the pod has exactly these conditions of Slurm's prefix.
fn are_equal(observed: &[PodCondition], wanted: &[PodCondition]) -> bool {
    fn fields(condition: &PodCondition) -> (&str, &str, &str) {
        let message = condition.message.as_deref().unwrap_or_default();
        (&condition.type_, &condition.status, message)
    }
    let ours = observed.iter().map(fields);
    let ours: Vec<_> = ours
        .filter(|(type_, ..)| type_.starts_with(POD_CONDITION_PREFIX))
        .collect();
    ours.len() == wanted.len() && wanted.iter().all(|wanted| ours.contains(&fields(wanted)))
}
