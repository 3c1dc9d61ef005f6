//! What is said about a Token. Pure.

use api::{TokenStatus, Validate};
use jiff::Timestamp;
use slurm::token::Claims;

use super::{observe::Observed, plan::Plan};
use crate::{
    fault::{self, Progress},
    runtime::{Failure, State, remarks, settle},
};

/// The status to write.
pub(super) fn build_status(observed: &Observed, plan: &Plan, failure: Option<&Failure>, now: Timestamp) -> TokenStatus {
    let token = observed.token.as_ref();
    let generation = token.metadata.generation.unwrap_or_default();
    let before = token.status.clone().unwrap_or_default();
    let mut wanted = fault::conditions(&plan.faults, failure, &progress(plan));
    wanted.extend(remarks(&observed.outdated, token.check().warnings()));
    let issued_at = plan.claims.as_ref().filter(|_| failure.is_none()).and_then(issued_at);
    TokenStatus {
        issued_at: issued_at.map(Into::into).or(before.issued_at),
        conditions: settle(&before.conditions, &wanted, generation, now),
        // Upstream's definitions, which may be the installed ones, drop it: it would be written again and again.
        observed_generation: observed.outdated.is_empty().then_some(generation),
    }
}

/// How things stand, for the queue.
pub(super) fn state(plan: &Plan) -> State {
    fault::state(&plan.faults, &progress(plan))
}

fn progress(plan: &Plan) -> Progress {
    let until = plan.claims.as_ref().map(|claims| second(claims.expires_at));
    Progress {
        ready: plan.claims.is_some() && plan.replace.is_none(),
        message: match until {
            Some(Some(until)) if plan.renew_after.is_some() => {
                format!("the token is good until {until} and renewed before")
            }
            Some(Some(until)) => format!("the token is good until {until} and not renewed: spec.refresh is false"),
            _ => "the token is on its way".to_owned(),
        },
        trouble: None,
    }
}

fn issued_at(claims: &Claims) -> Option<Timestamp> {
    second(claims.issued_at)
}

fn second(seconds: u64) -> Option<Timestamp> {
    Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
}
