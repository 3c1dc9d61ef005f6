//! Removes workers: each is marked, drained, proven idle and removed. A step is planned only once the previous one is
//! observed. `spec.drain` says how long a worker waits for its jobs and how they end then; without it, it waits forever.

use api::{drain::OnDrainTimeout, nodeset::ClaimRetention};
use jiff::{SignedDuration, Timestamp};
use slurm::{AdminState, Job, Node, job::JobStateName};

use super::{
    Effect, JobEnd, Plan, PlannedOrder, Situation, Wait, WorkerRemoval, drains,
    proof::{Evidence, Occupancy},
    reservation,
};
use crate::{
    cluster::{JobOrder, NodeOrder, Seen},
    nodeset::{build, observe::Observed},
    startup::startup_problem,
    worker::{Cause, Leaving, Worker},
};

/// slurmd registers within seconds of its start, or 20 s later if it finds no slurmctld. The clocks of kubelet and operator may
/// be a minute apart.
pub(super) const REGISTERS_WITHIN: SignedDuration = SignedDuration::from_mins(2);
/// Why a worker whose node is not drained yet is kept.
pub(super) const ABOUT_TO_DRAIN: &str = "it is about to be drained";

/// Marks the workers that leave, and unmarks those that stay after all. [`drains`] reverts the drain of an unmarked worker.
pub(super) fn plan_marks(situation: &Situation<'_>, plan: &mut Plan) {
    for (worker, cause) in &situation.leave {
        let leaving = worker.leaving();
        // The deletion of the NodeSet is already recorded on the NodeSet.
        if *cause == Cause::Deletion || leaving.is_some_and(|leaving| leaving.cause == *cause) {
            continue;
        }
        let since = leaving.map_or(situation.observed.now, |leaving| leaving.since);
        plan.effects.push(Effect::MarkLeaving {
            pod: worker.id(),
            leaving: Some(Leaving { cause: *cause, since }),
        });
    }
    for worker in situation.stay.iter().filter(|worker| worker.is_marked()) {
        let (pod, leaving) = (worker.id(), None);
        plan.effects.push(Effect::MarkLeaving { pod, leaving });
    }
}

/// Removes the leaving workers that are proven to have no job.
pub(super) fn plan_removals(situation: &Situation<'_>, plan: &mut Plan) {
    for (worker, cause) in &situation.leave {
        if worker.leaving().is_none() && *cause != Cause::Deletion {
            continue;
        }
        plan.needs_jobs = true;
        match &situation.evidence {
            Some(evidence) => plan_removal(situation.observed, evidence, *worker, *cause, plan),
            None => return plan.wait_for_slurm(situation.observed),
        }
    }
}

fn plan_removal(observed: &Observed, evidence: &Evidence<'_>, worker: Worker<'_>, cause: Cause, plan: &mut Plan) {
    let node = worker.slurm_name().unwrap_or_default();
    let occupancy = if node.is_empty() {
        // It is named after its Kubernetes node and has none, so no slurmd has ever run in it.
        Occupancy::Absent
    } else {
        evidence.occupancy(node)
    };
    if cause == Cause::PowerDown {
        return plan_power_down(worker, node, occupancy, plan);
    }
    let why = match &occupancy {
        Occupancy::Undrained if plan.waits.contains(&drains::resumed(node, true)) => return,
        Occupancy::Undrained => ABOUT_TO_DRAIN.to_owned(),
        Occupancy::Starting => "Slurm has started it, and it has not registered".to_owned(),
        // slurmd may have registered under another host name, and that node may have jobs.
        Occupancy::Absent if !node.is_empty() && worker.is_named_by_machine() && worker.may_have_started() => {
            "Slurm has no node with the name of the Kubernetes node; if slurmd registered under another name, delete that node \
             in Slurm and delete the pod by hand"
                .to_owned()
        }
        Occupancy::Absent | Occupancy::Free { .. } | Occupancy::Off => {
            if occupancy == Occupancy::Absent
                && let Some(end) = may_register_until(observed, worker)
            {
                let pod = worker.name();
                return plan.waits.push(Wait::Other(format!(
                    "pod {pod} may be about to register in Slurm and is kept until it has, and until {end:.0} at most"
                )));
            }
            let seen = observed.slurm_node(worker);
            let keep_record = seen.and_then(|node| reason_to_keep_record(node, worker, &occupancy, cause));
            let holder = seen.and_then(|node| reservation::explain_holder(&observed.nodeset, node));
            let Some(holder) = holder.filter(|_| keep_record.is_none()) else {
                let order = match keep_record {
                    Some(_) => NodeOrder::Drain { reason: None },
                    None => NodeOrder::Delete,
                };
                return plan.effects.push(Effect::RemoveWorker(WorkerRemoval {
                    pod: worker.id(),
                    node: node.to_owned(),
                    order: match seen {
                        Some(node) => Some(PlannedOrder::new(node, order)),
                        None => delete_unregistered(node),
                    },
                    keep_record,
                    occupancy,
                    claims: claims_to_delete(observed, worker, cause),
                }));
            };
            holder
        }
        Occupancy::Busy { why } => why.clone() + &plan_drain_timeout(observed, evidence, worker, plan),
        Occupancy::Unclear { why } => why.clone(),
    };
    plan.waits.push(Wait::draining(node, &why));
}

/// Removes a worker whose node Slurm has stopped. Slurm keeps the record, and gives it no job until a new worker registers.
fn plan_power_down(worker: Worker<'_>, node: &str, occupancy: Occupancy, plan: &mut Plan) {
    match occupancy {
        Occupancy::Off | Occupancy::Starting => plan.effects.push(Effect::RemoveWorker(WorkerRemoval {
            pod: worker.id(),
            node: node.to_owned(),
            order: None,
            keep_record: None,
            occupancy,
            claims: Vec::new(),
        })),
        Occupancy::Busy { why } | Occupancy::Unclear { why } => plan.waits.push(Wait::Other(format!(
            "Slurm has stopped node {node}, and its pod is kept: {why}"
        ))),
        Occupancy::Absent | Occupancy::Undrained | Occupancy::Free { .. } => {}
    }
}

/// Returns the order that keeps a worker from getting a job between the proof that it is not registered and the deletion of its pod.
/// Slurm refuses it if a job is there, and the agent does not make the worker register any more.
pub(super) fn delete_unregistered(node: &str) -> Option<PlannedOrder> {
    (!node.is_empty()).then(|| PlannedOrder {
        node: node.to_owned(),
        order: NodeOrder::Delete,
        // That of a node which has just registered.
        expect: AdminState::default(),
    })
}

/// Returns until when a worker that Slurm does not have is waited for. It may register and get a job at any moment, and
/// the kubelet reports the start of a container a second late, so one that is about to start counts too.
fn may_register_until(observed: &Observed, worker: Worker<'_>) -> Option<Timestamp> {
    // It had registered, and its record is deleted already. A slurmd without a record does not register again by itself.
    let was_registered = drains::noted(observed, worker).is_some();
    let is_stuck = worker.last_start().is_none() && startup_problem(worker.0).is_some();
    let since = worker.last_progress().filter(|_| !was_registered && !is_stuck)?;
    // The agent makes those register that slurmctld has forgotten.
    let boot = observed.knowledge.known().and_then(Seen::boot);
    let end = since.max(boot.unwrap_or(since)).checked_add(REGISTERS_WITHIN).ok()?;
    (observed.now < end).then_some(end)
}

/// Returns why Slurm's record has to outlive the worker, if it does.
fn reason_to_keep_record(node: &Node, worker: Worker<'_>, occupancy: &Occupancy, cause: Cause) -> Option<String> {
    if let Occupancy::Free { keep_record: Some(why) } = occupancy {
        return Some(why.clone());
    }
    // The successor would register without the administrator's drain and accept jobs.
    let is_manual = cause == Cause::Update && !drains::has_operator_reason(node, Some(worker));
    is_manual.then(|| format!("an administrator drained it: {}", node.reason))
}

/// Returns the claims to delete with this worker.
fn claims_to_delete(observed: &Observed, worker: Worker<'_>, cause: Cause) -> Vec<String> {
    let nodeset = observed.nodeset.as_ref();
    let are_deleted = nodeset.spec.claims_when_scaled() == ClaimRetention::Delete && cause == Cause::ScaleIn;
    let suffix = worker.claim_suffix().filter(|_| are_deleted);
    suffix.map_or_else(Vec::new, |suffix| build::claims_of(nodeset, suffix))
}

/// Returns how long a leaving worker waits for the jobs on its node, and ends them after the timeout.
fn plan_drain_timeout(observed: &Observed, evidence: &Evidence<'_>, worker: Worker<'_>, plan: &mut Plan) -> String {
    let marked = worker.leaving().map(|leaving| leaving.since);
    let deleted = observed.nodeset.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    // The wait of a leaving worker does not start again when its NodeSet is deleted too.
    let since = [marked, deleted].into_iter().flatten().min().unwrap_or(observed.now);
    let drain = observed.nodeset.spec.drain();
    let (order, ended) = match drain.on_timeout() {
        OnDrainTimeout::Requeue => (Some(JobOrder::Requeue), "requeued"),
        OnDrainTimeout::Cancel => (Some(JobOrder::Cancel), "cancelled"),
        // An unknown value never ends a job.
        OnDrainTimeout::Wait | OnDrainTimeout::Other(_) => (None, ""),
    };
    let Some((timeout, order)) = drain.timeout().zip(order) else {
        return format!("; waited for since {since:.0}, however long it takes (spec.drain can set an end to it)");
    };
    match since.checked_add(timeout) {
        // A timeout beyond the range of timestamps never ends.
        Err(_) => format!("; waited for since {since:.0}"),
        Ok(end) if end > observed.now => format!("; waited for since {since:.0}, {ended} at {end:.0} (spec.drain)"),
        Ok(end) => {
            let stuck = plan_end(evidence, worker.slurm_name().unwrap_or_default(), order, plan);
            format!("; waited for since {since:.0}, {ended} from {end:.0} on (spec.drain){stuck}")
        }
    }
}

/// Plans the end of the jobs on a node, and returns a note about the jobs that cannot be ended.
fn plan_end(evidence: &Evidence<'_>, node: &str, order: JobOrder, plan: &mut Plan) -> String {
    let seen = evidence.seen.nodes.get(node);
    let is_drained = seen.is_some_and(|node| node.state.is_drain());
    let (willing, stuck): (Vec<&Job>, Vec<&Job>) = evidence
        .jobs_on(node)
        .filter(|job| is_drained && may_be_ended(job))
        .partition(|job| order == JobOrder::Cancel || job.can_be_requeued());
    for job in willing {
        let end = JobEnd {
            job: job.handle(),
            node: node.to_owned(),
            order,
        };
        // A job on several leaving nodes is ended once.
        let is_same = |other: &Effect| matches!(other, Effect::EndJob(other) if other.job == end.job);
        if !plan.effects.iter().any(is_same) {
            plan.effects.push(Effect::EndJob(end));
        }
    }
    stuck.first().map_or_else(String::new, |job| {
        format!(
            "; job {} cannot be requeued, since it is no batch job or was submitted with --no-requeue, and is waited for: \
             cancel it, or set spec.drain.onTimeout to Cancel",
            job.handle()
        )
    })
}

/// Whether a job runs or is suspended, and is not ending already.
pub fn may_be_ended(job: &Job) -> bool {
    let state = &job.state;
    (state.is_running() || state.has(JobStateName::Suspended)) && !state.has(JobStateName::Completing)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::{Plan, plan, tests::steps};
    use crate::{
        cluster::{Knowledge, Seen},
        nodeset::fixture::{
            DRAINED, DRAINING, IDLE, controller, known, marked, nodeset, now, observed, planned, slurm_key,
            terminating, unknown, worker,
        },
    };

    /// One surplus worker, chosen to leave a minute ago, with a job on it.
    fn waiting(drain: &Value, jobs: &[(u64, &[&str], &str)]) -> Plan {
        let nodes: &[(&str, &[&str])] = &[("compute-0", IDLE), ("compute-1", DRAINING)];
        let spec = json!({ "replicas": 1, "drain": drain });
        planned(&spec, vec![worker(0), marked(worker(1))], known(nodes, jobs))
    }

    fn said(plan: &Plan) -> String {
        let [wait] = plan.waits.as_slice() else {
            panic!("{:?}", plan.waits)
        };
        let message = wait.message();
        assert!(message.contains(" is drained and kept: "), "{message}");
        message
    }

    const RUNNING: &[(u64, &[&str], &str)] = &[(7, &["RUNNING"], "compute-1")];

    #[test]
    fn no_job_is_ended_before_the_timeout_or_without_one() {
        for (drain, words) in [
            (json!({}), "however long it takes"),
            (json!({ "timeout": "1s", "onTimeout": "Wait" }), "however long it takes"),
            (
                json!({ "timeout": "1h", "onTimeout": "Requeue" }),
                "since 2026-01-01T00:59:00Z, requeued at 2026-01-01T01:59:00Z",
            ),
            (
                json!({ "timeout": "61s", "onTimeout": "Cancel" }),
                "cancelled at 2026-01-01T01:00:01Z",
            ),
        ] {
            let plan = waiting(&drain, RUNNING);
            assert_eq!(steps(&plan), [""; 0], "{drain}");
            assert!(said(&plan).contains("job 7"), "{}", said(&plan));
            assert!(said(&plan).contains(words), "{}", said(&plan));
        }
    }

    #[test]
    fn jobs_that_remain_after_the_timeout_are_ended_as_the_spec_says() {
        for (action, done) in [("Requeue", "requeue 7"), ("Cancel", "cancel 7")] {
            let plan = waiting(&json!({ "timeout": "1m", "onTimeout": action }), RUNNING);
            assert_eq!(steps(&plan), [done]);
            assert!(said(&plan).contains("from 2026-01-01T01:00:00Z on"), "{}", said(&plan));
        }
        let cancel = json!({ "timeout": "1m", "onTimeout": "Cancel" });
        for (state, ended) in [
            (&["SUSPENDED"][..], true),
            (&["RUNNING", "CONFIGURING"], true),
            // It is ending already.
            (&["COMPLETED", "COMPLETING"], false),
            (&["RUNNING", "COMPLETING"], false),
            (&["SOMETHING_NEW"], false),
        ] {
            let plan = waiting(&cancel, &[(7, state, "compute-1")]);
            assert_eq!(!steps(&plan).is_empty(), ended, "{state:?}");
        }
    }

    #[test]
    fn only_jobs_of_workers_that_leave_are_ended_and_each_once() {
        let cancel = json!({ "timeout": "1m", "onTimeout": "Cancel" });
        let jobs: &[(u64, &[&str], &str)] = &[(7, &["RUNNING"], "compute-0"), (8, &["RUNNING"], "compute-[1-2]")];
        let nodes: &[(&str, &[&str])] = &[("compute-0", IDLE), ("compute-1", DRAINING), ("compute-2", DRAINING)];
        let pods = vec![worker(0), marked(worker(1)), marked(worker(2))];
        let plan = planned(&json!({ "replicas": 1, "drain": cancel }), pods, known(nodes, jobs));
        assert_eq!(steps(&plan), ["cancel 8"]);
    }

    #[test]
    fn a_job_that_cannot_be_requeued_is_waited_for_and_never_cancelled() {
        for field in ["requeue", "batch_flag"] {
            let mut job = json!({ "job_id": 7, "job_state": ["RUNNING"], "nodes": "compute-1" });
            job[field] = json!(false);
            let observation = slurm::rest::Observation {
                nodes: serde_json::from_value(json!([
                    { "name": "compute-0", "state": IDLE }, { "name": "compute-1", "state": DRAINING, "reason": "slurm-operator: x" },
                ]))
                .unwrap(),
                jobs: vec![serde_json::from_value(job).unwrap()],
                process: Some(slurm::rest::Process { boot_time: 1 }),
            };
            let spec = json!({ "replicas": 1, "drain": { "timeout": "1s", "onTimeout": "Requeue" } });
            let seen = Knowledge::Known(Seen::new(observation, now(), crate::cluster::Source::Agent).into());
            let plan = planned(&spec, vec![worker(0), marked(worker(1))], seen);
            let ended = steps(&plan).iter().any(|step| step.ends_with('7'));
            assert!(!ended, "{:?}", steps(&plan));
            assert!(said(&plan).contains("cannot be requeued"), "{}", said(&plan));
        }
    }

    #[test]
    fn a_deleted_set_waits_as_long_from_its_deletion() {
        // It was deleted thirty seconds ago.
        let deleted = |timeout: &str| {
            let spec = json!({ "drain": { "timeout": timeout, "onTimeout": "Requeue" } });
            let objects = vec![controller(), slurm_key(), terminating(nodeset(&spec)), worker(0)];
            let jobs: &[(u64, &[&str], &str)] = &[(7, &["RUNNING"], "compute-0")];
            steps(&plan(&observed(objects, known(&[("compute-0", DRAINING)], jobs))))
        };
        assert!(!deleted("31s").contains(&"requeue 7".to_owned()));
        assert!(deleted("30s").contains(&"requeue 7".to_owned()));
    }

    fn any_state() -> impl Strategy<Value = Vec<&'static str>> {
        prop_oneof![
            Just(IDLE.to_vec()),
            Just(DRAINED.to_vec()),
            Just(DRAINING.to_vec()),
            Just(vec!["DOWN", "DRAIN", "DYNAMIC_NORM"]),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        /// In any state of the cluster, and also for specs that validation rejects.
        #[test]
        fn without_a_timeout_action_no_job_is_ever_ended(
            states in prop::collection::vec(any_state(), 3),
            jobs in prop::collection::vec((1..50_u64, 0..3_u32, prop_oneof![Just("RUNNING"), Just("SUSPENDED")]), 0..5),
            chosen in prop::collection::vec(any::<bool>(), 3),
            replicas in 0..4_u32,
            timeout in prop::option::of(prop_oneof![Just("1ns"), Just("1h"), Just("nonsense")]),
            on_timeout in prop::option::of(prop_oneof![Just("Wait"), Just("Kill")]),
            deleted in any::<bool>(),
            silent in any::<bool>(),
        ) {
            let names: Vec<String> = (0..3).map(|n| format!("compute-{n}")).collect();
            let nodes: Vec<(&str, &[&str])> =
                names.iter().zip(&states).map(|(name, state)| (name.as_str(), state.as_slice())).collect();
            let jobs: Vec<(u64, Vec<&str>, String)> =
                jobs.iter().map(|(id, on, state)| (*id, vec![*state], format!("compute-{on}"))).collect();
            let jobs: Vec<(u64, &[&str], &str)> =
                jobs.iter().map(|(id, state, on)| (*id, state.as_slice(), on.as_str())).collect();
            let spec = json!({ "replicas": replicas, "drain": { "timeout": timeout, "onTimeout": on_timeout } });
            let set = if deleted { terminating(nodeset(&spec)) } else { nodeset(&spec) };
            let pods = chosen.iter().zip(0..).map(|(chosen, n)| if *chosen { marked(worker(n)) } else { worker(n) });
            let objects = [controller(), slurm_key(), set].into_iter().chain(pods).collect();
            let knowledge = if silent { unknown() } else { known(&nodes, &jobs) };
            let ended = steps(&plan(&observed(objects, knowledge)));
            prop_assert!(!ended.iter().any(|step| step.starts_with("requeue") || step.starts_with("cancel")), "{ended:?}");
        }
    }
}
