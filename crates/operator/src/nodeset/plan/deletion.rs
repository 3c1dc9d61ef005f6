//! Plans the deletion of a NodeSet: its workers are removed as in a scale-in, then their records in Slurm. Its lines in
//! slurm.conf stay as long as the object exists, so the finalizer is removed last.

use std::time::Duration;

use api::keys::{self, annotations};
use kube::ResourceExt;

use super::{
    Effect, Plan, REQUEUE_WHILE_WAITING, Wait, departure, drains, loss, plan_steps,
    proof::{Evidence, Need, Occupancy},
    reservation,
    selection::Selection,
};
use crate::{
    cluster::Knowledge,
    nodeset::observe::Observed,
    worker::{Cause, Worker},
};

/// The finalizer of `kubectl delete --cascade=orphan`.
const ORPHAN: &str = "orphan";
/// slurmctld saves its state every 5 s. One that dies sooner has deleted records again, and the NodeSet must still exist to
/// delete them.
const SAVED_WITHIN: Duration = Duration::from_secs(6);

pub(super) fn plan_deletion(observed: &Observed) -> Plan {
    let nodeset = observed.nodeset.as_ref();
    let has = |name: &str| nodeset.finalizers().iter().any(|finalizer| finalizer == name);
    let mut plan = Plan::default();
    if !has(keys::NODESET_FINALIZER) {
        return plan;
    }
    let workers: Vec<Worker<'_>> = observed.workers().collect();
    if let Some(why) = unconditional(observed) {
        let because = (!workers.is_empty()).then(|| {
            format!(
                "{why}, so its {} workers are deleted without waiting for their jobs",
                workers.len()
            )
        });
        plan.effects.push(Effect::RemoveFinalizer { because });
        return plan;
    }
    plan.needs_jobs = true;
    plan.requeue = Some(REQUEUE_WHILE_WAITING);
    // Slurm deletes no reserved node.
    let released = reservation::plan_release(observed, &mut plan);
    // Kubernetes removes the owner of the pods before its finalizer, so pods without an owner are a sign too.
    let pods_stay = has(ORPHAN) || !observed.orphans.is_empty();
    if pods_stay {
        plan_orphaning(observed, &mut plan);
    } else {
        let dead = loss::plan_losses(observed, &workers, &mut plan);
        let selection = Selection::all_leave(workers.iter().copied(), Cause::Deletion).without(&dead);
        let evidence = observed.knowledge.known().map(Evidence::new);
        plan_steps(observed, &selection, evidence.as_ref(), &mut plan);
        if workers.is_empty() {
            plan_leftovers(observed, &mut plan);
        }
    }
    let done = released && plan.effects.is_empty() && plan.waits.is_empty();
    if done && workers.is_empty() && !pods_stay && !is_saved(observed) {
        plan.waits.push(Wait::Unwritten);
        plan.requeue = Some(SAVED_WITHIN);
    } else if done && (workers.is_empty() || pods_stay) {
        plan.effects.push(Effect::RemoveFinalizer { because: None });
        plan.needs_jobs = false;
        plan.requeue = None;
    }
    plan
}

/// Whether slurmctld has had time to save that nothing is left.
fn is_saved(observed: &Observed) -> bool {
    let age = observed
        .environment
        .empty_since
        .map(|since| observed.now.duration_since(since));
    age.and_then(|age| Duration::try_from(age).ok())
        .is_some_and(|age| age >= SAVED_WITHIN)
}

/// Returns why the deletion does not wait, if it does not. If the cluster is deleted too, a wait for its slurmctld would
/// never end.
fn unconditional(observed: &Observed) -> Option<&'static str> {
    let nodeset = observed.nodeset.as_ref();
    let forced = nodeset.annotations().get(annotations::FORCE_DELETION);
    if forced.is_some_and(|value| value == keys::ON) {
        return Some("its deletion was forced");
    }
    if observed.namespace_goes {
        return Some("its namespace is being deleted");
    }
    match observed.controller.as_deref() {
        None => Some("its Controller does not exist"),
        Some(controller) if controller.metadata.deletion_timestamp.is_some() => {
            Some("its Controller is being deleted too")
        }
        Some(_) => None,
    }
}

/// Drains the workers and leaves their pods. The partition is deleted with the NodeSet, so no job may run there. Kubernetes
/// may have removed the owner of the pods already.
fn plan_orphaning(observed: &Observed, plan: &mut Plan) {
    let orphans = observed.orphans.iter().map(|pod| Worker(pod));
    let selection = Selection::all_leave(observed.workers().chain(orphans), Cause::Deletion);
    drains::plan_drains(observed, &selection, plan);
    match &observed.knowledge {
        Knowledge::Unknown { why } => plan.waits.push(Wait::SlurmUnknown { why: why.clone() }),
        Knowledge::Known(seen) => {
            let evidence = Evidence::new(seen);
            let names = selection.leave.iter().filter_map(|(worker, _)| worker.slurm_name());
            plan.waits.extend(names.filter_map(|name| {
                let why = match evidence.occupancy(name) {
                    Occupancy::Absent | Occupancy::Free { .. } => return None,
                    Occupancy::Undrained => departure::ABOUT_TO_DRAIN.to_owned(),
                    Occupancy::Busy { why } | Occupancy::Unclear { why } => why,
                };
                let node = name.to_owned();
                Some(Wait::Draining { node, why })
            }));
            plan_partition(observed, plan);
        }
    }
}

/// Deletes what a NodeSet without workers has left in Slurm.
fn plan_leftovers(observed: &Observed, plan: &mut Plan) {
    if let Some(seen) = observed.knowledge.known() {
        let evidence = Evidence::new(seen);
        for node in observed.records.keys() {
            let Some(shown) = seen.nodes.get(node) else { continue };
            match evidence.need(node) {
                None => plan.effects.push(Effect::DeleteRecord {
                    node: node.clone(),
                    expect: shown.admin_state(),
                }),
                // The record stays without a worker.
                Some(Need::ByName { .. }) => {}
                Some(Need::Job { why } | Need::Unclear { why }) => plan.waits.push(Wait::Draining {
                    node: node.clone(),
                    why,
                }),
            }
        }
    }
    plan_partition(observed, plan);
}

/// Slurm fails all jobs of a deleted partition, pending ones too.
fn plan_partition(observed: &Observed, plan: &mut Plan) {
    let nodeset = observed.nodeset.as_ref();
    if nodeset.spec.wanted_partition().is_none() {
        return;
    }
    let name = nodeset.slurm_name();
    let why = match &observed.knowledge {
        Knowledge::Unknown { why } => Some(format!("its jobs are unknown: {why}")),
        Knowledge::Known(seen) => match &seen.jobs {
            None => Some("its jobs have not been read yet".to_owned()),
            Some(jobs) => {
                let mut here = jobs.iter().filter(|job| {
                    !job.state.is_finished() && !job.partition.is_empty() && job.partitions().all(|other| other == name)
                });
                here.next().map(|first| {
                    format!(
                        "job {} and {} more are in it; cancel them, or move them to another partition",
                        first.id,
                        here.count()
                    )
                })
            }
        },
    };
    plan.waits.extend(why.map(|why| Wait::Partition { name, why }));
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::{Value, json};

    use super::super::{Plan, Wait, plan, tests::steps};
    use crate::{
        cluster::Knowledge,
        nodeset::fixture::{
            DRAINED, DRAINING, IDLE, controller, known, nodeset, observed, slurm_key, terminating, unknown, with,
            worker,
        },
    };

    fn going(changes: &[(&str, Value)], mut objects: Vec<Value>, knowledge: Knowledge) -> Plan {
        let spec = json!({ "replicas": 1, "partition": { "enabled": true, "config": "State=UP" } });
        let set = with(terminating(nodeset(&spec)), changes);
        objects.extend([slurm_key(), set]);
        plan(&observed(objects, knowledge))
    }

    fn job(state: &str, partition: &str) -> Knowledge {
        let jobs = json!([{ "job_id": 7, "job_state": [state], "nodes": "", "partition": partition }]);
        let observation = slurm::rest::Observation {
            nodes: Vec::new(),
            jobs: serde_json::from_value(jobs).unwrap(),
            process: Some(slurm::rest::Process { boot_time: 1 }),
        };
        Knowledge::Known(crate::cluster::Seen::new(observation, crate::nodeset::fixture::now()).into())
    }

    #[test]
    fn a_partition_does_not_go_with_jobs_in_it() {
        for (knowledge, goes) in [
            (known(&[], &[]), true),
            (job("PENDING", "compute"), false),
            (job("COMPLETED", "compute"), true),
            (job("PENDING", "other"), true),
            // Slurm removes the job from the one partition and leaves it in the other.
            (job("PENDING", "compute,other"), true),
            (unknown(), false),
        ] {
            let plan = going(&[], vec![controller()], knowledge.clone());
            let expected: &[&str] = if goes { &["let go"] } else { &[] };
            assert_eq!(steps(&plan), expected, "{knowledge:?}");
            let waits = plan.waits.iter().any(|wait| matches!(wait, Wait::Partition { .. }));
            assert_eq!(waits, !goes);
        }
    }

    #[test]
    fn the_set_is_there_until_slurm_has_written_that_nothing_is_left() {
        for (seconds, expected) in [(None, ""), (Some(5), ""), (Some(6), "let go")] {
            let set = terminating(nodeset(&json!({ "replicas": 1 })));
            let mut observed = observed(vec![slurm_key(), set, controller()], known(&[], &[]));
            observed.environment.empty_since = seconds.map(|seconds| observed.now - SignedDuration::from_secs(seconds));
            let plan = plan(&observed);
            assert_eq!(steps(&plan).join("; "), expected);
            assert_eq!(plan.waits.contains(&Wait::Unwritten), expected.is_empty());
        }
    }

    #[test]
    fn a_deletion_does_not_wait_if_the_cluster_is_deleted_too_or_it_is_forced() {
        let ending = json!({ "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": "slurm", "deletionTimestamp": "2026-01-01T00:59:00Z" } });
        let forced = (
            "/metadata/annotations",
            json!({ "nodeset.slinky.slurm.net/force-deletion": "true" }),
        );
        for (changes, objects) in [
            (vec![], vec![worker(0)]),
            (vec![], vec![worker(0), terminating(controller())]),
            (vec![], vec![worker(0), controller(), ending]),
            (vec![forced], vec![worker(0), controller()]),
        ] {
            let plan = going(
                &changes,
                objects,
                known(&[("compute-0", DRAINING)], &[(7, &["RUNNING"], "compute-0")]),
            );
            assert_eq!(steps(&plan), ["let go early"]);
        }
    }

    #[test]
    fn workers_that_are_to_stay_are_emptied_and_left() {
        let ours = "nodeset.slinky.slurm.net/reservation";
        // Kubernetes removes their owner first, and then its finalizer.
        let orphan = with(worker(0), &[("/metadata/ownerReferences", json!([]))]);
        for (finalizers, pod) in [
            (json!([ours, "orphan"]), worker(0)),
            (json!([ours, "orphan"]), orphan.clone()),
            (json!([ours]), orphan),
        ] {
            let orphaning = [("/metadata/finalizers", finalizers)];
            for (state, jobs, expected) in [
                (IDLE, &[][..], "drain compute-0"),
                (DRAINING, &[(7, &["RUNNING"][..], "compute-0")], ""),
                (DRAINED, &[], "let go"),
            ] {
                let reason = "slurm-operator: Pod (slurm/compute-0) is pending termination for deletion of its NodeSet";
                let mut seen = known(&[("compute-0", state)], jobs);
                if let Knowledge::Known(seen) = &mut seen
                    && state != IDLE
                {
                    let seen = std::sync::Arc::get_mut(seen).unwrap();
                    seen.nodes.get_mut("compute-0").unwrap().reason = reason.to_owned();
                }
                let plan = going(&orphaning, vec![pod.clone(), controller()], seen);
                assert_eq!(steps(&plan).join("; "), expected, "{state:?}");
            }
            assert_eq!(steps(&going(&orphaning, vec![pod, controller()], unknown())), [""; 0]);
        }
    }
}
