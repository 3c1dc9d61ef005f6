//! What a pod shows of its Slurm node: the state as conditions, and the end of the time limit of its last job.

use api::{
    conditions::{ConditionStatus, SLURM_REACHABLE},
    keys::{POD_CONDITION_PREFIX, annotations::POD_DEADLINE},
};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::PodCondition;
use slurm::node::{BaseState, Node, NodeFlag};

use super::{Mirror, PodChange, PodWrite, WorkerView, describe};
use crate::nodeset::plan::MetadataPatch;

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

/// Plans the conditions first, and the annotations when the pod may be written again.
pub(super) fn plan(view: WorkerView<'_>, mirror: &mut Mirror) {
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
    mirror.writes.push(PodWrite {
        pod: view.worker.id(),
        change,
    });
}

/// Returns the wanted conditions. `None` if they stay as they are.
fn wanted_conditions(view: WorkerView<'_>, mirror: &mut Mirror) -> Option<Vec<PodCondition>> {
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
fn wanted_annotations(view: WorkerView<'_>) -> MetadataPatch {
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
fn mark_deadline(view: WorkerView<'_>, wanted: &mut MetadataPatch) {
    let Some(seen) = view.seen else { return };
    let deadline = match (view.node.filter(|node| node.state.is_busy()), &seen.job_summary) {
        (None, _) => None,
        (Some(node), Some(jobs)) => jobs.deadlines.get(&node.name),
        (Some(_), None) => return,
    };
    wanted.insert(POD_DEADLINE.to_owned(), deadline.map(|at| format!("{at:.0}")));
}

/// Returns conditions for the base state of the node and for each flag, as upstream names them, with Slurm's reason.
fn conditions_of(node: &Node) -> Vec<PodCondition> {
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
