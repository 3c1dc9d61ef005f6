//! Removes workers: each is marked, drained, proven idle and removed. A step is planned only once the previous one is
//! observed.

use api::nodeset::ClaimRetention;

use super::{
    Effect, Plan, RecordAction, Wait, WorkerRemoval, drains,
    proof::{Evidence, Occupancy},
    reservation,
    selection::Selection,
    timeout,
};
use crate::{
    cluster::Knowledge,
    nodeset::{build, observe::Observed},
    worker::{Cause, Leaving, Worker},
};

/// Why a worker whose node is not drained yet is kept.
pub(super) const ABOUT_TO_DRAIN: &str = "it is about to be drained";

/// Marks the workers that leave, and unmarks those that stay after all. [`drains`] reverts the drain of an unmarked worker.
pub(super) fn plan_marks(observed: &Observed, selection: &Selection<'_>, plan: &mut Plan) {
    for (worker, cause) in &selection.leave {
        let leaving = worker.leaving();
        // The deletion of the NodeSet is already recorded on the NodeSet.
        if *cause == Cause::Deletion || leaving.is_some_and(|leaving| leaving.cause == *cause) {
            continue;
        }
        plan.effects.push(Effect::MarkLeaving {
            pod: worker.id(),
            leaving: Leaving {
                cause: *cause,
                since: leaving.map_or(observed.now, |leaving| leaving.since),
            },
        });
    }
    let spared = selection.stay.iter().filter(|worker| worker.is_marked());
    plan.effects
        .extend(spared.map(|worker| Effect::UnmarkLeaving { pod: worker.id() }));
}

/// Removes the leaving workers that are proven to have no job.
pub(super) fn plan_removals(
    observed: &Observed,
    selection: &Selection<'_>,
    evidence: Option<&Evidence<'_>>,
    plan: &mut Plan,
) {
    let marked = selection
        .leave
        .iter()
        .filter(|(worker, cause)| worker.leaving().is_some() || *cause == Cause::Deletion);
    for (worker, cause) in marked {
        plan.needs_jobs = true;
        match (&observed.knowledge, evidence) {
            (Knowledge::Known(_), Some(evidence)) => plan_removal(observed, evidence, *worker, *cause, plan),
            (Knowledge::Unknown { why }, _) => {
                plan.waits.push(Wait::SlurmUnknown { why: why.clone() });
                return;
            }
            (Knowledge::Known(_), None) => return,
        }
    }
}

fn plan_removal(observed: &Observed, evidence: &Evidence<'_>, worker: Worker<'_>, cause: Cause, plan: &mut Plan) {
    let Some(node) = worker.slurm_name() else {
        // It is named after its Kubernetes node and has none, so no slurmd has ever run in it.
        plan.effects.push(Effect::RemoveWorker(WorkerRemoval {
            pod: worker.id(),
            node: String::new(),
            occupancy: Occupancy::Absent,
            record: RecordAction::Absent,
            claims: claims_to_delete(observed, worker, cause),
        }));
        return;
    };
    let wait = |why: String| Wait::Draining {
        node: node.to_owned(),
        why,
    };
    match evidence.occupancy(node) {
        Occupancy::Undrained => {
            let is_resumed = |wait: &Wait| matches!(wait, Wait::Resumed { node: resumed, .. } if resumed == node);
            if !plan.waits.iter().any(is_resumed) {
                plan.waits.push(wait(ABOUT_TO_DRAIN.to_owned()));
            }
        }
        // slurmd may have registered under another host name, and that node may have jobs.
        Occupancy::Absent if worker.is_named_by_machine() && worker.may_have_started() => plan.waits.push(wait(
            "Slurm has no node with the name of the Kubernetes node; if slurmd registered under another name, delete that node \
             in Slurm and delete the pod by hand"
                .to_owned(),
        )),
        occupancy @ (Occupancy::Absent | Occupancy::Free { .. }) => {
            let record = record(observed, worker, &occupancy, cause);
            let holder = observed.slurm_node(worker).and_then(reservation::holder);
            if let (RecordAction::Delete { .. }, Some(holder)) = (&record, holder) {
                plan.waits.push(wait(reservation::explain_holder(&observed.nodeset, holder)));
                return;
            }
            plan.effects.push(Effect::RemoveWorker(WorkerRemoval {
                pod: worker.id(),
                node: node.to_owned(),
                record,
                occupancy,
                claims: claims_to_delete(observed, worker, cause),
            }));
        }
        Occupancy::Busy { why } => timeout::plan_drain_timeout(observed, evidence, worker, node, &why, plan),
        Occupancy::Unclear { why } => plan.waits.push(wait(why)),
    }
}

fn record(observed: &Observed, worker: Worker<'_>, occupancy: &Occupancy, cause: Cause) -> RecordAction {
    let (Occupancy::Free { keep_record }, Some(seen)) = (occupancy, observed.slurm_node(worker)) else {
        return RecordAction::Absent;
    };
    let expect = seen.admin_state();
    // The successor would register without the administrator's drain and accept jobs.
    let theirs = (cause == Cause::Update && !drains::has_operator_reason(seen, worker))
        .then(|| format!("an administrator drained it: {}", seen.reason));
    match keep_record.clone().or(theirs) {
        Some(why) => RecordAction::Keep { why, expect },
        None => RecordAction::Delete { expect },
    }
}

/// Returns the claims to delete with this worker.
fn claims_to_delete(observed: &Observed, worker: Worker<'_>, cause: Cause) -> Vec<String> {
    let nodeset = observed.nodeset.as_ref();
    if nodeset.spec.claims_when_scaled() != ClaimRetention::Delete || cause != Cause::ScaleIn {
        return Vec::new();
    }
    worker
        .claim_suffix()
        .map(|suffix| build::claims_of(nodeset, suffix))
        .unwrap_or_default()
}
