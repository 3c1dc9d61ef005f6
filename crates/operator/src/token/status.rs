//! The status of a Token. Pure.

use api::TokenStatus;

use super::{observe::Observed, plan::Plan};
use crate::{
    kind::{Progress, Report},
    unix_time::timestamp,
};

/// The status to write.
pub(super) fn build_status(observed: &Observed, plan: &Plan, report: Report) -> TokenStatus {
    let before = observed.token.status.as_ref();
    let claims = plan.claims.as_ref().filter(|_| !report.has_failed);
    let issued_at = claims.and_then(|claims| timestamp(claims.issued_at));
    TokenStatus {
        issued_at: issued_at
            .map(Into::into)
            .or_else(|| before.and_then(|before| before.issued_at.clone())),
        conditions: report.conditions,
        observed_generation: report.observed_generation,
    }
}

pub(super) fn progress(plan: &Plan) -> Progress {
    let until = plan.claims.as_ref().and_then(|claims| timestamp(claims.expires_at));
    Progress {
        ready: plan.claims.is_some() && plan.replace.is_none(),
        message: match until {
            Some(until) if plan.renew_after.is_some() => {
                format!("the token is valid until {until} and is renewed before")
            }
            Some(until) => format!("the token is valid until {until} and is not renewed: spec.refresh is false"),
            None => "the token is being issued".to_owned(),
        },
        trouble: None,
    }
}
