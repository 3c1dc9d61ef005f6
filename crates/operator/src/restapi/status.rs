//! What is said about a RestApi. Pure.

use api::{RestApiStatus, Validate};
use jiff::Timestamp;

use super::{observe::Observed, plan::Plan};
use crate::{
    fault::{self, Progress},
    runtime::{Failure, State, Wanted, remarks, settle},
};

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
    fault::state(&plan.faults, &progress(observed))
}

fn conditions(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> Vec<Wanted> {
    let mut wanted = fault::conditions(&plan.faults, failure, &progress(observed));
    wanted.extend(remarks(&observed.outdated, observed.rest_api.check().warnings()));
    wanted
}

fn progress(observed: &Observed) -> Progress {
    let wanted = observed.rest_api.spec.replicas();
    Progress::of_deployment("slurmrestd", observed.deployment.as_deref(), wanted)
}
