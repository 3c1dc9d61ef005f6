//! How long a leaving worker waits for its jobs, and how they end afterwards. Without `spec.drain` it waits forever.

use api::drain::OnDrainTimeout;
use jiff::Timestamp;
use slurm::{Job, job::JobStateName};

use super::{Effect, JobEnd, Plan, Wait, proof::Evidence};
use crate::{cluster::JobOrder, nodeset::observe::Observed, worker::Worker};

/// Plans for a leaving worker that has jobs, or may have, as `why` says.
pub(super) fn plan_drain_timeout(
    observed: &Observed,
    evidence: &Evidence<'_>,
    worker: Worker<'_>,
    node: &str,
    why: &str,
    plan: &mut Plan,
) {
    let outlook = match (since(observed, worker), limit(observed)) {
        (None, _) => String::new(),
        (Some(since), None) => {
            format!("; waited for since {since:.0}, however long it takes (spec.drain can set an end to it)")
        }
        (Some(since), Some((timeout, order))) => match since.checked_add(timeout) {
            Ok(end) if end > observed.now => {
                format!(
                    "; waited for since {since:.0}, {} at {end:.0} (spec.drain)",
                    past_tense(order)
                )
            }
            // A timeout beyond the range of timestamps never ends.
            Err(_) => format!("; waited for since {since:.0}"),
            Ok(end) => {
                let stuck = plan_end(observed, evidence, node, order, plan);
                format!(
                    "; waited for since {since:.0}, {} from {end:.0} on (spec.drain){stuck}",
                    past_tense(order)
                )
            }
        },
    };
    plan.waits.push(Wait::Draining {
        node: node.to_owned(),
        why: format!("{why}{outlook}"),
    });
}

/// Plans the end of the jobs on a node, and returns a note about the jobs that cannot be ended.
fn plan_end(observed: &Observed, evidence: &Evidence<'_>, node: &str, order: JobOrder, plan: &mut Plan) -> String {
    let drained = observed.knowledge.known().and_then(|seen| seen.nodes.get(node));
    if !drained.is_some_and(|node| node.state.is_drain()) {
        return String::new();
    }
    let (willing, stuck): (Vec<&Job>, Vec<&Job>) = evidence
        .jobs_on(node)
        .filter(|job| may_be_ended(job))
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
    match stuck.first() {
        None => String::new(),
        Some(job) => format!(
            "; job {} cannot be requeued, since it is no batch job or was submitted with --no-requeue, and is waited for: \
             cancel it, or set spec.drain.onTimeout to Cancel",
            job.handle()
        ),
    }
}

/// Whether a job runs or is suspended, and is not ending already.
pub fn may_be_ended(job: &Job) -> bool {
    let state = &job.state;
    (state.is_running() || state.has(JobStateName::Suspended)) && !state.has(JobStateName::Completing)
}

/// Returns since when the worker has been waiting for its jobs.
fn since(observed: &Observed, worker: Worker<'_>) -> Option<Timestamp> {
    let marked = worker.leaving().map(|leaving| leaving.since);
    let deleted = observed.nodeset.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    // The wait of a leaving worker does not start again when its NodeSet is deleted too.
    [marked, deleted].into_iter().flatten().min()
}

fn limit(observed: &Observed) -> Option<(jiff::SignedDuration, JobOrder)> {
    let drain = observed.nodeset.spec.drain();
    let order = match drain.on_timeout() {
        OnDrainTimeout::Requeue => JobOrder::Requeue,
        OnDrainTimeout::Cancel => JobOrder::Cancel,
        // An unknown value never ends a job.
        OnDrainTimeout::Wait | OnDrainTimeout::Other(_) => return None,
    };
    Some((drain.timeout()?, order))
}

fn past_tense(order: JobOrder) -> &'static str {
    match order {
        JobOrder::Requeue => "requeued",
        JobOrder::Cancel => "cancelled",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::{Plan, Wait, plan, tests::steps};
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

    fn said(plan: &Plan) -> &str {
        match plan.waits.as_slice() {
            [Wait::Draining { why, .. }] => why,
            other => panic!("{other:?}"),
        }
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
            let seen = Knowledge::Known(Seen::new(observation, now()).into());
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
