//! Plans the deletion of a NodeSet: its workers are removed as in a scale-in, then their records in Slurm. Its lines in
//! slurm.conf stay as long as the object exists, so the finalizer is removed last.

use api::keys::{self, annotations};
use jiff::SignedDuration;
use kube::ResourceExt;

use super::{
    Effect, Plan, PlannedOrder, REQUEUE_WHILE_WAITING, Situation, Wait, departure, drains, loss, plan_steps,
    proof::Occupancy, reservation,
};
use crate::{
    cluster::{Knowledge, NodeOrder},
    nodeset::observe::Observed,
    worker::{Cause, Worker},
};

/// The finalizer of `kubectl delete --cascade=orphan`.
const ORPHAN: &str = "orphan";
/// slurmctld saves its state every 5 s. One that dies sooner has deleted records again, and the NodeSet must still exist to
/// delete them.
const SAVED_WITHIN: SignedDuration = SignedDuration::from_secs(6);

pub(super) fn plan_deletion(observed: &Observed) -> Plan {
    let has = |name: &str| observed.nodeset.finalizers().iter().any(|finalizer| finalizer == name);
    let mut plan = Plan::default();
    if !has(keys::NODESET_FINALIZER) {
        return plan;
    }
    let mut workers: Vec<Worker<'_>> = observed.workers().collect();
    let count = workers.len();
    if let Some(why) = unconditional(observed) {
        let because = format!("{why}, so its {count} workers are deleted without waiting for their jobs");
        plan.effects.push(Effect::RemoveFinalizer {
            because: (count > 0).then_some(because),
        });
        return plan;
    }
    plan.needs_jobs = true;
    plan.requeue = Some(REQUEUE_WHILE_WAITING);
    // Slurm deletes no reserved node.
    let released = reservation::plan_release(observed, &mut plan);
    // Kubernetes removes the owner of the pods before its finalizer, so pods without an owner are a sign too.
    let pods_stay = has(ORPHAN) || !observed.orphans.is_empty();
    if pods_stay {
        workers.extend(observed.orphans.iter().map(|pod| Worker(pod)));
    } else {
        let dead = loss::plan_losses(observed, &workers, &mut plan);
        workers.retain(|worker| !dead.contains(worker.uid()));
    }
    workers.retain(|worker| worker.is_active());
    let leave = workers.into_iter().map(|worker| (worker, Cause::Deletion));
    let situation = Situation::new(observed, Vec::new(), leave.collect());
    if pods_stay {
        plan_orphaning(&situation, &mut plan);
    } else {
        plan_steps(&situation, &mut plan);
        plan.apply_marks();
        if count == 0 {
            plan_leftovers(&situation, &mut plan);
        }
    }
    if !released || !plan.effects.is_empty() || !plan.waits.is_empty() {
        return plan;
    }
    let age = observed
        .environment
        .empty_since
        .map(|since| observed.now.duration_since(since));
    if count == 0 && !pods_stay && age.is_none_or(|age| age < SAVED_WITHIN) {
        plan.waits.push(Wait::Unwritten);
        plan.requeue = SAVED_WITHIN.try_into().ok();
    } else if count == 0 || pods_stay {
        plan.effects.push(Effect::RemoveFinalizer { because: None });
        plan.needs_jobs = false;
        plan.requeue = None;
    }
    plan
}

/// Returns why the deletion does not wait, if it does not. That for the slurmctld of a deleted cluster would never end.
fn unconditional(observed: &Observed) -> Option<&'static str> {
    let forced = observed.nodeset.annotations().get(annotations::FORCE_DELETION);
    match observed.controller.as_deref() {
        _ if forced.is_some_and(|value| value == keys::ON) => Some("its deletion was forced"),
        _ if observed.namespace_goes => Some("its namespace is being deleted"),
        None if observed.unreadable_controller.is_some() => None,
        None => Some("its Controller does not exist"),
        Some(controller) if controller.metadata.deletion_timestamp.is_some() => {
            Some("its Controller is being deleted too")
        }
        Some(_) => None,
    }
}

/// Drains the workers and leaves their pods. The partition is deleted with the NodeSet, so no job may run there.
fn plan_orphaning(situation: &Situation<'_>, plan: &mut Plan) {
    drains::plan_drains(situation, plan);
    let Some(evidence) = &situation.evidence else {
        return plan.wait_for_slurm(situation.observed);
    };
    for name in situation.workers().filter_map(Worker::slurm_name) {
        match evidence.occupancy(name) {
            Occupancy::Absent | Occupancy::Free { .. } | Occupancy::Off => {}
            Occupancy::Undrained | Occupancy::Starting => {
                plan.waits.push(Wait::draining(name, departure::ABOUT_TO_DRAIN));
            }
            Occupancy::Busy { why } | Occupancy::Unclear { why } => plan.waits.push(Wait::draining(name, &why)),
        }
    }
    plan_partition(situation.observed, plan);
}

/// Deletes what a NodeSet without workers has left in Slurm.
fn plan_leftovers(situation: &Situation<'_>, plan: &mut Plan) {
    if let Some(evidence) = &situation.evidence {
        for node in situation.observed.records.keys() {
            let Some(shown) = evidence.seen.nodes.get(node) else {
                continue;
            };
            match evidence.need(node) {
                Occupancy::Free { keep_record: None } => {
                    let order = PlannedOrder::new(shown, NodeOrder::Delete);
                    plan.effects.push(Effect::DeleteRecord(order));
                }
                Occupancy::Busy { why } | Occupancy::Unclear { why } => plan.waits.push(Wait::draining(node, &why)),
                // The record stays without a worker.
                _ => {}
            }
        }
    }
    plan_partition(situation.observed, plan);
}

/// Slurm fails all jobs of a deleted partition, pending ones too.
fn plan_partition(observed: &Observed, plan: &mut Plan) {
    let nodeset = observed.nodeset.as_ref();
    if nodeset.spec.wanted_partition().is_none() {
        return;
    }
    let name = nodeset.slurm_name();
    let jobs = match &observed.knowledge {
        Knowledge::Unknown { why } => Err(format!("its jobs are unknown: {why}")),
        Knowledge::Known(seen) => seen
            .jobs
            .as_ref()
            .ok_or_else(|| "its jobs have not been read yet".to_owned()),
    };
    let why = jobs.map_or_else(Some, |jobs| {
        let mut here = jobs.iter().filter(|job| {
            !job.state.is_finished() && !job.partition.is_empty() && job.partitions().all(|other| other == name)
        });
        let first = here.next()?.id;
        let more = here.count();
        Some(format!(
            "job {first} and {more} more are in it; cancel them, or move them to another partition"
        ))
    });
    let wait = why.map(|why| Wait::Other(format!("partition {name:?} is deleted with the NodeSet: {why}")));
    plan.waits.extend(wait);
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
        Knowledge::Known(
            crate::cluster::Seen::new(
                observation,
                crate::nodeset::fixture::now(),
                crate::cluster::Source::Agent,
            )
            .into(),
        )
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
            let is_about_it = |wait: &Wait| {
                wait.message()
                    .starts_with("partition \"compute\" is deleted with the NodeSet")
            };
            let waits = plan.waits.iter().any(is_about_it);
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
    fn a_deletion_waits_for_a_controller_that_cannot_be_read() {
        let set = terminating(nodeset(&json!({ "replicas": 1 })));
        let mut observed = observed(vec![slurm_key(), set, worker(0)], unknown());
        observed.unreadable_controller = Some("cannot be decoded".to_owned());
        let plan = plan(&observed);
        assert_eq!(steps(&plan), [""; 0]);
        assert!(!plan.waits.is_empty());
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
