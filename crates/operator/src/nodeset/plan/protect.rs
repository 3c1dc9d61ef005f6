//! The label that protects a worker from eviction. Pods are created with it, and it is removed only on proof that the
//! worker has no job and can get none: `kubectl drain` waits for this.

use api::keys::{self, labels};

use super::{
    Effect, Plan, cordon, drains,
    proof::{Evidence, Occupancy},
    selection::Selection,
};
use crate::{nodeset::observe::Observed, worker::Worker};

pub(super) fn plan_protection(
    observed: &Observed,
    selection: &Selection<'_>,
    evidence: Option<&Evidence<'_>>,
    plan: &mut Plan,
) {
    let wanted = observed.nodeset.spec.protects_workload();
    for worker in &selection.stay {
        let cordoned = wanted && cordon::reason(observed, *worker).is_some();
        // Without an observed drain there is no proof. A drain that slurmctld has not saved could be lost, and a job start
        // before the eviction.
        let durable = cordoned && drains::was_in_force(observed, *worker);
        let free = evidence
            .filter(|_| durable)
            .and_then(|evidence| free(evidence, *worker));
        plan.needs_jobs |= cordoned && is_protected(*worker);
        match free {
            Some((node, occupancy)) if is_protected(*worker) => plan.effects.push(Effect::Unprotect {
                pod: worker.id(),
                node: node.to_owned(),
                occupancy,
            }),
            Some(_) => {}
            // Without a snapshot the label stays as it is: the drain is still in force.
            None if cordoned && evidence.is_none() => {}
            None => set(*worker, wanted, plan),
        }
    }
    for (worker, _) in &selection.leave {
        set(*worker, wanted, plan);
    }
}

fn set(worker: Worker<'_>, wanted: bool, plan: &mut Plan) {
    if is_protected(worker) != wanted {
        plan.effects.push(Effect::MarkPod {
            pod: worker.id(),
            labels: [(labels::POD_PROTECT.to_owned(), wanted.then(|| keys::ON.to_owned()))].into(),
            annotations: super::MetadataPatch::new(),
        });
    }
}

fn is_protected(worker: Worker<'_>) -> bool {
    worker.label(labels::POD_PROTECT) == Some(keys::ON)
}

/// Returns the node and its occupancy, if it has no job and can get none. A worker that has not registered may do so at any
/// moment and get a job; Kubernetes allows the eviction of pods that have not started anyway.
fn free<'w>(evidence: &Evidence<'_>, worker: Worker<'w>) -> Option<(&'w str, Occupancy)> {
    let node = worker.slurm_name()?;
    let occupancy = evidence.occupancy(node);
    matches!(occupancy, Occupancy::Free { .. }).then_some((node, occupancy))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::steps;
    use crate::nodeset::fixture::{DRAINED, DRAINING, IDLE, known, planned, unknown, with, worker};

    fn cordoned(protected: bool) -> Value {
        let mut pod = with(
            worker(0),
            &[
                (
                    "/metadata/annotations/nodeset.slinky.slurm.net~1pod-cordon",
                    json!("true"),
                ),
                (
                    "/metadata/annotations/nodeset.slinky.slurm.net~1drained",
                    json!("2026-01-01T00:59:00Z"),
                ),
            ],
        );
        if !protected {
            let labels = pod["metadata"]["labels"].as_object_mut().unwrap();
            labels.remove("nodeset.slinky.slurm.net/pod-protect");
        }
        pod
    }

    #[test]
    fn a_worker_may_be_evicted_only_on_proof() {
        let one = json!({ "replicas": 1 });
        let drained: &[(&str, &[&str])] = &[("compute-0", DRAINED)];
        let plan = planned(&one, vec![cordoned(true)], known(drained, &[]));
        assert_eq!(steps(&plan), ["unprotect compute-0"]);
        for (nodes, jobs) in [
            (
                &[("compute-0", DRAINING)][..],
                &[(7, &["RUNNING"][..], "compute-0")][..],
            ),
            (drained, &[(7, &["SUSPENDED"][..], "compute-0")]),
        ] {
            let plan = planned(&one, vec![cordoned(true)], known(nodes, jobs));
            assert_eq!(steps(&plan), [""; 0]);
            assert!(plan.needs_jobs, "its jobs are waited for");
        }
        // An administrator undrained the node, so that it can get jobs.
        let open = planned(&one, vec![cordoned(false)], known(&[("compute-0", IDLE)], &[]));
        assert_eq!(steps(&open), ["label compute-0"]);
        // A drain that slurmctld may not have saved is no proof.
        let fresh = "/metadata/annotations/nodeset.slinky.slurm.net~1drained";
        let fresh = with(cordoned(true), &[(fresh, json!("2026-01-01T00:59:55Z"))]);
        let plan = planned(&one, vec![fresh], known(drained, &[]));
        assert_eq!((steps(&plan), plan.needs_jobs), (vec![], true));
        // Without a snapshot nothing changes.
        for protected in [true, false] {
            assert_eq!(steps(&planned(&one, vec![cordoned(protected)], unknown())), [""; 0]);
        }
        let done = planned(&one, vec![cordoned(false)], known(drained, &[]));
        assert_eq!((steps(&done), done.needs_jobs), (vec![], false));
    }
}
