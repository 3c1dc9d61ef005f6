//! What is left to do for a NodeSet that somebody has deleted.

use api::keys;
use kube::ResourceExt;

use super::{
    Effect, LOOK_AGAIN_WHILE_WAITING, Plan,
    fate::{Cause, Fates},
    plan_fates, plan_replacements,
    proof::Evidence,
    reservation,
    worker::Worker,
};
use crate::nodeset::observe::Observed;

pub(super) fn plan_deletion(observed: &Observed) -> Plan {
    let nodeset = observed.nodeset.as_ref();
    let mut plan = Plan {
        requeue: Some(LOOK_AGAIN_WHILE_WAITING),
        ..Plan::default()
    };
    let finalizers = nodeset.finalizers();
    if !finalizers.iter().any(|finalizer| finalizer == keys::NODESET_FINALIZER) {
        plan.requeue = None;
        return plan;
    }
    let cluster_goes = match observed.controller.as_deref() {
        None => Some("its Controller does not exist"),
        Some(controller) if controller.metadata.deletion_timestamp.is_some() => {
            Some("its Controller is being deleted too")
        }
        Some(_) => None,
    };
    let workers: Vec<Worker<'_>> = observed.workers().collect();
    if let Some(why) = cluster_goes {
        // Who deletes the cluster has deleted its jobs. To wait for a slurmctld that is gone would be to wait for ever.
        let because = (!workers.is_empty()).then(|| {
            format!(
                "{why}, so its {} workers go without their jobs being waited for",
                workers.len()
            )
        });
        plan.effects.push(Effect::RemoveFinalizer { because });
        plan.requeue = None;
        return plan;
    }
    // First: Slurm deletes no node that is reserved.
    let released = reservation::plan_release(observed, &mut plan);
    if workers.is_empty() && released {
        plan.effects.push(Effect::RemoveFinalizer { because: None });
        plan.requeue = None;
        return plan;
    }
    plan_replacements(&workers, &mut plan);
    let active = workers.into_iter().filter(|worker| worker.is_active());
    let fates = Fates {
        stay: Vec::new(),
        leave: active.map(|worker| (worker, Cause::Deletion)).collect(),
    };
    let evidence = observed.knowledge.known().map(Evidence::new);
    plan_fates(observed, &fates, evidence.as_ref(), &mut plan);
    plan
}
