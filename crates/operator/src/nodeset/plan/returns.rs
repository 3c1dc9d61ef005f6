//! Workers that are back, and ready workers that Slurm does not have.

use jiff::SignedDuration;
use slurm::node::Node as SlurmNode;

use super::{
    Effect, Occupancy, Plan, PlannedOrder, Situation, Wait, WorkerRemoval, cordon,
    drains::{has_operator_reason, is_slurm_reason},
    loss::ready_since,
    max_unavailable, stale_jobs,
};
use crate::{cluster::NodeOrder, unix_time::timestamp, worker::Worker};

/// Slurm and Kubernetes may disagree about a node until Kubernetes has noticed that it is unreachable (40 s by default).
const MISSED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// Resumes nodes whose workers are back. A resume also makes slurmd register, which ends copies of jobs that Slurm has
/// started elsewhere meanwhile.
pub(super) fn plan_returns(situation: &Situation<'_>, plan: &mut Plan) {
    let observed = situation.observed;
    for worker in &situation.stay {
        let alive = observed.host(*worker).is_some_and(|host| ready_since(host).is_some());
        let since = worker.ready_since().filter(|_| worker.is_ready() && alive);
        let (Some(since), Some(node)) = (since, observed.slurm_node(*worker)) else {
            continue;
        };
        // Slurm set it down before the worker became ready, or so long ago that Kubernetes would have noticed an outage.
        let given_up = node.reason_changed_at.finite().and_then(timestamp);
        let is_past = given_up.is_none_or(|at| at <= since || observed.now.duration_since(at) > MISSED_WITHIN);
        if node.state.is_down()
            && (has_operator_reason(node, Some(*worker)) || is_slurm_reason(&node.reason))
            && missed_address(*worker, node).is_none()
            && (stale_jobs::is_down_for_stale_jobs(node) || is_past)
            && cordon::reason(observed, *worker).is_none()
        {
            plan.effects.push(Effect::OrderNode {
                order: PlannedOrder::new(node, NodeOrder::Resume),
                note_on: None,
            });
        }
    }
}

/// Returns the address of a worker for which Slurm has the address of its predecessor: slurmctld was killed before it saved
/// the registration, and slurmd does not register again by itself. Once slurmctld has the address, it reaches the worker.
pub fn missed_address<'a>(worker: Worker<'a>, node: &SlurmNode) -> Option<&'a str> {
    let started = i64::try_from(node.slurmd_start_time.finite().unwrap_or_default()).ok()?;
    let is_of_another = worker.created().is_some_and(|created| started < created.as_second());
    let is_missed = node.state.is_down() || !node.state.is_responding();
    let is_missed = is_missed && node.state.is_dynamic() && is_of_another;
    worker.address_instead_of(&node.address).filter(|_| is_missed)
}

/// Replaces ready workers that are not registered in Slurm. slurmctld loses a node that joined just before it was killed,
/// and slurmd does not register again by itself.
pub(super) fn plan_unregistered(situation: &Situation<'_>, plan: &mut Plan) {
    let observed = situation.observed;
    if observed.knowledge.known().is_none() {
        return;
    }
    let long_ready = |worker: Worker<'_>| worker.is_available(MISSED_WITHIN, observed.now);
    let is_known = |worker: &Worker<'_>| observed.slurm_node(*worker).is_some();
    // If none is registered, they may all have other names in Slurm, so one worker shows first whether replacing helps.
    let limit = if situation.stay.iter().any(is_known) {
        max_unavailable(observed, plan.desired)
    } else {
        1
    };
    let young = observed.workers().filter(|worker| !long_ready(*worker)).count();
    let mut free = limit.saturating_sub(young);
    for worker in &situation.stay {
        // slurmd may have registered under the machine's own host name.
        if !long_ready(*worker) || is_known(worker) || worker.is_named_by_machine() {
            continue;
        }
        let node = worker.slurm_name().unwrap_or_default().to_owned();
        plan.needs_jobs = true;
        plan.waits.push(Wait::Other(format!(
            "the pod of node {node} is ready but not registered in Slurm; it is replaced, so that it registers"
        )));
        if free > 0 {
            free -= 1;
            plan.effects.push(Effect::RemoveWorker(WorkerRemoval {
                pod: worker.id(),
                node,
                occupancy: Occupancy::Absent,
                order: None,
                keep_record: None,
                claims: Vec::new(),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::super::{
        loss::tests::{DOWN, node, not_ready, planned},
        plan,
        tests::steps,
    };
    use crate::{
        cluster::Knowledge,
        nodeset::fixture::{IDLE, controller, host, known, nodeset, observed_exactly, slurm_key, with, worker},
    };

    #[test]
    fn a_node_whose_worker_is_back_is_resumed_unless_it_was_set_down_manually() {
        // The worker has been ready since 00:01.
        let (before, just_now, while_ago) = ("2026-01-01T00:00:30Z", "2026-01-01T00:59:50Z", "2026-01-01T00:50:00Z");
        let ours = "slurm-operator: lost: Kubernetes node k9 is gone";
        for (state, reason, at, expected) in [
            (DOWN, ours, before, "resume compute-0"),
            (
                &["DOWN", "DRAIN", "DYNAMIC_NORM"],
                "slurm-operator: Pod is terminating",
                before,
                "resume compute-0",
            ),
            (DOWN, "Not responding", before, "resume compute-0"),
            (DOWN, "Node unexpectedly rebooted", before, "resume compute-0"),
            // Kubernetes may be about to notice an outage too.
            (DOWN, "Not responding", just_now, ""),
            (DOWN, "Not responding", while_ago, "resume compute-0"),
            (DOWN, "broken fan", before, ""),
            (DOWN, "", before, ""),
            (IDLE, "", before, ""),
        ] {
            let plan = planned(vec![worker(0), host("k1")], json!(null), node(state, reason, at));
            assert_eq!(steps(&plan).join("; "), expected, "{state:?} {reason} {at}");
        }
        let starting = with(worker(0), &[("/status/conditions/0/status", json!("False"))]);
        for objects in [vec![starting, host("k1")], vec![worker(0), not_ready(host("k1"))]] {
            assert_eq!(steps(&planned(objects, json!(null), node(DOWN, ours, before))), [""; 0]);
        }
    }

    #[test]
    fn a_node_is_resumed_only_where_its_worker_is() {
        // The worker was created at midnight.
        let (before, after) = ("2025-12-31T23:59:00Z", "2026-01-01T00:00:30Z");
        let lost = "slurm-operator: lost: Kubernetes node k9 is gone";
        for (case, address, started, expected) in [
            ("the one before it was there", "10.0.0.9", before, ""),
            ("it is there", "10.0.0.1", before, "resume compute-0"),
            (
                "it was there, on a network of its own",
                "10.0.0.9",
                after,
                "resume compute-0",
            ),
            ("Slurm looks the address up", "compute-0", before, "resume compute-0"),
        ] {
            let started: Timestamp = started.parse().unwrap();
            let pod = with(
                worker(0),
                &[
                    ("/metadata/creationTimestamp", json!("2026-01-01T00:00:00Z")),
                    ("/status/podIP", json!("10.0.0.1")),
                ],
            );
            let Knowledge::Known(seen) = node(DOWN, lost, before) else {
                panic!("it is known")
            };
            let mut seen = crate::cluster::Seen::clone(&seen);
            let record = seen.nodes.get_mut("compute-0").unwrap();
            record.address = address.to_owned();
            record.slurmd_start_time =
                serde_json::from_value(json!({ "set": true, "number": started.as_second() })).unwrap();
            let plan = planned(vec![pod, host("k1")], json!(null), Knowledge::Known(seen.into()));
            assert_eq!(steps(&plan).join("; "), expected, "{case}");
        }
    }

    #[test]
    fn workers_that_slurm_does_not_know_are_replaced_one_first_then_as_many_as_may_be_missing() {
        let replaced = |pods: Vec<Value>, nodes: &[(&str, &[&str])]| {
            let set =
                nodeset(&json!({ "replicas": 4, "updateStrategy": { "rollingUpdate": { "maxUnavailable": 2 } } }));
            let all = [vec![controller(), slurm_key(), host("k1"), set], pods].concat();
            steps(&plan(&observed_exactly("compute", all, known(nodes, &[])))).len()
        };
        let four = || (0..4).map(worker).collect::<Vec<Value>>();
        assert_eq!(replaced(four(), &[]), 1);
        let one_known: &[(&str, &[&str])] = &[("compute-0", IDLE)];
        assert_eq!(replaced(four(), one_known), 2);
        // A worker that has just become ready counts.
        let young = with(
            worker(0),
            &[("/status/conditions/0/lastTransitionTime", json!("2026-01-01T00:59:50Z"))],
        );
        assert_eq!(replaced([vec![young], four().split_off(1)].concat(), one_known), 1);
        let on_host = |pod| with(pod, &[("/spec/hostNetwork", json!(true))]);
        assert_eq!(replaced(four().into_iter().map(on_host).collect(), &[]), 0);
    }
}
