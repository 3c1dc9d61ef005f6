//! Plans which Slurm nodes to drain and which drains to revert. Level-triggered: a drain that slurmctld lost, because it
//! was killed right after it acknowledged the drain, is sent again.
//!
//! An administrator's order is never overwritten. Before the operator drains a node it records the reason on the pod
//! ([`DRAIN_REASON`]), and afterwards the time ([`DRAINED`]): if the drain is gone later, an administrator resumed the
//! node. That is recorded too ([`RESUMED`]), since the next slurmctld could be taken for one that forgot the drain. Every order
//! names the state it was planned on and is rejected if the node has changed since.

use api::{
    keys,
    node_reason::{LEAVING, as_given, is_for_condition, is_left_to_administrator, is_of_operator, is_unreachable},
};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use slurm::{Node, agent::Reason};

use super::{Effect, MetadataPatch, Plan, PlannedOrder, Situation, Wait, cordon, health};
use crate::{
    cluster::{NodeOrder, Seen},
    nodeset::observe::Observed,
    worker::{Cause, DRAIN_REASON, DRAINED, RESUMED, Worker},
};

/// slurmctld saves its state every 5 s. A drain that has been in force for longer than this survives its death.
const DURABLE_AFTER: SignedDuration = SignedDuration::from_secs(15);
/// A slurmctld that started so soon after a drain may have lost it: its predecessor may have been killed at once, and
/// Kubernetes takes up to two minutes to start another.
const BACK_WITHIN: SignedDuration = SignedDuration::from_mins(2);

pub(super) fn plan_drains(situation: &Situation<'_>, plan: &mut Plan) {
    let observed = situation.observed;
    if observed.knowledge.known().is_none() {
        // `plan_removals` reports this for leaving workers.
        let mut stay = situation.stay.iter();
        if situation.leave.is_empty() && stay.any(|worker| is_wanted(observed, *worker)) {
            plan.wait_for_slurm(observed);
        }
        return;
    }
    let namespace = observed.nodeset.namespace().unwrap_or_default();
    for (worker, cause) in &situation.leave {
        // The drain comes after the annotation. Slurm gives no job to a node that it has stopped.
        if (worker.is_marked() || *cause == Cause::Deletion) && *cause != Cause::PowerDown {
            let reason = reason_to_leave(&namespace, worker.name(), *cause);
            plan_drain(observed, *worker, Purpose::Leave(*cause), reason, plan);
        }
    }
    for worker in &situation.stay {
        plan_stay(observed, *worker, plan);
    }
}

/// What a drain is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Leave(Cause),
    Cordon,
    Condition,
}

/// Whether a worker that stays is to be drained, unless an administrator overruled that.
pub(super) fn is_wanted(observed: &Observed, worker: Worker<'_>) -> bool {
    cordon::reason(observed, worker).is_some() || !health::reasons(observed, worker).is_empty()
}

/// Plans the drain of a worker that stays, for a cordon or else for a condition of its Kubernetes node, or reverts it.
fn plan_stay(observed: &Observed, worker: Worker<'_>, plan: &mut Plan) {
    let cordon = cordon::reason(observed, worker);
    let condition = health::reasons(observed, worker).into_iter().next();
    let is_cordoned = cordon.is_some();
    let mut over = health::forget(observed, worker);
    if worker.resumed_at().is_some() && !is_cordoned {
        over.insert(RESUMED.to_owned(), None);
    }
    plan.mark(worker, MetadataPatch::new(), over);
    let Some(node) = observed.slurm_node(worker) else {
        return;
    };
    if condition.is_some() && was_drained_for_condition(worker) && !node.state.is_drain() {
        match find_revert(observed, worker) {
            Some(Revert::Unseen) => return,
            Some(Revert::Unclear) => return plan.needs_jobs = true,
            Some(Revert::ByAdministrator) => {
                let mut over = health::overrule(observed, worker);
                over.extend([(DRAINED.to_owned(), None), (DRAIN_REASON.to_owned(), None)]);
                return plan.mark(worker, MetadataPatch::new(), over);
            }
            Some(Revert::BySlurm) | None => {}
        }
    }
    // The drain of a condition does not show that the administrator who resumed a cordoned node takes that back.
    let drained_for_condition = node.state.is_drain() && is_for_condition(&node.reason);
    let is_overruled = worker.resumed_at().is_some() && (!node.state.is_drain() || drained_for_condition);
    match (cordon.filter(|_| !is_overruled), condition) {
        (Some(reason), _) => plan_drain(observed, worker, Purpose::Cordon, reason, plan),
        (None, Some(reason)) => plan_drain(observed, worker, Purpose::Condition, reason, plan),
        (None, None) if is_cordoned && !drained_for_condition => plan.waits.push(resumed(&node.name, false)),
        (None, None) => plan_undrain(observed, worker, plan),
    }
}

/// Whether the last drain that is recorded on a worker was for a condition.
fn was_drained_for_condition(worker: Worker<'_>) -> bool {
    worker.drain_reason().is_some_and(is_for_condition)
}

/// How the operator's drain of a node that is not drained was reverted.
enum Revert {
    /// The snapshot is older than the drain.
    Unseen,
    /// slurmctld may have forgotten it.
    BySlurm,
    /// The poll has to read the start of slurmctld first, which it does together with the jobs.
    Unclear,
    ByAdministrator,
}

fn find_revert(observed: &Observed, worker: Worker<'_>) -> Option<Revert> {
    let (seen, since) = (observed.knowledge.known()?, worker.drained_since()?);
    Some(match seen.boot() {
        _ if seen.at <= since => Revert::Unseen,
        _ if may_be_forgotten(seen, since) => Revert::BySlurm,
        None => Revert::Unclear,
        Some(_) => Revert::ByAdministrator,
    })
}

/// Returns the drain reason of a leaving worker.
pub fn reason_to_leave(namespace: &str, pod: &str, cause: Cause) -> String {
    let (prefix, purpose) = (keys::NODE_REASON_PREFIX, cause.purpose());
    format!("{prefix}Pod ({namespace}/{pod}{LEAVING}{purpose}")
}

fn plan_drain(observed: &Observed, worker: Worker<'_>, purpose: Purpose, reason: String, plan: &mut Plan) {
    let Some(node) = observed.slurm_node(worker) else {
        return;
    };
    let leaves = matches!(purpose, Purpose::Leave(_));
    let has_manual_reason = has_manual_reason(node, Some(worker));
    // An administrator set it down, so it gets no job; a drain of a worker that stays would outlast their order.
    if !leaves && node.state.is_down() && !node.state.is_drain() && has_manual_reason {
        return;
    }
    // The deletion of a NodeSet cannot be reverted. Otherwise a resume by an administrator is respected.
    let respects_resume = purpose != Purpose::Leave(Cause::Deletion);
    let is_given = as_given(&node.reason) == reason;
    if !node.state.is_drain() {
        let wanted_since = worker.leaving().map(|leaving| leaving.since).filter(|_| leaves);
        let is_current = |time: Timestamp| match purpose {
            // A resume from before the worker was chosen to leave does not count.
            Purpose::Leave(_) => Some(time) >= wanted_since,
            Purpose::Cordon => !was_drained_for_condition(worker),
            // `plan_stay` has found who reverted it.
            Purpose::Condition => false,
        };
        if worker.drained_since().is_some_and(is_current) {
            let was_resumed = worker.resumed_at().is_some_and(is_current);
            match find_revert(observed, worker) {
                Some(Revert::Unseen) => return,
                _ if !respects_resume => {}
                _ if was_resumed => return plan.waits.push(resumed(&node.name, leaves)),
                Some(Revert::Unclear) => return plan.needs_jobs = true,
                Some(Revert::ByAdministrator) => {
                    // It is reported once it is recorded. That fails for a pod that a stalled watch still shows.
                    let mut now = health::overrule(observed, worker);
                    now.insert(RESUMED.to_owned(), Some(format!("{:.3}", observed.now)));
                    return plan.mark(worker, MetadataPatch::new(), now);
                }
                Some(Revert::BySlurm) | None => {}
            }
        }
    } else if !(has_operator_reason(node, Some(worker)) || is_given && is_left_to_administrator(&reason)) {
        // An administrator's drain serves as well.
        return;
    } else if is_given {
        // The running slurmctld has this drain, so only an administrator can revert it from now on. The annotations record that: again
        // for each slurmctld process, and for a worker that stays also if they are missing. A leaving worker got them with its drain.
        let is_missing = worker.drained_since().is_none() || worker.drain_reason().is_none();
        let is_needed = if is_missing {
            !leaves
        } else {
            noted(observed, worker).is_none()
        };
        if respects_resume && is_needed {
            let reason = (DRAIN_REASON.to_owned(), Some(reason));
            let since = (DRAINED.to_owned(), Some(in_force_from(observed, observed.now)));
            plan.mark(worker, MetadataPatch::new(), [reason, since].into());
        }
        return;
    }
    // An administrator's reason is kept. Such a drain cannot be distinguished from theirs.
    let reason = (!has_manual_reason).then(|| Reason::of(&reason));
    plan.effects.push(Effect::OrderNode {
        note_on: (respects_resume && reason.is_some()).then(|| worker.id()),
        order: PlannedOrder::new(node, NodeOrder::Drain { reason }),
    });
}

/// Reverts the operator's drain of a worker that nothing drains any more.
fn plan_undrain(observed: &Observed, worker: Worker<'_>, plan: &mut Plan) {
    let Some(node) = observed.slurm_node(worker) else {
        return;
    };
    let ours = node.state.is_drain() && has_operator_reason(node, Some(worker));
    // Slurm may still consider a node alive whose new slurmd has not started. A node that is down is returned by a resume,
    // which also reverts the drain.
    if ours && worker.is_ready() && !node.state.is_down() {
        plan.effects.push(Effect::OrderNode {
            order: PlannedOrder::new(node, NodeOrder::Undrain),
            note_on: Some(worker.id()),
        });
        return;
    }
    let mut over = MetadataPatch::new();
    if worker.drained_since().is_some() {
        over.insert(DRAINED.to_owned(), None);
    }
    // While the drain is in force, this annotation identifies it.
    if worker.drain_reason().is_some() && !ours {
        over.insert(DRAIN_REASON.to_owned(), None);
    }
    plan.mark(worker, MetadataPatch::new(), over);
}

/// Reports that an administrator resumed a node that the operator had drained. The operator does not drain it again.
pub(super) fn resumed(node: &str, leaves: bool) -> Wait {
    let (what, remedy) = if leaves {
        ("has to leave", "drain it with scontrol to let it leave")
    } else {
        ("is cordoned", "uncordon and cordon it again to drain it")
    };
    Wait::Other(format!(
        "node {node} {what}, but an administrator resumed it in Slurm; {remedy}"
    ))
}

/// Whether its drain has been in force for so long that slurmctld has saved it.
pub(super) fn was_in_force(observed: &Observed, worker: Worker<'_>) -> bool {
    noted(observed, worker).is_some_and(|since| observed.now.duration_since(since) > DURABLE_AFTER)
}

/// Whether slurmctld restarted so soon after a drain that it may be lost. The process that accepted it keeps it.
fn may_be_forgotten(seen: &Seen, since: Timestamp) -> bool {
    seen.boot()
        .is_some_and(|boot| since < boot && boot.duration_since(since) < BACK_WITHIN)
}

/// Returns since when its drain has been in force in the running slurmctld.
pub(super) fn noted(observed: &Observed, worker: Worker<'_>) -> Option<Timestamp> {
    let boot = observed.knowledge.known().and_then(Seen::boot);
    worker.drained_since().filter(|since| Some(*since) >= boot)
}

/// Returns the value of [`DRAINED`] for a drain that is in force from now on.
pub fn in_force_from(observed: &Observed, now: Timestamp) -> String {
    // The clock of slurmctld may be ahead. One whose start is not known has started by the end of this second, as Slurm reports it.
    let boot = observed.knowledge.known().and_then(Seen::boot);
    let boot = boot.or_else(|| Timestamp::from_second(now.as_second() + 1).ok());
    format!("{:.3}", boot.map_or(now, |boot| boot.max(now)))
}

/// Whether the operator gave the reason of this node: the pod has it recorded, or it is one of the operator's sentences,
/// given for the previous worker or by the pod's preStop hook. A node without a reason is an administrator's, and so is one that
/// the operator drained for an administrator to resume.
pub(super) fn has_operator_reason(node: &Node, worker: Option<Worker<'_>>) -> bool {
    let reason = as_given(&node.reason);
    let is_recorded = worker.and_then(Worker::drain_reason) == Some(reason) && !is_left_to_administrator(reason);
    is_recorded || is_of_operator(reason)
}

/// Whether an administrator gave the reason of this node, or anyone but the operator and Slurm's pings of an unreachable node.
pub(super) fn has_manual_reason(node: &Node, worker: Option<Worker<'_>>) -> bool {
    !node.reason.is_empty() && !has_operator_reason(node, worker) && !is_unreachable(&node.reason)
}

#[cfg(test)]
mod tests;
