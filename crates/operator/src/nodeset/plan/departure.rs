//! Letting workers go: one after the other each is marked, drained, proven idle, removed. A step is taken only if the one
//! before it is seen to have happened.

use api::{keys, nodeset::ClaimRetention};
use kube::ResourceExt;

use super::{
    Effect, LOOK_AGAIN_WHILE_WAITING, Plan, Wait, id,
    proof::{Evidence, Standing},
    worker::Worker,
};
use crate::{
    access::Knowledge,
    nodeset::{build, observe::Observed},
};

/// The next step for every worker that has to go, and the way back for those that may stay.
pub(super) fn plan_victims(observed: &Observed, condemned: &[Worker<'_>], spared: &[Worker<'_>], plan: &mut Plan) {
    plan_reprieves(observed, spared, plan);
    let (marked, unmarked): (Vec<Worker<'_>>, Vec<Worker<'_>>) =
        condemned.iter().partition(|worker| worker.is_victim());
    plan.effects.extend(
        unmarked
            .into_iter()
            .map(|worker| Effect::MarkVictim { pod: id(worker) }),
    );
    plan_removals(observed, &marked, "scale-in", plan);
}

fn plan_reprieves(observed: &Observed, spared: &[Worker<'_>], plan: &mut Plan) {
    for worker in spared {
        // The mark is the only trace of our drain, so it stays until the drain can be undone.
        let seen = match &observed.knowledge {
            Knowledge::Known(seen) => seen,
            Knowledge::Unknown { why } => {
                plan.waits.push(Wait::SlurmUnknown { why: why.clone() });
                return;
            }
        };
        let ours = worker.slurm_name().filter(|name| {
            let node = seen.nodes.get(*name);
            node.is_some_and(|node| node.state.is_drain() && node.reason.starts_with(keys::NODE_REASON_PREFIX))
        });
        plan.effects.push(Effect::SpareVictim {
            pod: id(*worker),
            undrain: ours.map(str::to_owned),
        });
    }
}

/// What is left to do for a NodeSet that somebody has deleted.
pub(super) fn plan_deletion(observed: &Observed) -> Plan {
    let nodeset = observed.nodeset.as_ref();
    let mut plan = Plan {
        requeue: Some(LOOK_AGAIN_WHILE_WAITING),
        ..Plan::default()
    };
    if !nodeset
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == keys::NODESET_FINALIZER)
    {
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
    if workers.is_empty() {
        plan.effects.push(Effect::RemoveFinalizer { because: None });
        plan.requeue = None;
        return plan;
    }
    for worker in workers
        .iter()
        .filter(|worker| worker.is_finished() && !worker.is_terminating())
    {
        plan.effects.push(Effect::ReplacePod { pod: id(*worker) });
    }
    let active: Vec<Worker<'_>> = workers.into_iter().filter(|worker| worker.is_active()).collect();
    plan_removals(observed, &active, "deletion of its NodeSet", &mut plan);
    plan
}

fn plan_removals(observed: &Observed, workers: &[Worker<'_>], purpose: &str, plan: &mut Plan) {
    if workers.is_empty() {
        return;
    }
    let seen = match &observed.knowledge {
        Knowledge::Known(seen) => seen,
        Knowledge::Unknown { why } => {
            plan.waits.push(Wait::SlurmUnknown { why: why.clone() });
            return;
        }
    };
    let evidence = Evidence::new(seen);
    let namespace = observed.nodeset.namespace().unwrap_or_default();
    for worker in workers {
        let pod = id(*worker);
        let Some(node) = worker.slurm_name() else {
            // It is to be named after a Kubernetes node and has none: no slurmd has ever run in it.
            plan.effects.push(Effect::RemoveWorker {
                claims: claims_to_go(observed, *worker),
                node: String::new(),
                standing: Standing::Absent,
                pod,
            });
            continue;
        };
        match evidence.standing(node) {
            Standing::Undrained { reason } => {
                plan.waits.push(Wait::Draining {
                    node: node.to_owned(),
                    why: "it is about to be drained".to_owned(),
                });
                let ours = format!(
                    "{}Pod ({namespace}/{}) is pending termination for {purpose}",
                    keys::NODE_REASON_PREFIX,
                    pod.name
                );
                let foreign = !reason.is_empty() && !reason.starts_with(keys::NODE_REASON_PREFIX);
                plan.effects.push(Effect::DrainNode {
                    pod,
                    node: node.to_owned(),
                    // What a person wrote there is worth more than what we have to say.
                    reason: if foreign { reason } else { ours },
                });
            }
            // The machine may call itself by another name, under which it may well have jobs.
            Standing::Absent if worker.is_named_by_machine() && worker.may_have_started() => {
                plan.waits.push(Wait::Draining {
                    node: node.to_owned(),
                    why: "Slurm has no node of that name, which is that of the Kubernetes node; if slurmd registered under \
                          another one, remove that node from Slurm and delete the pod by hand"
                        .to_owned(),
                });
            }
            standing @ (Standing::Absent | Standing::Proven { .. }) => plan.effects.push(Effect::RemoveWorker {
                claims: claims_to_go(observed, *worker),
                node: node.to_owned(),
                standing,
                pod,
            }),
            Standing::Busy { why } | Standing::Unclear { why } => plan.waits.push(Wait::Draining {
                node: node.to_owned(),
                why,
            }),
        }
    }
}

/// Claims that are to go with this worker.
fn claims_to_go(observed: &Observed, worker: Worker<'_>) -> Vec<String> {
    let nodeset = observed.nodeset.as_ref();
    if nodeset.spec.claims_when_scaled() != ClaimRetention::Delete || nodeset.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let suffix = super::claims::suffix_of(worker);
    suffix
        .map(|suffix| build::claims_of(nodeset, suffix))
        .unwrap_or_default()
}
