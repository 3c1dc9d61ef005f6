//! What is said about a LoginSet. Pure.

use api::{LoginSetStatus, Validate};
use jiff::Timestamp;

use super::{observe::Observed, plan::Plan};
use crate::{
    fault::{self, Fault, Progress},
    key_mismatch::KEY_MISMATCH,
    runtime::{Failure, State, Wanted, remarks, settle},
};

/// Pods complain of what they were given.
const LOGIN_IMPAIRED: &str = "LoginImpaired";

/// The status to write.
pub(super) fn build_status(
    observed: &Observed,
    plan: &Plan,
    failure: Option<&Failure>,
    now: Timestamp,
) -> LoginSetStatus {
    let login_set = observed.login_set.as_ref();
    let generation = login_set.metadata.generation.unwrap_or_default();
    let previous = login_set
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let deployed = observed
        .deployment
        .as_ref()
        .and_then(|deployment| deployment.status.as_ref());
    LoginSetStatus {
        replicas: deployed.and_then(|status| status.replicas).unwrap_or_default(),
        selector: login_set.child_names().selector(),
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
    wanted.extend(remarks(&observed.outdated, observed.login_set.check().warnings()));
    wanted
}

fn progress(observed: &Observed) -> Progress {
    let wanted = observed.login_set.spec.replicas();
    let mut progress = Progress::of_deployment("login", observed.deployment.as_deref(), wanted);
    if !observed.complaints.is_empty() {
        let words = observed.complaints.join(" | ");
        progress.trouble = Some(Fault::new(
            LOGIN_IMPAIRED,
            format!("login pods say: {words}; look at spec.extraSshdConfig, at sssd.conf and at the servers it names"),
        ));
    }
    if let Some(message) = &observed.key_mismatch {
        progress.trouble = Some(Fault::new(KEY_MISMATCH, message.clone()));
    }
    progress
}
