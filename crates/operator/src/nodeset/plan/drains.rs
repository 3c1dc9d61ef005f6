//! Which Slurm nodes are to be drained, and which drains are to be taken back. Level-triggered: a drain that Slurm has
//! forgotten, as it does when it is killed right after it acknowledged one, is given again.
//!
//! What is ours is told by the reason. What anybody else drained is left alone.

use api::keys;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use slurm::Node;

use super::{
    Effect, Plan, Wait, cordon,
    fate::{Cause, Fates},
    id,
    worker::Worker,
};
use crate::{
    access::{Knowledge, Seen},
    nodeset::{DRAINED, observe::Observed},
};

/// Slurm writes its state down every five seconds. A drain that was in force for longer than this and is gone was taken
/// back by somebody.
const DURABLE_AFTER: SignedDuration = SignedDuration::from_secs(15);
/// A slurmctld that began so soon after a drain may have forgotten it: the one before it may have been killed at once, and
/// Kubernetes takes its time to start another.
const BACK_WITHIN: SignedDuration = SignedDuration::from_mins(2);

pub(super) fn plan_drains(observed: &Observed, fates: &Fates<'_>, plan: &mut Plan) {
    let seen = match &observed.knowledge {
        Knowledge::Known(seen) => seen.as_ref(),
        Knowledge::Unknown { why } => {
            // Those that leave say so themselves.
            if fates.leave.is_empty()
                && fates
                    .stay
                    .iter()
                    .any(|worker| cordon::reason(observed, *worker).is_some())
            {
                plan.waits.push(Wait::SlurmUnknown { why: why.clone() });
            }
            return;
        }
    };
    for (worker, cause) in &fates.leave {
        // Not before the choice is written down.
        if worker.is_marked() || *cause == Cause::Deletion {
            plan_leaving(observed, seen, *worker, *cause, plan);
        }
    }
    for worker in &fates.stay {
        plan_staying(observed, seen, *worker, plan);
    }
}

fn plan_leaving(observed: &Observed, seen: &Seen, worker: Worker<'_>, cause: Cause, plan: &mut Plan) {
    let Some(node) = node_of(seen, worker) else { return };
    let namespace = observed.nodeset.namespace().unwrap_or_default();
    let reason = format!(
        "{}Pod ({namespace}/{}) is pending termination for {}",
        keys::NODE_REASON_PREFIX,
        worker.name(),
        cause.purpose()
    );
    if !node.state.is_drain() || (is_ours(node) && node.reason != reason) {
        plan.effects.push(drain(worker, node, reason));
    }
}

fn plan_staying(observed: &Observed, seen: &Seen, worker: Worker<'_>, plan: &mut Plan) {
    let Some(node) = node_of(seen, worker) else { return };
    let drained = node.state.is_drain();
    match cordon::reason(observed, worker) {
        Some(_) if !drained && was_taken_back(observed, worker) => {
            plan.waits.push(Wait::Resumed {
                node: node.name.clone(),
            });
            // Which slurmctld it is comes with the jobs.
            plan.needs_jobs |= boot(observed).is_none();
        }
        Some(reason) if !drained || (is_ours(node) && node.reason != reason) => {
            plan.effects.push(drain(worker, node, reason));
        }
        // From now on its end is somebody's word.
        Some(_) if noted(observed, worker).is_none() => {
            let now = boot(observed).map_or(observed.now, |boot| boot.max(observed.now));
            plan.effects.push(Effect::MarkPod {
                pod: id(worker),
                labels: super::Marks::new(),
                annotations: [(DRAINED.to_owned(), Some(format!("{now:.0}")))].into(),
            });
        }
        Some(_) => {}
        None => {
            if worker.drained_since().is_some() {
                plan.effects.push(Effect::MarkPod {
                    pod: id(worker),
                    labels: super::Marks::new(),
                    annotations: [(DRAINED.to_owned(), None)].into(),
                });
            }
            // Slurm may still take a node for alive whose slurmd is yet to come.
            // And one that is down comes back by a resume, which takes the drain along.
            if drained && is_ours(node) && worker.is_ready() && !node.state.is_down() {
                plan.effects.push(Effect::UndrainNode {
                    pod: id(worker),
                    node: node.name.clone(),
                });
            }
        }
    }
}

/// Its drain was seen in force for so long that Slurm has written it down.
pub(super) fn was_in_force(observed: &Observed, worker: Worker<'_>) -> bool {
    noted(observed, worker).is_some_and(|since| observed.now.duration_since(since) > DURABLE_AFTER)
}

/// Somebody took its drain back: it was in force, and Slurm has not forgotten it.
fn was_taken_back(observed: &Observed, worker: Worker<'_>) -> bool {
    let Some(since) = worker.drained_since() else {
        return false;
    };
    let is_forgotten = boot(observed).is_some_and(|boot| since < boot && boot.duration_since(since) < BACK_WITHIN);
    observed.now.duration_since(since) > DURABLE_AFTER && !is_forgotten
}

/// Since when its drain has been in force in the slurmctld that runs now.
fn noted(observed: &Observed, worker: Worker<'_>) -> Option<Timestamp> {
    let since = worker.drained_since()?;
    boot(observed).is_none_or(|boot| since >= boot).then_some(since)
}

/// When the slurmctld that runs now began, if that is known.
fn boot(observed: &Observed) -> Option<Timestamp> {
    observed.knowledge.known()?.boot()
}

fn drain(worker: Worker<'_>, node: &Node, reason: String) -> Effect {
    // What a person wrote there is worth more than what we have to say.
    let foreign = !node.reason.is_empty() && !is_ours(node);
    Effect::DrainNode {
        pod: id(worker),
        node: node.name.clone(),
        reason: if foreign { node.reason.clone() } else { reason },
    }
}

fn node_of<'s>(seen: &'s Seen, worker: Worker<'_>) -> Option<&'s Node> {
    seen.nodes.get(worker.slurm_name()?)
}

/// Whether the operator gave the reason of this node. One without a reason is somebody else's.
pub(super) fn is_ours(node: &Node) -> bool {
    node.reason.starts_with(keys::NODE_REASON_PREFIX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Effect, Plan, Wait, tests::steps};
    use crate::{
        access::{Knowledge, Seen},
        nodeset::fixture::{now, planned, with, worker},
    };

    fn node(state: &[&str], reason: &str) -> Knowledge {
        let nodes = json!([{ "name": "compute-0", "state": state, "reason": reason }]);
        Knowledge::Known(Seen::of_nodes(serde_json::from_value(nodes).unwrap(), now()).into())
    }

    /// The same, by a slurmctld that began then.
    fn begun(knowledge: Knowledge, at: &str) -> Knowledge {
        let Knowledge::Known(seen) = knowledge else {
            panic!("it is known")
        };
        let at: jiff::Timestamp = at.parse().unwrap();
        let boot_time = u64::try_from(at.as_second()).unwrap();
        let seen = Seen {
            process: Some(slurm::rest::Process { boot_time }),
            ..Seen::clone(&seen)
        };
        Knowledge::Known(seen.into())
    }

    fn annotated(pod: Value, key: &str, value: &str) -> Value {
        with(
            pod,
            &[(
                &format!("/metadata/annotations/{}", key.replace('/', "~1")),
                json!(value),
            )],
        )
    }

    fn on(node: &Value, pod: Value, knowledge: Knowledge) -> Plan {
        planned(&json!({ "replicas": 1 }), vec![node.clone(), pod], knowledge)
    }

    fn k1(unschedulable: bool, annotations: &Value) -> Value {
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "k1", "annotations": annotations },
            "spec": { "unschedulable": unschedulable },
            "status": { "conditions": [{ "type": "DiskBroken", "status": "True", "reason": "Smart", "message": "sda\nfails" }] } })
    }

    const OPEN: &[&str] = &["IDLE", "DYNAMIC_NORM"];
    const DRAIN: &[&str] = &["IDLE", "DRAIN", "DYNAMIC_NORM"];
    const CORDON: &str = "nodeset.slinky.slurm.net/pod-cordon";
    const SINCE: &str = "nodeset.slinky.slurm.net/drained";

    #[test]
    fn a_cordon_of_pod_or_node_drains_with_its_reason() {
        let bare = || with(worker(0), &[]);
        let cordoned = annotated(worker(0), CORDON, "true");
        let quiet = k1(false, &json!({}));
        for (node_object, pod, reason) in [
            (
                &quiet,
                cordoned.clone(),
                "slurm-operator: Pod (slurm/compute-0) was cordoned",
            ),
            (
                &quiet,
                annotated(worker(0), "slinky.slurm.net/pod-cordon", "true"),
                "slurm-operator: Pod (slurm/compute-0) was cordoned",
            ),
            (
                &quiet,
                annotated(cordoned, "nodeset.slinky.slurm.net/pod-cordon-reason", "ticket 7"),
                "slurm-operator: ticket 7",
            ),
            (
                &k1(
                    true,
                    &json!({ "nodeset.slinky.slurm.net/node-cordon-reason": "new\nfirmware" }),
                ),
                bare(),
                "slurm-operator: new firmware",
            ),
            (&k1(true, &json!({})), bare(), "slurm-operator: (Smart: sda fails)"),
        ] {
            let plan = on(node_object, pod, node(OPEN, ""));
            let [Effect::DrainNode { reason: given, .. }] = plan.effects.as_slice() else {
                panic!("{:?}", plan.effects)
            };
            assert_eq!(given, reason);
        }
        let mut untold = k1(true, &json!({}));
        untold["status"] = json!({});
        let plan = on(&untold, bare(), node(OPEN, ""));
        let [Effect::DrainNode { reason, .. }] = plan.effects.as_slice() else {
            panic!("{:?}", plan.effects)
        };
        assert_eq!(
            reason,
            "slurm-operator: Node (k1) was cordoned, Pod (slurm/compute-0) must be cordoned"
        );
    }

    #[test]
    fn only_our_own_drain_is_taken_back() {
        let quiet = k1(false, &json!({}));
        for (state, reason, expected) in [
            (
                DRAIN,
                "slurm-operator: Pod (slurm/compute-0) was cordoned",
                &["undrain compute-0"][..],
            ),
            (DRAIN, "broken fan", &[]),
            (DRAIN, "", &[]),
            (OPEN, "", &[]),
        ] {
            assert_eq!(
                steps(&on(&quiet, worker(0), node(state, reason))),
                expected,
                "{reason:?}"
            );
        }
        // As long as slurmd is not up, a node that is open would be given jobs in vain.
        let starting = with(worker(0), &[("/status/conditions/0/status", json!("False"))]);
        assert_eq!(steps(&on(&quiet, starting, node(DRAIN, "slurm-operator: x"))), [""; 0]);
    }

    #[test]
    fn a_drain_that_slurm_forgot_is_given_again_and_one_that_somebody_took_back_is_not() {
        let quiet = k1(false, &json!({}));
        let cordoned = |since: &str| annotated(annotated(worker(0), CORDON, "true"), SINCE, since);
        // The state was not written down yet.
        let plan = on(&quiet, cordoned("2026-01-01T00:59:55Z"), node(OPEN, ""));
        assert_eq!(steps(&plan), ["drain compute-0"]);
        let plan = on(&quiet, cordoned("2026-01-01T00:50:00Z"), node(OPEN, ""));
        assert_eq!(steps(&plan), [""; 0]);
        assert_eq!(
            plan.waits,
            [Wait::Resumed {
                node: "compute-0".to_owned()
            }]
        );
        // Slurm was killed right after it, and the operator, too, was away for longer than it takes Slurm to write.
        for (booted, expected) in [
            ("2026-01-01T00:50:20Z", "drain compute-0"),
            ("2026-01-01T00:57:00Z", ""),
            ("2026-01-01T00:40:00Z", ""),
        ] {
            let plan = on(&quiet, cordoned("2026-01-01T00:50:00Z"), begun(node(OPEN, ""), booted));
            assert_eq!(steps(&plan).join("; "), expected, "{booted}");
        }
        // What was taken back is forgotten with the cordon.
        let uncordoned = annotated(worker(0), SINCE, "2026-01-01T00:50:00Z");
        assert_eq!(steps(&on(&quiet, uncordoned, node(OPEN, ""))), ["label compute-0"]);
    }

    #[test]
    fn a_drain_in_force_is_noted_once() {
        let quiet = k1(false, &json!({}));
        let cordoned = annotated(worker(0), CORDON, "true");
        let in_force = node(DRAIN, "slurm-operator: Pod (slurm/compute-0) was cordoned");
        let noted = annotated(cordoned.clone(), SINCE, "2026-01-01T00:59:55Z");
        assert_eq!(steps(&on(&quiet, cordoned, in_force.clone())), ["label compute-0"]);
        assert_eq!(steps(&on(&quiet, noted.clone(), in_force.clone())), [""; 0]);
        // And again for each slurmctld.
        let before = begun(in_force.clone(), "2026-01-01T00:50:00Z");
        assert_eq!(steps(&on(&quiet, noted.clone(), before)), [""; 0]);
        let after = begun(in_force, "2026-01-01T00:59:57Z");
        assert_eq!(steps(&on(&quiet, noted, after)), ["label compute-0"]);
    }

    #[test]
    fn the_reason_follows_the_cause_but_a_persons_stays() {
        let quiet = k1(false, &json!({}));
        let cordoned = || annotated(annotated(worker(0), CORDON, "true"), SINCE, "2026-01-01T00:50:00Z");
        assert_eq!(
            steps(&on(&quiet, cordoned(), node(DRAIN, "slurm-operator: something else"))),
            ["drain compute-0"]
        );
        assert_eq!(steps(&on(&quiet, cordoned(), node(DRAIN, "broken fan"))), [""; 0]);
    }
}
