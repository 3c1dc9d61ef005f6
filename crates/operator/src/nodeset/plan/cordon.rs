//! Cordons: the Slurm node of a worker takes no new job while its pod or its Kubernetes node is cordoned. Once it is proven
//! to have none, the pod may be evicted: `kubectl drain` waits for this.

use api::keys::{self, annotations, labels};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::{Effect, MetadataPatch, Plan, Situation, drains, proof::Occupancy};
use crate::{nodeset::observe::Observed, worker::Worker};

/// The length of a reason that still fits in tables such as those of sinfo.
const LONGEST: usize = 256;

pub fn is_cordoned(observed: &Observed, worker: Worker<'_>) -> bool {
    reason(observed, worker).is_some()
}

/// Returns the drain reason of a cordoned worker: the annotated one, or what is known about its Kubernetes node.
pub(super) fn reason(observed: &Observed, worker: Worker<'_>) -> Option<String> {
    let host = observed.host(worker);
    let host = host.filter(|node| node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true));
    let given = match host {
        Some(node) => node
            .annotations()
            .get(annotations::NODE_CORDON_REASON)
            .map(String::as_str),
        None if worker.is_cordoned() => worker.annotation(annotations::POD_CORDON_REASON),
        None => return None,
    };
    let pod = format!("{}/{}", worker.0.namespace().unwrap_or_default(), worker.name());
    let words = given.map(one_line).filter(|reason| !reason.is_empty());
    let words = words.unwrap_or_else(|| match host {
        None => format!("Pod ({pod}) was cordoned"),
        Some(node) => propagated(observed, node).unwrap_or_else(|| {
            let name = node.name_any();
            format!("Node ({name}) was cordoned, Pod ({pod}) must be cordoned")
        }),
    });
    Some(format!("{}{words}", keys::NODE_REASON_PREFIX))
}

/// Returns the conditions of a node that the operator is configured to propagate, if it has any.
fn propagated(observed: &Observed, node: &Node) -> Option<String> {
    let conditions = node.status.as_ref()?.conditions.as_deref()?;
    let texts = observed.environment.propagated_conditions.iter().filter_map(|type_| {
        let mut conditions = conditions.iter();
        let condition = conditions.find(|one| one.type_ == *type_ && one.status == "True")?;
        let (reason, message) = (condition.reason.as_deref(), condition.message.as_deref());
        Some(format!(
            "({}: {})",
            reason.unwrap_or_default(),
            message.unwrap_or_default()
        ))
    });
    let texts: Vec<String> = texts.collect();
    (!texts.is_empty()).then(|| one_line(&texts.join("; ")))
}

/// Returns one line without control characters, which would break tables and could forge a second line.
fn one_line(text: &str) -> String {
    let blanks = text
        .chars()
        .map(|c| if matches!(c, '\t' | '\n' | '\r') { ' ' } else { c });
    let plain: String = blanks.filter(|c| !c.is_control()).collect();
    let short: String = plain.trim().chars().take(LONGEST).collect();
    short.trim_end().to_owned()
}

/// Plans the label that protects a worker from eviction, until it is proven that it has no job and can get none.
pub(super) fn plan_protection(situation: &Situation<'_>, plan: &mut Plan) {
    let observed = situation.observed;
    let wanted = observed.nodeset.spec.protects_workload();
    for worker in &situation.stay {
        if !wanted || reason(observed, *worker).is_none() {
            set_protection(*worker, wanted, plan);
            continue;
        }
        plan.needs_jobs |= is_protected(*worker);
        // Without a snapshot the label stays as it is: the drain is still in force.
        let Some(evidence) = &situation.evidence else { continue };
        // A worker that has not registered may do so at any moment and get a job; Kubernetes allows the eviction of pods
        // that have not started anyway.
        let node = worker.slurm_name().unwrap_or_default();
        let occupancy = evidence.occupancy(node);
        // A drain that slurmctld has not saved could be lost, and a job start before the eviction.
        if !matches!(occupancy, Occupancy::Free { .. }) || !drains::was_in_force(observed, *worker) {
            set_protection(*worker, wanted, plan);
        } else if is_protected(*worker) {
            plan.effects.push(Effect::Unprotect {
                pod: worker.id(),
                node: node.to_owned(),
                occupancy,
            });
        }
    }
    for (worker, _) in &situation.leave {
        set_protection(*worker, wanted, plan);
    }
}

fn set_protection(worker: Worker<'_>, wanted: bool, plan: &mut Plan) {
    if is_protected(worker) != wanted {
        let label = (labels::POD_PROTECT.to_owned(), wanted.then(|| keys::ON.to_owned()));
        plan.mark(worker, [label].into(), MetadataPatch::new());
    }
}

fn is_protected(worker: Worker<'_>) -> bool {
    worker.label(labels::POD_PROTECT) == Some(keys::ON)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{super::tests::steps, *};
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

    #[test]
    fn a_reason_is_one_short_line() {
        for (given, said) in [
            ("  disk swap ", "disk swap"),
            ("a\nb\tc\r\nd", "a b c  d"),
            ("\u{1b}[31mred", "[31mred"),
            ("", ""),
            (" \n ", ""),
            ("維修中", "維修中"),
        ] {
            assert_eq!(one_line(given), said, "{given:?}");
        }
        assert_eq!(one_line(&"維".repeat(300)).chars().count(), LONGEST);
    }
}
