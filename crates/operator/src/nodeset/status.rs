//! The status of a NodeSet.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use api::{
    Condition, NodeSet, NodeSetStatus,
    conditions::{CRDS_OUTDATED, DEGRADED, PROGRESSING, READY, RESERVATION_CREATED, SLURM_REACHABLE, UNKNOWN_FIELDS},
    keys::{self, annotations},
    nodeset::ScalingMode,
};
use kube::ResourceExt;
use slurm::node::{BaseState, NodeFlag, NodeState};

use super::{
    observe::Observed,
    out_of_service::list_out_of_service,
    plan::{Effect, Plan, ReservationReport, Wait, cut_off, fit},
};
use crate::{
    cluster::Knowledge,
    reason,
    runtime::{DesiredCondition, Failure, State, remarks, settle},
    startup::describe_startup,
    worker::{Phase, Worker},
};

/// Items that a message names; it counts the rest.
const NAMED: usize = 3;

/// Builds the status, with a failed step of the plan, if there was one.
pub fn status(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> NodeSetStatus {
    let nodeset = observed.nodeset.as_ref();
    let previous = nodeset.status.clone().unwrap_or_default();
    let workers: Vec<Worker<'_>> = observed.workers().collect();
    let to_i32 = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let count = |holds: &dyn Fn(Worker<'_>) -> bool| to_i32(workers.iter().filter(|worker| holds(**worker)).count());
    // Without a snapshot, nothing is counted in Slurm.
    let known = observed.knowledge.known();
    let nodes: Vec<Option<&slurm::Node>> = workers.iter().map(|worker| observed.slurm_node(*worker)).collect();
    let count_nodes = |holds: &dyn Fn(&NodeState) -> bool| {
        known.map(|_| to_i32(nodes.iter().flatten().filter(|node| holds(&node.state)).count()))
    };
    let available: Vec<bool> = workers
        .iter()
        .map(|worker| worker.is_available(observed.min_ready(), observed.now))
        .collect();
    let in_service = workers.iter().zip(&nodes).zip(&available);
    let in_service = in_service
        .filter(|((worker, node), available)| **available && worker.is_active() && (known.is_none() || node.is_some()));
    let in_service = to_i32(in_service.count());
    let available = to_i32(available.into_iter().filter(|available| *available).count());
    let desired = i32::try_from(plan.desired).unwrap_or(i32::MAX);
    let wanted = conditions(observed, plan, in_service, desired, failure);
    let generation = nodeset.metadata.generation.unwrap_or(0);
    let conditions = settle(&previous.conditions, &wanted, generation, observed.now);
    let revision = plan.revision.as_ref();
    let newer_fields = !observed.environment.crds_outdated;
    let hash = revision.map_or(previous.node_set_hash, |revision| revision.hash.clone());
    let is_updated =
        |worker: Worker<'_>| worker.has_phase() && !worker.is_terminating() && worker.revision() == Some(&hash);
    NodeSetStatus {
        replicas: count(&|worker| worker.has_phase()),
        updated_replicas: count(&is_updated),
        ready_replicas: count(&|worker| worker.is_ready()),
        available_replicas: available,
        unavailable_replicas: desired.saturating_sub(available).max(0),
        desired,
        slurm_idle: count_nodes(&|state| state.base == Some(BaseState::Idle)),
        slurm_allocated: count_nodes(&NodeState::is_allocated),
        slurm_down: count_nodes(&NodeState::is_down),
        slurm_drain: count_nodes(&|state| state.has(NodeFlag::Drain)),
        slurm_out_of_service: count_nodes(&NodeState::is_out_of_service).filter(|_| newer_fields),
        out_of_service: Some(list_out_of_service(&nodes)).filter(|nodes| newer_fields && !nodes.is_empty()),
        observed_generation: Some(generation),
        collision_count: revision
            .map(|revision| revision.collisions)
            .or(previous.collision_count),
        conditions: keep_others(&previous.conditions, conditions, &plan.reservation),
        reserved_start: match &plan.reservation {
            ReservationReport::Unchanged => previous.reserved_start,
            ReservationReport::Absent => None,
            ReservationReport::Reported { start, .. } => start.map(Into::into),
        },
        ordinal_to_node: pins(observed, &workers),
        cut_off: Some(cut_off(observed)).filter(|cut_off| !cut_off.is_empty() && newer_fields),
        selector: nodeset.child_names().selector(),
        node_set_hash: hash,
    }
}

/// Returns how long until the next ready worker counts as available.
pub fn until_available(observed: &Observed) -> Option<Duration> {
    let ready = observed.workers().filter(|worker| worker.is_ready());
    let left = ready.filter_map(|worker| {
        let left = observed.min_ready() - observed.now.duration_since(worker.ready_since()?);
        Duration::try_from(left).ok().filter(|left| !left.is_zero())
    });
    left.min()
}

/// Returns the node on which each ordinal first ran; the pin lasts as long as the node exists and matches.
fn pins(observed: &Observed, workers: &[Worker<'_>]) -> Option<BTreeMap<String, String>> {
    let nodeset: &NodeSet = &observed.nodeset;
    if !nodeset.spec.pins_to_node() || nodeset.spec.scaling_mode() == ScalingMode::DaemonSet {
        return None;
    }
    let name = nodeset.name_any();
    let pins = observed.pins().into_iter();
    let mut pins: BTreeMap<String, String> = pins
        .map(|(ordinal, node)| (ordinal.to_string(), node.name_any()))
        .collect();
    for worker in workers.iter().filter(|worker| worker.phase() == Phase::Running) {
        if let Some(ordinal) = worker.ordinal(&name)
            && let Entry::Vacant(pin) = pins.entry(ordinal.to_string())
            && let Some(node) = observed.host(*worker).filter(|node| fit(nodeset, node).stay)
        {
            pin.insert(node.name_any());
        }
    }
    Some(pins)
}

fn keep_others(previous: &[Condition], ours: Vec<Condition>, reservation: &ReservationReport) -> Vec<Condition> {
    let is_reported = *reservation != ReservationReport::Unchanged;
    let is_ours = |type_: &str| match type_ {
        // These are absent from `ours` while they do not hold.
        CRDS_OUTDATED | UNKNOWN_FIELDS => true,
        RESERVATION_CREATED => is_reported,
        _ => ours.iter().any(|condition| condition.type_ == type_),
    };
    let others = previous.iter().filter(|condition| !is_ours(&condition.type_));
    let others: Vec<Condition> = others.cloned().collect();
    [ours, others].concat()
}

fn conditions(
    observed: &Observed,
    plan: &Plan,
    in_service: i32,
    desired: i32,
    failure: Option<&Failure>,
) -> Vec<DesiredCondition> {
    let mut wanted = Vec::new();
    let deleting = observed.nodeset.metadata.deletion_timestamp.is_some();
    let waits = waits(plan);
    if let Some(rejection) = &plan.rejection {
        let (reason, message) = (rejection.reason, &rejection.message);
        wanted.push(DesiredCondition::false_(READY, reason, message));
        wanted.push(DesiredCondition::false_(PROGRESSING, reason, message));
        wanted.push(DesiredCondition::true_(DEGRADED, reason, message));
    } else {
        let name_taken = failure.filter(|failure| failure.is_name_taken());
        let counted = format!("{in_service} of {desired} workers are in service");
        let is_short = in_service < desired;
        wanted.push(if deleting {
            DesiredCondition::false_(READY, reason::DELETING, "the NodeSet is being deleted")
        } else if let Some(failure) = name_taken {
            DesiredCondition::false_(READY, failure.reason, failure.message.clone())
        } else if is_short {
            DesiredCondition::false_(READY, reason::WORKERS_NOT_READY, counted)
        } else {
            DesiredCondition::true_(READY, reason::WORKERS_READY, counted)
        });
        let has_steps = plan.effects.iter().any(|effect| *effect != Effect::AddFinalizer);
        wanted.push(if deleting || has_steps || !plan.waits.is_empty() || is_short {
            let message = if waits.is_empty() {
                "workers are being reconciled".to_owned()
            } else if deleting {
                let annotation = annotations::FORCE_DELETION;
                format!(
                    "{waits}; to stop waiting, annotate the NodeSet with {annotation}={}",
                    keys::ON
                )
            } else {
                waits.clone()
            };
            DesiredCondition::true_(PROGRESSING, reason::WORKING, message)
        } else {
            DesiredCondition::false_(PROGRESSING, reason::SETTLED, "all workers are as desired")
        });
        let blocked = plan
            .waits
            .iter()
            .any(|wait| matches!(wait, Wait::SlurmUnknown { .. } | Wait::NameTaken(_)));
        let report = |failure: &Failure| (failure.reason, failure.message.clone());
        let degraded = name_taken
            .map(report)
            .or_else(|| Some((reason::KEY_MISMATCH, observed.key_mismatch.clone()?)))
            .or_else(|| failure.map(report))
            .or_else(|| blocked.then_some((reason::BLOCKED, waits)))
            .or_else(|| Some((reason::PODS_DO_NOT_START, stuck(observed)?)));
        wanted.push(match degraded {
            Some((reason, message)) => DesiredCondition::true_(DEGRADED, reason, message),
            None => DesiredCondition::false_(DEGRADED, reason::HEALTHY, "no problem found"),
        });
    }
    wanted.push(match &observed.knowledge {
        Knowledge::Known(_) => DesiredCondition::true_(SLURM_REACHABLE, reason::ANSWERING, "Slurm answers"),
        Knowledge::Unknown { why } => DesiredCondition::false_(SLURM_REACHABLE, reason::NOT_ANSWERING, why.clone()),
    });
    if observed.environment.crds_outdated {
        wanted.push(DesiredCondition::true_(
            CRDS_OUTDATED,
            reason::OLD_DEFINITIONS,
            "the installed CRDs are older than this operator, whose newer fields are off; upgrade slurm-operator-crds",
        ));
    }
    wanted.extend(remarks(&[], &plan.warnings));
    if let ReservationReport::Reported { condition, .. } = &plan.reservation {
        wanted.push(condition.clone());
    }
    wanted
}

/// Describes the startup problems of workers that waiting does not fix.
fn stuck(observed: &Observed) -> Option<String> {
    let workers = observed.workers();
    let unready = workers.filter(|worker| worker.is_active() && !worker.is_ready());
    describe_startup(unready.map(|worker| worker.0))
}

pub fn state(plan: &Plan) -> State {
    let waits = waits(plan);
    let is_blocked = |wait: &Wait| matches!(wait, Wait::SlurmUnknown { .. });
    match &plan.rejection {
        Some(rejection) => rejection.state(),
        None if plan.waits.iter().any(is_blocked) => State::Blocked { on: waits },
        None if !waits.is_empty() => State::Progressing { why: waits },
        None if plan.effects.is_empty() => State::Settled,
        None => State::Progressing {
            why: format!("{} steps were taken", plan.effects.len()),
        },
    }
}

fn waits(plan: &Plan) -> String {
    let waits: Vec<String> = plan.waits.iter().map(Wait::message).collect();
    shortened(&waits)
}

fn shortened(sentences: &[String]) -> String {
    match sentences.split_at_checked(NAMED) {
        Some((named, more)) if !more.is_empty() => format!("{}; and {} more", named.join("; "), more.len()),
        _ => sentences.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::{Value, json};

    use super::*;
    use crate::nodeset::{
        fixture::{
            DRAINED, DRAINING, IDLE, controller, finished, known, marked, nodeset, observed, slurm_key, terminating,
            unknown, with, worker,
        },
        plan::plan,
    };

    fn said(spec: &Value, pods: Vec<Value>, knowledge: Knowledge) -> NodeSetStatus {
        let mut objects = vec![controller(), slurm_key(), nodeset(spec)];
        objects.extend(pods);
        let observed = observed(objects, knowledge);
        status(&observed, &plan(&observed), None)
    }

    fn condition<'a>(status: &'a NodeSetStatus, type_: &str) -> (&'a str, &'a str, &'a str) {
        let found = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_)
            .unwrap();
        (found.status.as_str(), &found.reason, &found.message)
    }

    #[test]
    fn slurm_nodes_are_counted_by_state() {
        let down: &[&str] = &["DOWN", "NOT_RESPONDING", "DYNAMIC_NORM"];
        let nodes: &[(&str, &[&str])] = &[
            ("compute-0", IDLE),
            ("compute-1", DRAINED),
            ("compute-2", DRAINING),
            ("compute-3", down),
            ("compute-4", &["MIXED"]),
            ("other-0", IDLE),
        ];
        let status = said(
            &json!({ "replicas": 5 }),
            (0..5).map(worker).collect(),
            known(nodes, &[]),
        );
        assert_eq!(
            [
                status.slurm_idle,
                status.slurm_allocated,
                status.slurm_down,
                status.slurm_drain
            ],
            [Some(2), Some(2), Some(1), Some(2)]
        );
    }

    #[test]
    fn nothing_is_counted_while_slurm_cannot_be_asked() {
        let status = said(&json!({ "replicas": 1 }), vec![worker(0)], unknown());
        assert_eq!(
            [
                status.slurm_idle,
                status.slurm_allocated,
                status.slurm_down,
                status.slurm_drain
            ],
            [None; 4]
        );
        assert_eq!(
            condition(&status, SLURM_REACHABLE),
            ("False", "NotAnswering", "nobody answers")
        );
        // Running workers still count.
        assert_eq!(condition(&status, READY).0, "True");
        assert_eq!(condition(&status, DEGRADED).0, "False");
    }

    #[test]
    fn pods_are_counted_as_upstream_counts_them() {
        let unready = with(worker(1), &[("/status/conditions/0/status", json!("False"))]);
        let pods = vec![worker(0), unready, finished(worker(2)), terminating(worker(3))];
        let status = said(&json!({ "replicas": 5 }), pods, unknown());
        assert_eq!(
            (
                status.replicas,
                status.ready_replicas,
                status.available_replicas,
                status.desired
            ),
            (4, 2, 2, 5)
        );
        // Missing workers are unavailable too.
        assert_eq!(status.unavailable_replicas, 3);
        assert_eq!(
            status.selector,
            "app.kubernetes.io/instance=compute,app.kubernetes.io/name=slurmd"
        );
        assert_eq!(
            condition(&status, READY),
            ("False", "WorkersNotReady", "1 of 5 workers are in service")
        );
    }

    #[test]
    fn a_worker_is_available_after_min_ready_seconds() {
        let just_ready = with(
            worker(0),
            &[("/status/conditions/0/lastTransitionTime", json!("2026-01-01T00:59:55Z"))],
        );
        let spec = json!({ "replicas": 1, "minReadySeconds": 20 });
        let status = said(&spec, vec![just_ready.clone()], unknown());
        assert_eq!((status.ready_replicas, status.available_replicas), (1, 0));
        let observed = observed(vec![controller(), slurm_key(), nodeset(&spec), just_ready], unknown());
        assert_eq!(until_available(&observed), Some(Duration::from_secs(15)));
    }

    #[test]
    fn a_ready_worker_that_slurm_does_not_know_is_not_in_service() {
        let status = said(&json!({ "replicas": 1 }), vec![worker(0)], known(&[], &[]));
        assert_eq!(condition(&status, READY).0, "False");
        assert_eq!(condition(&status, PROGRESSING).0, "True");
    }

    #[test]
    fn workers_with_another_key_are_reported() {
        let objects = vec![controller(), slurm_key(), nodeset(&json!({ "replicas": 1 })), worker(0)];
        let observed = Observed {
            key_mismatch: Some("pod compute-0".to_owned()),
            ..observed(objects, unknown())
        };
        let failure = Failure {
            reason: "Retrying",
            message: "something failed".to_owned(),
        };
        let status = status(&observed, &plan(&observed), Some(&failure));
        assert_eq!(condition(&status, DEGRADED), ("True", "KeyMismatch", "pod compute-0"));
    }

    #[test]
    fn a_wait_for_a_job_names_the_job() {
        let nodes: &[(&str, &[&str])] = &[("compute-0", DRAINING)];
        let job: &[(u64, &[&str], &str)] = &[(7, &["RUNNING"], "compute-0")];
        let status = said(&json!({ "replicas": 0 }), vec![marked(worker(0))], known(nodes, job));
        assert_eq!(
            condition(&status, PROGRESSING).2,
            "node compute-0 is drained and kept: job 7 (RUNNING) is there; waited for since 2026-01-01T00:59:00Z, however long it \
             takes (spec.drain can set an end to it)"
        );
    }

    #[test]
    fn a_rejected_set_keeps_its_counts_and_reports_the_remedy() {
        let observed = observed(vec![nodeset(&json!({ "replicas": 1 })), worker(0)], unknown());
        let status = status(&observed, &plan(&observed), None);
        assert_eq!(status.ready_replicas, 1);
        let (state, reason, message) = condition(&status, READY);
        assert_eq!((state, reason), ("False", "ControllerMissing"));
        assert!(message.contains("\"slurm\""), "{message}");
    }

    #[test]
    fn the_same_facts_give_the_same_status() {
        let objects = vec![controller(), slurm_key(), nodeset(&json!({ "replicas": 1 })), worker(0)];
        let first = observed(objects.clone(), unknown());
        let said = status(&first, &plan(&first), None);
        let mut again = objects;
        again[2]["status"] = serde_json::to_value(&said).unwrap();
        let second = Observed {
            now: first.now + SignedDuration::from_secs(60),
            ..observed(again, unknown())
        };
        assert_eq!(status(&second, &plan(&second), None), said);
    }
}
