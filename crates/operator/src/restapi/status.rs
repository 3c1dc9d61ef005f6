//! What is said about a RestApi. Pure.

use api::{
    ConditionStatus, RestApiStatus, Validate,
    conditions::{DEGRADED, PROGRESSING, READY},
};
use jiff::Timestamp;

use super::{
    observe::Observed,
    plan::{Plan, reason},
};
use crate::runtime::{Failure, State, Wanted, remarks, settle};

/// The status to write.
pub(super) fn build_status(
    observed: &Observed,
    plan: &Plan,
    failure: Option<&Failure>,
    now: Timestamp,
) -> RestApiStatus {
    let rest_api = observed.rest_api.as_ref();
    let generation = rest_api.metadata.generation.unwrap_or_default();
    let previous = rest_api
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    RestApiStatus {
        conditions: settle(previous, &conditions(observed, plan, failure), generation, now),
        // Upstream's definitions, which may be the installed ones, drop it: it would be written again and again.
        observed_generation: observed.outdated.is_empty().then_some(generation),
    }
}

/// How things stand, for the queue.
pub(super) fn state(observed: &Observed, plan: &Plan) -> State {
    let ready = ready(observed, plan, None);
    match plan.faults.first() {
        Some(fault) if fault.reason == reason::INVALID_SPEC => State::Invalid {
            message: fault.message.clone(),
        },
        Some(fault) => State::Blocked {
            on: fault.message.clone(),
        },
        None if ready.status != ConditionStatus::True => State::Progressing { why: ready.message },
        None => State::Settled,
    }
}

fn conditions(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> Vec<Wanted> {
    let ready = ready(observed, plan, failure);
    let progressing = if ready.reason == "Starting" {
        Wanted::holds(PROGRESSING, "Starting", ready.message.clone())
    } else {
        Wanted::fails(PROGRESSING, "Settled", "")
    };
    let degraded = match (plan.faults.first(), failure) {
        (Some(fault), _) => Wanted::holds(DEGRADED, fault.reason, messages(plan)),
        (None, Some(failure)) => Wanted::holds(
            DEGRADED,
            if failure.refused { "ChildRefused" } else { "Retrying" },
            failure.message.clone(),
        ),
        (None, None) => Wanted::fails(DEGRADED, "Healthy", ""),
    };
    let mut wanted = vec![ready, progressing, degraded];
    wanted.extend(remarks(&observed.outdated, observed.rest_api.check().warnings()));
    wanted
}

fn messages(plan: &Plan) -> String {
    let messages: Vec<&str> = plan.faults.iter().map(|fault| fault.message.as_str()).collect();
    messages.join("\n")
}

fn ready(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> Wanted {
    if let Some(fault) = plan.faults.first() {
        return Wanted::fails(READY, fault.reason, messages(plan));
    }
    if let Some(failure) = failure.filter(|failure| failure.refused) {
        return Wanted::fails(READY, "ChildRefused", failure.message.clone());
    }
    let status = observed
        .deployment
        .as_ref()
        .and_then(|deployment| deployment.status.as_ref());
    let count = |number: Option<i32>| u32::try_from(number.unwrap_or_default()).unwrap_or_default();
    let (available, updated) = (
        count(status.and_then(|status| status.available_replicas)),
        count(status.and_then(|status| status.updated_replicas)),
    );
    let wanted = observed.rest_api.spec.replicas();
    if available >= wanted && updated >= wanted && observed.deployment.is_some() {
        Wanted::holds(
            READY,
            "Ready",
            format!("{available} of {wanted} slurmrestd pods are available"),
        )
    } else {
        Wanted::fails(
            READY,
            "Starting",
            format!("{available} of {wanted} slurmrestd pods are available"),
        )
    }
}
