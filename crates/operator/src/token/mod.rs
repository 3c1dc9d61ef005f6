//! Token: a JSON web token for a Slurm user, kept fresh in a Secret.

mod apply;
mod build;
mod observe;
mod plan;
mod references;
mod status;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use api::{Condition, Token, TokenStatus};

use self::{observe::Observed, plan::Plan};
use crate::{
    finding::Finding,
    kind::{Kind, KindReconciler, Progress, Report},
    references::References,
    runtime::{Applied, Context, Writer},
};

pub(crate) type TokenReconciler = KindReconciler<Token>;

impl Kind for Token {
    const NAME: &'static str = "token";
    type Observed = Observed;
    type Plan = Plan;
    type Status = TokenStatus;

    fn references() -> References<Self> {
        references::references()
    }

    async fn observe(token: Arc<Self>, context: &Context) -> Observed {
        observe::observe(token, &context.caches, context.clock.now())
    }

    fn object(observed: &Observed) -> &Arc<Self> {
        &observed.token
    }

    fn plan(observed: &Observed, findings: &mut Vec<Finding>) -> Plan {
        plan::plan(observed, findings)
    }

    async fn apply(context: &Context, writer: &Writer, observed: &Observed, plan: &Plan) -> Applied {
        apply::apply(context, writer, &observed.token, plan).await
    }

    fn progress(_: &Observed, plan: &Plan) -> Progress {
        status::progress(plan)
    }

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn status(observed: &Observed, plan: &Plan, report: Report) -> TokenStatus {
        status::build_status(observed, plan, report)
    }

    fn requeue(_: &Observed, plan: &Plan) -> Option<Duration> {
        plan.renew_after
    }
}
