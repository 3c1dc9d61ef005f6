//! Letting workers go: one after the other each is marked, drained, proven idle, removed. A step is taken only if the one
//! before it is seen to have happened.

use api::nodeset::ClaimRetention;

use super::{
    Effect, Plan, Record, Wait, drains,
    fates::Fates,
    proof::{Evidence, Standing},
    reservation, timeout,
};
use crate::{
    cluster::Knowledge,
    nodeset::{build, observe::Observed},
    worker::{Cause, Leaving, Worker},
};

/// Writes down who goes, and takes it back from those who may stay. Their drain goes by itself: its reason tells that it
/// is ours.
pub(super) fn plan_marks(observed: &Observed, fates: &Fates<'_>, plan: &mut Plan) {
    for (worker, cause) in &fates.leave {
        let leaving = worker.leaving();
        // That its NodeSet is deleted is written down already.
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
    let spared = fates.stay.iter().filter(|worker| worker.is_marked());
    plan.effects
        .extend(spared.map(|worker| Effect::Spare { pod: worker.id() }));
}

/// Removes those of whom it is proven that nothing is lost with them.
pub(super) fn plan_removals(observed: &Observed, fates: &Fates<'_>, evidence: Option<&Evidence<'_>>, plan: &mut Plan) {
    let marked = fates
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
        // It is to be named after a Kubernetes node and has none: no slurmd has ever run in it.
        plan.effects.push(Effect::RemoveWorker {
            pod: worker.id(),
            node: String::new(),
            standing: Standing::Absent,
            record: Record::Absent,
            claims: claims_to_go(observed, worker, cause),
        });
        return;
    };
    let wait = |why: String| Wait::Draining {
        node: node.to_owned(),
        why,
    };
    match evidence.standing(node) {
        Standing::Undrained { .. } => {
            let is_resumed = |wait: &Wait| matches!(wait, Wait::Resumed { node: resumed, .. } if resumed == node);
            if !plan.waits.iter().any(is_resumed) {
                plan.waits.push(wait("it is about to be drained".to_owned()));
            }
        }
        // The machine may call itself by another name, under which it may well have jobs.
        Standing::Absent if worker.is_named_by_machine() && worker.may_have_started() => plan.waits.push(wait(
            "Slurm has no node of that name, which is that of the Kubernetes node; if slurmd registered under another one, \
             remove that node from Slurm and delete the pod by hand"
                .to_owned(),
        )),
        standing @ (Standing::Absent | Standing::Proven { .. }) => {
            let record = record(observed, node, worker, &standing, cause);
            let seen = observed.knowledge.known().and_then(|seen| seen.nodes.get(node));
            if let (Record::Delete { .. }, Some(holder)) = (&record, seen.and_then(reservation::holder)) {
                plan.waits.push(wait(reservation::held(&observed.nodeset, holder)));
                return;
            }
            plan.effects.push(Effect::RemoveWorker {
                pod: worker.id(),
                node: node.to_owned(),
                record,
                standing,
                claims: claims_to_go(observed, worker, cause),
            });
        }
        Standing::Busy { why } => timeout::plan_patience(observed, evidence, worker, node, &why, plan),
        Standing::Unclear { why } => plan.waits.push(wait(why)),
    }
}

/// What becomes of Slurm's record.
fn record(observed: &Observed, node: &str, worker: Worker<'_>, standing: &Standing, cause: Cause) -> Record {
    let Standing::Proven { keep_record } = standing else {
        return Record::Absent;
    };
    let Some(seen) = observed.knowledge.known().and_then(|seen| seen.nodes.get(node)) else {
        return Record::Absent;
    };
    let expect = seen.admin_state();
    // A successor would come without it, and be open for jobs.
    let theirs = (cause == Cause::Update && !drains::is_ours(seen, worker))
        .then(|| format!("somebody else drained it: {}", seen.reason));
    match keep_record.clone().or(theirs) {
        Some(why) => Record::Keep { why, expect },
        None => Record::Delete { expect },
    }
}

/// Claims that are to go with this worker.
fn claims_to_go(observed: &Observed, worker: Worker<'_>, cause: Cause) -> Vec<String> {
    let nodeset = observed.nodeset.as_ref();
    if nodeset.spec.claims_when_scaled() != ClaimRetention::Delete || cause != Cause::ScaleIn {
        return Vec::new();
    }
    let suffix = super::claims::suffix_of(worker);
    suffix
        .map(|suffix| build::claims_of(nodeset, suffix))
        .unwrap_or_default()
}
